// Attention: dropout(softmax(scale q kᵀ + mask)) v, on separate heads or on the packed output of one projection. The
// last input is the state of a random stream where there is dropout; weight i of all, in row-major order, takes word i.
#include <algorithm>
#include <cmath>

#include "ops/check.h"
#include "ops/cost.h"
#include "ops/gradient.h"
#include "ops/op_table.h"
#include "tessera/autograd.h"
#include "tile/attention_problem.h"

namespace tessera {
namespace {

// ---- the formula in plain operators: references and vjps

double scale_of(const AttentionAttrs& attrs, const Shape& q) {
  return attrs.scale != 0 ? attrs.scale : 1 / std::sqrt(static_cast<double>(q.back().value()));
}

// bool [queries, keys]: true where key <= query.
Tensor causal_mask(const Shape& q, const Shape& k, Device device) { return tril(ones({q[2], k[2]}, Bool, device)); }

// [heads, queries, keys]: a slope for each head times key - query.
Tensor alibi(const Shape& q, const Shape& k, double largest, const Tensor& like) {
  const int64_t heads = q[1].value();
  std::vector<double> slopes;
  for (int64_t h = 0; h < heads; ++h) slopes.push_back(alibi_slope(h, heads, largest));
  const DType wide = statistics_dtype(like.dtype());
  const auto places = [&](Dim n) { return arange(0, double(n.value()), 1, wide, like.device()); };
  const Tensor distances = unsqueeze(places(k[2]), 0) - unsqueeze(places(q[2]), 1);
  return (tensor(slopes, {heads, 1, 1}).to(wide).to(like.device()) * distances).to(like.dtype());
}

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
  if (attrs.alibi > 0) scores = scores + alibi(q.shape(), k.shape(), attrs.alibi, scores);
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

// Some become zeros, the same each time for one state; the same for gradients.
Tensor drop(const Tensor& weights, const Tensor& state, const AttentionAttrs& attrs) {
  return attrs.dropout > 0 ? dispatch_one(find_op("dropout"), {weights, state}, DropoutAttrs{attrs.dropout}) : weights;
}

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const Tensor& state,
              const AttentionAttrs& attrs) {
  return matmul(drop(probabilities(q, k, mask, attrs), state, attrs), shared_heads(v, q.shape()));
}

// dq, dk, dv, dmask
Tensors gradients(const Tensor& g, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                  const Tensor& state, const AttentionAttrs& attrs) {
  Tensor p = probabilities(q, k, mask, attrs), keys = shared_heads(k, q.shape());
  Tensor dv = matmul(transpose(drop(p, state, attrs), -2, -1), g);
  Tensor dp = drop(matmul(g, transpose(shared_heads(v, q.shape()), -2, -1)), state, attrs);
  Tensor ds = p * (dp - sum(dp * p, {-1}, true));
  double scale = scale_of(attrs, q.shape());
  Tensor dmask = mask.defined() && mask.dtype() != Bool ? gradient_for(ds, mask) : Tensor();
  return {matmul(ds, keys) * scale, sum_shared_heads(matmul(transpose(ds, -2, -1), q) * scale, k.shape()),
          sum_shared_heads(dv, v.shape()), dmask};
}

// ---- scaled_dot_product_attention: q, k, v, mask?, state? -> y, log-sum-exp of the scores [batch, heads, queries]
// (hidden)

void require_mask(std::string_view op, const TensorMeta& mask, DType dtype, const Shape& scores) {
  if (is_absent(mask)) return;
  if (mask.dtype != Bool && mask.dtype != dtype)
    fail(op, "mask must be bool or {}, not {}", name(dtype), describe(mask));
  if (mask.shape.rank() > 4 || !(broadcast_shapes(op, mask.shape, scores) == scores))
    fail(op, "mask {} does not broadcast to {}", to_string(mask.shape), to_string(scores));
}

void require_slopes(std::string_view op, const Attrs& attrs) {
  const double largest = attrs.as<AttentionAttrs>().alibi;
  if (!(largest >= 0 && largest <= 64)) fail(op, "alibi = {} is not in [0, 64]", largest);
}

void require_state(std::string_view op, const TensorMeta& state, const Attrs& attrs) {
  const double p = attrs.as<AttentionAttrs>().dropout;
  if (!(p >= 0 && p < 1)) fail(op, "dropout = {} is not in [0, 1)", p);
  if (p == 0) return;
  if (is_absent(state) || state.dtype != Int64 || state.shape.size() != 1 || provably_different(state.shape[0], Dim(2)))
    fail(op, "dropout needs a state, i64[2], not {}", is_absent(state) ? "none" : describe(state));
}

// Checks q, k, v, mask and state; gives the shapes of the result and of its rows.
std::pair<Shape, Shape> attended(std::string_view op, std::span<const TensorMeta> in, const Attrs& attrs) {
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
  require_slopes(op, attrs);
  require_state(op, in[4], attrs);
  return {{q[0], q[1], q[2], v[3]}, {q[0], q[1], q[2]}};
}

// Pairs of a query and a key that it attends, but for a mask.
double pairs_of(double batch_heads, int64_t queries, int64_t keys, bool causal) {
  const auto n = static_cast<double>(queries), m = static_cast<double>(keys), both = std::min(n, m);
  return batch_heads * (causal ? both * (both + 1) / 2 + (n - both) * m : n * m);
}
double pairs_of(const Shape& q, const Shape& k, const Attrs& attrs) {
  return pairs_of(elements_of({q[0], q[1]}), q[2].value(), k[2].value(), attrs.as<AttentionAttrs>().causal);
}
// Scores and sums of values.
double attention_flops(std::span<const TensorMeta> in, std::span<const TensorMeta>, const Attrs& attrs) {
  const Shape &q = in[0].shape, &v = in[2].shape;
  return 2 * pairs_of(q, in[1].shape, attrs) * static_cast<double>((q[3] + v[3]).value());
}
// Scores again, gradients of weights, queries, keys and values.
double attention_backward_flops(std::span<const TensorMeta> in, std::span<const TensorMeta>, const Attrs& attrs) {
  const Shape &q = in[3].shape, &v = in[5].shape;
  return 2 * pairs_of(q, in[4].shape, attrs) * static_cast<double>((3 * q[3] + 2 * v[3]).value());
}

Metas infer_attention(std::span<const TensorMeta> in, const Attrs& attrs) {
  auto [out, rows] = attended("scaled_dot_product_attention", in, attrs);
  return {{out, in[0].dtype, in[0].device}, {rows, statistics_dtype(in[0].dtype), in[0].device}};
}

Tensors attention_vjp(const Saved& s, const Tensors& grads) {
  Tensors out = gradients(grads[0], s.inputs[0], s.inputs[1], s.inputs[2], s.inputs[3], s.inputs[4],
                          s.attrs.as<AttentionAttrs>());
  out.push_back({});
  return out;
}
Tensors attention_reference(std::span<const Tensor> in, const Attrs& attrs) {
  return {attend(in[0], in[1], in[2], in[3], in[4], attrs.as<AttentionAttrs>())};
}

// ---- its backward: dy, y, log-sum-exp, q, k, v, mask?, state? -> dq, dk, dv

Metas infer_attention_backward(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr auto op = "scaled_dot_product_attention_backward";
  auto [out, rows] = attended(op, in.subspan(3), attrs);
  require_shape(op, "gradient", in[0], out);
  require_shape(op, "result", in[1], out);
  require_shape(op, "log-sum-exp", in[2], rows);
  return {in[3], in[4], in[5]};
}
Tensors attention_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Tensors out = gradients(in[0], in[3], in[4], in[5], in[6], in[7], attrs.as<AttentionAttrs>());
  out.pop_back();
  return out;
}

