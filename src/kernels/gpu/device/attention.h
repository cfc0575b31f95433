// Launches of attention in one type: by matrix cores, each direction in a translation unit of its own, and on ordinary
// cores.
#pragma once
#include "gpu.h"

namespace tessera::gpu_kernels {

/// Whole: args.shape.whole_units.
template <class T, bool Whole>
void launch_attention(const AttentionArgs& args, Executor& executor);
template <class T, bool Whole>
void launch_attention_backward(const AttentionBackwardArgs& args, Executor& executor);

template <class T>
void launch_simt_attention(const AttentionArgs& args, Executor& executor);
template <class T>
void launch_simt_attention_backward(const AttentionBackwardArgs& args, Executor& executor);

}  // namespace tessera::gpu_kernels
