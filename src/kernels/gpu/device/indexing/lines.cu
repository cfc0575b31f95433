// Products with a sparse matrix along a dim: a thread for each element.
#include "kernels/args/lines.h"

#include "kernels/gpu/device/runtime/gpu.h"
#include "tile/kernels/lines.h"

namespace tessera::gpu_kernels {
namespace {

template <class T, class C>
TESSERA_KERNEL(256)
void sparse_lines_kernel(i64 total, i64 count, const tile::SparseRows<C> rows, const T* x, T* out) {
  for (i64 n = first_index(); n < total; n += index_step()) {
    const i64 row = tile::quotient(n, rows.inner), o = tile::quotient(row, count);
    const T* const from = x + o * rows.length * rows.inner;
    tile::detail::store_lanes(out + n, rows.template product<C>(from, row - o * count, n - row * rows.inner, 1), 1);
  }
}

void sparse(const LinesArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = tile::compute_t<T>;
    const tile::SparseRows<C> rows{a.begins, a.places, static_cast<const C*>(a.weights), a.entries, a.length, a.inner};
    const i64 total = a.outer * a.count * a.inner;
    launch("sparse_lines", sparse_lines_kernel<T, C>, grid_for(total, 256, executor), 256, 0, executor, total,
           i64{a.count}, rows, static_cast<const T*>(a.x), static_cast<T*>(a.out));
  });
}

}  // namespace

const LinesTable* device_lines_table() {
  static const LinesTable table{sparse};
  return &table;
}

}  // namespace tessera::gpu_kernels