const Op attention_backward = {.name = "scaled_dot_product_attention_backward",
                               .inputs = "dy, y, log_sum_exp, q, k, v, mask?, state?",
                               .outputs = "dq, dk, dv",
                               .attrs = attrs_of<AttentionAttrs>,
                               .infer = infer_attention_backward,
                               .reference = attention_backward_reference,
                               .flops = attention_backward_flops};

Tensors attention_fused_vjp(const Saved& s, const Tensors& grads) {
  if (s.needs_input(3)) return attention_vjp(s, grads);  // a mask that learns: its gradient needs the scores
  Tensors out = dispatch(
      attention_backward,
      {grads[0], s.outputs[0], s.outputs[1], s.inputs[0], s.inputs[1], s.inputs[2], s.inputs[3], s.inputs[4]}, s.attrs);
  out.resize(5);
  return out;
}

const Op attention_op = {.name = "scaled_dot_product_attention",
                         .inputs = "q, k, v, mask?, state?",
                         .outputs = "y, log_sum_exp?",
                         .attrs = attrs_of<AttentionAttrs>,
                         .infer = infer_attention,
                         .vjp = attention_vjp,
                         .fused_vjp = attention_fused_vjp,
                         .reference = attention_reference,
                         .saves = {.inputs = 0b11111, .outputs = 0b11},
                         .autocast = Autocast::Lower,
                         .hidden_outputs = 1,
                         .flops = attention_flops};

