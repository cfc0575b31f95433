// Gradients of layer and RMS norm of rows of whole packs: groups take one row after the other and keep what these give
// the weights in registers.
#include "any_columns.h"
#include "row_works.h"
#include "slice_sums.h"

namespace tessera::gpu_kernels {
namespace {

template <class C>
TESSERA_KERNEL(sum_threads)
void weights_sum_kernel(const SliceSums<C> work) {
  work.run();
}

/// Halves of short rows: a warp takes a row, a block adds up what its four have.
template <class T, bool adds>
void warps_backward(const LayerNormBackwardArgs& a, int sums, Executor& executor) {
  using Work = NormBackward<T, T, AnyColumns, adds>;
  const i64 blocks = turn_blocks(a.rows, 3);
  launch("layer_norm_backward", turns_kernel<Work, tile::FourWarps, 8, warp_columns / 256, Turns::several, 3>, blocks,
         tile::FourWarps::threads, 0, executor, norm_backward_of<Work>(a, sums));
  if (sums) sum_weights(a, blocks, sums, executor);
}

template <class T, class Y>
void turns_backward(const LayerNormBackwardArgs& a, Executor& executor) {
  const int sums = a.dbranch_bias ? 3 : a.dweight || a.dbias ? 2 : 0;
  if constexpr (tile::is_same_v<T, Y> && sizeof(T) == 2)
    if (a.n <= warp_columns && !a.dbranch.data && sums < 3)
      return a.addend.data ? warps_backward<T, true>(a, sums, executor) : warps_backward<T, false>(a, sums, executor);
  using Work = NormBackward<T, Y, AnyColumns, true, true>;
  with_blocks<T>(a.n, [&](auto block, auto width, auto held, int threads) {
    using Block = decltype(block);
    constexpr bool few = width * held == 4;  // columns of a thread
    const i64 blocks = turn_blocks(a.rows, !few ? 512 / threads : threads > 192 ? 3 : most_together);
    launch("layer_norm_backward", turns_kernel < Work, Block, width, held, Turns::ahead, few ? 3 : 512 / Block::most >,
           blocks, threads, 0, executor, norm_backward_of<Work>(a, sums));
    if (sums) sum_weights(a, blocks, sums, executor);
  });
}

/// Whether rows are whole packs.
bool takes_turns(const LayerNormBackwardArgs& a) {
  if (a.type == Scalar::f64 || !takes_columns(a.n) || reinterpret_cast<size_t>(a.weight) % 16 != 0) return false;
  const auto whole = [](const RowArg& row, Scalar type) {
    return !row.data || (reinterpret_cast<size_t>(row.data) % 16 == 0 && row.pitch * size_of(type) % 16 == 0);
  };
  return whole(a.x, a.type) && whole(a.dx, a.type) && whole(a.addend, a.type) && whole(a.dy, a.y_type) &&
         whole(a.dbranch, a.y_type);
}

}  // namespace

bool layer_norm_backward_turns(const LayerNormBackwardArgs& a, Executor& executor) {
  if (!takes_turns(a)) return false;
  if (a.type == Scalar::f16) turns_backward<f16, f16>(a, executor);
  else if (a.type == Scalar::bf16) turns_backward<bf16, bf16>(a, executor);
  else if (a.y_type == Scalar::f32) turns_backward<float, float>(a, executor);
  else if (a.y_type == Scalar::f16) turns_backward<float, f16>(a, executor);
  else turns_backward<float, bf16>(a, executor);
  return true;
}

void sum_weights(const LayerNormBackwardArgs& a, i64 slices, int sums, Executor& executor) {
  const auto sum = [&](auto type) {
    const SliceSums<typename decltype(type)::type> work(a, slices, sums);
    launch("layer_norm_backward", weights_sum_kernel<typename decltype(type)::type>, work.blocks(), sum_threads, 0,
           executor, work);
  };
  if (a.type == Scalar::f64) sum(Type<double>{});
  else if (!sum_slices_sm90(SliceSums<float>(a, slices, sums), executor)) sum(Type<float>{});
}

}  // namespace tessera::gpu_kernels
