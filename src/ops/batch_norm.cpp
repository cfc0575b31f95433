// Batch norm, and what may follow it.
#include "ops/batch_norm.h"

#include <cmath>

#include "ops/gradient.h"
#include "ops/norm_conv.h"
#include "ops/norm_formula.h"
#include "ops/op_name.h"
#include "ops/op_table.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

// ---- batch_norm in training: x [n, c, ...], weight? [c], bias? [c] -> y (or relu(y)), mean [c], var [c] of the batch
// (divided by n - 1, as running estimates want it), rstd [c] (hidden)

// A tensor of the shape and dtype of x.
void require_like(std::string_view op, std::string_view what, const TensorMeta& t, const TensorMeta& x) {
  require_shape(op, what, t, x.shape);
  if (t.dtype != x.dtype) fail(op, "dtypes differ: x {} and {} {}", describe(x), what, describe(t));
}

// What is added before ReLU would have to be kept to see whether the sum was below the highest value.
void require_unlimited(std::string_view op, const Attrs& attrs) {
  if (!std::isinf(attrs.as<NormAttrs>().high)) fail(op, "a highest value after a residual is not supported");
}

template <OpName op>
void require_channels(const TensorMeta& x, const TensorMeta& weight) {
  if (x.shape.rank() < 2) fail(op.view(), "x needs a batch and a channel dim: {}", to_string(x.shape));
  require_shape(op.view(), "weight", weight, {x.shape[1]});
}

Metas infer_batch_norm(std::span<const TensorMeta> in, const Attrs&) {
  require_norm_dtypes("batch_norm", in[0], in.subspan(1));
  require_channels<"batch_norm">(in[0], in[1]);
  require_bias_like_weight("batch_norm", in[1], in[2]);
  if (in[0].shape.numel() == in[0].shape[1])
    fail("batch_norm", "training needs more than one value per channel: {}", to_string(in[0].shape));
  TensorMeta statistics = statistics_like(in[0], {in[0].shape[1]});
  return {in[0], statistics, statistics, statistics};
}

double values_per_channel(const Tensor& x) { return static_cast<double>((x.shape().numel() / x.shape()[1]).value()); }

// ReLU up to its highest value.
Tensor relu_of(const Tensor& y, const NormAttrs& attrs) {
  return std::isinf(attrs.high) ? relu(y) : clamp(y, 0, attrs.high);
}
// The gradient of y from that of ReLU of y; without a highest value y may be either of them.
Tensor before_relu(const Tensor& g, const Tensor& y, const NormAttrs& attrs) {
  NoGrad flat;  // almost everywhere
  Tensor open = gt(y, number_like(y, 0));
  if (!std::isinf(attrs.high)) open = logical_and(open, lt(y, number_like(y, attrs.high)));
  return where(open, g, number_like(g, 0));
}
Tensor before_relu(const Seen& seen, const Tensor& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const NormMoments& m, const NormAttrs& attrs, const Tensor& residual = {}) {
  NoGrad flat;
  const Tensor y = scale_and_shift(seen, normalized(seen, x, m), weight, bias, x.shape());
  return before_relu(g, residual.defined() ? y + residual : y, attrs);
}

// dx, dweight and dbias from the gradients of what the norm gave (before relu), and of mean and variance.
Tensors training_gradients(const Seen& seen, const NormMoments& m, const Tensor& x, const Tensor& weight,
                           const Tensor& g, const Tensors& grads) {
  Tensors out = g.defined() ? norm_gradients(seen, g, x, weight, m) : Tensors(3);
  auto add_to_dx = [&](const Tensor& term) {
    Tensor dx = reshape(term, x.shape());
    out[0] = out[0].defined() ? out[0] + dx : dx;
  };
  double count = values_per_channel(x);
  auto channelwise = [&](const Tensor& g) { return expand(reshape(cast(g, x.dtype()), seen.statistics), seen.x); };
  if (grads[1].defined()) add_to_dx(channelwise(grads[1]) * (1 / count));
  if (grads[2].defined()) add_to_dx(channelwise(grads[2]) * (reshape(x, seen.x) - m.mean) * (2 / (count - 1)));
  return out;
}
Tensors batch_norm_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &x = s.inputs[0], &weight = s.inputs[1];
  Seen seen = channels_of(x.shape());
  NormMoments m = moments_of(seen, x, true, s.attrs.as<NormAttrs>().eps);
  Tensor g = grads[0];
  if (g.defined() && s.attrs.as<NormAttrs>().relu)
    g = before_relu(seen, g, x, weight, s.inputs[2], m, s.attrs.as<NormAttrs>());
  return wanted(s, training_gradients(seen, m, x, weight, g, grads), 3);
}