// ---- attention_qkv: qkv [batch, tokens, 3 heads d], mask?, state? -> y [batch, tokens, heads d], log-sum-exp
// (hidden). The rows hold all of q, then k, then v, so neither direction splits or joins anything.

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

// Checks qkv, mask and state.
std::pair<Shape, Shape> attended_packed(std::string_view op, std::span<const TensorMeta> in, const Attrs& attrs) {
  const TensorMeta& qkv = in[0];
  const int64_t heads = attrs.as<AttentionAttrs>().heads;
  require_one_floating_dtype(op, in, 1);
  require_rank(op, "qkv", qkv, 3);
  const Shape& s = qkv.shape;
  if (heads < 1 || s[2] == Dim(0) || provably_different(s[2] / 3 / heads * heads * 3, s[2]))
    fail(op, "{} columns do not hold queries, keys and values of {} heads", s[2].to_string(), heads);
  require_mask(op, in[1], qkv.dtype, {s[0], Dim(heads), s[1], s[1]});
  require_slopes(op, attrs);
  require_state(op, in[2], attrs);
  return {{s[0], s[1], s[2] / 3}, {s[0], Dim(heads), s[1]}};
}

Metas infer_attention_qkv(std::span<const TensorMeta> in, const Attrs& attrs) {
  auto [out, rows] = attended_packed("attention_qkv", in, attrs);
  return {{out, in[0].dtype, in[0].device}, {rows, statistics_dtype(in[0].dtype), in[0].device}};
}

// Of so many products for each pair.
template <int products>
double packed_flops(const Shape& qkv, const Attrs& attrs) {
  const auto& a = attrs.as<AttentionAttrs>();
  const double width = static_cast<double>(qkv[2].value()) / 3;
  return 2 * products * pairs_of(static_cast<double>(qkv[0].value()), qkv[1].value(), qkv[1].value(), a.causal) * width;
}
double attention_qkv_flops(std::span<const TensorMeta> in, std::span<const TensorMeta>, const Attrs& attrs) {
  return packed_flops<2>(in[0].shape, attrs);
}
double attention_qkv_backward_flops(std::span<const TensorMeta> in, std::span<const TensorMeta>, const Attrs& attrs) {
  return packed_flops<5>(in[3].shape, attrs);
}

Tensors attention_qkv_reference(std::span<const Tensor> in, const Attrs& attrs) {
  auto& a = attrs.as<AttentionAttrs>();
  Tensors parts = unpack(in[0], a.heads);
  return {join_heads(attend(parts[0], parts[1], parts[2], in[1], in[2], a))};
}

