// Attention: softmax(scale q kᵀ + mask) v, on separate heads or on the packed output of one projection.
#include <cmath>

#include "ops/check.h"
#include "ops/gradient.h"
#include "ops/op_table.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

// ---- the formula in plain operators: references and vjps

double scale_of(const AttentionAttrs& attrs, const Shape& q) {
  return attrs.scale != 0 ? attrs.scale : 1 / std::sqrt(static_cast<double>(q.back().value()));
}

// bool [queries, keys]: true where key <= query.
Tensor causal_mask(const Shape& q, const Shape& k, Device device) { return tril(ones({q[2], k[2]}, Bool, device)); }

// k or v [batch, kv heads, keys, d] with a copy of each head for all the queries' heads that share it, as a view.
Tensor shared_heads(const Tensor& x, const Shape& q) {
  Dim copies = q[1] / x.shape()[1];
  if (copies == Dim(1)) return x;
  const Shape& s = x.shape();
  return reshape(expand(unsqueeze(x, 2), {s[0], s[1], copies, s[2], s[3]}), {s[0], q[1], s[2], s[3]});
}
Tensor sum_shared_heads(const Tensor& g, const Shape& x) {
  if (g.shape()[1] == x[1]) return g;
  return sum(reshape(g, {x[0], x[1], g.shape()[1] / x[1], x[2], x[3]}), {2});
}

// Probabilities [batch, heads, queries, keys]; a query that attends nothing has zeros.
Tensor probabilities(const Tensor& q, const Tensor& k, const Tensor& mask, const AttentionAttrs& attrs) {
  Tensor scores = matmul(q * scale_of(attrs, q.shape()), transpose(shared_heads(k, q.shape()), -2, -1));
  Tensor allowed = attrs.causal ? causal_mask(q.shape(), k.shape(), q.device()) : Tensor();
  if (mask.defined() && mask.dtype() == Bool) allowed = allowed.defined() ? logical_and(allowed, mask) : mask;
  if (mask.defined() && mask.dtype() != Bool) {
    scores = scores + mask;
    Tensor finite = gt(mask, number_like(mask, -INFINITY));
    allowed = allowed.defined() ? logical_and(allowed, finite) : finite;
  }
  if (!allowed.defined()) return softmax(scores, -1);
  Tensor low = number_like(scores, q.dtype() == Float16 ? -6e4 : -1e30);
  return where(allowed, softmax(where(allowed, scores, low), -1), number_like(scores, 0));
}

// dq, dk, dv, dmask
Tensors gradients(const Tensor& g, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                  const AttentionAttrs& attrs) {
  Tensor p = probabilities(q, k, mask, attrs), keys = shared_heads(k, q.shape());
  Tensor dv = matmul(transpose(p, -2, -1), g), dp = matmul(g, transpose(shared_heads(v, q.shape()), -2, -1));
  Tensor ds = p * (dp - sum(dp * p, {-1}, true));
  double scale = scale_of(attrs, q.shape());
  Tensor dmask = mask.defined() && mask.dtype() != Bool ? gradient_for(ds, mask) : Tensor();
  return {matmul(ds, keys) * scale, sum_shared_heads(matmul(transpose(ds, -2, -1), q) * scale, k.shape()),
          sum_shared_heads(dv, v.shape()), dmask};
}

// ---- scaled_dot_product_attention: q, k, v, mask? -> y, log-sum-exp of the scores [batch, heads, queries] (hidden)

void require_mask(std::string_view op, const TensorMeta& mask, DType dtype, const Shape& scores) {
  if (is_absent(mask)) return;
  if (mask.dtype != Bool && mask.dtype != dtype)
    fail(op, "mask must be bool or {}, not {}", name(dtype), describe(mask));
  if (mask.shape.rank() > 4 || !(broadcast_shapes(op, mask.shape, scores) == scores))
    fail(op, "mask {} does not broadcast to {}", to_string(mask.shape), to_string(scores));
}

