// Matrix products: matmul, and linear with its fused epilogue act(x wᵀ + bias) + residual.
#include <cmath>
#include <numbers>

#include "ops/autocast.h"
#include "ops/check.h"
#include "ops/gradient.h"
#include "ops/op_table.h"
#include "ops/reference.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

Tensor transposed(const Tensor& x) { return transpose(x, -2, -1); }

// [..., n] as a matrix; a view where strides allow.
Tensor rows(const Tensor& x) {
  if (x.dim() == 2) return x;
  Dim count = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) count = count * x.shape()[d];
  return reshape(x, Shape{count, x.shape().back()});
}

// ---- matmul

Metas infer_matmul(std::span<const TensorMeta> in, const Attrs&) {
  const Shape &a = in[0].shape, &b = in[1].shape;
  require_one_floating_dtype("matmul", in, 2);
  if (a.rank() < 2 || b.rank() < 2) fail("matmul", "operands need two dims: {} x {}", to_string(a), to_string(b));
  if (a.back() != b[b.size() - 2]) fail("matmul", "inner dimensions differ: {} x {}", to_string(a), to_string(b));
  Shape out = broadcast_shapes("matmul", Shape(a.begin(), a.end() - 2), Shape(b.begin(), b.end() - 2));
  out.push_back(a[a.size() - 2]);
  out.push_back(b.back());
  return {{out, in[0].dtype, in[0].device}};
}

Tensors matmul_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &a = s.inputs[0], &b = s.inputs[1], &g = grads[0];
  Tensors out(2);
  if (s.needs_input(0)) out[0] = gradient_for(matmul(g, transposed(b)), a);
  if (s.needs_input(1))  // a matrix shared by a batch: its gradient is one product, not a sum of many
    out[1] = b.dim() == 2 ? matmul(transposed(rows(a)), rows(g)) : gradient_for(matmul(transposed(a), g), b);
  return out;
}

Tensors matmul_reference(std::span<const Tensor> in, const Attrs& attrs) {
  TensorMeta metas[] = {in[0].meta(), in[1].meta()};
  Shape shape = infer_matmul(metas, attrs)[0].shape;
  int64_t inner = in[0].size(-1);
  return {reference::generate(shape, in[0].dtype(), [&](const reference::Index& index) {
    reference::Index a = index, b = index;
    double total = 0;
    for (int64_t k = 0; k < inner; ++k) {
      a[a.size() - 1] = b[b.size() - 2] = k;
      total += reference::get(in[0], a) * reference::get(in[1], b);
    }
    return total;
  })};
}

const Op matmul_op = {.name = "matmul",
                      .infer = infer_matmul,
                      .vjp = matmul_vjp,
                      .reference = matmul_reference,
                      .saves = {.inputs = 0b11},
                      .autocast = Autocast::Lower,
                      .pitched = true};

// ---- linear: x, weight, bias?, residual? -> y, slope of the activation (hidden)

Metas infer_linear(std::span<const TensorMeta> in, const Attrs& attrs) {
  const Shape &x = in[0].shape, &weight = in[1].shape;
  require_one_floating_dtype("linear", in, 4);
  require_rank("linear", "weight", in[1], 2);
  if (x.empty() || x.back() != weight[1])
    fail("linear", "the last dim of x is not the weight's: {} and {}", to_string(x), to_string(weight));
  require_shape("linear", "bias", in[2], {weight[0]});
  Shape out = x;
  out.back() = weight[0];
  require_shape("linear", "residual", in[3], out);
  bool activated = attrs.as<LinearAttrs>().activation != Activation::None;
  TensorMeta y{out, in[0].dtype, in[0].device};
  return {y, {activated ? out : Shape{0}, y.dtype, y.device}};
}

const Op& activation_op(Activation activation) {
  switch (activation) {
    case Activation::Relu:
      return find_op("relu");
    case Activation::GeluTanh:
      return find_op("gelu_tanh");
    case Activation::GeluErf:
      return find_op("gelu");
    case Activation::Silu:
      return find_op("silu");
    case Activation::Tanh:
      return find_op("tanh");
    case Activation::None:
      break;
  }
  throw Error("linear: unknown activation");
}

// The gradient of h from that of activation(h), in the way the activation's own op does it.
Tensor activation_gradient(Activation activation, const Tensor& g, Tensor h) {
  if (activation == Activation::None) return g;
  static const Attrs none;
  const Op& op = activation_op(activation);
  Tensor out = op.saves.outputs ? dispatch_one(op, {h}) : Tensor();
  Saved saved{none, {&h, 1}, {&out, 1}, {}, 1};
  return (op.fused_vjp && !grad_enabled() ? op.fused_vjp : op.vjp)(saved, {g})[0];
}

