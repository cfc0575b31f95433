// Attention and what goes with it: rotary positions, linear attention, caches.
#include <cmath>
#include <optional>

#include "onnx/handler.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

constexpr double kInfinity = __builtin_inf();

/// [batch, tokens, heads * d] -> [batch, heads, tokens, d].
Tensor by_heads(const Call& c, const Tensor& x, int64_t heads) {
  if (x.dim() != 3 || heads <= 0 || x.size(2) % heads) c.fail("{} has no {} heads", describe(x), heads);
  return transpose(reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}), 1, 2);
}
Tensor from_heads(const Tensor& x) {
  const Tensor turned = transpose(x, 1, 2);
  return reshape(turned, {turned.size(0), turned.size(1), turned.size(2) * turned.size(3)});
}
Tensor repeat_heads(const Tensor& x, int64_t times) {
  if (times == 1) return x;
  const Shape wide{x.size(0), x.size(1), times, x.size(2), x.size(3)};
  return reshape(expand(unsqueeze(x, 2), wide), {x.size(0), x.size(1) * times, x.size(2), x.size(3)});
}
Tensor counting(int64_t n, Device device) { return arange(0, static_cast<double>(n), 1, Int64, device); }

struct Heads {
  Tensor q, k, v;
  bool packed = false;  // tokens came with their heads in one row
  int64_t past = 0;
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
  if (h.q.dim() != 4 || h.k.dim() != 4 || h.v.dim() != 4)
    c.fail("{} and {} are no heads", describe(h.q), describe(h.k));
  if (h.k.size(1) == 0 || h.q.size(1) % h.k.size(1)) c.fail("{} heads on {}", h.q.size(1), h.k.size(1));
  if (c.has(4) != c.has(5)) c.fail("past keys and past values come together");
  if (c.has(4)) {
    h.past = c.in(4).size(2);
    h.k = concat({c.in(4), h.k}, 2);
    h.v = concat({c.in(5), h.v}, 2);
  }
  return h;
}

/// Which keys a query may see by its position alone: bool, to broadcast to [batch, heads, queries, keys]; undefined
/// where all.
Tensor visible_keys(const Call& c, const Heads& h) {
  const int64_t queries = h.q.size(2), keys = h.k.size(2);
  const Device device = h.q.device();
  const bool causal = c.flag("is_causal", false);
  const int64_t left = c.integer("left_window_size", -1), right = c.integer("right_window_size", -1);
  Tensor visible;
  const auto only = [&](const Tensor& t) { visible = visible.defined() ? logical_and(visible, t) : t; };
  const Tensor key = reshape(counting(keys, device), {1, 1, 1, keys});
  if (causal || left >= 0 || right >= 0) {
    Tensor at = reshape(counting(queries, device), {1, 1, queries, 1}) + static_cast<double>(h.past);
    if (c.has(6) && !c.has(4))  // the cache ends with these queries
      at = add(at, reshape(cast(c.in(6), Int64) + static_cast<double>(-queries), {Dim(-1), 1, 1, 1}));
    if (causal) only(le(key, at));
    if (left >= 0) only(ge(key, at + static_cast<double>(-left)));
    if (right >= 0) only(le(key, at + static_cast<double>(right)));
  }
  if (c.has(6)) only(lt(key, reshape(cast(c.in(6), Int64), {Dim(-1), 1, 1, 1})));
  return visible;
}
/// The model's own mask, as long as there are keys.
Tensor mask_of(const Call& c, int64_t keys) {
  Tensor mask = c.optional(3);
  if (!mask.defined()) return mask;
  const int64_t missing = keys - mask.size(-1);
  if (missing < 0) c.fail("a mask of {} for {} keys", describe(mask), keys);
  if (missing > 0) {
    const bool whether = mask.dtype() == Bool;
    const Tensor wide = pad(whether ? cast(mask, UInt8) : mask, {0}, {missing}, whether ? 0 : -kInfinity);
    mask = whether ? ne(wide, full({}, 0, UInt8, wide.device())) : wide;
  }
  while (mask.dim() < 4) mask = unsqueeze(mask, 0);
  return mask;
}

