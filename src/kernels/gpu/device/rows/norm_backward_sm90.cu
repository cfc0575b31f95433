// Gradients of layer and RMS norm on Hopper, and the sums of what slices of rows give the weights.
#include "norm_backward_sm90.h"
#include "slice_sums.h"

namespace tessera::gpu_kernels {
namespace {

/// Launched before slices are there, for which it waits.
TESSERA_KERNEL(sum_threads)
void weights_sum_early_kernel(const SliceSums<float> work) {
  tile::sm90::launch_dependent_grids();
  tile::sm90::wait_on_dependent_grids();
  work.run();
}

}  // namespace

bool layer_norm_backward_sm90(const LayerNormBackwardArgs& a, Executor& executor) {
  const bool plain = a.type != Scalar::f64 && a.weight_type == a.type && a.y_type == a.type && a.dx.data &&
                     !a.addend.data && !a.dbranch.data && !a.dbranch_bias;
  if (!plain || a.rows == 0 || a.n < 512 || a.n > most_cluster_columns || !is_hopper()) return false;
  const int sums = a.dbias ? 2 : a.dweight ? 1 : 0;
  const auto by_type = a.type == Scalar::f32   ? norm_backward_f32_sm90
                       : a.type == Scalar::f16 ? norm_backward_f16_sm90
                                               : norm_backward_bf16_sm90;
  const i64 slices = by_type(a, sums, executor);
  if (slices > 0 && sums > 0) sum_slices_sm90(SliceSums<float>(a, slices, sums), executor);
  return slices > 0;
}

bool sum_slices_sm90(const SliceSums<float>& work, Executor& executor) {
  if (!is_hopper()) return false;
  launch_early("layer_norm_backward", weights_sum_early_kernel, work.blocks(), sum_threads, 0, 1, executor, work);
  return true;
}

}  // namespace tessera::gpu_kernels
