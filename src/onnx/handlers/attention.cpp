// Attention and what goes with it: rotary positions, linear attention, caches.
#include <cmath>

#include "onnx/handler.h"
#include "onnx/handlers/heads.h"
#include "ops/attention_heads.h"
#include "tessera/ops_attention.h"

namespace tessera::onnx {
namespace {

struct Heads {
  Tensor q, k, v;
  bool packed = false;  // tokens came with their heads in one row
};
Heads heads_of(const Call& c) {
  Heads h{c.in(0), c.in(1), c.in(2)};
  h.packed = h.q.dim() == 3;
  if (h.packed) {
    const int64_t heads = c.integer("q_num_heads", 0), kv_heads = c.integer("kv_num_heads", 0);
    h.q = by_heads(c, h.q, heads);
    h.k = by_heads(c, h.k, kv_heads);
    h.v = by_heads(c, h.v, kv_heads);
  }
  return h;
}

Values attention(const Call& c) {
  const Heads h = heads_of(c);
  const int64_t mode = c.integer("qk_matmul_output_mode", 0);
  if (mode < 0 || mode > 3) c.fail("qk_matmul_output_mode {} is not known", mode);
  constexpr Scores modes[] = {Scores::Products, Scores::Bounded, Scores::Masked, Scores::Weights};
  const double scale = c.real("scale", 1 / std::sqrt(static_cast<double>(h.q.size(-1))));
  const CachedAttention a = cached_attention(scale == 0 ? h.q * 0.0 : h.q, h.k, h.v,
                                             {.past_keys = c.optional(4),
                                              .past_values = c.optional(5),
                                              .mask = c.optional(3),
                                              .causal = c.flag("is_causal", false),
                                              .left_window = c.integer("left_window_size", -1),
                                              .right_window = c.integer("right_window_size", -1),
                                              .lengths = c.optional(6),
                                              .scale = scale,
                                              .soft_cap = c.real("softcap", 0),
                                              .scores = c.wants(3) ? modes[mode] : Scores::None});
  return {h.packed ? from_heads(a.output) : a.output, a.keys, a.values, a.scores.defined() ? Value(a.scores) : Value()};
}

/// Scores and weights pass through graphs of the model.
Values flex_attention(const Call& c) {
  const Tensor &q = c.in(0), &k = c.in(1), &v = c.in(2);
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4 || k.size(1) == 0 || q.size(1) % k.size(1))
    c.fail("{} and {} are no heads", describe(q), describe(k));
  const int64_t times = q.size(1) / k.size(1);
  const DType dtype = q.dtype(), compute = dtype == Float64 ? Float64 : Float32;
  const double scale = c.real("scale", 1 / std::sqrt(static_cast<double>(q.size(3))));
  Tensor s = matmul(cast(q, compute), transpose(cast(repeat_heads(k, times), compute), -2, -1)) * scale;
  const auto passed = [&](const char* graph, const Tensor& t) {
    if (!c.has_graph(graph)) return t;
    const Values out = c.run(graph, {t});
    if (out.size() != 1) c.fail("graph {} gives {} outputs instead of one", graph, out.size());
    return out[0].tensor();
  };
  s = passed("score_mod", s);
  const Tensor weights = passed("prob_mod", softmax(s, -1));
  return {cast(matmul(cast(weights, compute), cast(repeat_heads(v, times), compute)), dtype)};
}

Values turn_by_position(const Call& c) {
  const Tensor& in = c.in(0);
  const bool packed = in.dim() == 3;
  const Tensor x = packed ? by_heads(c, in, c.integer("num_heads", 0)) : in;
  if (x.dim() != 4) c.fail("{} are no heads", describe(x));
  const int64_t d = x.size(3), turned = c.integer("rotary_embedding_dim", 0) ? c.integer("rotary_embedding_dim", 0) : d;
  if (turned < 2 || turned > d || turned % 2) c.fail("{} of {} elements turn", turned, d);
  const auto angles = [&](size_t i) {  // [batch, tokens, turned / 2]
    return slice(c.has(3) ? embedding(c.in(3), c.in(i)) : c.in(i), -1, 0, turned / 2);
  };
  const Tensor y = rotary_embedding(x, angles(1), angles(2), c.flag("interleaved", false));
  return {packed ? from_heads(y) : y};
}

Values attend_linearly(const Call& c) {
  const int64_t heads = c.integer("q_num_heads", 0), kv_heads = c.integer("kv_num_heads", 0);
  const std::string rule = c.text("update_rule", "gated_delta");
  const bool gated = rule.starts_with("gated"), delta = rule.ends_with("delta");
  if (!gated && !delta && rule != "linear") c.fail("update_rule {} is not known", rule);
  const auto wide = [&](size_t i, int64_t h) { return by_heads(c, c.in(i), h); };
  const LinearAttention a = linear_attention(wide(0, heads), wide(1, kv_heads), wide(2, kv_heads),
                                             {.state = c.optional(3),
                                              .decay = gated ? wide(4, kv_heads) : Tensor(),
                                              .beta = delta ? wide(5, c.in(5).size(2) == 1 ? 1 : kv_heads) : Tensor(),
                                              .scale = c.real("scale", 0)});
  return {from_heads(a.output), cast(a.state, (c.has(3) ? c.in(3) : c.in(0)).dtype())};
}

Values causal_convolution(const Call& c) {
  const Tensor &x = c.in(0), &weight = c.in(1);
  if (x.dim() != 3 || weight.dim() != 3) c.fail("{} and {} are no lines", describe(x), describe(weight));
  const int64_t before = weight.size(2) - 1, channels = x.size(1);
  const Tensor past = c.has(3) ? c.in(3) : zeros({x.size(0), channels, before}, x.dtype(), x.device());
  const Tensor all = concat({past, x}, 2);
  Tensor y = squeeze(conv2d(unsqueeze(all, 2), unsqueeze(weight, 2), c.optional(2), {.groups = channels}), 2);
  const std::string activation = c.text("activation", "none");
  if (activation == "silu" || activation == "swish") y = silu(y);
  else if (activation != "none") c.fail("activation {} is not known", activation);
  return {y, slice(all, 2, all.size(2) - before, all.size(2))};
}

/// From a place of its own for each sample on.
Values scatter_into_cache(const Call& c) {
  const std::string mode = c.text("mode", "linear");
  if (mode != "linear" && mode != "circular") c.fail("mode {} is not known", mode);
  const std::vector<int64_t> begins = c.ints(2, std::vector<int64_t>(static_cast<size_t>(c.in(0).size(0)), 0));
  return {write_cache(c.in(0), c.in(1), begins, c.integer("axis", -2), mode == "circular")};
}

constexpr Entry entries[] = {
    {"Attention", 23, attention},
    {"CausalConvWithState", 27, causal_convolution},
    {"FlexAttention", 1, flex_attention, "ai.onnx.preview"},
    {"LinearAttention", 27, attend_linearly},
    {"RotaryEmbedding", 23, turn_by_position},
    {"TensorScatter", 24, scatter_into_cache},
};

}  // namespace

std::span<const Entry> attention_handlers() { return entries; }

}  // namespace tessera::onnx
