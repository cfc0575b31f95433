// The backward kernels, instantiated per type.
#pragma once
#include "attention_launch.h"
#include "tile/arch/sm80/attention_backward.h"

namespace tessera::gpu_kernels {

template <class T>
using Gradients = tile::sm80::AttentionGradients<T>;

template <class T, int Width>
TESSERA_KERNEL(tile::sm80::attention_threads)
void attention_keys_kernel(const tile::AttentionProblem p, const Gradients<T> gradients) {
  extern __shared__ __align__(128) char shared[];
  tile::sm80::attention_backward_keys<T, Width>(p, gradients, reinterpret_cast<T*>(shared));
}
template <class T, int Width>
TESSERA_KERNEL(tile::sm80::attention_threads)
void attention_queries_kernel(const tile::AttentionProblem p, const Gradients<T> gradients) {
  extern __shared__ __align__(128) char shared[];
  tile::sm80::attention_backward_queries<T, Width>(p, gradients, reinterpret_cast<T*>(shared));
}
template <class T>
TESSERA_KERNEL(256)
void attention_row_sums_kernel(const tile::AttentionProblem p, const tile::HeadsView<const T> dy,
                               const tile::HeadsView<const T> y, float* sums) {
  tile::sm80::attention_row_sums<T>(p, dy, y, sums);
}

template <class T>
void launch_attention_backward(const AttentionBackwardArgs& args, Executor& executor) {
  const tile::AttentionProblem p = problem_of(args.shape);
  const Gradients<T> g{heads_of<T>(args.dq),
                       heads_of<T>(args.dk),
                       heads_of<T>(args.dv),
                       heads_of<const T>(args.dy),
                       heads_of<const T>(args.q),
                       heads_of<const T>(args.k),
                       heads_of<const T>(args.v),
                       static_cast<const float*>(args.lse),
                       args.row_sums};
  const i64 row_blocks = tile::ceil_div(p.batch * p.heads * p.queries, i64(tile::sm80::rows_of_block));
  launch("attention_row_sums", attention_row_sums_kernel<T>, row_blocks, 256, 0, executor, p, g.dy,
         heads_of<const T>(args.y), args.row_sums);
  with_width(args.shape, [&](auto width) {
    using Sizes = tile::sm80::BackwardSizes<width>;
    launch_attention_kernel("attention_backward_keys", attention_keys_kernel<T, width>, Sizes::key_blocks(p),
                            Sizes::shared_bytes, executor, p, g);
    launch_attention_kernel("attention_backward_queries", attention_queries_kernel<T, width>, Sizes::query_blocks(p),
                            Sizes::shared_bytes, executor, p, g);
  });
}

}  // namespace tessera::gpu_kernels
