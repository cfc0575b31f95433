#include "ops/conv_act.h"

#include <cmath>

#include "core/conv_attrs.h"
#include "ops/check.h"
#include "ops/conv.h"
#include "ops/gradient.h"
#include "ops/matmul.h"
#include "ops/op_table.h"
#include "ops/reference.h"

namespace tessera {
namespace {

Metas infer_conv_act(std::span<const TensorMeta> in, const Attrs& attrs) {
  const auto& a = attrs.as<ConvActAttrs>();
  if (std::isnan(a.high) || a.high < 0 || (std::isfinite(a.high) && a.activation != Activation::Relu))
    fail("conv2d_act", "a highest value of {} is not supported: only ReLU has one, which is not negative", a.high);
  const Metas y = conv2d_op.infer(in.first(3), a.conv());
  require_one_floating_dtype("conv2d_act", in, 4);
  if (is_absent(in[3])) return y;
  require_rank("conv2d_act", "residual", in[3], 4);
  for (size_t d = 0; d < 4; ++d)
    if (provably_different(in[3].shape[d], y[0].shape[d]))
      fail("conv2d_act", "residual has shape {}, not {}", to_string(in[3].shape), to_string(y[0].shape));
  return y;
}

Tensors conv_act_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<ConvActAttrs>();
  const Tensor y = conv2d_op.reference(in.first(3), a.conv())[0];
  return {reference::generate(y.shape(), y.dtype(), [&](auto& i) {
    const double sum = reference::get(y, i) + (in[3].defined() ? reference::get(in[3], i) : 0);
    return std::min(activate(a.activation, sum), a.high);
  })};
}

Tensors conv_act_vjp(const Saved& s, const Tensors& grads) {
  const auto& a = s.attrs.as<ConvActAttrs>();
  const Attrs conv = a.conv();
  Tensor g = grads[0];
  if (a.activation != Activation::None) {
    Tensor h = dispatch_one(conv2d_op, {s.inputs[0], s.inputs[1], s.inputs[2]}, conv);
    if (s.inputs[3].defined()) h = h + s.inputs[3];
    g = activation_gradient(a.activation, g, h);
    if (std::isfinite(a.high)) g = where(lt(h, number_like(h, a.high)), g, number_like(g, 0));
  }
  Tensors in{s.inputs[0], s.inputs[1], s.inputs[2]};
  const Saved saved{conv, {in.data(), in.size()}, {}, {}, s.needs & 0b111};
  Tensors out = conv2d_op.vjp(saved, {g});
  out.push_back(s.needs_input(3) ? g : Tensor());
  return out;
}

}  // namespace

const Op conv2d_act_op = {.name = "conv2d_act",
                          .inputs = "x, weight, bias?, residual?",
                          .outputs = "y",
                          .attrs = attrs_of<ConvActAttrs>,
                          .infer = infer_conv_act,
                          .vjp = conv_act_vjp,
                          .reference = conv_act_reference,
                          .saves = {.inputs = 0b1111},
                          .autocast = Autocast::Lower,
                          .keeps_layout = true,
                          .made_of = &conv2d_op,
                          .flops = conv2d_flops};

std::span<const Op* const> conv_act_ops() {
  static constexpr const Op* ops[] = {&conv2d_act_op};
  return ops;
}

Tensor activated(const Tensor& x, Activation activation, double high) {
  if (std::isfinite(high)) return clamp(x, 0, high);
  return activation == Activation::None ? x : dispatch_one(activation_op(activation), {x});
}
Tensor conv2d_act(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options,
                  Activation activation, double high, const Tensor& residual) {
  if (x.device().is_gpu()) {
    const Tensor y = conv2d(x, weight, bias, options);
    return activated(residual.defined() ? add(y, residual) : y, activation, high);
  }
  ConvActAttrs a{.groups = options.groups, .activation = activation, .high = high};
  for (int d = 0; d < 2; ++d) {
    a.stride[d] = options.stride[d];
    a.padding[d] = options.padding[d];
    a.dilation[d] = options.dilation[d];
  }
  return dispatch_one(conv2d_act_op, {x, weight, bias, residual}, a);
}

}  // namespace tessera