Tensors batch_norm_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Seen seen = channels_of(in[0].shape());
  NormMoments m = moments_of(seen, in[0], true, attrs.as<NormAttrs>().eps);
  double count = values_per_channel(in[0]);
  Tensor var = seen.average(square(reshape(in[0], seen.x) - m.mean)) * (count / (count - 1));
  Shape channel{in[0].shape()[1]};
  const Tensor y = scale_and_shift(seen, normalized(seen, in[0], m), in[1], in[2], in[0].shape());
  return {attrs.as<NormAttrs>().relu ? relu_of(y, attrs.as<NormAttrs>()) : y, reshape(m.mean, channel),
          reshape(var, channel)};
}

// dy, x, weight?, mean, rstd, bias?, y? -> dx, dweight, dbias, dresidual: where a residual was added before relu, y is
// what came of it, and tells where dy counts; else dresidual is empty
Metas infer_batch_norm_backward(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_one_floating_dtype("batch_norm_backward", in, 2);
  require_norm_dtypes("batch_norm_backward", in[1], in.subspan(2, 1));
  require_shape("batch_norm_backward", "gradient", in[0], in[1].shape);
  require_channels<"batch_norm_backward">(in[1], in[2]);
  require_shape("batch_norm_backward", "mean", in[3], {in[1].shape[1]});
  require_shape("batch_norm_backward", "rstd", in[4], {in[1].shape[1]});
  require_bias_like_weight("batch_norm_backward", in[2], in[5]);
  if (!is_absent(in[6])) {
    require_like("batch_norm_backward", "y", in[6], in[1]);
    if (!attrs.as<NormAttrs>().relu) fail("batch_norm_backward", "y is for what relu followed");
    require_unlimited("batch_norm_backward", attrs);
  }
  const TensorMeta dresidual = is_absent(in[6]) ? meta_like(in[1], Shape{0}) : in[1];
  return {in[1], gradient_like(in[1], in[2]), gradient_like(in[1], in[2]), dresidual};
}
Tensors batch_norm_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Seen seen = channels_of(in[1].shape());
  const NormMoments m{in[3], in[4]};
  Tensor g = in[0];
  const auto& norm = attrs.as<NormAttrs>();
  if (in[6].defined()) g = before_relu(g, in[6], norm);
  else if (norm.relu) g = before_relu(seen, g, in[1], in[2], in[5], m, norm);
  Tensors out = norm_gradients(seen, g, in[1], in[2], m, !norm.training);
  out.push_back(in[6].defined() ? g : empty({0}, g.dtype(), g.device()));
  return out;
}

const Op batch_norm_backward = {.name = "batch_norm_backward",
                                .inputs = "dy, x, weight?, mean, rstd, bias?, y?",
                                .outputs = "dx, dweight, dbias, dresidual",
                                .attrs = attrs_of<NormAttrs>,
                                .infer = infer_batch_norm_backward,
                                .reference = batch_norm_backward_reference,
                                .keeps_layout = true,
                                .layout_of = kAnyInput};

Tensors batch_norm_fused_vjp(const Saved& s, const Tensors& grads) {
  if (!grads[0].defined() || grads[1].defined() || grads[2].defined()) return batch_norm_vjp(s, grads);
  return wanted(s,
                dispatch(batch_norm_backward,
                         {grads[0], s.inputs[0], s.inputs[1], s.outputs[1], s.outputs[3], s.inputs[2], {}}, s.attrs),
                3);
}

