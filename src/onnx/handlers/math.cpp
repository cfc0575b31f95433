// Elementwise operators.
#include <cmath>

#include "core/capture_state.h"
#include "onnx/handler.h"
#include "tessera/ops.h"
#include "tessera/ops_math.h"

namespace tessera::onnx {
namespace {

template <Tensor (*function)(Tensor)>
Values unary(const Call& c) {
  return {function(c.in(0))};
}
/// A number of the dtype of x, to broadcast.
Tensor number_like(const Tensor& x, double value) { return full({}, value, x.dtype(), x.device()); }

/// Versions below 7 broadcast only where the attribute says so: b lies along the dims of a from `axis` on.
Tensor old_broadcast(const Call& c) {
  Tensor b = c.in(1);
  if (c.opset() >= 7 || !c.flag("broadcast", false) || !c.has_attribute("axis")) return b;
  int64_t axis = c.integer("axis", 0);
  const int64_t rank = c.in(0).dim();
  if (axis < 0) axis += rank;
  if (axis < 0 || axis + b.dim() > rank) c.fail("axis {} is outside", axis);
  for (int64_t d = axis + b.dim(); d < rank; ++d) b = unsqueeze(b, -1);
  return b;
}
template <Tensor (*function)(Tensor, Tensor)>
Values binary(const Call& c) {
  c.check_types();
  return {function(c.in(0), old_broadcast(c))};
}

// Where a captured function computes the divisor, nothing is known of it.
bool has_zero(const Tensor& divisor) {
  if (divisor.device().meta) return false;
  const PauseCapture read;
  return any(eq(divisor, number_like(divisor, 0))).item() != 0;
}
Values divide(const Call& c) {
  const Tensor &a = c.in(0), b = old_broadcast(c);
  c.check_types();
  if (is_floating(a.dtype())) return {div(a, b)};
  if (has_zero(b)) c.fail("an integer is divided by zero");
  return {div_trunc(a, b)};
}
Values modulo(const Call& c) {
  const Tensor &a = c.in(0), &b = c.in(1);
  c.check_types();
  const bool integers = !is_floating(a.dtype());
  if (integers && has_zero(b)) c.fail("an integer is divided by zero");
  return {c.flag("fmod", false) ? tessera::fmod(a, b) : remainder(a, b)};
}
Values power(const Call& c) {
  const Tensor& a = c.in(0);
  const Tensor b = old_broadcast(c);
  if (is_floating(a.dtype()) && b.numel() == 1 && b.dim() <= a.dim() && b.device() == cpu())
    return {pow(a, b.item())};                                          // few powers are computed as such
  const bool wide = !is_floating(a.dtype()) && is_floating(b.dtype());  // as the power is
  return {cast(pow(a, wide ? b : cast(b, a.dtype())), a.dtype())};
}

template <Tensor (*function)(Tensor, Tensor)>
Values of_all(const Call& c) {
  Tensor out = c.in(0);
  for (size_t i = 1; i < c.inputs(); ++i) out = function(out, c.in(i));
  return {out};
}
Values mean_of_all(const Call& c) {
  Tensor out = c.in(0);
  for (size_t i = 1; i < c.inputs(); ++i) out = add(out, c.in(i));
  return {mul(out, 1.0 / static_cast<double>(c.inputs()))};
}

Values clip_by_attributes(const Call& c) {
  constexpr double most = 3.402823466385288598e38;
  return {clamp(c.in(0), c.real("min", -most), c.real("max", most))};
}
Values clip(const Call& c) {
  Tensor x = c.in(0);
  if (c.has(1) && c.has(2) && c.in(1).device() == cpu() && is_floating(x.dtype()))
    return {clamp(x, c.number(1), c.number(2))};  // in one pass, without waiting for a device
  if (c.has(1)) x = maximum(x, c.in(1));
  if (c.has(2)) x = minimum(x, c.in(2));
  return {x};
}

// ---- activations

template <Tensor (*function)(const Tensor&)>
Values activation(const Call& c) {
  return {function(c.in(0))};
}

Values elu_of(const Call& c) { return {elu(c.in(0), c.real("alpha", 1))}; }
Values celu_of(const Call& c) { return {celu(c.in(0), c.real("alpha", 1))}; }
Values selu_of(const Call& c) {
  return {selu(c.in(0), c.real("alpha", 1.67326319217681884765625), c.real("gamma", 1.05070102214813232421875))};
}
Values leaky_relu_of(const Call& c) { return {leaky_relu(c.in(0), c.real("alpha", 0.01f))}; }
Values prelu(const Call& c) {
  const Tensor& x = c.in(0);
  Tensor slope = c.in(1);
  if (c.opset() < 7 && slope.dim() == 1)  // of channels
    for (int64_t d = 2; d < x.dim(); ++d) slope = unsqueeze(slope, -1);
  const Tensor zero = number_like(x, 0);
  return {where(lt(x, zero), mul(x, slope), x)};
}
Values hard_sigmoid(const Call& c) { return {hardsigmoid(c.in(0), c.real("alpha", 0.2f), c.real("beta", 0.5))}; }
Values thresholded(const Call& c) { return {thresholded_relu(c.in(0), c.real("alpha", 1))}; }
Values shrink(const Call& c) {
  const Tensor& x = c.in(0);
  const double bias = c.real("bias", 0), lambda = c.real("lambd", 0.5);
  const Tensor below = lt(x, number_like(x, -lambda)), above = gt(x, number_like(x, lambda));
  return {where(below, cast(add(x, number_like(x, bias)), x.dtype()),
                where(above, cast(sub(x, number_like(x, bias)), x.dtype()), number_like(x, 0)))};
}
Values gelu(const Call& c) {
  const std::string kind = c.text("approximate", "none");
  if (kind == "tanh") return {gelu_tanh(c.in(0))};
  if (kind != "none") c.fail("approximate {} is not known", kind);
  return {tessera::gelu(c.in(0))};
}
Values swish(const Call& c) {
  const Tensor& x = c.in(0);
  const double alpha = c.real("alpha", 1);
  return {alpha == 1 ? silu(x) : mul(x, sigmoid(x * alpha))};
}
Values swiglu(const Call& c) {
  const Tensor &gate = c.in(0), &value = c.in(1);
  return {mul(mul(gate, sigmoid(gate * c.real("alpha", 1))), value)};
}

// ---- predicates

Values is_inf(const Call& c) {
  const Tensor& x = c.in(0);
  const bool negative = c.flag("detect_negative", true), positive = c.flag("detect_positive", true);
  if (negative && positive) return {isinf(x)};
  const Tensor zero = number_like(x, 0);
  if (negative) return {logical_and(isinf(x), lt(x, zero))};
  if (positive) return {logical_and(isinf(x), gt(x, zero))};
  return {zeros(x.shape(), Bool, x.device())};
}
Values choose(const Call& c) { return {where(c.in(0), c.in(1), c.in(2))}; }

Values cast_to(const Call& c) {
  const Tensor& x = c.in(0);
  const DType to = c.dtype("to", Float32);
  if (to == Bool) return {ne(x, number_like(x, 0))};
  return {cast(is_floating(x.dtype()) && !is_floating(to) ? trunc(x) : x, to)};
}
Values cast_like(const Call& c) {
  const Tensor& x = c.in(0);
  return {c.in(1).dtype() == Bool ? ne(x, number_like(x, 0)) : cast(x, c.in(1).dtype())};
}
Values identity(const Call& c) { return {c.value(0)}; }
Values dropout(const Call& c) {
  const Tensor& x = c.in(0);
  const bool training = c.has(2) && c.in(2).item() != 0;
  const double ratio = c.has(1) ? c.number(1) : 0.5;
  if (training && ratio > 0) {
    const Tensor mask =
        ge(rand(x.shape(), default_generator(), Float32, x.device()), full({}, ratio, Float32, x.device()));
    return {mul(x, cast(mask, x.dtype())) * (1 / (1 - ratio)), mask};
  }
  return {x, ones(x.shape(), c.opset() < 10 ? x.dtype() : Bool, x.device())};
}

constexpr Entry entries[] = {
    {"Abs", 1, unary<tessera::abs>},
    {"Acos", 7, unary<tessera::acos>},
    {"Add", 1, binary<add>},
    {"And", 1, binary<logical_and>},
    {"Asin", 7, unary<tessera::asin>},
    {"Atan", 7, unary<tessera::atan>},
    {"Cast", 6, cast_to},
    {"CastLike", 15, cast_like},
    {"Ceil", 1, unary<tessera::ceil>},
    {"Celu", 12, celu_of},
    {"Clip", 1, clip_by_attributes},
    {"Clip", 11, clip},
    {"Cos", 7, unary<tessera::cos>},
    {"Div", 1, divide},
    {"Dropout", 1, dropout, "", true},
    {"Elu", 1, elu_of},
    {"Equal", 1, binary<eq>},
    {"Erf", 9, unary<tessera::erf>},
    {"Exp", 1, unary<tessera::exp>},
    {"Floor", 1, unary<tessera::floor>},
    {"Gelu", 20, gelu},
    {"Greater", 1, binary<gt>},
    {"GreaterOrEqual", 12, binary<ge>},
    {"HardSigmoid", 1, hard_sigmoid},
    {"HardSwish", 14, activation<hardswish>},
    {"Identity", 1, identity},
    {"IsInf", 10, is_inf},
    {"IsNaN", 9, unary<tessera::isnan>},
    {"LeakyRelu", 1, leaky_relu_of},
    {"Less", 1, binary<lt>},
    {"LessOrEqual", 12, binary<le>},
    {"Log", 1, unary<tessera::log>},
    {"Max", 1, of_all<maximum>},
    {"Mean", 1, mean_of_all},
    {"Min", 1, of_all<minimum>},
    {"Mish", 18, activation<mish>},
    {"Mod", 10, modulo},
    {"Mul", 1, binary<mul>},
    {"Neg", 1, unary<neg>},
    {"Not", 1, unary<logical_not>},
    {"Or", 1, binary<logical_or>},
    {"Pow", 1, power},
    {"PRelu", 1, prelu},
    {"Reciprocal", 1, unary<reciprocal>},
    {"Relu", 1, unary<relu>},
    {"Round", 11, unary<tessera::round>},
    {"Selu", 1, selu_of},
    {"Shrink", 9, shrink},
    {"Sigmoid", 1, unary<sigmoid>},
    {"Sign", 9, unary<sign>},
    {"Sin", 7, unary<tessera::sin>},
    {"Softplus", 1, unary<softplus>},
    {"Softsign", 1, activation<softsign>},
    {"Sqrt", 1, unary<tessera::sqrt>},
    {"Sub", 1, binary<sub>},
    {"Sum", 1, of_all<add>},
    {"SwiGLU", 28, swiglu},
    {"Swish", 24, swish},
    {"Tan", 7, unary<tessera::tan>},
    {"Tanh", 1, unary<tessera::tanh>},
    {"ThresholdedRelu", 10, thresholded},
    {"Where", 9, choose},
    {"Xor", 1, binary<logical_xor>},
};

}  // namespace

std::span<const Entry> math_handlers() { return entries; }

}  // namespace tessera::onnx
