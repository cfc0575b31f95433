#include "kernels/args/lines.h"

#include "internal.h"
#include "tile/kernels/lines.h"
#include "tile/kernels/rows.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

constexpr i64 kCost = 4;  // of an element, beside an addition

/// Threads share the rows of results.
void sparse(const LinesArgs& a, Executor& e) {
  const tile::ExecutorRef executor(e);
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = tile::compute_t<T>;
    using V = tile::NativeVec<C>;
    const tile::SparseRows<C> rows{a.begins, a.places, static_cast<const C*>(a.weights), a.entries, a.length, a.inner};
    const T* const x = static_cast<const T*>(a.x);
    T* const out = static_cast<T*>(a.out);
    tile::for_rows(executor, a.outer * a.count, a.inner * kCost, [&](i64 row, int) {
      const i64 o = row / a.count, i = row - o * a.count;
      const T* const from = x + o * a.length * a.inner;
      T* const to = out + row * a.inner;
      if (a.inner == 1) return tile::detail::store_lanes(to, rows.template product<C>(from, i, 0, 1), 1);
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
const LinesTable lines_table{sparse};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