// Checks q, k, v and mask; gives the shapes of the result and of its rows.
std::pair<Shape, Shape> attended(std::string_view op, std::span<const TensorMeta> in) {
  require_one_floating_dtype(op, in, 3);
  require_rank(op, "q", in[0], 4);
  require_rank(op, "k", in[1], 4);
  require_rank(op, "v", in[2], 4);
  const Shape &q = in[0].shape, &k = in[1].shape, &v = in[2].shape;
  if (!(q[0] == k[0] && k[0] == v[0] && k[1] == v[1] && k[2] == v[2] && q[3] == k[3]))
    fail(op, "shapes do not match: q {}, k {}, v {}", to_string(q), to_string(k), to_string(v));
  if (k[1] == Dim(0) || q[3] == Dim(0) || provably_different(q[1] / k[1] * k[1], q[1]))
    fail(op, "{} heads of queries do not share {} heads of keys", q[1].to_string(), k[1].to_string());
  require_mask(op, in[3], in[0].dtype, {q[0], q[1], q[2], k[2]});
  return {{q[0], q[1], q[2], v[3]}, {q[0], q[1], q[2]}};
}

Metas infer_attention(std::span<const TensorMeta> in, const Attrs&) {
  auto [out, rows] = attended("scaled_dot_product_attention", in);
  return {{out, in[0].dtype, in[0].device}, {rows, statistics_dtype(in[0].dtype), in[0].device}};
}

Tensors attention_vjp(const Saved& s, const Tensors& grads) {
  return gradients(grads[0], s.inputs[0], s.inputs[1], s.inputs[2], s.inputs[3], s.attrs.as<AttentionAttrs>());
}
Tensors attention_reference(std::span<const Tensor> in, const Attrs& attrs) {
  return {matmul(probabilities(in[0], in[1], in[3], attrs.as<AttentionAttrs>()), shared_heads(in[2], in[0].shape()))};
}

// ---- its backward: dy, y, log-sum-exp, q, k, v, mask? -> dq, dk, dv

Metas infer_attention_backward(std::span<const TensorMeta> in, const Attrs&) {
  constexpr auto op = "scaled_dot_product_attention_backward";
  auto [out, rows] = attended(op, in.subspan(3));
  require_shape(op, "gradient", in[0], out);
  require_shape(op, "result", in[1], out);
  require_shape(op, "log-sum-exp", in[2], rows);
  return {in[3], in[4], in[5]};
}
Tensors attention_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Tensors out = gradients(in[0], in[3], in[4], in[5], in[6], attrs.as<AttentionAttrs>());
  out.pop_back();
  return out;
}

const Op attention_backward = {.name = "scaled_dot_product_attention_backward",
                               .infer = infer_attention_backward,
                               .reference = attention_backward_reference};

Tensors attention_fused_vjp(const Saved& s, const Tensors& grads) {
  if (s.needs_input(3)) return attention_vjp(s, grads);  // a mask that learns: its gradient needs the scores
  Tensors out =
      dispatch(attention_backward,
               {grads[0], s.outputs[0], s.outputs[1], s.inputs[0], s.inputs[1], s.inputs[2], s.inputs[3]}, s.attrs);
  out.push_back({});
  return out;
}

const Op attention_op = {.name = "scaled_dot_product_attention",
                         .infer = infer_attention,
                         .vjp = attention_vjp,
                         .fused_vjp = attention_fused_vjp,
                         .reference = attention_reference,
                         .saves = {.inputs = 0b1111, .outputs = 0b11},
                         .autocast = Autocast::Lower,
                         .hidden_outputs = 1};

// ---- attention_qkv: qkv [batch, tokens, 3 heads d], mask? -> y [batch, tokens, heads d], log-sum-exp (hidden).
// The rows hold all of q, then k, then v, so neither direction splits or joins anything.

// Views q, k, v [batch, heads, tokens, d] of a packed matrix.
Tensors unpack(const Tensor& qkv, int64_t heads) {
  const Shape& s = qkv.shape();
  Tensor parts = permute(reshape(qkv, {s[0], s[1], Dim(3), Dim(heads), s[2] / (3 * heads)}), {2, 0, 3, 1, 4});
  return {select(parts, 0, 0), select(parts, 0, 1), select(parts, 0, 2)};
}
// [batch, heads, tokens, d] -> [batch, tokens, heads d]
Tensor join_heads(const Tensor& y) { return flatten(transpose(y, 1, 2), 2); }
Tensor split_heads(const Tensor& y, int64_t heads) {
  const Shape& s = y.shape();
  return transpose(reshape(y, {s[0], s[1], Dim(heads), s[2] / heads}), 1, 2);
}

