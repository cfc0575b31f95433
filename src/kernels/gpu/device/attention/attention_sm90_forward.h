// How attention's forward by Hopper's pipeline is launched.
#pragma once
#include "attention_sm90.h"

namespace tessera::gpu_kernels {

struct ForwardWork {
  TensorMap q, k, v;
  tile::AttentionProblem problem;
  tile::sm90::HeadTiles tiles;
  tile::AttentionDropout dropout;
};

template <class T, class Sizes>
TESSERA_KERNEL(Sizes::threads, 1)
void sm90_attention_kernel(const __grid_constant__ ForwardWork work, const tile::HeadsView<T> y, float* lse) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::sm90::wait_on_dependent_grids();
  tile::sm90::AttentionForward<T, Sizes>::run(work.problem, work.tiles, work.dropout, work.q, work.k, work.v, y, lse,
                                              shared);
}

template <class T, class Sizes>
void launch_forward(const AttentionArgs& args, Executor& executor) {
  const AttentionShape& s = args.shape;
  ForwardWork work;
  work.problem = problem_of(s);
  work.dropout = dropout_of(s);
  // Long tiles, of fewer heads, would be shared out less evenly.
  const i64 megabytes = s.queries <= 1024 ? 20 : 40;
  work.tiles = head_tiles(s.batch * s.heads, s.queries, Sizes::queries, s.keys * (s.width + s.value_width) * 2,
                          s.heads / s.kv_heads, s.causal, megabytes);
  work.q = heads_map(s, args.q, s.heads, s.queries, s.width, Sizes::queries);
  work.k = heads_map(s, args.k, s.kv_heads, s.keys, s.width, Sizes::keys);
  work.v = heads_map(s, args.v, s.kv_heads, s.keys, s.value_width, Sizes::keys);
  const i64 blocks = tile::min<i64>(executor.multiprocessors, static_cast<i64>(work.tiles.tiles) * work.tiles.heads);
  launch_attention_early("attention", sm90_attention_kernel<T, Sizes>, blocks, Sizes::threads, Sizes::shared_bytes,
                         executor, work, heads_of<T>(args.y), static_cast<float*>(args.lse));
}

/// Of heads of more than 128 and up to 256 columns.
template <class T>
void launch_wide_sm90_attention(const AttentionArgs& args, Executor& executor);

}  // namespace tessera::gpu_kernels
