// Attention's backward by Hopper's pipeline.
#pragma once
#include "attention_sm90.h"
#include "kernels/args/gpu/attention_workspace.h"
#include "tile/arch/sm90/attention_backward.h"

namespace tessera::gpu_kernels {

struct Sm90BackwardWork {
  tile::sm90::BackwardMaps maps;
  tile::AttentionProblem problem;
  tile::sm90::HeadTiles tiles;
  tile::AttentionDropout dropout;
  tile::sm90::QuerySums dq;
};

/// In boxes of so many queries, and keys.
inline tile::sm90::BackwardMaps backward_maps(const AttentionBackwardArgs& args, int queries, int keys) {
  const AttentionShape& s = args.shape;
  return {heads_map(s, args.q, s.heads, s.queries, s.width, queries),
          heads_map(s, args.k, s.kv_heads, s.keys, s.width, keys),
          heads_map(s, args.v, s.kv_heads, s.keys, s.value_width, keys),
          heads_map(s, args.dy, s.heads, s.queries, s.value_width, queries)};
}

template <class T, class Sizes>
TESSERA_KERNEL(Sizes::threads, 1)
void sm90_backward_kernel(const __grid_constant__ Sm90BackwardWork work,
                          const __grid_constant__ tile::AttentionGradients<T> g) {
  extern __shared__ __attribute__((aligned(1024))) char shared[];
  tile::sm90::wait_on_dependent_grids();
  tile::sm90::AttentionBackward<T, Sizes>::run(work.problem, work.tiles, work.dropout, work.maps, g, work.dq, shared);
}

template <class T, class Sizes>
TESSERA_KERNEL(256)
void sm90_query_gradients_kernel(const tile::AttentionProblem p, const tile::HeadsView<T> dq, const float* sums) {
  tile::sm90::wait_on_dependent_grids();
  tile::sm90::store_query_gradients<T, Sizes>(p, dq, sums);
}

template <class T, class Sizes>
void launch_sm90_backward(const AttentionBackwardArgs& args, Executor& executor) {
  const AttentionShape& s = args.shape;
  const AttentionRoom room(s);
  char* base = reinterpret_cast<char*>(args.row_sums);
  int* counters = reinterpret_cast<int*>(base + room.counters_at);
  Sm90BackwardWork work;
  work.problem = problem_of(s);
  work.dropout = dropout_of(s);
  const auto g = start_backward<T>(work.problem, args, executor, counters, room.blocks + 1);
  work.maps = backward_maps(args, Sizes::step, Sizes::own);
  const i64 row_bytes = (s.width + s.value_width + 2 * Sizes::width) * 2;  // queries, dy and sums of dq
  // Where tiles of a head wait for each other longest, more heads side by side are worth more than the cache.
  const bool waits = !args.in_any_order && s.causal && s.queries > 2048;
  work.tiles = head_tiles(s.batch * s.kv_heads, s.keys, Sizes::own, s.queries * s.heads / s.kv_heads * row_bytes, 1,
                          false, waits ? 80 : 20);
  work.dq = {reinterpret_cast<float*>(base + room.sums_at), counters + 1, counters, !args.in_any_order};
  const i64 blocks = tile::min<i64>(executor.multiprocessors, static_cast<i64>(work.tiles.tiles) * work.tiles.heads);
  launch_attention_early("attention_backward", sm90_backward_kernel<T, Sizes>, blocks, Sizes::threads,
                         Sizes::shared_bytes, executor, work, g);
  launch_early("attention_query_gradients", sm90_query_gradients_kernel<T, Sizes>, room.blocks, 256, 0, 1, executor,
               work.problem, g.dq, static_cast<const float*>(work.dq.sums));
}

/// Of heads of more than 128 and up to 256 columns.
template <class T>
void launch_wide_sm90_attention_backward(const AttentionBackwardArgs& args, Executor& executor);

template <class T>
void launch_sm90_attention_backward(const AttentionBackwardArgs& args, Executor& executor) {
  const i64 width = tile::max(args.shape.width, args.shape.value_width);
  if (width > 128) return launch_wide_sm90_attention_backward<T>(args, executor);
  const bool wide = width > 64;
  if (args.shape.dropout > 0)
    return wide ? launch_sm90_backward<T, tile::sm90::BackwardSizes<128, 64, 2, 1, true>>(args, executor)
                : launch_sm90_backward<T, tile::sm90::BackwardSizes<64, 128, 2, 2, true>>(args, executor);
  wide ? launch_sm90_backward<T, tile::sm90::BackwardSizes<128, 64, 2, 1>>(args, executor)
       : launch_sm90_backward<T, tile::sm90::BackwardSizes<64, 128, 2, 2>>(args, executor);
}

}  // namespace tessera::gpu_kernels
