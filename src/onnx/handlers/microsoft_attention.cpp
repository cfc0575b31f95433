// ONNX Runtime's attention: packed projections, masks of several forms, and caches that are filled in place.
#include <cmath>

#include "onnx/handlers/heads.h"
#include "onnx/handlers/microsoft.h"
#include "tessera/ops.h"
#include "tessera/ops_attention.h"

namespace tessera::onnx {
namespace {

double scale_of(const Call& c, const Tensor& q) {
  const double scale = c.real("scale", 0);
  return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(q.size(-1)));
}

/// Whether each of `keys` is before the ends, and from the starts on: bool [batch, 1, 1, keys].
Tensor between(const Tensor& lengths, int64_t batch, int64_t keys) {
  const Tensor at = arange(0, static_cast<double>(keys), 1, lengths.dtype(), lengths.device());
  const auto column = [&](int64_t i) {
    return reshape(slice(lengths, 0, i * batch, (i + 1) * batch), {batch, 1, 1, 1});
  };
  const Tensor before = lt(at, column(0));
  return lengths.size(0) == batch ? before : logical_and(before, ge(at, column(1)));
}
/// What a mask adds to scores [batch, heads, queries, keys]: 0 where it is set, `mask_filter_value` elsewhere.
Tensor added_mask(const Call& c, size_t i, int64_t batch, int64_t queries, int64_t keys, DType dtype) {
  const Tensor& mask = c.in(i);
  const bool of_lengths = mask.dim() == 1 && (mask.size(0) == batch || mask.size(0) == 2 * batch);
  const bool of_keys = mask.dim() == 2 && mask.size(0) == batch && mask.size(1) == keys;
  const bool of_pairs = mask.dim() == 3 && mask.size(0) == batch && mask.size(1) == queries && mask.size(2) == keys;
  if (!of_lengths && !of_keys && !of_pairs)
    c.refuse("a mask {} for {} samples of {} queries and {} keys is not supported", describe(mask), batch, queries,
             keys);
  const auto number = [&](double value) { return full({}, value, dtype, mask.device()); };
  Tensor set = of_lengths ? between(mask, batch, keys) : ne(mask, full({}, 0, mask.dtype(), mask.device()));
  if (of_keys) set = unsqueeze(set, 1);
  if (!of_lengths) set = unsqueeze(set, 1);
  return tessera::where(set, number(0), number(c.real("mask_filter_value", -10000)));
}
/// The sum of two, of which each may be undefined.
Tensor both(const Tensor& a, const Tensor& b) { return !a.defined() ? b : !b.defined() ? a : add(a, b); }

/// A part of a list of biases, or of rows of projections.
Tensor part(const Tensor& t, int64_t begin, int64_t size) { return slice(t, -1, begin, begin + size); }

}  // namespace

Values attend_packed(const Call& c, const Tensor& projected, const AttentionInputs& at) {
  if (c.flag("do_rotary", false) || c.flag("past_present_share_buffer", false))
    c.refuse("rotary positions and shared buffers are not supported");
  const int64_t width = projected.size(-1), heads = c.integer("num_heads", 0);
  const std::vector<int64_t> sizes = c.integers("qkv_hidden_sizes", {width / 3, width / 3, width / 3});
  if (sizes.size() != 3 || sizes[0] <= 0 || sizes[1] != sizes[0] || sizes[2] <= 0 || sizes[0] > width ||
      sizes[2] > width || 2 * sizes[0] + sizes[2] != width)
    c.fail("queries, keys and values of {} do not make up {}", sizes.empty() ? 0 : sizes[0], describe(projected));
  const Tensor q = by_heads(c, part(projected, 0, sizes[0]), heads),
               k = by_heads(c, part(projected, sizes[0], sizes[0]), heads),
               v = by_heads(c, part(projected, 2 * sizes[0], sizes[2]), heads);
  CachedAttentionOptions o{.causal = c.flag("unidirectional", false), .scale = scale_of(c, q)};
  if (c.has(at.past)) {
    const Tensor& past = c.in(at.past);
    if (past.dim() != 5 || past.size(0) != 2) c.fail("{} are no past keys and values", describe(past));
    o.past_keys = cast(select(past, 0, 0), k.dtype());
    o.past_values = cast(select(past, 0, 1), v.dtype());
  }
  const int64_t keys = k.size(2) + (o.past_keys.defined() ? o.past_keys.size(2) : 0);
  if (c.has(at.mask)) o.mask = added_mask(c, at.mask, q.size(0), q.size(2), keys, q.dtype());
  if (c.has(at.scores_bias)) o.mask = both(o.mask, c.in(at.scores_bias));
  const CachedAttention a = cached_attention(q, k, v, o);
  return {from_heads(a.output), c.wants(1) ? Value(stack({a.keys, a.values}, 0)) : Value()};
}

