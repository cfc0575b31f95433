// Attention's backward by Hopper's pipeline.
#include "attention_sm90.h"
#include "tile/arch/sm90/attention_backward.h"

namespace tessera::gpu_kernels {
namespace {

struct BackwardWork {
  tile::sm90::BackwardMaps maps;
  tile::AttentionProblem problem;
  tile::sm90::HeadTiles tiles;
};

/// Backward: AttentionBackwardKeys or AttentionBackwardQueries of tile/arch/sm90.
template <class T, class Sizes, template <class, class> class Backward>
TESSERA_KERNEL(Sizes::threads, 1)
void sm90_backward_kernel(const __grid_constant__ BackwardWork work,
                          const __grid_constant__ tile::AttentionGradients<T> g) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  Backward<T, Sizes>::run(work.problem, work.tiles, work.maps, g, shared);
}

template <class T, class Sizes, template <class, class> class Backward>
void launch_part(const char* what, const BackwardWork& work, const tile::AttentionGradients<T>& g, Executor& executor) {
  const i64 blocks = tile::min<i64>(executor.multiprocessors, static_cast<i64>(work.tiles.tiles) * work.tiles.heads);
  launch_attention_kernel(what, sm90_backward_kernel<T, Sizes, Backward>, blocks, Sizes::threads, Sizes::shared_bytes,
                          executor, work, g);
}

/// Maps whose boxes are of so many queries and keys.
tile::sm90::BackwardMaps maps_of(const AttentionBackwardArgs& args, int queries, int keys) {
  const AttentionShape& s = args.shape;
  return {heads_map(s, args.q, s.heads, s.queries, s.width, queries),
          heads_map(s, args.k, s.kv_heads, s.keys, s.width, keys),
          heads_map(s, args.v, s.kv_heads, s.keys, s.value_width, keys),
          heads_map(s, args.dy, s.heads, s.queries, s.value_width, queries)};
}

template <class T, class Keys, class Queries>
void launch_backward(const AttentionBackwardArgs& args, Executor& executor) {
  const AttentionShape& s = args.shape;
  const i64 copies = s.heads / s.kv_heads, line = (s.width + s.value_width) * 2;
  BackwardWork work;
  work.problem = problem_of(s);
  const auto g = start_backward<T>(work.problem, args, executor);
  work.maps = maps_of(args, Keys::step, Keys::own);
  work.tiles = head_tiles(s.batch * s.kv_heads, s.keys, Keys::own, s.queries * copies * line, 1, false);
  launch_part<T, Keys, tile::sm90::AttentionBackwardKeys>("attention_backward_keys", work, g, executor);
  work.maps = maps_of(args, Queries::own, Queries::step);
  work.tiles = head_tiles(s.batch * s.heads, s.queries, Queries::own, s.keys * line, copies, s.causal);
  launch_part<T, Queries, tile::sm90::AttentionBackwardQueries>("attention_backward_queries", work, g, executor);
}

template <int Width, int Step, int Stages, int OwnStages>
using KeySizes = tile::sm90::BackwardSizes<Width, 2, Step, Stages, OwnStages, true>;
template <int Width, int Step, int Stages, int OwnStages>
using QuerySizes = tile::sm90::BackwardSizes<Width, 2, Step, Stages, OwnStages, false>;

}  // namespace

template <class T>
void launch_sm90_attention_backward(const AttentionBackwardArgs& args, Executor& executor) {
  const i64 widest = tile::max(args.shape.width, args.shape.value_width);
  if (widest <= 64) launch_backward<T, KeySizes<64, 64, 4, 2>, QuerySizes<64, 128, 3, 2>>(args, executor);
  else launch_backward<T, KeySizes<128, 64, 2, 2>, QuerySizes<128, 64, 3, 1>>(args, executor);
}
template void launch_sm90_attention_backward<f16>(const AttentionBackwardArgs&, Executor&);
template void launch_sm90_attention_backward<bf16>(const AttentionBackwardArgs&, Executor&);

}  // namespace tessera::gpu_kernels
