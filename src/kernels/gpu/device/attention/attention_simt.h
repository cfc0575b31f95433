// Attention on ordinary cores, instantiated per type.
#pragma once
#include "attention_launch.h"
#include "tile/arch/gpu/attention_simt_backward.h"

namespace tessera::gpu_kernels {

template <class T, int Width>
TESSERA_KERNEL(tile::simt::attention_threads)
void simt_attention_kernel(const tile::AttentionProblem p, const tile::HeadsView<T> y, const tile::HeadsView<const T> q,
                           const tile::HeadsView<const T> k, const tile::HeadsView<const T> v, float* lse) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::simt::attention_forward<T, Width>(p, y, q, k, v, lse, reinterpret_cast<float*>(shared));
}
template <class T, int Width>
TESSERA_KERNEL(tile::simt::attention_threads)
void simt_keys_kernel(const tile::AttentionProblem p, const tile::AttentionGradients<T> gradients) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::simt::attention_backward_keys<T, Width>(p, gradients, reinterpret_cast<float*>(shared));
}
template <class T, int Width>
TESSERA_KERNEL(tile::simt::attention_threads)
void simt_queries_kernel(const tile::AttentionProblem p, const tile::AttentionGradients<T> gradients) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::simt::attention_backward_queries<T, Width>(p, gradients, reinterpret_cast<float*>(shared));
}

template <class T>
void launch_simt_attention(const AttentionArgs& args, Executor& executor) {
  const tile::AttentionProblem p = problem_of(args.shape);
  with_width(args.shape, [&](auto width) {
    using Sizes = tile::simt::ForwardSizes<width>;
    launch_attention_kernel("attention", simt_attention_kernel<T, width>, Sizes::blocks(p),
                            tile::simt::attention_threads, Sizes::shared_bytes, executor, p, heads_of<T>(args.y),
                            heads_of<const T>(args.q), heads_of<const T>(args.k), heads_of<const T>(args.v),
                            static_cast<float*>(args.lse));
  });
}

template <class T>
void launch_simt_attention_backward(const AttentionBackwardArgs& args, Executor& executor) {
  const tile::AttentionProblem p = problem_of(args.shape);
  const tile::AttentionGradients<T> g = start_backward<T>(p, args, executor);
  with_width(args.shape, [&](auto width) {
    using Sizes = tile::simt::BackwardSizes<width>;
    launch_attention_kernel("attention_backward_keys", simt_keys_kernel<T, width>, Sizes::key_blocks(p),
                            tile::simt::attention_threads, Sizes::shared_bytes, executor, p, g);
    launch_attention_kernel("attention_backward_queries", simt_queries_kernel<T, width>, Sizes::query_blocks(p),
                            tile::simt::attention_threads, Sizes::shared_bytes, executor, p, g);
  });
}

}  // namespace tessera::gpu_kernels
