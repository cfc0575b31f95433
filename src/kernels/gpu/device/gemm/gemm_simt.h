// Matrix products on ordinary cores, for operands of any type and strides.
#pragma once
#include "gemm.h"
#include "tile/arch/gpu/simt.h"

namespace tessera::gpu_kernels {

using tile::simt_depth;
using tile::simt_threads;
using tile::SimtBlock;
using tile::SimtTile;

/// An element type that is known at run time only.
struct AnyType {};

/// Rows of a, or columns of b, as tile::SimtFetch takes them.
template <class Memory>
struct SimtMatrix {
  const void* data;
  Scalar type;
  i64 first;               // offset of the first element
  i64 step[2], length[2];  // along edge and depth
  TESSERA_DEVICE i64 start() const { return first; }
  TESSERA_DEVICE i64 edges() const { return length[0]; }
  TESSERA_DEVICE i64 depth() const { return length[1]; }
  TESSERA_DEVICE i64 edge_stride() const { return step[0]; }
  TESSERA_DEVICE i64 depth_stride() const { return step[1]; }
  template <class T>
  TESSERA_DEVICE T element(i64 i) const {
    if constexpr (tile::is_same_v<Memory, AnyType>) return load_as<T>(data, type, i);
    else return tile::convert_element<T>(static_cast<const Memory*>(data)[i]);
  }
};

struct SimtGrid {
  i64 across, tiles, total;  // tiles in a row, of a product, of the batch
};

/// Sums in T; TA and TB are the types of the operands in memory.
template <class T, class TA, class TB, int Edge>
TESSERA_KERNEL(simt_threads)
void simt_kernel(const GemmArgs args, const SimtGrid grid) {
  using Block = SimtBlock<T, Edge>;
  __shared__ __attribute__((aligned(32))) char shared[Block::shared_bytes];
  for (i64 block = tile::block_in_grid(); block < grid.total; block += gridDim.x) {
    const BatchPlace place(args, block / grid.tiles);
    const i64 within = block % grid.tiles;
    const i64 row = within / grid.across * Edge, column = within % grid.across * Edge;
    const MatrixArg &ma = args.a, &mb = args.b;
    tile::SimtFetch<T, SimtMatrix<TA>, Edge> a(
        {ma.data, ma.type, place.offset(ma), {ma.row, ma.column}, {args.m, args.k}}, row);
    tile::SimtFetch<T, SimtMatrix<TB>, Edge> b(
        {mb.data, mb.type, place.offset(mb), {mb.column, mb.row}, {args.n, args.k}}, column);
    typename Block::Sums sums;
    if constexpr (on_card<T>) Block::multiply(a, b, args.k, sums, shared);
    const AnyEpilogue<T> epilogue(args, place);
    Block::store(sums, shared, [&](T sum, int i, int j) {
      if (row + i < args.m && column + j < args.n) epilogue(sum, row + i, column + j);
    });
  }
}

template <class T, class TA, class TB, int Edge>
void launch_simt(const GemmArgs& args, i64 batch, Executor& executor) {
  const i64 down = tile::ceil_div<i64>(args.m, Edge), across = tile::ceil_div<i64>(args.n, Edge);
  const SimtGrid grid{across, down * across, down * across * batch};
  launch("gemm", simt_kernel<T, TA, TB, Edge>, tile::min<i64>(grid.total, 1 << 30), simt_threads, 0, executor, args,
         grid);
}

/// Big tiles where there are enough of them for every multiprocessor.
template <class T, class TA, class TB>
void run_simt(const GemmArgs& args, Executor& executor) {
  const i64 batch = batch_count(args);
  if constexpr (sizeof(T) <= 4) {
    const i64 big = tile::ceil_div<i64>(args.m, 128) * tile::ceil_div<i64>(args.n, 128) * batch;
    if (args.m > 64 && args.n > 64 && big >= executor.multiprocessors)
      return launch_simt<T, TA, TB, 128>(args, batch, executor);
  }
  launch_simt<T, TA, TB, 64>(args, batch, executor);
}

}  // namespace tessera::gpu_kernels
