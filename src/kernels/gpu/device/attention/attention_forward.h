// The forward kernel on matrix cores, instantiated per type.
#pragma once
#include "attention_cores.h"
#include "attention_launch.h"

namespace tessera::gpu_kernels {

template <class T, int Width>
TESSERA_ATTENTION_KERNEL((ForwardSizes<Width, T>::resident))
void attention_forward_kernel(const tile::AttentionProblem p, const tile::HeadsView<T> y,
                              const tile::HeadsView<const T> q, const tile::HeadsView<const T> k,
                              const tile::HeadsView<const T> v, float* lse) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  if constexpr (on_card<T>) cores::attention_forward<T, Width>(p, y, q, k, v, lse, reinterpret_cast<T*>(shared));
}

template <class T>
void launch_attention(const AttentionArgs& args, Executor& executor) {
  const tile::AttentionProblem p = problem_of(args.shape);
  with_width(args.shape, [&](auto width) {
    using Sizes = ForwardSizes<width, T>;
    launch_attention_kernel("attention", attention_forward_kernel<T, width>, Sizes::blocks(p), cores::attention_threads,
                            Sizes::shared_bytes, executor, p, heads_of<T>(args.y), heads_of<const T>(args.q),
                            heads_of<const T>(args.k), heads_of<const T>(args.v), static_cast<float*>(args.lse));
  });
}

}  // namespace tessera::gpu_kernels
