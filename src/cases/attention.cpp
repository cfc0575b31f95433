#include "cases/cases.h"

#include <cmath>

#include "ops/op_table.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

enum class Mask { None, Bool, Additive, Head };

struct Heads {
  std::string label;
  int64_t batch, heads, kv_heads, queries, keys, d, dv;
  AttentionAttrs attrs = {};
  Mask mask = Mask::None;
};

std::vector<Heads> attentions() {
  const AttentionAttrs causal{.causal = true};
  return {
      {"one element", 1, 1, 1, 1, 1, 1, 1},
      {"prime sizes", 2, 3, 3, 7, 7, 5, 5},
      {"causal", 2, 3, 3, 13, 13, 11, 11, causal},
      {"causal, off the tile", 1, 2, 2, 67, 67, 33, 33, causal},
      {"more keys than queries", 2, 1, 1, 5, 71, 7, 7},
      {"causal, more keys", 1, 2, 2, 5, 9, 8, 8, causal},
      {"causal, more queries", 1, 2, 2, 9, 5, 8, 8, causal},
      {"grouped queries", 2, 6, 2, 7, 11, 5, 5},
      {"grouped queries, causal", 1, 4, 1, 17, 17, 16, 16, causal},
      {"values of another width", 1, 2, 2, 5, 7, 4, 9},
      {"scale", 1, 2, 2, 5, 5, 4, 4, {.scale = 0.3}},
      {"dropout", 2, 3, 3, 7, 11, 5, 5, {.dropout = 0.3}},
      {"dropout, grouped, causal", 1, 4, 2, 17, 17, 8, 8, {.causal = true, .dropout = 0.1}},
      {"dropout, additive mask", 1, 2, 2, 5, 9, 8, 8, {.dropout = 0.5}, Mask::Additive},
      {"dropout, blocks, heads of 64, causal", 1, 2, 2, 132, 132, 64, 64, {.causal = true, .dropout = 0.2}},
      {"bool mask", 2, 3, 3, 7, 11, 5, 5, {}, Mask::Bool},
      {"bool mask, causal", 1, 2, 2, 37, 37, 8, 8, causal, Mask::Bool},
      {"additive mask", 2, 3, 3, 7, 11, 5, 5, {}, Mask::Additive},
      {"additive mask per head", 2, 3, 3, 7, 11, 5, 5, {}, Mask::Head},
      {"additive mask, grouped, causal", 1, 4, 2, 19, 19, 8, 8, causal, Mask::Additive},
      {"blocks, heads of 64, grouped, causal", 1, 2, 1, 131, 131, 64, 64, causal},
      {"blocks, heads of 128", 1, 1, 1, 67, 130, 128, 128},
      {"blocks, heads of 40 and 96, bool mask", 1, 2, 2, 67, 70, 40, 96, {}, Mask::Bool},
      {"blocks, heads of 32, additive mask per head", 1, 2, 2, 33, 66, 32, 32, {}, Mask::Head},
      {"slopes", 2, 3, 3, 7, 11, 5, 5, {.alibi = 8}},
      {"slopes, grouped, causal", 1, 6, 2, 19, 19, 8, 8, {.causal = true, .alibi = 8}},
      {"slopes, dropout", 1, 2, 2, 9, 12, 8, 8, {.dropout = 0.3, .alibi = 4}},
      {"slopes, bool mask, causal", 1, 2, 2, 37, 37, 8, 8, {.causal = true, .alibi = 8}, Mask::Bool},
      {"slopes, additive mask", 1, 2, 2, 9, 11, 8, 8, {.alibi = 8}, Mask::Additive},
      {"slopes, blocks, heads of 64, causal", 1, 2, 1, 131, 131, 64, 64, {.causal = true, .alibi = 8}},
  };
}

Tensor mask_of(Mask kind, int64_t heads, int64_t queries, int64_t keys, Generator& g) {
  switch (kind) {
    case Mask::None:
      return {};
    case Mask::Bool: {  // one query attends nothing
      Tensor mask = indices({queries, keys}, 3, g).to(DType::Bool);
      for (int64_t j = 0; j < keys; ++j) mask.data<bool>()[(queries / 2) * keys + j] = false;
      return mask;
    }
    case Mask::Additive:
      return normal64({queries, keys}, g);
    case Mask::Head:
      return normal64({heads, 1, keys}, g);
  }
  return {};
}

// Of a random stream whose blocks pass 2^32.
Tensor state_of(const AttentionAttrs& attrs) {
  if (attrs.dropout == 0) return {};
  return tensor<int64_t>({0x123456789abcdef, (int64_t{1} << 32) - 5}, {2});
}

Tensors inputs_of(const Heads& c, Generator& g) {
  return {normal64({c.batch, c.heads, c.queries, c.d}, g), normal64({c.batch, c.kv_heads, c.keys, c.d}, g),
          normal64({c.batch, c.kv_heads, c.keys, c.dv}, g), mask_of(c.mask, c.heads, c.queries, c.keys, g),
          state_of(c.attrs)};
}

