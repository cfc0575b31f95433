// Gradients of layer and RMS norm: those of the weights are sums down the columns, in slices of rows and then over the
// slices. Where a group keeps sums of its columns, one pass gives all of them; else dx has a pass of its own.
#include "row_works.h"
#include "slice_sums.h"

namespace tessera::gpu_kernels {

using tile::compute_t;
using tile::convert_element;

namespace {

// ---- weights

/// Slices of rows that are summed apart, from the shape alone.
struct RowSlices {
  i64 count, length;
  RowSlices(i64 rows, i64 n) {
    const i64 columns = tile::ceil_div<i64>(n, 128);
    count = tile::max<i64>(1, tile::min<i64>(tile::ceil_div<i64>(1024, columns), tile::ceil_div<i64>(rows, 32)));
    length = tile::max<i64>(1, tile::ceil_div<i64>(rows, count));
    count = tile::max<i64>(1, tile::ceil_div<i64>(rows, length));
  }
};

inline constexpr int column_ways = 8;  // rows that a block takes at once, each by a team

template <class T>
struct WeightsWork {
  i64 rows, n, slice_length, column_blocks;
  Rows<const T> dy, x;
  const compute_t<T>*mean, *rstd;
  compute_t<T>* partial;  // [slices][2][n]
};

template <class T>
TESSERA_KERNEL(256)
void weights_kernel(const WeightsWork<T> work) {
  using C = compute_t<T>;
  __shared__ C room[2][column_ways][team_lanes];
  const i64 slice = tile::block_in_grid() / work.column_blocks;
  const int lane = tile::thread_in_block() % team_lanes, way = tile::thread_in_block() / team_lanes;
  const i64 column = (tile::block_in_grid() - slice * work.column_blocks) * team_lanes + lane;
  const i64 end = tile::min<i64>(work.rows, (slice + 1) * work.slice_length);
  C sum[2] = {C(0), C(0)};
  if (column < work.n) {
#pragma unroll 8
    for (i64 r = slice * work.slice_length + way; r < end; r += column_ways) {
      const C g = convert_element<C>(work.dy[r][column]), v = convert_element<C>(work.x[r][column]);
      sum[0] = tile::fma(g, (v - entry(work.mean, r, C(0))) * work.rstd[r], sum[0]);
      sum[1] += g;
    }
  }
  tile::unroll<2>([&](auto k) { room[k][way][lane] = sum[k]; });
  tile::sync_block();
  if (way > 1 || column >= work.n) return;  // the first team adds up one sum, the second the other
  C total = room[way][0][lane];
  for (int w = 1; w < column_ways; ++w) total += room[way][w][lane];
  work.partial[(slice * 2 + way) * work.n + column] = total;
}

template <class T>
void weights_backward(const LayerNormBackwardArgs& a, Executor& executor) {
  using C = compute_t<T>;
  const RowSlices slices(a.rows, a.n);
  const WeightsWork<T> work{a.rows,
                            a.n,
                            slices.length,
                            tile::ceil_div<i64>(a.n, team_lanes),
                            rows_of<const T>(a.dy),
                            rows_of<const T>(a.x),
                            a.rms ? nullptr : static_cast<const C*>(a.mean),
                            static_cast<const C*>(a.rstd),
                            static_cast<C*>(a.workspace)};
  launch("layer_norm_backward", weights_kernel<T>, work.column_blocks * slices.count, 256, 0, executor, work);
  sum_weights(a, slices.count, 2, executor);
}

}  // namespace

void layer_norm_backward(const LayerNormBackwardArgs& a, Executor& executor) {
  // Floats, and halves of which a warp takes a row, are faster by blocks that take turns.
  const bool first = a.type == Scalar::f32 || a.n <= warp_columns;
  if (first && layer_norm_backward_turns(a, executor)) return;
  if (layer_norm_backward_sm90(a, executor)) return;
  if (layer_norm_backward_turns(a, executor)) return;
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    if (a.dweight || a.dbias) weights_backward<T>(a, executor);  // first, since dx may be dy
    if (!a.dx.data) return;
    launch_rows<T, 2, team_lanes, 512>("layer_norm_backward", RowLayout(sizeof(T), a.x, a.dy, a.dx),
                                       norm_backward_of<NormBackward<T, T, const T*, true>>(a, 0), executor);
  });
}

long long layer_norm_backward_workspace(Scalar type, long long rows, long long n) {
  const i64 turns = takes_columns(n) ? turn_blocks(rows, most_together) * 3 : 0;
  const i64 shared = tile::min<i64>(rows, most_row_slices(n)) * 2;
  return tile::max(RowSlices(rows, n).count * 2, tile::max(turns, shared)) * n * (type == Scalar::f64 ? 8 : 4);
}

}  // namespace tessera::gpu_kernels
