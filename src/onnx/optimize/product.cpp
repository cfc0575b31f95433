// Products with weights, and what is behind them.
#include "core/capture_state.h"
#include "onnx/handlers/microsoft.h"
#include "onnx/optimize/rewriter.h"
#include "onnx/tensors.h"
#include "ops/exact_products.h"
#include "ops/map_graph.h"
#include "tessera/autocast.h"
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

/// ONNX Runtime's attention on a packed weight.
Values attention_of_packed(const Call& c) {
  return attend_packed(c, linear_act(c.in(0), c.in(1), c.optional(2), Activation::None),
                       {.mask = 3, .past = 4, .scores_bias = 5});
}
constexpr Entry attention_entry{"Attention", 1, attention_of_packed, "tessera"};

/// The same with the known integers as they were, for captured functions.
Values integer_linear_as_given(const Call& c) {
  Tensor b;
  {
    const PauseCapture now;
    Tensors parts;
    for (size_t i = 5; i < c.inputs(); ++i) parts.push_back(contiguous(c.in(i)));
    const Tensor less = transpose(concat(parts, 1), 0, 1);
    const bool is_signed = c.has(4) ? c.in(4).dtype() == Int8 : amin(less).item() < 0;
    b = contiguous(cast(c.has(4) ? add(less, cast(c.in(4), Float32)) : less, is_signed ? Int8 : UInt8));
  }
  Tensor y = integer_matmul(c.in(0), b, c.optional(1), c.optional(4));
  if (c.has(2)) y = mul(cast(y, Float32), c.in(2));
  return {c.has(3) ? add(y, c.in(3)) : y};
}

/// The sum of a [..., k] less its zero point with known integers, which lie in f32 as parts [n, k of each]: a_zero?,
/// scale?, bias?, the zero point of the known ones?, parts. Partial sums of a part are integers up to 2^24, so exact.
/// Without a scale i32.
Values integer_linear(const Call& c) {
  const amp::NoAutocast exact;
  const Tensor& given = c.in(0);
  const Tensor a = given.dim() == 1 ? unsqueeze(given, 0) : given;
  Tensor point = c.optional(1);
  if (c.has(1) && point.dim() == 1) point = point.numel() == 1 ? reshape(point, {}) : unsqueeze(point, 1);
  Tensor sum;
  int64_t at = 0;
  if (given.device().meta) return integer_linear_as_given(c);
  for (size_t i = 5; i < c.inputs(); ++i) {
    const int64_t end = at + c.in(i).size(1);
    const Tensor part = c.inputs() == 6 ? a : slice(a, -1, at, end);
    if (a.size(-1) < end) c.fail("inner dimensions differ: {} and {}", describe(given), c.in(i).size(1));
    Tensor y = linear(integers_in_f32("MatMulInteger", part, point), c.in(i));
    if (c.inputs() > 6) y = cast(y, Int32);
    sum = sum.defined() ? add(sum, y) : y;
    at = end;
  }
  if (a.size(-1) != at) c.fail("inner dimensions differ: {} and {}", describe(given), at);
  if (given.dim() == 1) sum = squeeze(sum, 0);
  if (!c.has(2)) return {cast(sum, Int32)};
  sum = cast(sum, Float32);
  if (!c.has(3)) return {mul(sum, c.in(2))};
  return {
      map_elements({sum, c.in(2), c.in(3)}, Float32, Float32,
                   [](const Tensor& x, const Tensor& scale, const Tensor& bias) { return add(mul(x, scale), bias); })};
}
constexpr Entry integer_entry{"IntegerLinear", 1, integer_linear, "tessera"};

bool is_row(const Tensor& t, int64_t width, DType dtype) {
  return t.defined() && t.dim() == 1 && t.size(0) == width && t.dtype() == dtype;
}

}  // namespace

Activation activation_of(const Rewriter& r, int at) {
  const Step& step = r.step(at);
  if (r.is(at, "Relu")) return Activation::Relu;
  if (r.is(at, "Tanh")) return Activation::Tanh;
  if (r.is(at, "Swish")) return real_of(step, "alpha", 1) == 1 ? Activation::Silu : Activation::None;
  if (r.is(at, "Gelu", kMicrosoft)) return Activation::GeluErf;
  if (r.is(at, "FastGelu", kMicrosoft)) return step.in.size() == 1 ? Activation::GeluTanh : Activation::None;
  if (!r.is(at, "Gelu")) return Activation::None;
  const AttributeProto* a = attribute_of(step, "approximate");
  return a && a->s == "tanh" ? Activation::GeluTanh : Activation::GeluErf;
}

void ProductFuser::fuse(int at) {
  const Step& step = r_.step(at);
  if (r_.is(at, "Attention", kMicrosoft)) return fuse_projection(at);
  if (r_.is(at, "MatMulNBits", kMicrosoft)) {
    const int packed = packed_of_blocks(step);
    if (packed < 0) return;
    const int bias = step.in.size() > 5 ? step.in[5] : -1;
    return fuse_behind(at, packed, bias, integer_of(step, "N", 0), r_.constant(step, 2).dtype());
  }
  if (r_.is(at, "MatMulInteger")) return fuse_integers(at);
  const bool gemm = r_.is(at, "Gemm");
  if (!gemm && !r_.is(at, "MatMul")) return;
  const Tensor weight = r_.constant(step, 1);
  if (step.in.size() < 2 || step.in[0] < 0 || !weight.defined() || weight.dim() != 2 || !is_floating(weight.dtype()))
    return;
  if (gemm && (integer_of(step, "transA", 0) || real_of(step, "alpha", 1) != 1 || real_of(step, "beta", 1) != 1))
    return;
  const bool turned = gemm && integer_of(step, "transB", 0);
  const int64_t width = weight.size(turned ? 0 : 1);
  const int bias = gemm && step.in.size() > 2 ? step.in[2] : -1;
  if (bias >= 0 && !is_row(r_.constant(bias), width, weight.dtype())) return;
  fuse_behind(at, packed_of(step.in[1], weight, turned), bias, width, weight.dtype());
}