const Op batch_norm_op = {.name = "batch_norm",
                          .inputs = "x, weight?, bias?",
                          .outputs = "y, mean, var, rstd?",
                          .attrs = attrs_of<NormAttrs>,
                          .infer = infer_batch_norm,
                          .vjp = batch_norm_vjp,
                          .fused_vjp = batch_norm_fused_vjp,
                          .reference = batch_norm_reference,
                          .saves = {.inputs = 0b111, .outputs = 0b1010},
                          .hidden_outputs = 1,
                          .keeps_layout = true};

// ---- batch_norm_add: the same of x, residual, weight?, bias?: y = norm(x) + residual, or relu of that

Metas infer_batch_norm_add(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_like("batch_norm_add", "residual", in[1], in[0]);
  require_unlimited("batch_norm_add", attrs);
  const TensorMeta of_norm[] = {in[0], in[2], in[3]};
  return infer_batch_norm(of_norm, attrs);
}

// All inputs' gradients, from those of the norm.
Tensors batch_norm_add_gradients(const Saved& s, const Tensors& of_norm, const Tensor& dresidual) {
  return wanted(s, {of_norm[0], dresidual, of_norm[1], of_norm[2]}, 4);
}
Tensors batch_norm_add_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &x = s.inputs[0], &weight = s.inputs[2];
  const Seen seen = channels_of(x.shape());
  Tensor g = grads[0];
  if (g.defined() && s.attrs.as<NormAttrs>().relu) g = before_relu(g, s.outputs[0], s.attrs.as<NormAttrs>());
  const NormMoments m = moments_of(seen, x, true, s.attrs.as<NormAttrs>().eps);
  return batch_norm_add_gradients(s, training_gradients(seen, m, x, weight, g, grads), g);
}
Tensors batch_norm_add_fused_vjp(const Saved& s, const Tensors& grads) {
  if (!grads[0].defined() || grads[1].defined() || grads[2].defined()) return batch_norm_add_vjp(s, grads);
  const bool relu = s.attrs.as<NormAttrs>().relu;
  const Tensors out = dispatch(
      batch_norm_backward,
      {grads[0], s.inputs[0], s.inputs[2], s.outputs[1], s.outputs[3], s.inputs[3], relu ? s.outputs[0] : Tensor()},
      s.attrs);
  return batch_norm_add_gradients(s, out, relu ? out[3] : grads[0]);
}
Tensors batch_norm_add_reference(std::span<const Tensor> in, const Attrs& attrs) {
  NormAttrs of_norm = attrs.as<NormAttrs>();
  of_norm.relu = false;
  Tensors out = batch_norm_reference(std::array{in[0], in[2], in[3]}, of_norm);
  out[0] = out[0] + in[1];
  if (attrs.as<NormAttrs>().relu) out[0] = relu(out[0]);
  return out;
}

const Op batch_norm_add_op = {.name = "batch_norm_add",
                              .inputs = "x, residual, weight?, bias?",
                              .outputs = "y, mean, var, rstd?",
                              .attrs = attrs_of<NormAttrs>,
                              .infer = infer_batch_norm_add,
                              .vjp = batch_norm_add_vjp,
                              .fused_vjp = batch_norm_add_fused_vjp,
                              .reference = batch_norm_add_reference,
                              .saves = {.inputs = 0b1101, .outputs = 0b1011},
                              .hidden_outputs = 1,
                              .keeps_layout = true};

// ---- move_estimates_: running mean [c] and variance [c], and a batch's -> the first two, moved by the number

Metas infer_move_estimates(std::span<const TensorMeta> in, const Attrs&) {
  constexpr OpName op = "move_estimates_";
  require_one_floating_dtype(op.view(), in, 4);
  for (const TensorMeta& t : in) {
    require_rank(op.view(), "statistic", t, 1);
    require_shape(op.view(), "statistic", t, in[0].shape);
    if (t.dtype != statistics_dtype(t.dtype)) fail(op.view(), "statistics are f32 or f64, not {}", describe(t));
  }
  return {in[0], in[1]};
}

