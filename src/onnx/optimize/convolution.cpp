// Convolutions and what is behind them.
#include <cmath>

#include "onnx/handlers/microsoft.h"
#include "onnx/handlers/window.h"
#include "onnx/optimize/rewriter.h"
#include "ops/conv.h"
#include "ops/conv_act.h"
#include "ops/exact_products.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

/// act(conv(x, w) + bias + residual); a residual of another shape is added for itself.
Values fused_convolution(const Call& c) {
  const Tensor &given = c.in(0), &weight = c.in(1), residual = c.optional(3);
  const auto activation = static_cast<Activation>(c.integer("activation", 0));
  const double high = c.real("high", INFINITY);
  const ConvOptions o = conv_options(c, given.shape(), weight);
  bool fits = given.dim() == 4 && std::equal(o.low.begin(), o.low.end(), o.high.begin(), o.high.end());
  ConvAttrs attrs{.groups = o.groups};
  for (size_t d = 0; fits && d < 2; ++d) {
    attrs.stride[d] = o.stride[d];
    attrs.padding[d] = o.low[d];
    attrs.dilation[d] = o.dilation[d];
  }
  if (fits && residual.defined()) {
    TensorMeta in[] = {given.meta(), weight.meta(), absent_meta(given.device())};
    in[1].dtype = in[0].dtype;  // which products in a lower one come to
    fits = residual.shape() == conv2d_op.infer({in, 3}, attrs)[0].shape;
  }
  const Tensor x = given.dim() == 4 ? given.to(ChannelsLast) : given;
  if (!fits || x.numel() == 0) {
    const Tensor y = conv(x, weight.is_packed() ? contiguous(weight) : weight, c.optional(2), o);
    return {activated(residual.defined() ? add(y, residual) : y, activation, high)};
  }
  const Conv2dOptions plain{.stride = {attrs.stride[0], attrs.stride[1]},
                            .padding = {attrs.padding[0], attrs.padding[1]},
                            .dilation = {attrs.dilation[0], attrs.dilation[1]},
                            .groups = attrs.groups};
  return {conv2d_act(x, weight, c.optional(2), plain, activation, high,
                     residual.defined() ? residual.to(ChannelsLast) : residual)};
}
constexpr Entry convolution_entry{"ConvAct", 1, fused_convolution, "tessera"};

/// The bounds of a Clip between zero and a number; 0 where it is none.
double clip_from_zero(const Rewriter& r, int at) {
  if (!r.is(at, "Clip")) return 0;
  const Step& step = r.step(at);
  if (step.in.size() != 3) {
    const bool by_attributes = step.in.size() == 1 && attribute_of(step, "min") && attribute_of(step, "max");
    return by_attributes && real_of(step, "min", 1) == 0 ? std::max(0.0, real_of(step, "max", 0)) : 0;
  }
  const auto low = r.number(step.in[1]), high = r.number(step.in[2]);
  return low == 0.0 && high && std::isfinite(*high) ? std::max(0.0, *high) : 0;
}

}  // namespace

void fold_batch_norm(Rewriter& r, int at) {
  if (!r.is(at, "BatchNormalization")) return;
  const Step& norm = r.step(at);
  if (integer_of(norm, "training_mode", 0) || norm.in.size() != 5 || norm.in[0] < 0) return;
  for (size_t i = 1; i < norm.out.size(); ++i)
    if (r.is_used(norm.out[i])) return;
  const int before = r.own_maker(norm.in[0], "Conv");
  if (before < 0) return;
  const Step& conv = r.step(before);
  const Tensor filters = r.constant(conv, 1), conv_bias = r.constant(conv, 2);
  const bool has_bias = conv.in.size() > 2 && conv.in[2] >= 0;
  if (!filters.defined() || (has_bias && !conv_bias.defined()) || !is_floating(filters.dtype())) return;
  for (size_t i = 1; i < 5; ++i) {
    const Tensor t = r.constant(norm, i);
    if (!t.defined() || t.dim() != 1 || t.size(0) != filters.size(0)) return;
  }
  const auto wide = [](const Tensor& t) { return cast(t, Float64); };
  const auto of_norm = [&](size_t i) { return wide(r.constant(norm, i)); };
  const Tensor scale = mul(of_norm(1), rsqrt(of_norm(4) + real_of(norm, "epsilon", 1e-5f)));
  Tensor bias = neg(of_norm(3));
  if (has_bias) bias = add(bias, wide(conv_bias));
  bias = add(mul(bias, scale), of_norm(2));
  Shape per_filter(std::vector<int64_t>(static_cast<size_t>(filters.dim()), 1));
  per_filter[0] = scale.size(0);
  const Tensor folded = mul(wide(filters), reshape(scale, per_filter));
  r.replace(at, before, conv.entry,
            {conv.in[0], r.add_constant(cast(folded, filters.dtype())), r.add_constant(cast(bias, filters.dtype()))},
            conv.attributes);
}

