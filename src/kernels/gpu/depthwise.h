// Convolutions on GPUs of every channel by itself.
#pragma once
#include "kernels/args/gpu/tables.h"
#include "kernels/shared/workspace.h"

namespace tessera::gpu_kernels {

template <ConvPart part>
void depthwise(const Call& call, Workspace& workspace);
/// Of windows for which it runs at the speed of memory; of planes, several results of a channel or the filters'
/// gradient; and of all.
template <ConvPart part>
Reason takes_depthwise(const Call& call);
template <ConvPart part>
Reason takes_depthwise_windows(const Call& call);
template <ConvPart part>
Reason takes_any_depthwise(const Call& call);

}  // namespace tessera::gpu_kernels
