// Launches of attention in one type: by matrix cores, each direction in a translation unit of its own, and on ordinary
// cores.
#pragma once
#include "kernels/gpu/device/runtime/gpu.h"

namespace tessera::gpu_kernels {

template <class T>
void launch_attention(const AttentionArgs& args, Executor& executor);
template <class T>
void launch_attention_backward(const AttentionBackwardArgs& args, Executor& executor);

/// Whether Hopper's pipeline takes them: no mask, a positive scale, nothing expanded. `like_queries` lies as its rows
/// do: dy, or q once more.
bool sm90_takes(const AttentionShape& shape, const HeadsArg& q, const HeadsArg& k, const HeadsArg& v,
                const HeadsArg& like_queries);
template <class T>
void launch_sm90_attention(const AttentionArgs& args, Executor& executor);
template <class T>
void launch_sm90_attention_backward(const AttentionBackwardArgs& args, Executor& executor);

template <class T>
void launch_simt_attention(const AttentionArgs& args, Executor& executor);
template <class T>
void launch_simt_attention_backward(const AttentionBackwardArgs& args, Executor& executor);

}  // namespace tessera::gpu_kernels