// What the forward op hands to its backward: y and the log-sum-exp of the scores; rows that attend nothing have -inf.
std::pair<Tensor, Tensor> results_of(const Tensors& in, const AttentionAttrs& attrs) {
  const Tensor &q = in[0], &mask = in[3];
  Tensor y = find_op("scaled_dot_product_attention").reference({in.data(), in.size()}, attrs)[0];
  int64_t copies = q.size(1) / in[1].size(1), keys = in[1].size(2);
  Tensor k = in[1];
  if (copies > 1) {
    Tensors repeated;
    for (int64_t h = 0; h < q.size(1); ++h) repeated.push_back(slice(k, 1, h / copies, h / copies + 1));
    k = concat(repeated, 1);
  }
  double scale = attrs.scale != 0 ? attrs.scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
  Tensor scores = matmul(q, transpose(k, 2, 3)) * scale, never = full({}, -INFINITY, Float64);
  for (int64_t h = 0; attrs.alibi > 0 && h < q.size(1); ++h)
    for (int64_t i = 0; i < q.size(2); ++i)
      for (int64_t j = 0; j < keys; ++j)
        for (int64_t b = 0; b < q.size(0); ++b)
          scores.data<double>()[((b * q.size(1) + h) * q.size(2) + i) * keys + j] +=
              alibi_slope(h, q.size(1), attrs.alibi) * static_cast<double>(j - i);
  if (mask.defined()) scores = mask.dtype() == Bool ? where(mask, scores, never) : scores + mask;
  if (attrs.causal) scores = where(tril(ones({q.size(2), keys}, Bool)), scores, never);
  Tensor high = maximum(amax(scores, {-1}), full({}, -1e30, Float64));
  return {y, log(sum(exp(scores - unsqueeze(high, -1)), {-1})) + high};
}

void add_separate_heads(std::vector<OpCase>& cases) {
  for (const Heads& c : attentions()) {
    bool grouped = c.heads != c.kv_heads, floating = c.mask == Mask::Additive || c.mask == Mask::Head;
    cases.push_back({.op = "scaled_dot_product_attention",
                     .label = c.label,
                     .attrs = c.attrs,
                     .inputs = [=](Generator& g) { return inputs_of(c, g); },
                     .gradients = 0b0111u | floating << 3,
                     .symbolic = !grouped});
    cases.push_back({.op = "scaled_dot_product_attention_backward",
                     .label = c.label,
                     .attrs = c.attrs,
                     .inputs = [=](Generator& g) -> Tensors {
                       Tensors in = inputs_of(c, g);
                       auto [y, lse] = results_of(in, c.attrs);
                       return {normal64(y.shape(), g), y, lse, in[0], in[1], in[2], in[3], in[4]};
                     },
                     .dtypes = {Float32, Float64},
                     .symbolic = !grouped});
  }
  constexpr double kFlops = 4.0 * 12 * 1024 * 1024 * 64 / 2;
  cases.push_back({.op = "scaled_dot_product_attention",
                   .label = "12x1024x64 causal",
                   .attrs = AttentionAttrs{.causal = true},
                   .inputs = [](Generator& g) -> Tensors {
                     Shape s{1, 12, 1024, 64};
                     return {normal64(s, g), normal64(s, g), normal64(s, g), {}, {}};
                   },
                   .benchmark = true,
                   .flops = kFlops});
}

struct Packed {
  std::string label;
  int64_t batch, tokens, heads, d;
  bool causal = false;
  Mask mask = Mask::None;
  double dropout = 0, alibi = 0;

  AttentionAttrs attrs() const { return {.causal = causal, .heads = heads, .dropout = dropout, .alibi = alibi}; }
};

Tensors packed_inputs(const Packed& c, Generator& g) {
  return {normal64({c.batch, c.tokens, 3 * c.heads * c.d}, g), mask_of(c.mask, c.heads, c.tokens, c.tokens, g),
          state_of(c.attrs())};
}

void add_packed_heads(std::vector<OpCase>& cases) {
  for (const Packed& c : std::vector<Packed>{{"one element", 1, 1, 1, 1},
                                             {"prime sizes", 2, 7, 3, 5},
                                             {"causal", 2, 13, 2, 11, true},
                                             {"causal, off the tile", 1, 67, 2, 33, true},
                                             {"bool mask", 1, 11, 2, 4, false, Mask::Bool},
                                             {"additive mask", 2, 5, 3, 4, true, Mask::Additive},
                                             {"dropout", 2, 12, 3, 4, false, Mask::None, 0.3},
                                             {"slopes, causal", 2, 13, 3, 4, true, Mask::None, 0, 8},
                                             {"blocks, heads of 64, causal", 1, 130, 2, 64, true}}) {
    const AttentionAttrs attrs = c.attrs();
    cases.push_back({.op = "attention_qkv",
                     .label = c.label,
                     .attrs = attrs,
                     .inputs = [=](Generator& g) { return packed_inputs(c, g); },
                     .gradients = 0b01u | (c.mask == Mask::Additive) << 1,
                     .symbolic = false});
    cases.push_back({.op = "attention_qkv_backward",
                     .label = c.label,
                     .attrs = attrs,
                     .inputs = [=](Generator& g) -> Tensors {
                       Tensors in = packed_inputs(c, g);
                       Tensor parts = permute(in[0].reshape({c.batch, c.tokens, 3, c.heads, c.d}), {2, 0, 3, 1, 4});
                       auto [y, lse] = results_of(
                           {parts.select(0, 0), parts.select(0, 1), parts.select(0, 2), in[1], in[2]}, attrs);
                       Tensor joined = y.transpose(1, 2).reshape({c.batch, c.tokens, c.heads * c.d}).contiguous();
                       return {normal64(joined.shape(), g), joined, lse, in[0], in[1], in[2]};
                     },
                     .dtypes = {Float32, Float64},
                     .symbolic = false});
  }
}

}  // namespace

std::vector<OpCase> attention_cases() {
  std::vector<OpCase> cases;
  add_separate_heads(cases);
  add_packed_heads(cases);
  return cases;
}

}  // namespace tessera
