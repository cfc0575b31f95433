// Attention with a cache, windows and bounded scores.
#include <algorithm>
#include <cmath>

#include "ops/attention_heads.h"
#include "tessera/ops_attention.h"

namespace tessera {
namespace {

constexpr std::string_view kCached = "cached_attention";

Tensor counting(int64_t n, Device device) { return arange(0, static_cast<double>(n), 1, Int64, device); }

// Which keys a query may see by its position alone: bool, to broadcast to [batch, heads, queries, keys]; undefined
// where all.
Tensor visible_keys(const CachedAttentionOptions& o, int64_t queries, int64_t keys, Device device) {
  const int64_t past = o.past_keys.defined() ? o.past_keys.size(2) : 0;
  const Tensor key = reshape(counting(keys, device), {1, 1, 1, keys});
  const Tensor lengths = o.lengths.defined() ? reshape(cast(o.lengths, Int64), {Dim(-1), 1, 1, 1}) : Tensor();
  Tensor visible;
  const auto only = [&](const Tensor& t) { visible = visible.defined() ? logical_and(visible, t) : t; };
  if (o.causal || o.left_window >= 0 || o.right_window >= 0) {
    Tensor at = reshape(counting(queries, device), {1, 1, queries, 1}) + static_cast<double>(past);
    if (lengths.defined() && !o.past_keys.defined()) at = add(at, lengths + static_cast<double>(-queries));
    if (o.causal) only(le(key, at));
    if (o.left_window >= 0) only(ge(key, at + static_cast<double>(-o.left_window)));
    if (o.right_window >= 0) only(le(key, at + static_cast<double>(o.right_window)));
  }
  if (lengths.defined()) only(lt(key, lengths));
  return visible;
}

// As long as there are keys.
Tensor whole_mask(Tensor mask, int64_t keys) {
  if (!mask.defined() || mask.dim() == 0) return mask;
  const int64_t missing = mask.size(-1) == 1 ? 0 : keys - mask.size(-1);
  if (missing < 0 || mask.dim() > 4) fail(kCached, "a mask of {} for {} keys", describe(mask), keys);
  if (missing > 0) {
    const bool whether = mask.dtype() == Bool;
    const Tensor wide = pad(whether ? cast(mask, UInt8) : mask, {0}, {missing}, whether ? 0 : -INFINITY);
    mask = whether ? ne(wide, full({}, 0, UInt8, wide.device())) : wide;
  }
  return mask;
}

// What is added to scores, in the dtype that these are computed in; undefined where nothing is.
Tensor bias_of(const Tensor& visible, const Tensor& mask, DType dtype) {
  const auto hides = [&](const Tensor& sees, const Tensor& otherwise) {
    return where(sees, otherwise, full({}, -INFINITY, dtype, sees.device()));
  };
  Tensor bias;
  if (mask.defined()) bias = mask.dtype() == Bool ? hides(mask, full({}, 0, dtype, mask.device())) : cast(mask, dtype);
  if (visible.defined()) bias = hides(visible, bias.defined() ? bias : full({}, 0, dtype, visible.device()));
  return bias;
}
// Rows that see no key give zeros.
Tensor without_blind_rows(const Tensor& y, const Tensor& bias) {
  if (!bias.defined()) return y;
  const Tensor blind = eq(amax(bias, {-1}, true), full({}, -INFINITY, bias.dtype(), bias.device()));
  return where(blind, full({}, 0, y.dtype(), y.device()), y);
}

// Score by score, in f32.
void attend_in_parts(CachedAttention& a, const Tensor& q, const CachedAttentionOptions& o, double scale,
                     const Tensor& bias) {
  const DType dtype = q.dtype(), compute = dtype == Float64 ? Float64 : Float32;
  const int64_t times = q.size(1) / a.keys.size(1);
  const auto keep = [&](Scores which, const Tensor& s) {
    if (o.scores == which) a.scores = cast(s, dtype);
  };
  Tensor s = matmul(cast(q, compute), transpose(cast(repeat_heads(a.keys, times), compute), -2, -1)) * scale;
  keep(Scores::Products, s);
  if (o.soft_cap != 0) s = tanh(s * (1 / o.soft_cap)) * o.soft_cap;
  keep(Scores::Bounded, s);
  if (bias.defined()) s = add(s, bias);
  keep(Scores::Masked, s);
  const Tensor weights = without_blind_rows(softmax(s, -1), bias);
  keep(Scores::Weights, weights);
  a.output = cast(matmul(weights, cast(repeat_heads(a.values, times), compute)), dtype);
}

void require_options(const Tensor& q, const CachedAttentionOptions& o) {
  if (o.past_keys.defined() != o.past_values.defined()) fail(kCached, "past keys and past values come together");
  if (!(o.soft_cap >= 0)) fail(kCached, "a cap of {}", o.soft_cap);
  if (o.lengths.defined() && (is_floating(o.lengths.dtype()) || o.lengths.numel() != q.size(0)))
    fail(kCached, "lengths must be integers of shape [{}], not {}", q.size(0), describe(o.lengths));
}

}  // namespace

CachedAttention cached_attention(const Tensor& q, const Tensor& k, const Tensor& v, const CachedAttentionOptions& o) {
  require_heads(kCached, q, k, v);
  require_options(q, o);
  CachedAttention a{{}, k, v, {}};
  if (o.past_keys.defined()) {
    a.keys = concat({o.past_keys, k}, 2);
    a.values = concat({o.past_values, v}, 2);
  }
  const int64_t keys = a.keys.size(2);
  const double scale = o.scale != 0 ? o.scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
  const Tensor visible = visible_keys(o, q.size(2), keys, q.device()), mask = whole_mask(o.mask, keys);
  const Tensor bias = bias_of(visible, mask, q.dtype() == Float64 ? Float64 : Float32);
  if (o.soft_cap != 0 || o.scores != Scores::None || v.size(3) != q.size(3) || keys == 0) {
    attend_in_parts(a, q, o, scale, bias);
    return a;
  }
  const bool both = visible.defined() && mask.defined(), bools = !mask.defined() || mask.dtype() == Bool;
  const Tensor given = both || !bools ? bias_of(visible, mask, q.dtype()) : visible.defined() ? visible : mask;
  a.output =
      without_blind_rows(scaled_dot_product_attention(q, a.keys, a.values, {.mask = given, .scale = scale}), bias);
  return a;
}

Tensor write_cache(const Tensor& cache, const Tensor& update, const std::vector<int64_t>& begins, int64_t dim,
                   bool circular) {
  constexpr std::string_view op = "write_cache";
  if (dim < 0) dim += cache.dim();
  if (dim <= 0 || dim >= cache.dim() || update.dim() != cache.dim())
    fail(op, "dim {} of {}, and {}", dim, describe(cache), describe(update));
  const int64_t room = cache.size(dim), tokens = update.size(dim), batch = cache.size(0);
  if (static_cast<int64_t>(begins.size()) != batch || update.size(0) != batch)
    fail(op, "{} places and {} for a batch of {}", begins.size(), describe(update), batch);
  Tensors samples;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t begin = begins[static_cast<size_t>(b)];
    if (begin < 0 || tokens > room || (!circular && begin > room - tokens))
      fail(op, "{} tokens from {} on leave the cache of {}", tokens, begin, room);
    const Tensor mine = slice(cache, 0, b, b + 1), fresh = slice(update, 0, b, b + 1);
    const int64_t first = begin % std::max<int64_t>(room, 1), end = first + tokens,
                  over = std::max<int64_t>(end - room, 0);
    samples.push_back(concat({slice(fresh, dim, tokens - over, tokens), slice(mine, dim, over, first),
                              slice(fresh, dim, 0, tokens - over), slice(mine, dim, std::max(first, end), room)},
                             dim));
  }
  return samples.empty() ? cache : concat(samples, 0);
}

}  // namespace tessera