// dqkv, dmask, nothing
Tensors packed_gradients(const Tensor& g, const Tensor& qkv, const Tensor& mask, const Tensor& state,
                         const AttentionAttrs& a) {
  Tensors parts = unpack(qkv, a.heads);
  Tensors out = gradients(split_heads(g, a.heads), parts[0], parts[1], parts[2], mask, state, a);
  return {concat({join_heads(out[0]), join_heads(out[1]), join_heads(out[2])}, 2), out[3], {}};
}
Tensors attention_qkv_vjp(const Saved& s, const Tensors& grads) {
  return packed_gradients(grads[0], s.inputs[0], s.inputs[1], s.inputs[2], s.attrs.as<AttentionAttrs>());
}

// dy, y, log-sum-exp, qkv, mask?, state? -> dqkv
Metas infer_attention_qkv_backward(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr auto op = "attention_qkv_backward";
  auto [out, rows] = attended_packed(op, in.subspan(3), attrs);
  require_shape(op, "gradient", in[0], out);
  require_shape(op, "result", in[1], out);
  require_shape(op, "log-sum-exp", in[2], rows);
  return {in[3]};
}
Tensors attention_qkv_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  return {packed_gradients(in[0], in[3], in[4], in[5], attrs.as<AttentionAttrs>())[0]};
}

const Op attention_qkv_backward = {.name = "attention_qkv_backward",
                                   .inputs = "dy, y, log_sum_exp, qkv, mask?, state?",
                                   .outputs = "dqkv",
                                   .attrs = attrs_of<AttentionAttrs>,
                                   .infer = infer_attention_qkv_backward,
                                   .reference = attention_qkv_backward_reference,
                                   .flops = attention_qkv_backward_flops};

Tensors attention_qkv_fused_vjp(const Saved& s, const Tensors& grads) {
  if (s.needs_input(1)) return attention_qkv_vjp(s, grads);
  return {dispatch_one(attention_qkv_backward,
                       {grads[0], s.outputs[0], s.outputs[1], s.inputs[0], s.inputs[1], s.inputs[2]}, s.attrs),
          {},
          {}};
}

const Op attention_qkv_op = {.name = "attention_qkv",
                             .inputs = "qkv, mask?, state?",
                             .outputs = "y, log_sum_exp?",
                             .attrs = attrs_of<AttentionAttrs>,
                             .infer = infer_attention_qkv,
                             .vjp = attention_qkv_vjp,
                             .fused_vjp = attention_qkv_fused_vjp,
                             .reference = attention_qkv_reference,
                             .saves = {.inputs = 0b111, .outputs = 0b11},
                             .autocast = Autocast::Lower,
                             .hidden_outputs = 1,
                             .flops = attention_qkv_flops};

}  // namespace

std::span<const Op* const> attention_ops() {
  static constexpr const Op* ops[] = {&attention_op, &attention_backward, &attention_qkv_op, &attention_qkv_backward};
  return ops;
}

namespace {

// A word for each weight.
Tensor state_for(const AttentionOptions& options, Dim weights, Device device) {
  if (options.dropout == 0) return {};
  Generator& generator = options.generator ? *options.generator : default_generator();
  return generator.reserve(weights, device);
}

}  // namespace

double alibi_slope(int64_t head, int64_t heads, double largest) {
  if (head < 0 || head >= heads) throw Error(fmt::format("alibi_slope: head {} is not one of {}", head, heads));
  return tile::alibi_slope<double>(head, heads, largest);
}

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options) {
  const Shape &s = q.shape(), &keys = k.shape();
  const Dim weights = s.rank() == 4 && keys.rank() == 4 ? s[0] * s[1] * s[2] * keys[2] : Dim(0);
  return dispatch_one(attention_op, {q, k, v, options.mask, state_for(options, weights, q.device())},
                      AttentionAttrs{options.scale, options.causal, 0, options.dropout, options.alibi});
}

Tensor attention_qkv(const Tensor& qkv, int64_t heads, const AttentionOptions& options) {
  const Shape& s = qkv.shape();
  const Dim weights = s.rank() == 3 ? s[0] * heads * s[1] * s[1] : Dim(0);
  return dispatch_one(attention_qkv_op, {qkv, options.mask, state_for(options, weights, qkv.device())},
                      AttentionAttrs{options.scale, options.causal, heads, options.dropout, options.alibi});
}

}  // namespace tessera
