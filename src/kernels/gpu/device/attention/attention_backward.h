// The backward kernels on matrix cores, instantiated per type.
#pragma once
#include "attention_cores.h"
#include "attention_launch.h"

namespace tessera::gpu_kernels {

template <class T>
using Gradients = tile::AttentionGradients<T>;

template <class T, int Width>
TESSERA_ATTENTION_KERNEL((BackwardSizes<Width, T>::resident))
void attention_keys_kernel(const tile::AttentionProblem p, const Gradients<T> gradients) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  if constexpr (on_card<T>) cores::attention_backward_keys<T, Width>(p, gradients, reinterpret_cast<T*>(shared));
}
template <class T, int Width>
TESSERA_ATTENTION_KERNEL((BackwardSizes<Width, T>::query_resident))
void attention_queries_kernel(const tile::AttentionProblem p, const Gradients<T> gradients) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  if constexpr (on_card<T>) cores::attention_backward_queries<T, Width>(p, gradients, reinterpret_cast<T*>(shared));
}
template <class T>
void launch_attention_backward(const AttentionBackwardArgs& args, Executor& executor) {
  const tile::AttentionProblem p = problem_of(args.shape);
  const Gradients<T> g = start_backward<T>(p, args, executor);
  with_width(args.shape, [&](auto width) {
    using Sizes = BackwardSizes<width, T>;
    launch_attention_kernel("attention_backward_keys", attention_keys_kernel<T, width>, Sizes::key_blocks(p),
                            cores::attention_threads, Sizes::shared_bytes, executor, p, g);
    launch_attention_kernel("attention_backward_queries", attention_queries_kernel<T, width>, Sizes::query_blocks(p),
                            cores::attention_threads, Sizes::query_bytes, executor, p, g);
  });
}

}  // namespace tessera::gpu_kernels
