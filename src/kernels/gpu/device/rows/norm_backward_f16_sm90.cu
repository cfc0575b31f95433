// Gradients of layer and RMS norm of f16 on Hopper.
#include "norm_backward_sm90.h"

namespace tessera::gpu_kernels {

i64 norm_backward_f16_sm90(const LayerNormBackwardArgs& a, int sums, Executor& executor) {
  return norm_backward_of_halves<f16>(a, sums, executor);
}

}  // namespace tessera::gpu_kernels
