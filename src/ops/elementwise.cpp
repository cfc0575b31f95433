// Elementwise operators: makers of ops, then tables with a line or two per op. What else there is of a map, its public
// function, too, is made of its line in tile/kernels/maps.h.
#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "core/capture_state.h"
#include "ops/batch_norm.h"
#include "ops/elements.h"
#include "ops/gradient.h"
#include "ops/map_graph.h"
#include "ops/op_name.h"
#include "ops/op_table.h"
#include "ops/reference.h"

namespace tessera {
namespace {

// ---- dtypes and shapes

enum class Result { Like, Real, Truth };  // the promoted dtype; the same but integers become f32; bool
using enum Result;

constexpr int kind(DType t) { return is_floating(t) ? 2 : t == Bool ? 0 : 1; }

// As in PyTorch, a 0-d tensor does not widen a tensor of the same kind: f16[3] + f32[] is f16.
DType result_type(const TensorMeta& a, const TensorMeta& b) {
  bool number_a = a.shape.empty(), number_b = b.shape.empty();
  if (number_a && !number_b && kind(a.dtype) <= kind(b.dtype)) return b.dtype;
  if (number_b && !number_a && kind(b.dtype) <= kind(a.dtype)) return a.dtype;
  return promote(a.dtype, b.dtype);
}

constexpr DType result_dtype(Result result, DType promoted) {
  if (result == Truth) return Bool;
  return result == Real && !is_floating(promoted) ? Float32 : promoted;
}

template <OpName op, Result result>
Metas infer_unary(std::span<const TensorMeta> in, const Attrs&) {
  require_inputs(op.view(), in);
  return {{in[0].shape, result_dtype(result, in[0].dtype), in[0].device}};
}

template <OpName op, Result result>
Metas infer_binary(std::span<const TensorMeta> in, const Attrs&) {
  require_inputs(op.view(), in);
  Shape shape = in[0].shape == in[1].shape ? in[0].shape : broadcast_shapes(op.view(), in[0].shape, in[1].shape);
  return {{std::move(shape), result_dtype(result, result_type(in[0], in[1])), in[0].device}};
}

// A whole number keeps integers integers.
template <OpName op>
Metas infer_scalar(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs(op.view(), in);
  double value = attrs.as<ScalarAttrs>().value;
  DType dtype = in[0].dtype;
  if (!is_floating(dtype)) dtype = value != std::floor(value) ? Float32 : dtype == Bool ? Int64 : dtype;
  return {{in[0].shape, dtype, in[0].device}};
}

Metas infer_cast(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("cast", in);
  return {{in[0].shape, attrs.as<CastAttrs>().dtype, in[0].device}};
}

Metas infer_where(std::span<const TensorMeta> in, const Attrs&) {
  require_inputs("where", in);
  if (in[0].dtype != Bool) throw Error(fmt::format("where: the condition is {}, not bool", name(in[0].dtype)));
  Shape shape = broadcast_shapes("where", broadcast_shapes("where", in[0].shape, in[1].shape), in[2].shape);
  return {{std::move(shape), result_type(in[1], in[2]), in[0].device}};
}

// In place: computed in the promoted dtype, stored in that of the first input.
template <OpName op, bool has_number = false>
Metas infer_update(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs(op.view(), in);
  const TensorMeta& self = in[0];
  if (in.size() > 1) {
    if (!(self.shape == in[1].shape || broadcast_shapes(op.view(), self.shape, in[1].shape) == self.shape))
      throw Error(
          fmt::format("{}: {} does not broadcast to {}", op.view(), to_string(in[1].shape), to_string(self.shape)));
    if (op.view() != "copy_" && kind(in[1].dtype) > kind(self.dtype))
      throw Error(
          fmt::format("{}: a result of {} cannot be stored in {}", op.view(), name(in[1].dtype), name(self.dtype)));
  }
  if constexpr (has_number)
    if (double v = attrs.as<ScalarAttrs>().value; !is_floating(self.dtype) && v != std::floor(v))
      throw Error(fmt::format("{}: a product with {} cannot be stored in {}", op.view(), v, name(self.dtype)));
  return {self};
}

// ---- references

template <auto value>
Tensors unary_reference(std::span<const Tensor> in, const Attrs&) {
  DType dtype = std::is_same_v<decltype(value(0.0)), bool> ? Bool : in[0].dtype();
  return {reference::generate(in[0].shape(), dtype, [&](auto& i) { return value(reference::get(in[0], i)); })};
}

template <auto value>
Tensors binary_reference(std::span<const Tensor> in, const Attrs&) {
  constexpr bool truth = std::is_same_v<decltype(value(0.0, 0.0)), bool>;
  return {reference::generate(broadcast_shapes("", in[0].shape(), in[1].shape()), truth ? Bool : in[0].dtype(),
                              [&](auto& i) { return value(reference::get(in[0], i), reference::get(in[1], i)); })};
}

// value(x, number)
template <auto value>
Tensors scalar_reference(std::span<const Tensor> in, const Attrs& attrs) {
  double number = attrs.as<ScalarAttrs>().value;
  return {reference::generate(in[0].shape(), in[0].dtype(),
                              [&](auto& i) { return value(reference::get(in[0], i), number); })};
}

// value(self, other, number)
template <auto value>
Tensors update_reference(std::span<const Tensor> in, const Attrs& attrs) {
  double number = attrs.as<ScalarAttrs>().value;
  return {reference::generate(in[0].shape(), in[0].dtype(), [&](auto& i) {
    return value(reference::get(in[0], i), reference::get(in[1], i), number);
  })};
}

Tensors cast_reference(std::span<const Tensor> in, const Attrs& attrs) {
  DType dtype = attrs.as<CastAttrs>().dtype;
  return {reference::generate(in[0].shape(), dtype, [&](auto& i) { return reference::get(in[0], i); })};
}

Tensors clamp_reference(std::span<const Tensor> in, const Attrs& attrs) {
  auto [low, high] = attrs.as<ClampAttrs>();
  return {reference::generate(in[0].shape(), in[0].dtype(),
                              [&](auto& i) { return std::min(std::max(reference::get(in[0], i), low), high); })};
}

Tensors clamp_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  auto [low, high] = attrs.as<ClampAttrs>();
  return {reference::generate(in[0].shape(), in[0].dtype(), [&](auto& i) {
    double x = reference::get(in[1], i);
    return x >= low && x <= high ? reference::get(in[0], i) : 0;
  })};
}

Tensors where_reference(std::span<const Tensor> in, const Attrs&) {
  Shape shape = broadcast_shapes("", broadcast_shapes("", in[0].shape(), in[1].shape()), in[2].shape());
  return {reference::generate(shape, in[1].dtype(), [&](auto& i) {
    return reference::get(in[0], i) != 0 ? reference::get(in[1], i) : reference::get(in[2], i);
  })};
}

Tensors copy_reference(std::span<const Tensor> in, const Attrs&) {
  return {reference::generate(in[0].shape(), in[0].dtype(), [&](auto& i) { return reference::get(in[1], i); })};
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x * std::numbers::sqrt2 / 2); }
double normal_pdf(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }
double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }
double gelu_tanh_of(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double gelu_tanh_slope(double x) {
  double c = std::sqrt(2 / std::numbers::pi), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}
double silu_slope(double x) { return sigmoid_of(x) * (1 + x * (1 - sigmoid_of(x))); }
double softplus_of(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double remainder_of(double a, double b) { return a - std::floor(a / b) * b; }
// By bisection.
double erfinv_of(double x) {
  if (!(std::abs(x) < 1)) return std::abs(x) == 1 ? x * INFINITY : NAN;
  double low = -6, high = 6;
  for (int step = 0; step < 64; ++step) {
    const double middle = (low + high) / 2;
    (std::erf(middle) < x ? low : high) = middle;
  }
  return low;
}

// ---- makers of ops

using T = const Tensor&;
enum class From { Input, Output };  // what a gradient is computed from
using enum From;

template <From from>
const Tensor& kept(const Saved& s) {
  return from == Input ? s.inputs[0] : s.outputs[0];
}

template <From from, auto gradient>
Tensors unary_vjp(const Saved& s, const Tensors& grads) {
  return {gradient(grads[0], kept<from>(s))};
}

// Through an op that makes the gradient in one pass.
template <const Op& backward, From from>
Tensors fused_vjp(const Saved& s, const Tensors& grads) {
  return {dispatch_one(backward, {grads[0], kept<from>(s)}, s.attrs)};
}

template <OpName op, Result result, auto value, From from, auto gradient>
constexpr Op unary(Autocast autocast = Autocast::None, Vjp fused = nullptr) {
  return {.name = op.text,
          .inputs = "x",
          .outputs = "y",
          .infer = infer_unary<op, result>,
          .vjp = unary_vjp<from, gradient>,
          .fused_vjp = fused ? fused : traced_vjp<unary_vjp<from, gradient>>,
          .reference = unary_reference<value>,
          .saves = from == Input ? Saves{.inputs = 1} : Saves{.outputs = 1},
          .autocast = autocast,
          .keeps_layout = true};
}

/// An op whose cases draw their inputs from [low, high], where it is smooth.
constexpr Op within(double low, double high, Op op) {
  op.domain = {low, high};
  return op;
}

/// One that computes sizes, too: of dims, what it makes of elements.
template <auto element>
constexpr Op on_sizes(Op op) {
  op.elements = mapped<element>;
  return op;
}

template <OpName op, auto value>
constexpr Op predicate() {
  return {.name = op.text,
          .inputs = "x",
          .outputs = "y",
          .infer = infer_unary<op, Truth>,
          .reference = unary_reference<value>,
          .keeps_layout = true};
}

// The gradient of a step is zero wherever there is one.
Tensors zero_vjp(const Saved& s, const Tensors&) { return {zeros_like(s.metas[0])}; }

Tensors zero_binary_vjp(const Saved& s, const Tensors&) {
  Tensors out(2);
  for (int i = 0; i < 2; ++i)
    if (s.needs_input(i)) out[static_cast<size_t>(i)] = zeros_like(s.metas[static_cast<size_t>(i)]);
  return out;
}

template <OpName op, auto value>
constexpr Op step() {
  return {.name = op.text,
          .inputs = "x",
          .outputs = "y",
          .infer = infer_unary<op, Like>,
          .vjp = zero_vjp,
          .reference = unary_reference<value>,
          .saves = {.metas = 1},
          .keeps_layout = true};
}

// Where bounds tell which it is.
Dim smallest(Dim a, Dim b) {
  if (a == b || a.high() <= b.low()) return a;
  if (b.high() <= a.low()) return b;
  throw Error(fmt::format("minimum: {} and {} may each be the smaller one", a.to_string(), b.to_string()));
}
Dim largest(Dim a, Dim b) { return smallest(a, b) == a ? b : a; }

// With a number of the attributes.
template <auto element>
Elements scalar_elements(const Op&, std::span<const TensorMeta> in, const Attrs& attrs, const TensorMeta& out) {
  const Dim number = whole_number(attrs.as<ScalarAttrs>().value);
  return mapped_elements(in, out, [&](std::span<const Dim> e) { return element(e[0], number); });
}

// Dims that were broadcast are summed; gradients that nobody wants are not computed.
template <auto to_a, auto to_b>
Tensors binary_vjp(const Saved& s, const Tensors& grads) {
  Tensors out(2);
  if (s.needs_input(0)) out[0] = gradient_for(to_a(grads[0], s), s.metas[0]);
  if (s.needs_input(1)) out[1] = gradient_for(to_b(grads[0], s), s.metas[1]);
  return out;
}

// How both are made: one after the other, and in one pass.
struct Gradients {
  Vjp vjp = nullptr, fused = nullptr;
};
template <auto to_a, auto to_b>
constexpr Gradients gradients{binary_vjp<to_a, to_b>, traced_vjp<binary_vjp<to_a, to_b>>};

template <OpName op, Result result, auto value>
constexpr Op binary(Gradients gradients = {}, Saves saves = {}, Autocast autocast = Autocast::None) {
  return {.name = op.text,
          .inputs = op.view().ends_with("_backward") ? "dy, x" : "a, b",
          .outputs = op.view().ends_with("_backward") ? "dx" : "y",
          .infer = infer_binary<op, result>,
          .vjp = gradients.vjp,
          .fused_vjp = gradients.fused,
          .reference = binary_reference<value>,
          .saves = saves,
          .autocast = autocast,
          .keeps_layout = true,
          .layout_of = kAnyInput};
}

constexpr Saves kShapes{.metas = 3}, kInputs{.inputs = 3, .metas = 3},
    kEverything{.inputs = 3, .outputs = 1, .metas = 3};
constexpr auto kNone = Autocast::None, kFloat32 = Autocast::Float32;

// Not a product with the condition: inf and NaN must not leak through zeros.
Tensor keep_where(T condition, T g) { return where(condition, g, number_like(g, 0)); }

Tensor gelu_gradient(T x) {
  Tensor density = exp(square(x) * -0.5) * (0.5 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
  return (erf(x * (0.5 * std::numbers::sqrt2)) + 1.0) * 0.5 + x * density;
}
Tensor gelu_tanh_gradient(T x) {
  const double c = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  Tensor x2 = square(x), t = tanh(x * (x2 * (c * 0.044715) + c));
  return (t + 1.0) * 0.5 + x * (1.0 - square(t)) * (x2 * (1.5 * c * 0.044715) + 0.5 * c);
}
Tensor silu_gradient(T x) {
  Tensor s = sigmoid(x);
  return s * (x * (1.0 - s) + 1.0);
}

// ---- the tables
// clang-format off

// Gradients in one pass: of the result, and the input or the result.
const Op relu_backward = binary<"relu_backward", Like, [](double g, double y) { return 0 < y ? g : 0; }>();
const Op tanh_backward = binary<"tanh_backward", Like, [](double g, double y) { return g * (1 - y * y); }>();
const Op sigmoid_backward = binary<"sigmoid_backward", Like, [](double g, double y) { return g * y * (1 - y); }>();
const Op gelu_backward = binary<"gelu_backward", Like, [](double g, double x) { return g * (normal_cdf(x) + x * normal_pdf(x)); }>();
const Op gelu_tanh_backward = binary<"gelu_tanh_backward", Like, [](double g, double x) { return g * gelu_tanh_slope(x); }>();
const Op silu_backward = binary<"silu_backward", Like, [](double g, double x) { return g * silu_slope(x); }>();
const Op softplus_backward = binary<"softplus_backward", Like, [](double g, double x) { return g * sigmoid_of(x); }>();
const Op clamp_backward = {.name = "clamp_backward", .inputs = "dy, x", .outputs = "dx", .attrs = attrs_of<ClampAttrs>, .infer = infer_binary<"clamp_backward", Like>, .reference = clamp_backward_reference, .keeps_layout = true, .layout_of = kAnyInput};

// One input: name, dtype of the result, value; gradient from g and x (the input) or y (the result).
const Op neg_op = on_sizes<[](Dim x) { return Dim(0) - x; }>(unary<"neg", Like, [](double x) { return -x; }, Output, [](T g, T) { return -g; }>());
const Op abs_op = unary<"abs", Like, [](double x) { return std::abs(x); }, Input, [](T g, T x) { return g * sign(x); }>();
const Op square_op = unary<"square", Like, [](double x) { return x * x; }, Input, [](T g, T x) { return g * x * 2.0; }>(kFloat32);
const Op exp_op = unary<"exp", Real, [](double x) { return std::exp(x); }, Output, [](T g, T y) { return g * y; }>(kFloat32);
const Op expm1_op = unary<"expm1", Real, [](double x) { return std::expm1(x); }, Output, [](T g, T y) { return g * (y + 1.0); }>(kFloat32);
const Op exp2_op = within(-4, 4, unary<"exp2", Real, [](double x) { return std::exp2(x); }, Output, [](T g, T y) { return g * y * std::numbers::ln2; }>());
const Op log_op = within(0.1, 4, unary<"log", Real, [](double x) { return std::log(x); }, Input, [](T g, T x) { return g / x; }>(kFloat32));
const Op log1p_op = within(-0.7, 3, unary<"log1p", Real, [](double x) { return std::log1p(x); }, Input, [](T g, T x) { return g / (x + 1.0); }>(kFloat32));
const Op sqrt_op = within(0.1, 4, unary<"sqrt", Real, [](double x) { return std::sqrt(x); }, Output, [](T g, T y) { return g * 0.5 / y; }>());
const Op rsqrt_op = within(0.2, 4, unary<"rsqrt", Real, [](double x) { return 1 / std::sqrt(x); }, Output, [](T g, T y) { return g * (y * y * y) * -0.5; }>(kFloat32));
const Op reciprocal_op = within(0.3, 3, unary<"reciprocal", Real, [](double x) { return 1 / x; }, Output, [](T g, T y) { return -(g * y * y); }>(kFloat32));
const Op sin_op = within(-9, 9, unary<"sin", Real, [](double x) { return std::sin(x); }, Input, [](T g, T x) { return g * cos(x); }>());
const Op cos_op = within(-9, 9, unary<"cos", Real, [](double x) { return std::cos(x); }, Input, [](T g, T x) { return -(g * sin(x)); }>());
const Op tan_op = within(-1.3, 1.3, unary<"tan", Real, [](double x) { return std::tan(x); }, Output, [](T g, T y) { return g * (square(y) + 1.0); }>(kFloat32));
const Op asin_op = within(-0.9, 0.9, unary<"asin", Real, [](double x) { return std::asin(x); }, Input, [](T g, T x) { return g * rsqrt((1.0 - x) * (x + 1.0)); }>(kFloat32));
const Op acos_op = within(-0.9, 0.9, unary<"acos", Real, [](double x) { return std::acos(x); }, Input, [](T g, T x) { return -(g * rsqrt((1.0 - x) * (x + 1.0))); }>(kFloat32));
const Op atan_op = within(-4, 4, unary<"atan", Real, [](double x) { return std::atan(x); }, Input, [](T g, T x) { return g / (square(x) + 1.0); }>());
const Op erf_op = within(-3, 3, unary<"erf", Real, [](double x) { return std::erf(x); }, Input, [](T g, T x) { return g * exp(-square(x)) * (2 * std::numbers::inv_sqrtpi); }>());
const Op erfinv_op = within(-0.9, 0.9, unary<"erfinv", Real, [](double x) { return erfinv_of(x); }, Output, [](T g, T y) { return g * exp(square(y)) * (1 / (2 * std::numbers::inv_sqrtpi)); }>(kFloat32));
const Op tanh_op = within(-4, 4, unary<"tanh", Real, [](double x) { return std::tanh(x); }, Output, [](T g, T y) { return g * (1.0 - square(y)); }>(kNone, fused_vjp<tanh_backward, Output>));
const Op sigmoid_op = within(-6, 6, unary<"sigmoid", Real, sigmoid_of, Output, [](T g, T y) { return g * (y * (1.0 - y)); }>(kNone, fused_vjp<sigmoid_backward, Output>));
const Op relu_op = unary<"relu", Like, [](double x) { return 0 < x ? x : 0; }, Output, [](T g, T y) { return keep_where(gt(y, number_like(y, 0)), g); }>(kNone, fused_vjp<relu_backward, Output>);
const Op gelu_op = within(-4, 4, unary<"gelu", Real, [](double x) { return x * normal_cdf(x); }, Input, [](T g, T x) { return g * gelu_gradient(x); }>(kNone, fused_vjp<gelu_backward, Input>));
const Op gelu_tanh_op = within(-4, 4, unary<"gelu_tanh", Real, gelu_tanh_of, Input, [](T g, T x) { return g * gelu_tanh_gradient(x); }>(kNone, fused_vjp<gelu_tanh_backward, Input>));
const Op silu_op = within(-6, 6, unary<"silu", Real, [](double x) { return x * sigmoid_of(x); }, Input, [](T g, T x) { return g * silu_gradient(x); }>(kNone, fused_vjp<silu_backward, Input>));
const Op softplus_op = within(-6, 6, unary<"softplus", Real, softplus_of, Input, [](T g, T x) { return g * sigmoid(x); }>(kFloat32, fused_vjp<softplus_backward, Input>));

const Op sign_op = step<"sign", [](double x) { return static_cast<double>((0 < x) - (x < 0)); }>();
const Op floor_op = within(-5, 5, step<"floor", [](double x) { return std::floor(x); }>());
const Op ceil_op = within(-5, 5, step<"ceil", [](double x) { return std::ceil(x); }>());
const Op round_op = within(-5, 5, step<"round", [](double x) { return std::nearbyint(x); }>());
const Op trunc_op = within(-5, 5, step<"trunc", [](double x) { return std::trunc(x); }>());

const Op isnan_op = predicate<"isnan", [](double x) { return std::isnan(x); }>();
const Op isinf_op = predicate<"isinf", [](double x) { return std::isinf(x); }>();
const Op isfinite_op = predicate<"isfinite", [](double x) { return std::isfinite(x); }>();
const Op logical_not_op = predicate<"logical_not", [](double x) { return x == 0; }>();

// Two inputs a and b: name, dtype, value; gradients from g and what is kept.
using S = const Saved&;
constexpr auto whole = [](T g, S) { return g; };
constexpr auto a_of = [](S s) -> T { return s.inputs[0]; };
constexpr auto b_of = [](S s) -> T { return s.inputs[1]; };
Tensor share_of(T g, T winner, T loser) { return where(eq(winner, loser), g * 0.5, keep_where(gt(winner, loser), g)); }
Tensor pow_gradient_of_base(T g, S s) { return keep_where(ne(b_of(s), number_like(b_of(s), 0)), g * b_of(s) * pow(a_of(s), b_of(s) + -1.0)); }
Tensor pow_gradient_of_exponent(T g, S s) { return keep_where(ne(a_of(s), number_like(a_of(s), 0)), g * s.outputs[0] * log(a_of(s))); }

// Neither squares what is large nor divides by zero.
Tensor share_of_hypot(T x, T hypot) { return x / where(eq(hypot, number_like(hypot, 0)), number_like(hypot, 1), hypot); }
Tensor turn_of(T x, S s) { const Tensor h = hypot(a_of(s), b_of(s)); return share_of_hypot(share_of_hypot(x, h), h); }

const Op add_op = on_sizes<[](Dim a, Dim b) { return a + b; }>(binary<"add", Like, [](double a, double b) { return a + b; }>({binary_vjp<whole, whole>}, kShapes));
const Op sub_op = on_sizes<[](Dim a, Dim b) { return a - b; }>(binary<"sub", Like, [](double a, double b) { return a - b; }>({binary_vjp<whole, [](T g, S) { return -g; }>}, kShapes));
const Op mul_op = on_sizes<[](Dim a, Dim b) { return a * b; }>(binary<"mul", Like, [](double a, double b) { return a * b; }>(
    {binary_vjp<[](T g, S s) { return g * b_of(s); }, [](T g, S s) { return g * a_of(s); }>}, kInputs));
const Op div_op = within(0.3, 3, binary<"div", Real, [](double a, double b) { return a / b; }>(
    gradients<[](T g, S s) { return g / b_of(s); }, [](T g, S s) { return -(g * a_of(s) / square(b_of(s))); }>, kInputs));
const Op floor_div_op = on_sizes<[](Dim a, Dim b) { return a / b; }>(within(0.3, 5, binary<"floor_div", Like, [](double a, double b) { return std::floor(a / b); }>({zero_binary_vjp}, kShapes)));
const Op remainder_op = on_sizes<[](Dim a, Dim b) { return a - a / b * b; }>(within(0.3, 5, binary<"remainder", Like, remainder_of>(
    gradients<whole, [](T g, S s) { return -(g * floor_div(a_of(s), b_of(s))); }>, kInputs)));
const Op pow_op = within(0.3, 2, binary<"pow", Like, [](double a, double b) { return std::pow(a, b); }>(
    gradients<pow_gradient_of_base, pow_gradient_of_exponent>, kEverything, kFloat32));
const Op atan2_op = within(0.3, 3, binary<"atan2", Real, [](double a, double b) { return std::atan2(a, b); }>(
    gradients<[](T g, S s) { return g * turn_of(b_of(s), s); }, [](T g, S s) { return -(g * turn_of(a_of(s), s)); }>, kInputs));
const Op hypot_op = within(0.3, 3, binary<"hypot", Real, [](double a, double b) { return std::hypot(a, b); }>(
    gradients<[](T g, S s) { return g * share_of_hypot(a_of(s), s.outputs[0]); }, [](T g, S s) { return g * share_of_hypot(b_of(s), s.outputs[0]); }>, kEverything));
const Op maximum_op = on_sizes<largest>(binary<"maximum", Like, [](double a, double b) { return b < a || a != a ? a : b; }>(
    gradients<[](T g, S s) { return share_of(g, a_of(s), b_of(s)); }, [](T g, S s) { return share_of(g, b_of(s), a_of(s)); }>, kInputs));
const Op minimum_op = on_sizes<smallest>(binary<"minimum", Like, [](double a, double b) { return a < b || a != a ? a : b; }>(
    gradients<[](T g, S s) { return share_of(g, -a_of(s), -b_of(s)); }, [](T g, S s) { return share_of(g, -b_of(s), -a_of(s)); }>, kInputs));

const Op eq_op = binary<"eq", Truth, [](double a, double b) { return a == b; }>();
const Op ne_op = binary<"ne", Truth, [](double a, double b) { return a != b; }>();
const Op lt_op = binary<"lt", Truth, [](double a, double b) { return a < b; }>();
const Op le_op = binary<"le", Truth, [](double a, double b) { return a <= b; }>();
const Op gt_op = binary<"gt", Truth, [](double a, double b) { return b < a; }>();
const Op ge_op = binary<"ge", Truth, [](double a, double b) { return b <= a; }>();
const Op logical_and_op = binary<"logical_and", Truth, [](double a, double b) { return a != 0 && b != 0; }>();
const Op logical_or_op = binary<"logical_or", Truth, [](double a, double b) { return a != 0 || b != 0; }>();
const Op logical_xor_op = binary<"logical_xor", Truth, [](double a, double b) { return (a != 0) != (b != 0); }>();
// clang-format on

// ---- with parameters

Tensors add_scalar_vjp(const Saved&, const Tensors& grads) { return {grads[0]}; }
Tensors mul_scalar_vjp(const Saved& s, const Tensors& grads) { return {grads[0] * s.attrs.as<ScalarAttrs>().value}; }
Tensors pow_scalar_vjp(const Saved& s, const Tensors& grads) {
  double e = s.attrs.as<ScalarAttrs>().value;
  return {e == 0 ? zeros_like(grads[0]) : grads[0] * (pow(s.inputs[0], e - 1) * e)};
}
// What lies on a bound gets no gradient, so this keeps it from the next numbers of x on.
ClampAttrs inside_bounds(const Saved& s) {
  const bool wide = s.inputs[0].dtype() == Float64;
  const auto next = [&](double bound, double towards) {
    if (std::isinf(bound)) return bound;
    return wide ? std::nextafter(bound, towards)
                : std::nextafter(static_cast<float>(bound), static_cast<float>(towards));
  };
  const auto [low, high] = s.attrs.as<ClampAttrs>();
  return {next(low, INFINITY), next(high, -INFINITY)};
}
Tensors clamp_vjp(const Saved& s, const Tensors& grads) {
  const auto [low, high] = s.attrs.as<ClampAttrs>();
  const Tensor &x = s.inputs[0], least = number_like(x, low), most = number_like(x, high);
  const Tensor above = std::isinf(low) ? ge(x, least) : gt(x, least),
               below = std::isinf(high) ? le(x, most) : lt(x, most);
  return {keep_where(logical_and(above, below), grads[0])};
}
Tensors clamp_fused_vjp(const Saved& s, const Tensors& grads) {
  return {dispatch_one(clamp_backward, {grads[0], s.inputs[0]}, inside_bounds(s))};
}
Tensors cast_vjp(const Saved& s, const Tensors& grads) { return {cast(grads[0], s.metas[0].dtype)}; }
Tensors where_vjp(const Saved& s, const Tensors& grads) {
  Tensors out(3);
  Tensor zero = number_like(grads[0], 0);
  if (s.needs_input(1)) out[1] = gradient_for(where(s.inputs[0], grads[0], zero), s.metas[1]);
  if (s.needs_input(2)) out[2] = gradient_for(where(s.inputs[0], zero, grads[0]), s.metas[2]);
  return out;
}

const Op add_scalar_op = {.name = "add_scalar",
                          .inputs = "x",
                          .outputs = "y",
                          .attrs = attrs_of<ScalarAttrs>,
                          .infer = infer_scalar<"add_scalar">,
                          .vjp = add_scalar_vjp,
                          .reference = scalar_reference<[](double x, double b) { return x + b; }>,
                          .keeps_layout = true,
                          .elements = scalar_elements<[](Dim x, Dim b) { return x + b; }>};
const Op mul_scalar_op = {.name = "mul_scalar",
                          .inputs = "x",
                          .outputs = "y",
                          .attrs = attrs_of<ScalarAttrs>,
                          .infer = infer_scalar<"mul_scalar">,
                          .vjp = mul_scalar_vjp,
                          .reference = scalar_reference<[](double x, double b) { return x * b; }>,
                          .keeps_layout = true,
                          .elements = scalar_elements<[](Dim x, Dim b) { return x * b; }>};
const Op pow_scalar_op = {.name = "pow_scalar",
                          .inputs = "x",
                          .outputs = "y",
                          .attrs = attrs_of<ScalarAttrs>,
                          .infer = infer_scalar<"pow_scalar">,
                          .vjp = pow_scalar_vjp,
                          .reference = scalar_reference<[](double x, double b) { return std::pow(x, b); }>,
                          .saves = {.inputs = 1},
                          .autocast = Autocast::Float32,
                          .keeps_layout = true};
const Op clamp_op = {.name = "clamp",
                     .inputs = "x",
                     .outputs = "y",
                     .attrs = attrs_of<ClampAttrs>,
                     .infer = infer_unary<"clamp", Like>,
                     .vjp = clamp_vjp,
                     .fused_vjp = clamp_fused_vjp,
                     .reference = clamp_reference,
                     .saves = {.inputs = 1},
                     .keeps_layout = true};
const Op cast_op = {.name = "cast",
                    .inputs = "x",
                    .outputs = "y",
                    .attrs = attrs_of<CastAttrs>,
                    .infer = infer_cast,
                    .vjp = cast_vjp,
                    .reference = cast_reference,
                    .saves = {.metas = 1},
                    .keeps_layout = true,
                    .takes_any_dtype = true,
                    .elements = mapped<[](Dim x) { return x; }>};
const Op where_op = {.name = "where",
                     .inputs = "condition, a, b",
                     .outputs = "y",
                     .infer = infer_where,
                     .vjp = where_vjp,
                     .reference = where_reference,
                     .saves = {.inputs = 1, .metas = 7},
                     .keeps_layout = true,
                     .layout_of = kAnyInput};

// ---- in place

Tensors add_update_vjp(const Saved& s, const Tensors& grads) {
  Tensors out = {grads[0], {}};
  if (s.needs_input(1)) out[1] = gradient_for(grads[0] * s.attrs.as<ScalarAttrs>().value, s.metas[1]);
  return out;
}
Tensors mul_update_vjp(const Saved& s, const Tensors& grads) {
  if (s.needs_input(1)) throw Error("mul_: the factor's gradient needs what was overwritten; use mul");
  return {grads[0] * s.inputs[1], {}};
}
Tensors copy_update_vjp(const Saved& s, const Tensors& grads) {
  Tensors out(2);
  if (s.needs_input(0)) out[0] = zeros_like(grads[0]);
  if (s.needs_input(1)) out[1] = gradient_for(grads[0], s.metas[1]);
  return out;
}

const Op add_update_op = {.name = "add_",
                          .inputs = "a, b",
                          .outputs = "a",
                          .attrs = attrs_of<ScalarAttrs>,
                          .infer = infer_update<"add_", true>,
                          .vjp = add_update_vjp,
                          .reference = update_reference<[](double a, double b, double alpha) { return a + alpha * b; }>,
                          .saves = {.metas = 2},
                          .in_place = true};
const Op mul_update_op = {.name = "mul_",
                          .inputs = "a, b",
                          .outputs = "a",
                          .infer = infer_update<"mul_">,
                          .vjp = mul_update_vjp,
                          .reference = binary_reference<[](double a, double b) { return a * b; }>,
                          .saves = {.inputs = 2},
                          .in_place = true};
const Op mul_scalar_update_op = {.name = "mul_scalar_",
                                 .inputs = "a",
                                 .outputs = "a",
                                 .attrs = attrs_of<ScalarAttrs>,
                                 .infer = infer_update<"mul_scalar_", true>,
                                 .vjp = mul_scalar_vjp,
                                 .reference = scalar_reference<[](double x, double b) { return x * b; }>,
                                 .in_place = true};
const Op fill_update_op = {.name = "fill_",
                           .inputs = "a",
                           .outputs = "a",
                           .attrs = attrs_of<ScalarAttrs>,
                           .infer = infer_update<"fill_">,
                           .vjp = zero_vjp,
                           .reference = scalar_reference<[](double, double b) { return b; }>,
                           .saves = {.metas = 1},
                           .in_place = true};
const Op copy_update_op = {.name = "copy_",
                           .inputs = "a, b",
                           .outputs = "a",
                           .infer = infer_update<"copy_">,
                           .vjp = copy_update_vjp,
                           .reference = copy_reference,
                           .saves = {.metas = 2},
                           .in_place = true};

}  // namespace

std::span<const Op* const> elementwise_ops() {
  static constexpr const Op* ops[] = {
#define TESSERA_MAP(name, ...) &name##_op,
#define TESSERA_GRADIENT_MAP(name, ...) &name,
#include "tile/kernels/maps.h"
      &clamp_op,      &clamp_backward, &add_scalar_op,        &mul_scalar_op,  &pow_scalar_op,  &cast_op,
      &add_update_op, &mul_update_op,  &mul_scalar_update_op, &fill_update_op, &copy_update_op,
  };
  return ops;
}

// ---- public functions

namespace {

// By value, so that what a call before has just given, and nobody else holds, may be part of that call's own pass.
Tensor mapped(const Op& op, Tensor x) {
  if (&op == &relu_op && detail::call_waits.load(std::memory_order_relaxed))
    if (Tensor y = relu_of_waiting(x); y.defined()) return y;
  return dispatch_one(op, {std::move(x)});
}
// On the CPU an integer is not divided by 0. What a GPU holds is not waited for.
void require_divisors(const Op& op, const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined() || is_floating(a.dtype()) || is_floating(b.dtype())) return;
  if (b.device().is_gpu() || b.device().meta || is_capturing()) return;
  const Tensor dense = b.contiguous();
  const auto holds_zero = [&]<class T>(T zero) {
    const T* const first = static_cast<const T*>(dense.data_ptr());
    return std::find(first, first + dense.numel(), zero) != first + dense.numel();
  };
  const size_t size = size_of(b.dtype());
  if (size == 1   ? holds_zero(uint8_t{0})
      : size == 2 ? holds_zero(uint16_t{0})
      : size == 4 ? holds_zero(uint32_t{0})
                  : holds_zero(uint64_t{0}))
    throw Error(fmt::format("{}: an integer is divided by 0: {} by {}", op.name, describe(a), describe(b)));
}

Tensor mapped(const Op& op, Tensor a, Tensor b) {
  if (&op == &floor_div_op || &op == &remainder_op) require_divisors(op, a, b);
  if (&op == &add_op && detail::call_waits.load(std::memory_order_relaxed))
    if (Tensor y = add_to_waiting(a, b); y.defined()) return y;
  return dispatch_one(op, {std::move(a), std::move(b)});
}

}  // namespace

#define TESSERA_FUNCTION_1(name) \
  Tensor name(Tensor x) { return mapped(name##_op, std::move(x)); }
#define TESSERA_FUNCTION_2(name) \
  Tensor name(Tensor a, Tensor b) { return mapped(name##_op, std::move(a), std::move(b)); }
#define TESSERA_FUNCTION_3(name) \
  Tensor name(const Tensor& a, const Tensor& b, const Tensor& c) { return dispatch_one(name##_op, {a, b, c}); }
#define TESSERA_MAP(name, Functor, inputs, ...) TESSERA_FUNCTION_##inputs(name)
#include "tile/kernels/maps.h"

Tensor add(const Tensor& a, double b) { return dispatch_one(add_scalar_op, {a}, ScalarAttrs{b}); }
Tensor mul(const Tensor& a, double b) { return dispatch_one(mul_scalar_op, {a}, ScalarAttrs{b}); }
Tensor pow(const Tensor& a, double e) {
  if (e == 2) return square(a);
  if (is_floating(a.dtype())) {  // cheaper than a logarithm and an exponential
    if (e == 0.5) return sqrt(a);
    if (e == -0.5) return rsqrt(a);
    if (e == 3) return mul(square(a), a);
    if (e == -1) return reciprocal(a);
    if (e == -2) return reciprocal(square(a));
  }
  // In the integer's own arithmetic: pow_scalar computes in f64.
  const bool whole = !is_floating(a.dtype()) && a.dtype() != Bool && e >= 0 && e <= 127 && e == std::floor(e);
  return whole ? pow(a, number_like(a, e)) : dispatch_one(pow_scalar_op, {a}, ScalarAttrs{e});
}
Tensor clamp(Tensor x, double low, double high) {
  if (low == 0 && high > 0 && detail::call_waits.load(std::memory_order_relaxed))
    if (Tensor y = relu_of_waiting(x, high); y.defined()) return y;
  const auto cuts = [](double bound) { return std::isfinite(bound) && bound != std::floor(bound); };
  if (!is_floating(x.dtype()) && (cuts(low) || cuts(high))) x = cast(x, Float32);  // as a sum with a fraction
  return dispatch_one(clamp_op, {std::move(x)}, ClampAttrs{low, high});
}
Tensor cast(const Tensor& x, DType dtype) {
  return x.dtype() == dtype ? x : dispatch_one(cast_op, {x}, CastAttrs{dtype});
}

}  // namespace tessera
