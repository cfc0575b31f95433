// Gradients of layer and RMS norm of floats on Hopper.
#include "norm_backward_sm90.h"

namespace tessera::gpu_kernels {

i64 norm_backward_f32_sm90(const LayerNormBackwardArgs& a, int sums, Executor& executor) {
  i64 slices = cluster_norm_backward<float, 1, 4, 512>(a, sums, executor);
  if (slices == 0) slices = cluster_norm_backward<float, 2, 6, 384>(a, sums, executor);
  if (slices == 0) slices = cluster_norm_backward<float, 8, 5, 384>(a, sums, executor);
  return slices;
}

}  // namespace tessera::gpu_kernels
