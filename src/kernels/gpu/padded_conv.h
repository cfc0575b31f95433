// Convolutions of halves whose channels or filters are no multiple of eight, such as three colours: operands are padded
// by zeros, channels last, and the lists pick again.
#pragma once
#include "kernels/shared/conv.h"

namespace tessera::gpu_kernels {

enum class PaddedPass { Forward, InputGrad, WeightGrad };

template <PaddedPass pass>
Reason takes_padded(const Call& call);
template <PaddedPass pass>
void plan_padded(const Call& call, Workspace& workspace);

}  // namespace tessera::gpu_kernels