Tensors move_estimates_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const double momentum = attrs.as<ScalarAttrs>().value;
  return {in[0] + (in[2] - in[0]) * momentum, in[1] + (in[3] - in[1]) * momentum};
}

const Op move_estimates_op = {.name = "move_estimates_",
                              .inputs = "running_mean, running_var, mean, var",
                              .outputs = "running_mean, running_var",
                              .attrs = attrs_of<ScalarAttrs>,
                              .infer = infer_move_estimates,
                              .reference = move_estimates_reference,
                              .in_place = true};

// ---- batch_norm_inference: x [n, c, ...], mean [c], var [c], weight? [c], bias? [c], residual? (added to y) -> y (or
// relu(y))

Metas infer_batch_norm_inference(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr OpName op = "batch_norm_inference";
  require_norm_dtypes(op.view(), in[0], in.subspan(3, 2));
  require_channels<op>(in[0], in[3]);
  require_bias_like_weight(op.view(), in[3], in[4]);
  if (!is_absent(in[5])) {
    require_like(op.view(), "residual", in[5], in[0]);
    require_unlimited(op.view(), attrs);
  }
  for (const TensorMeta& statistic : in.subspan(1, 2)) {
    require_shape(op.view(), "statistic", statistic, {in[0].shape[1]});
    if (statistic.dtype != statistics_dtype(in[0].dtype))
      fail(op.view(), "dtypes differ: {} and {}", describe(in[0]), describe(statistic));
  }
  return {in[0]};
}

NormMoments given_moments(const Tensor& mean, const Tensor& var, const Attrs& attrs) {
  return {mean, rsqrt(var + attrs.as<NormAttrs>().eps)};
}

// From dx, dweight, dbias and dresidual; those of the statistics stay empty.
Tensors inference_gradients(const Saved& s, const Tensors& grads, const Tensor& dresidual) {
  return wanted(s, {grads[0], {}, {}, grads[1], grads[2], s.inputs[5].defined() ? dresidual : Tensor()}, 6);
}
Tensors batch_norm_inference_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &x = s.inputs[0], &weight = s.inputs[3];
  const Seen seen = channels_of(x.shape());
  const NormMoments m = given_moments(s.inputs[1], s.inputs[2], s.attrs);
  Tensor g = grads[0];
  if (s.attrs.as<NormAttrs>().relu)
    g = before_relu(seen, g, x, weight, s.inputs[4], m, s.attrs.as<NormAttrs>(), s.inputs[5]);
  Tensors out = inference_gradients(s, norm_gradients(seen, g, x, weight, m, true), g);
  if (!s.needs_input(1) && !s.needs_input(2)) return out;
  Tensor dxhat = reshape(g, seen.x);
  if (weight.defined()) dxhat = dxhat * reshape(weight, seen.weight);
  auto per_channel = [&](const Tensor& t) {
    return reshape(sum_to(cast(t, m.rstd.dtype()), seen.statistics), m.rstd.shape());
  };
  if (s.needs_input(1)) out[1] = neg(per_channel(dxhat) * m.rstd);
  if (s.needs_input(2)) out[2] = per_channel(dxhat * normalized(seen, x, m)) * square(m.rstd) * -0.5;
  return out;
}
Tensors batch_norm_inference_fused_vjp(const Saved& s, const Tensors& grads) {
  if (s.needs_input(1) || s.needs_input(2)) return batch_norm_inference_vjp(s, grads);
  const NormMoments m = given_moments(s.inputs[1], s.inputs[2], s.attrs);
  const Tensor &x = s.inputs[0], &weight = s.inputs[3], &bias = s.inputs[4], &residual = s.inputs[5];
  NormAttrs attrs = s.attrs.as<NormAttrs>();
  Tensor g = grads[0];
  if (residual.defined() && attrs.relu) {  // y was not kept
    g = before_relu(channels_of(x.shape()), g, x, weight, bias, m, attrs, residual);
    attrs.relu = false;
  }
  return inference_gradients(s, dispatch(batch_norm_backward, {g, x, weight, m.mean, m.rstd, bias, {}}, attrs), g);
}
Tensors batch_norm_inference_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Seen seen = channels_of(in[0].shape());
  Tensor y =
      scale_and_shift(seen, normalized(seen, in[0], given_moments(in[1], in[2], attrs)), in[3], in[4], in[0].shape());
  if (in[5].defined()) y = y + in[5];
  return {attrs.as<NormAttrs>().relu ? relu_of(y, attrs.as<NormAttrs>()) : y};
}