namespace {

Values attention(const Call& c) {
  const Tensor& weight = c.in(1);
  if (c.in(0).dim() != 3 || weight.dim() != 2)
    c.fail("{} and {} are no projection", describe(c.in(0)), describe(weight));
  Tensor projected = matmul(c.in(0), weight);
  if (c.has(2)) projected = add(projected, c.in(2));
  return attend_packed(c, projected, {.mask = 3, .past = 4, .scores_bias = 5});
}

/// Queries, keys and values of MultiHeadAttention by heads, with their biases.
struct Heads {
  Tensor q, k, v;
};
Heads heads_of(const Call& c) {
  const int64_t heads = c.integer("num_heads", 0);
  const Tensor bias = c.optional(3);
  if (c.in(0).dim() == 5) {  // [batch, tokens, heads, 3, d]
    if (c.has(1) || c.has(2) || c.in(0).size(3) != 3 || c.in(0).size(2) != heads)
      c.fail("{} are no packed queries, keys and values of {} heads", describe(c.in(0)), heads);
    const auto one = [&](int64_t i) {
      Tensor x = select(c.in(0), 3, i);
      const int64_t width = x.size(2) * x.size(3);
      if (bias.defined()) x = add(x, reshape(part(bias, i * width, width), {x.size(2), x.size(3)}));
      return transpose(x, 1, 2);
    };
    return {one(0), one(1), one(2)};
  }
  const Tensor& query = c.in(0);
  if (query.dim() != 3) c.fail("input 0 must be [batch, tokens, heads * d], not {}", describe(query));
  const auto biased = [&](const Tensor& x, int64_t begin) {
    return by_heads(c, bias.defined() ? add(x, part(bias, begin, x.size(2))) : x, heads);
  };
  const int64_t width = query.size(2);
  const Tensor q = biased(query, 0);
  if (c.has(1) && c.in(1).dim() == 5) {  // [batch, keys, heads, 2, d]
    if (c.has(2) || bias.defined() || c.in(1).size(3) != 2 || c.in(1).size(2) != heads)
      c.fail("{} are no packed keys and values of {} heads without a bias", describe(c.in(1)), heads);
    return {q, transpose(select(c.in(1), 3, 0), 1, 2), transpose(select(c.in(1), 3, 1), 1, 2)};
  }
  if (!c.has(1) || !c.has(2)) c.fail("keys or values are missing");
  if (c.in(1).dim() == 4) return {q, c.in(1), c.in(2)};  // of another sequence, by heads already
  return {q, biased(c.in(1), width), biased(c.in(2), 2 * width)};
}
Values multi_head(const Call& c) {
  if (c.has(8) || c.has(9)) c.refuse("shared buffers of keys and values are not supported");
  if (c.wants(3)) c.refuse("scores as an output are not supported");
  const Heads h = heads_of(c);
  CachedAttentionOptions o{.past_keys = c.optional(6),
                           .past_values = c.optional(7),
                           .causal = c.flag("unidirectional", false),
                           .scale = scale_of(c, h.q)};
  const int64_t keys = h.k.size(2) + (c.has(6) ? c.in(6).size(2) : 0);
  if (c.has(4)) o.mask = added_mask(c, 4, h.q.size(0), h.q.size(2), keys, h.q.dtype());
  if (c.has(5)) o.mask = both(o.mask, c.in(5));
  const CachedAttention a = cached_attention(h.q, h.k, h.v, o);
  return {from_heads(a.output), a.keys, a.values};
}

// ---- grouped queries

void refuse_rare_forms(const Call& c) {
  for (const size_t i : {12, 13, 16})
    if (c.has(i)) c.refuse("quantised keys and padded chunks are not supported");
  if (c.text("k_quant_type", "NONE") != "NONE" || c.text("v_quant_type", "NONE") != "NONE")
    c.refuse("quantised keys and values are not supported");
  if (c.flag("sliding_window_cache", false) || c.integer("qk_output", 0) != 0 || c.wants(3))
    c.refuse("caches of windows and scores as an output are not supported");
}

/// How many keys each sample had before, where its queries begin.
struct Places {
  std::vector<int64_t> begins;
  Tensor lengths;  // i64 [batch]: with the new ones
  bool first;      // nothing was before; what is shorter ends in padding
  int64_t total;   // of the longest sample
};
Places places_of(const Call& c, int64_t batch, int64_t tokens) {
  constexpr int64_t kMost = int64_t{1} << 31;
  Places p{.begins = c.ints(5), .lengths = {}, .first = false, .total = c.whole(6, 1, kMost)};
  if (static_cast<int64_t>(p.begins.size()) != batch) c.fail("{} lengths for {} samples", p.begins.size(), batch);
  p.first = p.total == tokens;
  std::vector<int64_t> lengths;
  for (int64_t& n : p.begins) {
    if (n < 0 || n >= p.total) c.fail("a length of {}, of {} at most", n + 1, p.total);
    lengths.push_back(n + 1);
    n = p.first ? 0 : n + 1 - tokens;
    if (n < 0) c.fail("{} tokens of a length of {}", tokens, n + tokens);
  }
  p.lengths = tensor(lengths, {batch}).to(c.in(0).device());
  return p;
}
/// The place of each query: i64 [batch, tokens].
Tensor positions_of(const Places& p, int64_t tokens, Device device) {
  const auto batch = static_cast<int64_t>(p.begins.size());
  const Tensor begins = tensor(p.begins, {batch, 1}).to(device);
  return add(begins, arange(0, static_cast<double>(tokens), 1, Int64, device));
}

/// Queries, keys and values by heads, which may come as rows of all three, normed and turned as attributes say.
Heads grouped_heads(const Call& c, const Places& p) {
  const int64_t heads = c.integer("num_heads", 0), kv_heads = c.integer("kv_num_heads", 0);
  if (heads <= 0 || kv_heads <= 0 || heads % kv_heads) c.fail("{} heads on {} of keys", heads, kv_heads);
  if (c.has(1) != c.has(2)) c.fail("keys or values are missing");
  const Tensor& query = c.in(0);
  Heads h;
  if (c.has(1)) {
    h = {by_heads(c, query, heads), by_heads(c, c.in(1), kv_heads), by_heads(c, c.in(2), kv_heads)};
  } else {
    const Tensor all = by_heads(c, query, heads + 2 * kv_heads);
    h = {slice(all, 1, 0, heads), slice(all, 1, heads, heads + kv_heads),
         slice(all, 1, heads + kv_heads, heads + 2 * kv_heads)};
  }
  if (c.has(14) != c.has(15)) c.fail("a norm of queries alone, or of keys");
  if (c.has(14)) {
    const double eps = c.real("qk_norm_epsilon", 1e-6f);
    h.q = rms_norm(h.q, c.in(14), c.real("q_norm_epsilon", eps));
    h.k = rms_norm(h.k, c.in(15), c.real("k_norm_epsilon", eps));
  }
  if (!c.flag("do_rotary", false)) return h;
  const Tensor positions = c.has(9) ? c.in(9) : positions_of(p, query.size(1), query.device());
  const Tensor cosine = embedding(positions, c.in(7)), sine = embedding(positions, c.in(8));
  const bool interleaved = c.flag("rotary_interleaved", false);
  h.q = rotary_embedding(h.q, cosine, sine, interleaved);
  h.k = rotary_embedding(h.k, cosine, sine, interleaved);
  return h;
}
/// The cache, which grows where it is too small, with the new ones in their places.
Tensor filled(const Tensor& past, const Tensor& fresh, const Places& p) {
  const int64_t room = past.defined() ? past.size(2) : 0;
  if (p.first && room <= p.total) return fresh;
  Tensor cache = past;
  if (room < p.total)
    cache = concat(
        {past, zeros({fresh.size(0), fresh.size(1), p.total - room, fresh.size(3)}, fresh.dtype(), fresh.device())}, 2);
  return write_cache(cache, fresh, p.begins);
}
/// Which keys a query attends, as numbers to add: bool masks leave no room for a sink's.
Tensor grouped_mask(const Call& c, const Places& p, int64_t tokens, int64_t keys, DType dtype) {
  const Device device = c.in(0).device();
  const Tensor at = arange(0, static_cast<double>(keys), 1, Int64, device);
  const Tensor own = unsqueeze(positions_of(p, tokens, device), -1);
  Tensor seen = c.flag("causal", true) ? le(at, own) : lt(at, reshape(p.lengths, {p.lengths.size(0), 1, 1}));
  const int64_t window = c.integer("local_window_size", -1);
  if (window >= 0) seen = logical_and(seen, gt(at, own - static_cast<double>(window)));
  return tessera::where(unsqueeze(seen, 1), full({}, 0, dtype, device), full({}, -INFINITY, dtype, device));
}
/// Scores that only add to the sum of a softmax are those of one key more, whose value is 0.
CachedAttention with_sink(const Call& c, const Heads& h, Tensor mask, CachedAttentionOptions o) {
  const Tensor sink = c.has(11) ? reshape(cast(c.in(11), h.q.dtype()), {1, h.q.size(1), 1, 1})
                                : zeros({1, 1, 1, 1}, h.q.dtype(), h.q.device());
  const int64_t batch = h.q.size(0), heads = h.q.size(1), tokens = h.q.size(2);
  mask = expand(mask, {batch, heads, tokens, mask.size(3)});
  o.mask = concat({mask, expand(sink, {batch, heads, tokens, 1})}, 3);
  const auto longer = [](const Tensor& t) {
    return concat({t, zeros({t.size(0), t.size(1), 1, t.size(3)}, t.dtype(), t.device())}, 2);
  };
  return cached_attention(h.q, longer(h.k), longer(h.v), o);
}

Values grouped_queries(const Call& c) {
  refuse_rare_forms(c);
  if (c.in(0).dim() != 3) c.fail("input 0 must be [batch, tokens, heads * d], not {}", describe(c.in(0)));
  const int64_t batch = c.in(0).size(0), tokens = c.in(0).size(1);
  const Places p = places_of(c, batch, tokens);
  Heads h = grouped_heads(c, p);
  const Tensor keys = filled(c.optional(3), h.k, p), values = filled(c.optional(4), h.v, p);
  h.k = slice(keys, 2, 0, p.total);
  h.v = slice(values, 2, 0, p.total);
  CachedAttentionOptions o{.scale = scale_of(c, h.q), .soft_cap = c.real("softcap", 0)};
  const bool sink = c.has(11) || c.flag("smooth_softmax", false);
  CachedAttention a;
  if (p.first && !sink && !c.has(10) && c.flag("causal", true) && c.integer("local_window_size", -1) < 0) {
    o.causal = true;  // what a shorter sample has behind its end is not seen by those before it
    a = cached_attention(h.q, h.k, h.v, o);
  } else {
    Tensor mask = grouped_mask(c, p, tokens, p.total, h.q.dtype());
    if (c.has(10)) mask = add(mask, slice(c.in(10), 3, 0, p.total));
    if (!sink) o.mask = mask;
    a = sink ? with_sink(c, h, mask, o) : cached_attention(h.q, h.k, h.v, o);
  }
  return {from_heads(a.output), keys, values};
}

Values turn_by_position(const Call& c) {
  if (c.flag("is_packed_batching", false)) c.refuse("packed batches are not supported");
  const Tensor &in = c.in(0), &ids = c.in(1), &cosine = c.in(2), &sine = c.in(3);
  if (cosine.dim() != 2 || (in.dim() != 3 && in.dim() != 4)) c.fail("{} are no heads", describe(in));
  const int64_t said = c.integer("num_heads", 0);
  const int64_t heads = said > 0 ? said : in.dim() == 3 ? in.size(2) / std::max<int64_t>(1, 2 * cosine.size(1)) : 0;
  const Tensor x = in.dim() == 3 ? by_heads(c, in, heads) : in;
  Tensor positions = ids;
  if (ids.numel() == 1)
    positions = add(reshape(ids, {1, 1}), arange(0, static_cast<double>(x.size(2)), 1, ids.dtype(), ids.device()));
  const Tensor y =
      rotary_embedding(x, embedding(positions, cosine), embedding(positions, sine), c.flag("interleaved", false));
  return {in.dim() == 3 ? from_heads(y) : y};
}

constexpr Entry entries[] = {
    {"Attention", 1, attention, kMicrosoft},
    {"GroupQueryAttention", 1, grouped_queries, kMicrosoft},
    {"MultiHeadAttention", 1, multi_head, kMicrosoft},
    {"RotaryEmbedding", 1, turn_by_position, kMicrosoft},
};

}  // namespace

std::span<const Entry> microsoft_attention_handlers() { return entries; }

}  // namespace tessera::onnx
