#include "kernels/args/lines.h"

#include "internal.h"
#include "tile/kernels/lines.h"
#include "tile/kernels/rows.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

constexpr i64 kCost = 4;  // of an element, beside an addition

constexpr int together = 8;  // lines

/// Of `count` lines that lie one behind the other, `together` or fewer: they share each place and weight.
template <class C, class T, class Count>
void along_lines(const tile::SparseRows<C>& rows, i64 results, Count count, const T* x, T* out) {
  for (i64 i = 0; i < results; ++i) {
    C sum[together] = {};
    rows.each(i, [&](i64 place, C weight) {
      for (int k = 0; k < count; ++k) sum[k] += weight * tile::convert_element<C>(x[k * rows.length + place]);
    });
    for (int k = 0; k < count; ++k) out[k * results + i] = tile::convert_element<T>(sum[k]);
  }
}

/// Threads share lines where x is one row, and else the rows of results.
void sparse(const LinesArgs& a, Executor& e) {
  const tile::ExecutorRef executor(e);
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = tile::compute_t<T>;
    using V = tile::NativeVec<C>;
    const tile::SparseRows<C> rows{a.begins, a.places, static_cast<const C*>(a.weights), a.entries, a.length, a.inner};
    const T* const x = static_cast<const T*>(a.x);
    T* const out = static_cast<T*>(a.out);
    if (a.inner == 1)
      return tile::for_rows(executor, (a.outer + together - 1) / together, together * a.count * kCost, [&](i64 i, int) {
        const T* const from = x + i * together * a.length;
        T* const to = out + i * together * a.count;
        const i64 left = a.outer - i * together;
        if (left >= together) along_lines(rows, a.count, tile::Int<together>{}, from, to);
        else
          for (i64 k = 0; k < left; ++k)
            along_lines(rows, a.count, tile::Int<1>{}, from + k * a.length, to + k * a.count);
      });
    tile::for_rows(executor, a.outer * a.count, a.inner * kCost, [&](i64 row, int) {
      const i64 o = row / a.count, i = row - o * a.count;
      const T* const from = x + o * a.length * a.inner;
      T* const to = out + row * a.inner;
      i64 j = 0;
      for (; j + V::lanes <= a.inner; j += V::lanes)
        tile::detail::store_lanes(to + j, rows.template product<V>(from, i, j, tile::AllLanes{}), tile::AllLanes{});
      const int rest = static_cast<int>(a.inner - j);
      if (rest > 0) tile::detail::store_lanes(to + j, rows.template product<V>(from, i, j, rest), rest);
    });
  });
}

}  // namespace

extern const LinesTable lines_table;
const LinesTable lines_table{sparse, nullptr};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