/// What is added to scores, in the type that these are computed in; undefined where nothing is.
Tensor bias_of(const Tensor& visible, const Tensor& mask, DType dtype) {
  const auto hides = [&](const Tensor& sees, const Tensor& otherwise) {
    return where(sees, otherwise, full({}, -kInfinity, dtype, sees.device()));
  };
  Tensor bias;
  if (mask.defined()) bias = mask.dtype() == Bool ? hides(mask, full({}, 0, dtype, mask.device())) : cast(mask, dtype);
  if (visible.defined()) bias = hides(visible, bias.defined() ? bias : full({}, 0, dtype, visible.device()));
  return bias;
}
/// Rows that see no key give zeros.
Tensor without_blind_rows(const Tensor& y, const Tensor& bias) {
  if (!bias.defined()) return y;
  const Tensor blind = eq(amax(bias, {-1}, true), full({}, -kInfinity, bias.dtype(), bias.device()));
  return where(blind, full({}, 0, y.dtype(), y.device()), y);
}

Values attention(const Call& c) {
  const Heads h = heads_of(c);
  const DType dtype = h.q.dtype(), compute = dtype == Float64 ? Float64 : Float32;
  const double scale = c.real("scale", 1 / std::sqrt(static_cast<double>(h.q.size(3)))), cap = c.real("softcap", 0);
  const Tensor visible = visible_keys(c, h), mask = mask_of(c, h.k.size(2));
  Tensor y, scores;
  if (cap == 0 && !c.wants(3) && h.v.size(3) == h.q.size(3) && scale != 0) {
    const bool both = visible.defined() && mask.defined(), bools = !mask.defined() || mask.dtype() == Bool;
    const Tensor bias = both || !bools ? bias_of(visible, mask, dtype) : visible.defined() ? visible : mask;
    y = scaled_dot_product_attention(h.q, h.k, h.v, {.mask = bias, .scale = scale});
    y = without_blind_rows(y, bias_of(visible, mask, compute));
  } else {
    const int64_t times = h.q.size(1) / h.k.size(1), mode = c.integer("qk_matmul_output_mode", 0);
    const Tensor k = repeat_heads(h.k, times), v = repeat_heads(h.v, times);
    Tensor s = matmul(cast(h.q, compute), transpose(cast(k, compute), -2, -1)) * scale;
    scores = s;
    if (cap != 0) s = tanh(s * (1 / cap)) * cap;
    if (mode == 1) scores = s;
    const Tensor bias = bias_of(visible, mask, compute);
    if (bias.defined()) s = add(s, bias);
    if (mode == 2) scores = s;
    const Tensor weights = without_blind_rows(softmax(s, -1), bias);
    if (mode == 3) scores = weights;
    y = cast(matmul(weights, cast(v, compute)), dtype);
    scores = cast(scores, dtype);
  }
  return {h.packed ? from_heads(y) : y, h.k, h.v, scores.defined() ? Value(scores) : Value()};
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
  if (c.has_graph("score_mod")) s = c.run("score_mod", {s}).at(0).tensor();
  Tensor weights = softmax(s, -1);
  if (c.has_graph("prob_mod")) weights = c.run("prob_mod", {weights}).at(0).tensor();
  return {cast(matmul(cast(weights, compute), cast(repeat_heads(v, times), compute)), dtype)};
}

Values rotary_embedding(const Call& c) {
  const Tensor& in = c.in(0);
  const bool packed = in.dim() == 3;
  const Tensor x = packed ? by_heads(c, in, c.integer("num_heads", 0)) : in;
  if (x.dim() != 4) c.fail("{} are no heads", describe(x));
  const int64_t d = x.size(3), turned = c.integer("rotary_embedding_dim", 0) ? c.integer("rotary_embedding_dim", 0) : d;
  if (turned > d || turned % 2) c.fail("{} of {} elements turn", turned, d);
  const auto angles = [&](size_t i) {  // [batch, 1, tokens, turned / 2]
    Tensor t = c.in(i);
    if (c.has(3)) t = embedding(c.in(3), t);
    return unsqueeze(slice(t, -1, 0, turned / 2), 1);
  };
  const Tensor cosine = angles(1), sine = angles(2), part = slice(x, 3, 0, turned);
  const bool interleaved = c.flag("interleaved", false);
  const Tensor a = interleaved ? slice(part, 3, 0, turned, 2) : slice(part, 3, 0, turned / 2),
               b = interleaved ? slice(part, 3, 1, turned, 2) : slice(part, 3, turned / 2, turned);
  const Tensor first = sub(mul(cosine, a), mul(sine, b)), second = add(mul(sine, a), mul(cosine, b));
  Tensor y = interleaved ? reshape(stack({first, second}, 4), part.shape()) : concat({first, second}, 3);
  if (turned < d) y = concat({y, slice(x, 3, turned, d)}, 3);
  return {packed ? from_heads(y) : y};
}

