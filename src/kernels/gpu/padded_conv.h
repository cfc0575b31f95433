// Convolutions of halves whose channels or filters are no multiple of eight, such as three colours: operands are padded
// by zeros, channels last, and the lists pick again. So they do for each group by itself, where no kernel takes all.
#pragma once
#include "kernels/shared/conv.h"

namespace tessera::gpu_kernels {

enum class PaddedPass { Forward, InputGrad, WeightGrad };

template <PaddedPass pass>
Reason takes_padded(const Call& call);
template <PaddedPass pass>
void plan_padded(const Call& call, Workspace& workspace);

/// Operands with gaps, such as padded rows, by copies without, which the vendor's kernels take.
template <PaddedPass pass>
Reason takes_copies(const Call& call);
template <PaddedPass pass>
void plan_copies(const Call& call, Workspace& workspace);

template <PaddedPass pass>
Reason takes_groups(const Call& call);
template <PaddedPass pass>
void plan_groups(const Call& call, Workspace& workspace);

}  // namespace tessera::gpu_kernels