std::pair<Shape, Shape> attended_packed(std::string_view op, const TensorMeta& qkv, const TensorMeta& mask,
                                        int64_t heads) {
  require_one_floating_dtype(op, {&qkv, 1}, 1);
  require_rank(op, "qkv", qkv, 3);
  const Shape& s = qkv.shape;
  if (heads < 1 || s[2] == Dim(0) || provably_different(s[2] / 3 / heads * heads * 3, s[2]))
    fail(op, "{} columns do not hold queries, keys and values of {} heads", s[2].to_string(), heads);
  require_mask(op, mask, qkv.dtype, {s[0], Dim(heads), s[1], s[1]});
  return {{s[0], s[1], s[2] / 3}, {s[0], Dim(heads), s[1]}};
}

Metas infer_attention_qkv(std::span<const TensorMeta> in, const Attrs& attrs) {
  auto [out, rows] = attended_packed("attention_qkv", in[0], in[1], attrs.as<AttentionAttrs>().heads);
  return {{out, in[0].dtype, in[0].device}, {rows, statistics_dtype(in[0].dtype), in[0].device}};
}

Tensors attention_qkv_reference(std::span<const Tensor> in, const Attrs& attrs) {
  auto& a = attrs.as<AttentionAttrs>();
  Tensors parts = unpack(in[0], a.heads);
  return {join_heads(matmul(probabilities(parts[0], parts[1], in[1], a), parts[2]))};
}

// dqkv, dmask
Tensors packed_gradients(const Tensor& g, const Tensor& qkv, const Tensor& mask, const AttentionAttrs& a) {
  Tensors parts = unpack(qkv, a.heads);
  Tensors out = gradients(split_heads(g, a.heads), parts[0], parts[1], parts[2], mask, a);
  return {concat({join_heads(out[0]), join_heads(out[1]), join_heads(out[2])}, 2), out[3]};
}
Tensors attention_qkv_vjp(const Saved& s, const Tensors& grads) {
  return packed_gradients(grads[0], s.inputs[0], s.inputs[1], s.attrs.as<AttentionAttrs>());
}

// dy, y, log-sum-exp, qkv, mask? -> dqkv
Metas infer_attention_qkv_backward(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr auto op = "attention_qkv_backward";
  auto [out, rows] = attended_packed(op, in[3], in[4], attrs.as<AttentionAttrs>().heads);
  require_shape(op, "gradient", in[0], out);
  require_shape(op, "result", in[1], out);
  require_shape(op, "log-sum-exp", in[2], rows);
  return {in[3]};
}
Tensors attention_qkv_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  return {packed_gradients(in[0], in[3], in[4], attrs.as<AttentionAttrs>())[0]};
}

const Op attention_qkv_backward = {.name = "attention_qkv_backward",
                                   .infer = infer_attention_qkv_backward,
                                   .reference = attention_qkv_backward_reference};

Tensors attention_qkv_fused_vjp(const Saved& s, const Tensors& grads) {
  if (s.needs_input(1)) return attention_qkv_vjp(s, grads);
  return {
      dispatch_one(attention_qkv_backward, {grads[0], s.outputs[0], s.outputs[1], s.inputs[0], s.inputs[1]}, s.attrs),
      {}};
}

const Op attention_qkv_op = {.name = "attention_qkv",
                             .infer = infer_attention_qkv,
                             .vjp = attention_qkv_vjp,
                             .fused_vjp = attention_qkv_fused_vjp,
                             .reference = attention_qkv_reference,
                             .saves = {.inputs = 0b11, .outputs = 0b11},
                             .autocast = Autocast::Lower,
                             .hidden_outputs = 1};

constexpr const Op* ops[] = {&attention_op, &attention_backward, &attention_qkv_op, &attention_qkv_backward};

}  // namespace

std::span<const Op* const> attention_ops() { return ops; }

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options) {
  return dispatch_one(attention_op, {q, k, v, options.mask}, AttentionAttrs{options.scale, options.causal});
}

Tensor attention_qkv(const Tensor& qkv, int64_t heads, const AttentionOptions& options) {
  return dispatch_one(attention_qkv_op, {qkv, options.mask}, AttentionAttrs{options.scale, options.causal, heads});
}

}  // namespace tessera
