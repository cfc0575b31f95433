// Gradients of batch norm on any card, and of elements of any type and place.
#include "line_norm_backward.h"

namespace tessera::gpu_kernels {

void batch_norm_backward(const BatchNormBackwardArgs& args, Executor& executor) {
  if (!batch_norm_backward_sm90(args, executor)) line_norm_backward_by<InTurn, true>(args, executor);
}

}  // namespace tessera::gpu_kernels