const Op batch_norm_inference_op = {.name = "batch_norm_inference",
                                    .inputs = "x, mean, var, weight?, bias?, residual?",
                                    .outputs = "y",
                                    .attrs = attrs_of<NormAttrs>,
                                    .infer = infer_batch_norm_inference,
                                    .vjp = batch_norm_inference_vjp,
                                    .fused_vjp = batch_norm_inference_fused_vjp,
                                    .reference = batch_norm_inference_reference,
                                    .saves = {.inputs = 0b111111},
                                    .keeps_layout = true};

}  // namespace

std::span<const Op* const> batch_norm_ops() {
  static constexpr const Op* ops[] = {&batch_norm_op, &batch_norm_backward, &batch_norm_add_op,
                                      &batch_norm_inference_op, &move_estimates_op};
  return ops;
}

Tensor batch_norm_add(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                      Tensor running_mean, Tensor running_var, bool training, double momentum, double eps,
                      Activation activation, double high) {
  if (activation != Activation::None && activation != Activation::Relu)
    fail("batch_norm", "an activation other than relu is not supported");
  for (const Tensor* running : {&running_mean, &running_var})
    if (running->defined() && x.dim() >= 2 && running->shape() != Shape{x.shape()[1]})
      fail("batch_norm", "running statistics of shape {} for x {}", to_string(running->shape()), to_string(x.shape()));
  const NormAttrs attrs{.eps = eps, .training = training, .relu = activation == Activation::Relu, .high = high};
  if (!training) {
    if (!running_mean.defined() || !running_var.defined()) fail("batch_norm", "inference needs running statistics");
    // Backward may come after a step in training has moved the estimates, so that it gets copies.
    bool recorded = false;
    for (const Tensor* t :
         std::initializer_list<const Tensor*>{&x, &residual, &weight, &bias, &running_mean, &running_var})
      recorded |= grad_enabled() && t->defined() && t->requires_grad();
    auto estimate = [&](const Tensor& running) {
      const DType dtype = statistics_dtype(x.dtype());
      return recorded && running.dtype() == dtype ? clone(running) : cast(running, dtype);
    };
    return dispatch_one(batch_norm_inference_op,
                        {x, estimate(running_mean), estimate(running_var), weight, bias, residual}, attrs);
  }
  Tensors out = residual.defined() ? dispatch(batch_norm_add_op, {x, residual, weight, bias}, attrs)
                                   : dispatch(batch_norm_op, {x, weight, bias}, attrs);
  move_estimates(running_mean, running_var, out[1], out[2], momentum);
  return out[0];
}

void move_estimates(Tensor running_mean, Tensor running_var, const Tensor& mean, const Tensor& var, double momentum) {
  NoGrad guard;
  const bool alike = running_mean.defined() && running_var.defined() && running_mean.dtype() == mean.dtype() &&
                     running_var.dtype() == var.dtype();
  if (alike) {
    dispatch(move_estimates_op, {running_mean, running_var, mean, var}, ScalarAttrs{momentum});
    return;
  }
  if (running_mean.defined()) running_mean.mul_(1 - momentum).add_(mean, momentum);
  if (running_var.defined()) running_var.mul_(1 - momentum).add_(var, momentum);
}

}  // namespace tessera
