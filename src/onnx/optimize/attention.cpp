// Attention as exporters spell it: softmax(scale q kᵀ + mask) v.
#include <cmath>
#include <limits>

#include "onnx/optimize/rewriter.h"
#include "tessera/ops.h"
#include "tessera/ops_math.h"

namespace tessera::onnx {
namespace {

/// Whether a mask broadcasts to scores of q and turned keys, and does not widen them.
bool fits_scores(const Tensor& mask, const Tensor& q, const Tensor& turned) {
  if (mask.dim() > q.dim() || mask.dtype() != q.dtype()) return false;
  for (int64_t d = 1; d <= mask.dim(); ++d) {
    const int64_t size = d == 1 ? turned.size(-1) : q.size(-d);
    if (mask.size(-d) != size && mask.size(-d) != 1) return false;
  }
  return true;
}
/// Whether these are heads that one kernel takes: [heads, ...] or [batch, heads, ...].
bool are_heads(const Tensor& q, const Tensor& turned, const Tensor& v) {
  const int64_t rank = q.dim();
  if ((rank != 3 && rank != 4) || turned.dim() != rank || v.dim() != rank) return false;
  if (!is_floating(q.dtype()) || turned.dtype() != q.dtype() || v.dtype() != q.dtype()) return false;
  for (int64_t d = 0; d < rank - 2; ++d)
    if (turned.size(d) != q.size(d) || v.size(d) != q.size(d)) return false;
  return turned.size(-2) == q.size(-1) && v.size(-2) == turned.size(-1) && v.size(-1) == q.size(-1) && q.numel() > 0 &&
         v.numel() > 0;
}
Tensor number_of(const Tensor& like, double value) { return full({}, value, like.dtype(), like.device()); }

/// q, turned keys [..., d, keys], v and a mask that is added. `guarded`: rows of NaN count as zeros.
Values fused_attention(const Call& c) {
  const Tensor &q = c.in(0), &turned = c.in(1), &v = c.in(2), mask = c.optional(3);
  const double scale = c.real("scale", 1);
  const bool guarded = c.flag("guarded", false);
  if (are_heads(q, turned, v) && (!mask.defined() || fits_scores(mask, q, turned))) {
    const auto batched = [&](const Tensor& t) { return t.dim() == 3 ? unsqueeze(t, 0) : t; };
    Tensor y = scaled_dot_product_attention(batched(q), batched(transpose(turned, -2, -1)), batched(v),
                                            {.mask = mask, .scale = scale});
    if (q.dim() == 3) y = squeeze(y, 0);
    if (!mask.defined() || guarded) return {y};
    // The operator gives zeros to queries that attend nothing, a softmax NaN.
    const Tensor blind = eq(amax(mask, {-1}, true), number_of(mask, -std::numeric_limits<double>::infinity()));
    return {where(blind, number_of(y, std::numeric_limits<double>::quiet_NaN()), y)};
  }
  Tensor scores = matmul(q, turned);
  if (scale != 1) scores = scores * scale;
  if (mask.defined()) scores = add(scores, mask);
  Tensor weights = softmax(scores, -1);
  if (guarded) weights = where(isnan(weights), number_of(weights, 0), weights);
  return {matmul(weights, v)};
}
constexpr Entry attention_entry{"ScaledDotProductAttention", 1, fused_attention, "tessera"};

/// x, sizes [-1, m, n] of it as matrices, and those of what these are when turned: a view where they say so.
Values turned_matrices(const Call& c) {
  const Tensor& x = c.in(0);
  const std::vector<int64_t> apart = c.ints(1), back = c.ints(2);
  const size_t rank = static_cast<size_t>(x.dim());
  bool plain = rank >= 2 && apart.size() == 3 && back.size() == rank && apart[0] == -1 && apart[1] == x.size(-2) &&
               apart[2] == x.size(-1) && back[rank - 2] == x.size(-1) && back[rank - 1] == x.size(-2) && x.numel() > 0;
  int open = 0;
  for (size_t d = 0; plain && d + 2 < rank; ++d) {
    open += back[d] == -1;
    plain = back[d] == -1 || back[d] == x.size(static_cast<int64_t>(d));
  }
  if (plain && open <= 1) return {transpose(x, -2, -1)};
  const auto sized = [&](const Tensor& t, std::vector<int64_t> sizes) {
    for (size_t d = 0; d < sizes.size(); ++d)
      if (sizes[d] == 0 && d < static_cast<size_t>(t.dim())) sizes[d] = t.size(static_cast<int64_t>(d));
    return reshape(t, Shape(std::span<const int64_t>(sizes)));
  };
  return {sized(transpose(sized(x, apart), 1, 2), back)};
}
constexpr Entry turned_entry{"TurnedMatrices", 1, turned_matrices, "tessera"};

/// The product that a value is by steps which multiply it with numbers; -1 where there is none.
int scaled_product(const Rewriter& r, int slot, double& scale) {
  while (r.only_user(slot) >= 0) {
    const int at = r.maker(slot);
    if (r.is(at, "MatMul")) return at;
    const bool by_mul = r.is(at, "Mul");
    if ((!by_mul && !r.is(at, "Div")) || r.step(at).in.size() != 2) return -1;
    const Step& step = r.step(at);
    const size_t known = by_mul && r.number(step.in[0], 1) ? 0 : 1;
    const auto number = r.number(step.in[known], 1);
    if (!number) return -1;
    scale = by_mul ? scale * *number : scale / *number;
    slot = step.in[1 - known];
  }
  return -1;
}
/// The value that is multiplied with a number to give `slot`, or itself.
int unscaled(const Rewriter& r, int slot, double& scale) {
  const int at = r.maker(slot);
  if (!r.is(at, "Mul") && !r.is(at, "Div")) return slot;
  const Step& step = r.step(at);
  if (step.in.size() != 2) return slot;
  const size_t known = r.is(at, "Mul") && r.number(step.in[0], 1) ? 0 : 1;
  const auto number = r.number(step.in[known], 1);
  if (!number) return slot;
  scale = r.is(at, "Mul") ? scale * *number : scale / *number;
  return step.in[1 - known];
}

struct Weighted {
  int product = -1;  // of weights and values
  bool guarded = false;
};
/// What takes the weights, if nothing else does: maybe behind Where(IsNaN(weights), 0, weights).
Weighted weighted(const Rewriter& r, int weights) {
  const auto product = [&](int slot) {
    const int at = r.only_user(slot, "MatMul");
    return at >= 0 && r.step(at).in[0] == slot ? at : -1;
  };
  if (const int at = product(weights); at >= 0) return {at, false};
  for (const int at : r.users(weights)) {
    if (!r.is(at, "Where") || r.step(at).in.size() != 3 || r.step(at).in[2] != weights) continue;
    const int test = r.own_maker(r.step(at).in[0], "IsNaN");
    if (test < 0 || r.step(test).in[0] != weights || r.number(r.step(at).in[1], 1) != 0.0) return {};
    return r.is_seen_only_by(weights, {at, test}) ? Weighted{product(r.step(at).out[0]), true} : Weighted{};
  }
  return {};
}

}  // namespace

void turn_keys(Rewriter& r, int at) {
  if (!r.is(at, "Reshape") || r.step(at).in.size() != 2 || integer_of(r.step(at), "allowzero", 0)) return;
  const int turn = r.own_maker(r.step(at).in[0], "Transpose");
  const int apart = turn < 0 ? -1 : r.own_maker(r.step(turn).in[0], "Reshape");
  if (apart < 0 || r.step(apart).in.size() != 2 || integer_of(r.step(apart), "allowzero", 0)) return;
  const AttributeProto* order = attribute_of(r.step(turn), "perm");
  if (!order || order->ints != std::vector<int64_t>{0, 2, 1}) return;
  r.replace(at, at, &turned_entry, {r.step(apart).in[0], r.step(apart).in[1], r.step(at).in[1]});
}

void fuse_attention(Rewriter& r, int at) {
  if (!r.is(at, "Softmax")) return;
  const Step& step = r.step(at);
  const int64_t axis = integer_of(step, "axis", step.opset >= 13 ? -1 : 1);
  if (axis != -1 || r.only_user(step.in[0]) < 0) return;
  double scale = 1;
  int mask = -1, product = scaled_product(r, step.in[0], scale);
  if (const int sum = r.own_maker(step.in[0], "Add"); product < 0 && sum >= 0 && r.step(sum).in.size() == 2)
    for (size_t i = 0; i < 2 && product < 0; ++i) {
      scale = 1;
      mask = r.step(sum).in[1 - i];
      product = scaled_product(r, r.step(sum).in[i], scale);
    }
  if (product < 0) return;
  const Weighted last = weighted(r, step.out[0]);
  if (last.product < 0) return;
  const int q = unscaled(r, r.step(product).in[0], scale), turned = unscaled(r, r.step(product).in[1], scale);
  if (!std::isfinite(scale) || scale <= 0) return;
  r.replace(last.product, at, &attention_entry, {q, turned, r.step(last.product).in[1], mask},
            {{.name = "scale", .type = kFloatAttribute, .f = static_cast<float>(scale)},
             {.name = "guarded", .type = kIntAttribute, .i = last.guarded}});
}

}  // namespace tessera::onnx
