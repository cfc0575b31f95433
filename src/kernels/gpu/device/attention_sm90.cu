// Which attention goes to Hopper's pipeline, and its forward.
#include "attention_sm90.h"

namespace tessera::gpu_kernels {
namespace {

// ---- what it takes

bool map_takes(const AttentionShape& s, const HeadsArg& a, i64 heads, i64 rows) {
  constexpr i64 farthest = i64{1} << 38, most = (i64{1} << 31) - 1024;
  const i64 lengths[] = {s.batch, heads, rows};
  for (int d = 0; d < 3; ++d)
    if (lengths[d] > most || (lengths[d] > 1 && (a.strides[d] <= 0 || a.strides[d] >= farthest))) return false;
  return true;
}

}  // namespace

bool sm90_takes(const AttentionShape& s, const HeadsArg& q, const HeadsArg& k, const HeadsArg& v,
                const HeadsArg& like_queries) {
  constexpr i64 most = (i64{1} << 31) - 1024;
  return is_hopper() && encode_function() && s.whole_units && s.mask_kind == AttentionShape::Mask::none &&
         (s.dropout == 0 || s.keys % 4 == 0) && s.scale > 0 && s.width > 0 && s.value_width > 0 &&
         s.batch * s.heads * (tile::ceil_div(tile::max(s.queries, s.keys), 64LL) + 132) < most &&
         map_takes(s, q, s.heads, s.queries) && map_takes(s, like_queries, s.heads, s.queries) &&
         map_takes(s, k, s.kv_heads, s.keys) && map_takes(s, v, s.kv_heads, s.keys);
}

// ---- forward

namespace {

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
  tile::sm90::AttentionForward<T, Sizes>::run(work.problem, work.tiles, work.dropout, work.q, work.k, work.v, y, lse,
                                              shared);
}

template <class T, class Sizes>
void launch_forward(const AttentionArgs& args, Executor& executor) {
  const AttentionShape& s = args.shape;
  ForwardWork work;
  work.problem = problem_of(s);
  work.dropout = dropout_of(s);
  work.tiles = head_tiles(s.batch * s.heads, s.queries, Sizes::queries, s.keys * (s.width + s.value_width) * 2,
                          s.heads / s.kv_heads, s.causal);
  work.q = heads_map(s, args.q, s.heads, s.queries, s.width, Sizes::queries);
  work.k = heads_map(s, args.k, s.kv_heads, s.keys, s.width, Sizes::keys);
  work.v = heads_map(s, args.v, s.kv_heads, s.keys, s.value_width, Sizes::keys);
  const i64 blocks = tile::min<i64>(executor.multiprocessors, static_cast<i64>(work.tiles.tiles) * work.tiles.heads);
  launch_attention_kernel("attention", sm90_attention_kernel<T, Sizes>, blocks, Sizes::threads, Sizes::shared_bytes,
                          executor, work, heads_of<T>(args.y), static_cast<float*>(args.lse));
}

}  // namespace

template <class T>
void launch_sm90_attention(const AttentionArgs& args, Executor& executor) {
  const AttentionShape& s = args.shape;
  const bool wide = tile::max(s.width, s.value_width) > 64;
  if (s.dropout > 0)
    return wide ? launch_forward<T, tile::sm90::ForwardSizes<128, 2, 128, 2, 1, true, true>>(args, executor)
                : launch_forward<T, tile::sm90::ForwardSizes<64, 2, 128, 3, 2, true, true>>(args, executor);
  if (wide) return launch_forward<T, tile::sm90::ForwardSizes<128, 2, 128, 2, 1, true>>(args, executor);
  // Where causality leaves few keys, fewer queries a block waste less.
  if (s.causal && s.queries <= 2048)
    return launch_forward<T, tile::sm90::ForwardSizes<64, 2, 128, 3, 2, true>>(args, executor);
  launch_forward<T, tile::sm90::ForwardSizes<64, 3, 128, 2, 2, false>>(args, executor);
}
template void launch_sm90_attention<f16>(const AttentionArgs&, Executor&);
template void launch_sm90_attention<bf16>(const AttentionArgs&, Executor&);

}  // namespace tessera::gpu_kernels