// From the gradients of y and of what the activation is applied to.
Tensors linear_gradients(const Saved& s, const Tensor& g, const Tensor& dh) {
  const Tensor& weight = s.inputs[1];
  const Shape shape = s.inputs[0].shape();
  Tensors out(4);
  if (s.needs_input(1)) out[1] = matmul(transposed(rows(dh)), rows(s.inputs[0]));
  s.inputs[0] = {};  // before its gradient takes as much memory
  if (s.needs_input(0)) out[0] = reshape(matmul(rows(dh), weight), shape);
  if (s.needs_input(2)) out[2] = sum_to(dh, {weight.shape()[0]});
  if (s.needs_input(3)) out[3] = g;
  return out;
}

Tensors linear_vjp(const Saved& s, const Tensors& grads) {
  Activation activation = s.attrs.as<LinearAttrs>().activation;
  Tensor h;
  if (activation != Activation::None) h = linear(s.inputs[0], s.inputs[1], s.inputs[2]);
  return linear_gradients(s, grads[0], activation_gradient(activation, grads[0], h));
}

Tensors linear_fused_vjp(const Saved& s, const Tensors& grads) {
  const Tensor& g = grads[0];
  if (s.attrs.as<LinearAttrs>().activation == Activation::None) return linear_gradients(s, g, g);
  const bool in_place = is_sole_owner(g) && !s.needs_input(3);
  Tensor& slope = s.outputs[1];
  Tensor dh = g;
  if (in_place) dh.mul_(slope);
  else dh = g * slope;
  slope = {};
  return linear_gradients(s, g, dh);
}

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::None:
      return x;
    case Activation::Relu:
      return x > 0 ? x : 0;
    case Activation::GeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::GeluErf:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::Silu:
      return x / (1 + std::exp(-x));
    case Activation::Tanh:
      return std::tanh(x);
  }
  throw Error("linear: unknown activation");
}

Tensors linear_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor &x = in[0], &weight = in[1], &bias = in[2], &residual = in[3];
  Shape shape = x.shape();
  shape.back() = weight.shape()[0];
  return {reference::generate(shape, x.dtype(), [&](const reference::Index& index) {
    reference::Index i = index;
    int64_t column = index.back();
    double h = bias.defined() ? reference::get(bias, std::array{column}) : 0;
    for (int64_t k = 0; k < x.size(-1); ++k) {
      i.back() = k;
      h += reference::get(x, i) * reference::get(weight, std::array{column, k});
    }
    return activate(attrs.as<LinearAttrs>().activation, h) + (residual.defined() ? reference::get(residual, index) : 0);
  })};
}

const Op linear_op = {.name = "linear",
                      .infer = infer_linear,
                      .vjp = linear_vjp,
                      .fused_vjp = linear_fused_vjp,
                      .reference = linear_reference,
                      .saves = {.inputs = 0b0111, .outputs = 0b10},
                      .autocast = Autocast::Lower,
                      .hidden_outputs = 1,
                      .pitched = true};

constexpr const Op* ops[] = {&matmul_op, &linear_op};

}  // namespace

std::span<const Op* const> matmul_ops() { return ops; }

Tensor matmul(const Tensor& a, const Tensor& b) {
  if (a.dim() >= 2 && b.dim() >= 2) return dispatch_one(matmul_op, {a, b});
  if (a.dim() == 0 || b.dim() == 0 || a.shape().back() != b.shape()[std::max<int64_t>(b.dim() - 2, 0)])
    fail("matmul", "inner dimensions differ: {} x {}", to_string(a.shape()), to_string(b.shape()));
  Tensor out = dispatch_one(matmul_op, {a.dim() == 1 ? unsqueeze(a, 0) : a, b.dim() == 1 ? unsqueeze(b, 1) : b});
  if (b.dim() == 1) out = squeeze(out, -1);
  return a.dim() == 1 ? squeeze(out, b.dim() == 1 ? -1 : -2) : out;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return linear_act(x, weight, bias, Activation::None);
}
Tensor linear_act(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation,
                  const Tensor& residual) {
  if (amp::is_wide_residual(residual)) return add(residual, linear_act(x, weight, bias, activation));
  return dispatch_one(linear_op, {x, weight, bias, residual}, LinearAttrs{activation});
}

}  // namespace tessera
