// Products with weights, and what is behind them.
#include "onnx/optimize/rewriter.h"
#include "tessera/ops.h"
#include "tessera/packing.h"

namespace tessera::onnx {
namespace {

/// act(x wᵀ + bias) + residual; a residual of another shape is added for itself.
Values fused_linear(const Call& c) {
  const auto activation = static_cast<Activation>(c.integer("activation", 0));
  const Tensor &x = c.in(0), &weight = c.in(1), residual = c.optional(3);
  if (!residual.defined()) return {linear_act(x, weight, c.optional(2), activation)};
  bool fits = residual.dim() == x.dim() && residual.size(-1) == weight.size(0);
  for (int64_t d = 0; fits && d + 1 < x.dim(); ++d) fits = residual.size(d) == x.size(d);
  if (fits) return {linear_act(x, weight, c.optional(2), activation, residual)};
  return {add(residual, linear_act(x, weight, c.optional(2), activation))};
}
constexpr Entry linear_entry{"Linear", 1, fused_linear, "tessera"};

}  // namespace

Activation activation_of(const Rewriter& r, int at) {
  const Step& step = r.step(at);
  if (r.is(at, "Relu")) return Activation::Relu;
  if (r.is(at, "Tanh")) return Activation::Tanh;
  if (r.is(at, "Swish")) return real_of(step, "alpha", 1) == 1 ? Activation::Silu : Activation::None;
  if (!r.is(at, "Gelu")) return Activation::None;
  const AttributeProto* a = attribute_of(step, "approximate");
  return a && a->s == "tanh" ? Activation::GeluTanh : Activation::GeluErf;
}

void ProductFuser::fuse(int at) {
  const bool gemm = r_.is(at, "Gemm");
  if (!gemm && !r_.is(at, "MatMul")) return;
  const Step& step = r_.step(at);
  const Tensor weight = r_.constant(step, 1);
  if (step.in.size() < 2 || step.in[0] < 0 || !weight.defined() || weight.dim() != 2 || !is_floating(weight.dtype()))
    return;
  if (gemm && (integer_of(step, "transA", 0) || real_of(step, "alpha", 1) != 1 || real_of(step, "beta", 1) != 1))
    return;
  const bool turned = gemm && integer_of(step, "transB", 0);
  const int64_t width = weight.size(turned ? 0 : 1);
  const auto is_bias = [&](const Tensor& t) {
    return t.defined() && t.dim() == 1 && t.size(0) == width && t.dtype() == weight.dtype();
  };
  int bias = -1, last = at, residual = -1;
  const auto value = [&] { return r_.step(last).out[0]; };
  if (gemm && step.in.size() > 2 && step.in[2] >= 0) {
    if (!is_bias(r_.constant(step, 2))) return;
    bias = step.in[2];
  }
  // What is behind it: a bias, an activation, a residual.
  if (const int next = r_.only_user(value(), "Add"); bias < 0 && next >= 0) {
    const int other = other_input(r_.step(next), value());
    if (is_bias(r_.constant(other))) bias = other, last = next;
  }
  Activation activation = Activation::None;
  if (const int next = r_.only_user(value()); next >= 0) {
    activation = activation_of(r_, next);
    if (activation != Activation::None) last = next;
  }
  if (const int next = r_.only_user(value(), "Add"); next >= 0) {
    const int other = other_input(r_.step(next), value());
    if (other >= 0 && other != value() && !r_.constant(other).defined()) residual = other, last = next;
  }
  r_.replace(last, at, &linear_entry, {step.in[0], packed_of(step.in[1], weight, turned), bias, residual},
             {{.name = "activation", .type = kIntAttribute, .i = static_cast<int64_t>(activation)}});
}

int ProductFuser::packed_of(int slot, const Tensor& weight, bool turned) {
  for (const auto& [from, how, to] : packed_)
    if (from == slot && how == turned) return to;
  const Tensor rows = turned ? weight : transpose(weight, 0, 1);
  const int to = r_.add_constant(pack_linear(rows.dtype() == Float32 ? cast(rows, r_.products()) : rows));
  packed_.emplace_back(slot, turned, to);
  return to;
}

}  // namespace tessera::onnx
