// Which attention goes to Hopper's pipeline, and its forward for heads of up to 128 columns.
#include "attention_sm90_forward.h"

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
         s.alibi == 0 && (s.dropout == 0 || s.keys % 4 == 0) && s.scale > 0 && s.width > 0 && s.value_width > 0 &&
         s.batch * s.heads * (tile::ceil_div(tile::max(s.queries, s.keys), 64LL) + 132) < most &&
         map_takes(s, q, s.heads, s.queries) && map_takes(s, like_queries, s.heads, s.queries) &&
         map_takes(s, k, s.kv_heads, s.keys) && map_takes(s, v, s.kv_heads, s.keys);
}

template <class T>
void launch_sm90_attention(const AttentionArgs& args, Executor& executor) {
  const AttentionShape& s = args.shape;
  const i64 width = tile::max(s.width, s.value_width);
  if (width > 128) return launch_wide_sm90_attention<T>(args, executor);
  if (s.dropout > 0)
    return width > 64 ? launch_forward<T, tile::sm90::ForwardSizes<128, 2, 128, 2, 1, true>>(args, executor)
                      : launch_forward<T, tile::sm90::ForwardSizes<64, 2, 128, 3, 2, true>>(args, executor);
  if (width > 64) return launch_forward<T, tile::sm90::ForwardSizes<128, 2, 128, 2, 1, false, true>>(args, executor);
  launch_forward<T, tile::sm90::ForwardSizes<64, 3, 128, 4, 2, false, true>>(args, executor);
}
template void launch_sm90_attention<f16>(const AttentionArgs&, Executor&);
template void launch_sm90_attention<bf16>(const AttentionArgs&, Executor&);

}  // namespace tessera::gpu_kernels
