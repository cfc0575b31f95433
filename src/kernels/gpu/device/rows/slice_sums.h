// Gradients of a norm's weights, from what slices of rows give them.
#pragma once
#include "norm.h"

namespace tessera::gpu_kernels {

inline constexpr int sum_threads = 512;

/// Sums over slices, by several ways to each column, in the order of slices and ways.
template <class C>
struct SliceSums {
  const C* partial;  // [slices][sums][n]
  i64 slices, n;
  int sums, ways;
  void* to[3];  // each may be missing
  Scalar type[3];

  SliceSums(const LayerNormBackwardArgs& a, i64 slices, int sums)
      : partial(static_cast<const C*>(a.workspace)),
        slices(slices),
        n(a.n),
        sums(sums),
        ways(sums * a.n < 32768 ? 16 : 2),  // columns of long rows are enough for all threads
        to{a.dweight, a.dbias, a.dbranch_bias},
        type{a.weight_type, a.weight_type, a.branch_bias_type} {}

  i64 blocks() const { return tile::ceil_div<i64>(sums * n, sum_threads / ways); }

  TESSERA_DEVICE void run() const {
    __shared__ C room[sum_threads];
    const int thread = tile::thread_in_block(), columns = sum_threads / ways, way = thread / columns;
    const i64 i = tile::block_in_grid() * columns + thread % columns;
    C sum = C(0);
    if (i < sums * n) {
#pragma unroll 16
      for (i64 slice = way; slice < slices; slice += ways) sum += partial[slice * sums * n + i];
    }
    room[thread] = sum;
    tile::sync_block();
    const int s = static_cast<int>(i / n);
    if (way > 0 || s >= sums) return;
    for (int w = 1; w < ways; ++w) sum += room[w * columns + thread];
    void* const out = s == 0 ? to[0] : s == 1 ? to[1] : to[2];
    if (out) store_as<C>(out, s == 0 ? type[0] : s == 1 ? type[1] : type[2], i - s * n, sum);
  }
};

/// Of floats; of doubles where weights are.
void sum_weights(const LayerNormBackwardArgs& args, i64 slices, int sums, Executor& executor);

/// Launched before the kernel that makes the slices has ended; false: not on Hopper.
#if defined(__HIP__)
inline bool sum_slices_sm90(const SliceSums<float>&, Executor&) { return false; }
#else
bool sum_slices_sm90(const SliceSums<float>& work, Executor& executor);
#endif

/// Rows of whole packs, by groups that take turns and keep sums of their columns; false: it does not take these.
bool layer_norm_backward_turns(const LayerNormBackwardArgs& args, Executor& executor);
inline constexpr int warp_columns = 1024;  // of halves that a warp holds
/// Blocks that take some rows after the others: as many as a large card runs at once, at most four to each
/// multiprocessor.
inline i64 turn_blocks(i64 rows, i64 together) {
  return tile::max<i64>(1, tile::min<i64>(132 * together, tile::ceil_div<i64>(rows, 4)));
}
inline constexpr i64 most_together = 4;

}  // namespace tessera::gpu_kernels
