// Attention: one node from opset 23 on, and the formula before.
#include <cmath>

#include "onnx/writer.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

/// Queries, keys and values [batch, heads, tokens, d].
struct Heads {
  Name q, k, v;
  Shape q_shape, k_shape;
};

double scale_of(const AttentionAttrs& a, Dim d) {
  return a.scale != 0 ? a.scale : 1 / std::sqrt(static_cast<double>(d.value()));
}

// bool [queries, keys]: true where key <= query.
Name causal_mask(const OpCall& c, Dim queries, Dim keys) {
  const Name ones = c.node("Expand", {c.number(1, Int64), c.sizes({queries, keys})});
  return c.cast(c.node("Trilu", {ones}, {integer("upper", 0)}), Int64, Bool);
}

// A copy of each head of keys or values for all the queries' heads that share it.
Name shared_heads(const OpCall& c, const Name& x, const Shape& from, const Shape& q) {
  const int64_t heads = q[1].value(), own = from[1].value();
  if (heads == own) return x;
  const Name apart = c.node("Unsqueeze", {x, c.ints({2})});
  const Name copies = c.node("Expand", {apart, c.ints({1, 1, heads / own, 1, 1})});
  return c.node("Reshape", {copies, c.ints({0, heads, -1, from[3].value()})});
}

// 0, 1, 2, ... up to a size, which may be a symbol.
Name places(const OpCall& c, Dim size, DType dtype) {
  const Name end = c.node("Squeeze", {c.dim(size)});
  return c.cast(c.node("Range", {c.number(0, Int64), end, c.number(1, Int64)}), Int64, dtype);
}

// [heads, queries, keys]: a slope for each head times key - query.
Name alibi(const OpCall& c, const Heads& h, double largest, DType dtype) {
  const int64_t heads = h.q_shape[1].value();
  std::vector<double> slopes;
  for (int64_t i = 0; i < heads; ++i) slopes.push_back(alibi_slope(i, heads, largest));
  const Name keys = places(c, h.k_shape[2], dtype);
  const Name queries = c.node("Unsqueeze", {places(c, h.q_shape[2], dtype), c.ints({1})});
  return c.node("Mul", {c.constant(tensor(slopes, {heads, 1, 1}).to(dtype)), c.node("Sub", {keys, queries})});
}

// Probabilities; as here, a query that may attend nothing has zeros.
Name probabilities(const OpCall& c, const Heads& h, const Name& mask, DType mask_type, const AttentionAttrs& a) {
  const DType dtype = c.out().dtype;
  const Name scaled = c.node("Mul", {h.q, c.number(scale_of(a, h.q_shape[3]), dtype)});
  const Name keys = c.transpose(shared_heads(c, h.k, h.k_shape, h.q_shape), {0, 1, 3, 2});
  Name scores = c.node("MatMul", {scaled, keys});
  if (a.alibi > 0) scores = c.node("Add", {scores, alibi(c, h, a.alibi, dtype)});
  const Attributes last{integer("axis", -1)};
  const Name causal = a.causal ? causal_mask(c, h.q_shape[2], h.k_shape[2]) : Name();
  if (mask.empty()) {
    if (a.causal) scores = c.node("Where", {causal, scores, c.number(-INFINITY, dtype)});
    return c.node("Softmax", {scores}, last);
  }
  Name allowed = mask;
  if (mask_type != Bool) {
    scores = c.node("Add", {scores, mask});
    allowed = c.node("Greater", {mask, c.number(-INFINITY, mask_type)});
  }
  if (a.causal) allowed = c.node("And", {allowed, causal});
  const Name low = c.number(dtype == Float16 ? -6e4 : -1e30, dtype);
  const Name weights = c.node("Softmax", {c.node("Where", {allowed, scores, low})}, last);
  return c.node("Where", {allowed, weights, c.number(0, dtype)});
}

Name attended(const OpCall& c, const Heads& h, size_t mask) {
  const auto& a = c.attrs<AttentionAttrs>();
  if (a.dropout > 0) c.refuse("with dropout has no counterpart in ONNX");
  if (c.opset() >= 23 && !c.has(mask) && a.alibi == 0)
    return c.node("Attention", {h.q, h.k, h.v},
                  {integer("is_causal", a.causal), real("scale", scale_of(a, h.q_shape[3]))});
  const Name weights = probabilities(c, h, c.in(mask), c.has(mask) ? c.type(mask).dtype : Bool, a);
  return c.node("MatMul", {weights, shared_heads(c, h.v, h.k_shape, h.q_shape)});
}

// q, k, v, mask?
Names attention_of(const OpCall& c) {
  return {attended(c, {c.in(0), c.in(1), c.in(2), c.type(0).shape, c.type(1).shape}, 3)};
}

// qkv [batch, tokens, 3 * heads * d], mask?
Names attention_qkv_of(const OpCall& c) {
  const Shape &qkv = c.type(0).shape, &out = c.out().shape;
  const int64_t heads = c.attrs<AttentionAttrs>().heads, width = out[2].value();
  const Shape apart{out[0], out[1], Dim(heads), Dim(width / heads)};
  const Names parts = c.nodes("Split", {c.in(0), c.ints({width, width, width})}, 3, {integer("axis", 2)});
  const auto split = [&](const Name& part) { return c.transpose(c.reshape(part, out, apart), {0, 2, 1, 3}); };
  const Shape shape{qkv[0], Dim(heads), qkv[1], Dim(width / heads)};
  const Name y = attended(c, {split(parts[0]), split(parts[1]), split(parts[2]), shape, shape}, 1);
  return {c.reshape(c.transpose(y, {0, 2, 1, 3}), apart, out)};
}

constexpr WriterEntry entries[] = {
    {"attention_qkv", attention_qkv_of},
    {"scaled_dot_product_attention", attention_of},
};

}  // namespace

std::span<const WriterEntry> attention_writers() { return entries; }

}  // namespace tessera::onnx