/// What is behind a product: a bias, an activation, a residual.
void ProductFuser::fuse_behind(int at, int weight, int bias, int64_t width, DType dtype) {
  int last = at, residual = -1;
  const auto value = [&] { return r_.step(last).out[0]; };
  if (const int next = r_.only_user(value(), "Add"); bias < 0 && next >= 0) {
    const int other = other_input(r_.step(next), value());
    if (is_row(r_.constant(other), width, dtype)) bias = other, last = next;
  }
  Activation activation = Activation::None;
  if (const int next = r_.only_user(value()); next >= 0) {
    activation = activation_of(r_, next);
    const bool by_erf = r_.is(next, "BiasGelu", kMicrosoft), by_tanh = r_.is(next, "FastGelu", kMicrosoft);
    const Step& user = r_.step(next);
    if (bias < 0 && (by_erf || by_tanh) && user.in.size() == 2 && user.in[0] == value() &&
        is_row(r_.constant(user.in[1]), width, dtype))
      bias = user.in[1], activation = by_erf ? Activation::GeluErf : Activation::GeluTanh;
    if (activation != Activation::None) last = next;
  }
  if (const int next = r_.only_user(value(), "Add"); next >= 0) {
    const int other = other_input(r_.step(next), value());
    if (other >= 0 && other != value() && !r_.constant(other).defined()) residual = other, last = next;
  }
  r_.replace(last, at, &linear_entry, {r_.step(at).in[0], weight, bias, residual},
             {{.name = "activation", .type = kIntAttribute, .i = static_cast<int64_t>(activation)}});
}

/// A product of integers with known ones, and what makes floats of it: Cast, Mul by a scale, Add of a bias.
void ProductFuser::fuse_integers(int at) {
  const Step& step = r_.step(at);
  const auto has = [&](size_t i) { return i < step.in.size() && step.in[i] >= 0; };
  const Tensor b = r_.constant(step, 1), point = r_.constant(step, 3);
  if (!has(0) || !b.defined() || b.dim() != 2 || b.numel() == 0 || (b.dtype() != Int8 && b.dtype() != UInt8) ||
      (has(3) && (!point.defined() || (point.numel() != 1 && !is_row(point, b.size(1), b.dtype())))))
    return;
  const Tensor less = integers_in_f32("MatMulInteger", b, has(3) ? reshape(point, {-1}) : Tensor());
  std::vector<int> in{step.in[0], has(2) ? step.in[2] : -1, -1, -1, has(3) ? step.in[3] : -1};
  for (const Tensor& part : parts_that_fit(transpose(less, 0, 1))) in.push_back(r_.add_constant(pack_linear(part)));
  int last = at;
  const auto value = [&] { return r_.step(last).out[0]; };
  const int converted = r_.only_user(value(), "Cast");
  if (converted >= 0 && integer_of(r_.step(converted), "to", 0) == data_type_of(Float32)) {
    const int scaled = r_.only_user(r_.step(converted).out[0], "Mul");
    const int scale = scaled < 0 ? -1 : other_input(r_.step(scaled), r_.step(converted).out[0]);
    if (scale >= 0) last = scaled, in[2] = scale;
    const int added = scale < 0 ? -1 : r_.only_user(value(), "Add");
    const int bias = added < 0 ? -1 : other_input(r_.step(added), value());
    if (bias >= 0 && bias != value()) last = added, in[3] = bias;
  }
  r_.replace(last, at, &integer_entry, std::move(in));
}

/// The projection of ONNX Runtime's attention, where nothing sees its keys and values.
void ProductFuser::fuse_projection(int at) {
  const Step& step = r_.step(at);
  const Tensor weight = r_.constant(step, 1);
  const bool seen = step.out.size() > 1 && step.out[1] >= 0;
  const int bias = step.in.size() > 2 ? step.in[2] : -1;
  if (step.in[0] < 0 || seen || !weight.defined() || weight.dim() != 2 || !is_floating(weight.dtype())) return;
  if (bias >= 0 && !is_row(r_.constant(bias), weight.size(1), weight.dtype())) return;
  std::vector<int> in = step.in;
  in[1] = packed_of(step.in[1], weight, false);
  r_.replace(at, at, &attention_entry, std::move(in), std::vector<AttributeProto>(step.attributes));
}

/// Weights of few bits become numbers; -1 where they are not known, or do not fit.
int ProductFuser::packed_of_blocks(const Step& step) {
  const Blocks b{.packed = r_.constant(step, 1),
                 .scales = r_.constant(step, 2),
                 .points = r_.constant(step, 3),
                 .n = integer_of(step, "N", 0),
                 .k = integer_of(step, "K", 0),
                 .bits = integer_of(step, "bits", 4),
                 .block = integer_of(step, "block_size", 0)};
  const auto has = [&](size_t i) { return i < step.in.size() && step.in[i] >= 0; };
  if (!has(0) || !b.packed.defined() || !b.scales.defined() || has(4) || integer_of(step, "weight_prepacked", 0) != 0 ||
      (has(3) && !b.points.defined()) || (has(5) && !is_row(r_.constant(step, 5), b.n, b.scales.dtype())))
    return -1;
  try {
    const Tensor weight = cast(weight_of_blocks(b), b.scales.dtype());
    return r_.add_constant(pack_linear(weight.dtype() == Float32 ? cast(weight, r_.products()) : weight));
  } catch (const Error&) {
    return -1;  // said when it runs, if it ever does
  }
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