Values linear_attention(const Call& c) {
  const int64_t heads = c.integer("q_num_heads", 0), kv_heads = c.integer("kv_num_heads", 0);
  const std::string rule = c.text("update_rule", "gated_delta");
  const bool gated = rule.starts_with("gated"), delta = rule.ends_with("delta");
  if (!gated && !delta && rule != "linear") c.fail("update_rule {} is not known", rule);
  if (kv_heads <= 0 || heads % kv_heads) c.fail("{} heads on {}", heads, kv_heads);
  const auto wide = [&](const Tensor& t, int64_t h) { return cast(by_heads(c, t, h), Float32); };
  const Tensor q = wide(c.in(0), heads), k = wide(c.in(1), kv_heads), v = wide(c.in(2), kv_heads);
  const int64_t batch = q.size(0), tokens = q.size(2), d = k.size(3), dv = v.size(3);
  Tensor decay, beta;
  if (gated) decay = exp(wide(c.in(4), kv_heads));  // [batch, kv_heads, tokens, d or 1]
  if (delta) beta = wide(c.in(5), c.in(5).size(2) == 1 ? 1 : kv_heads);
  const double asked = c.real("scale", 0), scale = asked != 0 ? asked : 1 / std::sqrt(static_cast<double>(d));
  const DType kept = c.has(3) ? c.in(3).dtype() : c.in(0).dtype();
  Tensor state = c.has(3) ? cast(c.in(3), Float32) : zeros({batch, kv_heads, d, dv}, Float32, q.device());
  Tensors out;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto at = [&](const Tensor& x) { return slice(x, 2, t, t + 1); };
    const Tensor key = transpose(at(k), 2, 3);  // [batch, kv_heads, d, 1]
    if (gated) state = mul(state, transpose(at(decay), 2, 3));
    Tensor value = at(v);
    if (delta) value = mul(at(beta), sub(value, matmul(at(k), state)));
    state = add(state, mul(key, value));
    out.push_back(matmul(at(q), repeat_heads(state, heads / kv_heads)) * scale);
  }
  const Tensor y = tokens ? concat(out, 2) : zeros({batch, heads, 0, dv}, Float32, q.device());
  return {cast(from_heads(y), c.in(0).dtype()), cast(state, kept)};
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

/// Writes `update` into a cache from a place of its own for each sample on.
Values write_cache(const Call& c) {
  const Tensor &past = c.in(0), &update = c.in(1);
  int64_t axis = c.integer("axis", -2);
  if (axis < 0) axis += past.dim();
  if (axis <= 0 || axis >= past.dim() || update.dim() != past.dim()) c.fail("axis {} of {}", axis, describe(past));
  const int64_t room = past.size(axis), tokens = update.size(axis), batch = past.size(0);
  const std::vector<int64_t> begins = c.ints(2, std::vector<int64_t>(static_cast<size_t>(batch), 0));
  const std::string mode = c.text("mode", "linear");
  if (mode != "linear" && mode != "circular") c.fail("mode {} is not known", mode);
  if (static_cast<int64_t>(begins.size()) != batch) c.fail("{} places for a batch of {}", begins.size(), batch);
  Tensors samples;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t begin = begins[static_cast<size_t>(b)];
    if (begin < 0 || tokens > room || (mode == "linear" && begin > room - tokens))
      c.fail("{} tokens from {} on leave the cache of {}", tokens, begin, room);
    const Tensor mine = slice(past, 0, b, b + 1), fresh = slice(update, 0, b, b + 1);
    const int64_t first = begin % std::max<int64_t>(room, 1), ends = first + tokens,
                  over = std::max<int64_t>(ends - room, 0);
    samples.push_back(concat({slice(fresh, axis, tokens - over, tokens), slice(mine, axis, over, first),
                              slice(fresh, axis, 0, tokens - over), slice(mine, axis, std::max(first, ends), room)},
                             axis));
  }
  return {concat(samples, 0)};
}

constexpr Entry entries[] = {
    {"Attention", 23, attention},
    {"CausalConvWithState", 27, causal_convolution},
    {"FlexAttention", 1, flex_attention, "ai.onnx.preview"},
    {"LinearAttention", 27, linear_attention},
    {"RotaryEmbedding", 23, rotary_embedding},
    {"TensorScatter", 24, write_cache},
};

}  // namespace

std::span<const Entry> attention_handlers() { return entries; }

}  // namespace tessera::onnx