// Older exporters add a number to each channel in a step of its own.
void fold_bias(Rewriter& r, int at) {
  if (!r.is(at, "Add") || r.step(at).in.size() != 2) return;
  for (size_t i = 0; i < 2; ++i) {
    const Tensor added = r.constant(r.step(at), i);
    const int before = added.defined() ? r.own_maker(r.step(at).in[1 - i], "Conv") : -1;
    if (before < 0) continue;
    const Step& conv = r.step(before);
    const Tensor filters = r.constant(conv, 1);
    const bool has_bias = conv.in.size() > 2 && conv.in[2] >= 0;
    if (has_bias || !filters.defined() || added.dtype() != filters.dtype()) return;
    const int64_t channel = added.dim() - filters.dim() + 1;  // the dim of `added` that is theirs
    if (channel < 0 || channel > 1 || added.numel() != filters.size(0) || added.size(channel) != filters.size(0))
      return;
    return r.replace(at, before, conv.entry,
                     {conv.in[0], conv.in[1], r.add_constant(contiguous(reshape(added, {filters.size(0)})))},
                     conv.attributes);
  }
}

// Integers whose sums are known to be small take one convolution in f32.
void mark_small_sums(Rewriter& r, int at) {
  const bool quantised = r.is(at, "QLinearConv") || r.is(at, "QLinearConv", kMicrosoft);
  if (!quantised && !r.is(at, "ConvInteger")) return;
  const Step& conv = r.step(at);
  const size_t w = quantised ? 3 : 1, z = w + 2;
  const bool has_zero = z < conv.in.size() && conv.in[z] >= 0;
  const Tensor filters = r.constant(conv, w), zero = r.constant(conv, z);
  if (!filters.defined() || filters.dim() < 3 || size_of(filters.dtype()) != 1 || filters.dtype() == Bool) return;
  if (has_zero && (!zero.defined() || (zero.numel() != 1 && zero.numel() != filters.size(0)))) return;
  const Tensor rows = flatten(filters, 1);
  if (!sums_fit(integers_in_f32("ConvInteger", rows, has_zero ? reshape(zero, {-1, 1}) : Tensor()))) return;
  std::vector<AttributeProto> attributes = conv.attributes;
  attributes.push_back({.name = "sums_fit", .type = kIntAttribute, .i = 1});
  r.replace(at, at, conv.entry, std::vector<int>(conv.in), std::move(attributes));
}

void lay_filters(Rewriter& r, int at) {
  if (!r.is(at, "Conv")) return;
  const Step& conv = r.step(at);
  const Tensor filters = r.constant(conv, 1);
  if (!filters.defined() || filters.dim() != 4) return;
  const Tensor lowered = filters.dtype() == Float32 ? cast(filters, r.products()) : filters;
  std::vector<int> in = conv.in;
  in[1] = r.add_constant(lowered.to(ChannelsLast));
  r.replace(at, at, conv.entry, in, conv.attributes);
}

void fuse_convolution(Rewriter& r, int at) {
  if (!r.is(at, "Conv")) return;
  const Step& conv = r.step(at);
  int last = at, residual = -1;
  const auto value = [&] { return r.step(last).out[0]; };
  if (const int next = r.only_user(value(), "Add"); next >= 0) {
    const int other = other_input(r.step(next), value());
    if (other >= 0 && other != value() && !r.constant(other).defined()) residual = other, last = next;
  }
  Activation activation = Activation::None;
  double high = 0;
  if (const int next = r.only_user(value()); next >= 0) {
    high = clip_from_zero(r, next);
    activation = high > 0 ? Activation::Relu : activation_of(r, next);
    if (activation != Activation::None) last = next;
  }
  const Tensor filters = r.constant(conv, 1);
  const Tensor packed = filters.defined() && integer_of(conv, "group", 1) == 1 ? pack_filters(filters) : filters;
  const bool packs = packed.defined() && packed.is_packed();
  if (last == at && !packs) return;
  std::vector<AttributeProto> attributes = conv.attributes;
  attributes.push_back({.name = "activation", .type = kIntAttribute, .i = static_cast<int64_t>(activation)});
  if (high > 0) attributes.push_back({.name = "high", .type = kFloatAttribute, .f = static_cast<float>(high)});
  r.replace(last, at, &convolution_entry,
            {conv.in[0], packs ? r.add_constant(packed) : conv.in[1], conv.in.size() > 2 ? conv.in[2] : -1, residual},
            std::move(attributes));
}

}  // namespace tessera::onnx
