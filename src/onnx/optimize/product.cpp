// Products with weights, and what is behind them.
#include "onnx/handlers/microsoft.h"
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

/// ONNX Runtime's attention on a packed weight.
Values attention_of_packed(const Call& c) {
  return attend_packed(c, linear_act(c.in(0), c.in(1), c.optional(2), Activation::None),
                       {.mask = 3, .past = 4, .scores_bias = 5});
}
constexpr Entry attention_entry{"Attention", 1, attention_of_packed, "tessera"};

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
