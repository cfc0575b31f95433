#include "ops/norm_conv.h"

#include <algorithm>
#include <cmath>

#include "ops/check.h"
#include "ops/conv.h"
#include "ops/cost.h"
#include "ops/gradient.h"
#include "ops/op_table.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

enum Input { X, Filters, Bias, Mean, Var, NormWeight, NormBias, InputCount };

const NormAttrs& norm_of(const Attrs& attrs) { return attrs.as<NormConvAttrs>().norm; }
const ConvAttrs& conv_of(const Attrs& attrs) { return attrs.as<NormConvAttrs>().conv; }
bool is_training(const Attrs& attrs) { return norm_of(attrs).training; }

// The convolution's attributes for a gradient of this size.
ConvAttrs sized(const Attrs& attrs, const Tensor& like) {
  ConvAttrs a = conv_of(attrs);
  for (int d = 0; d < 2; ++d) a.size[d] = like.size(2 + d);
  return a;
}

void require_planes(std::string_view op, const TensorMeta& x, const TensorMeta& filters) {
  require_rank(op, "x", x, 4);
  require_rank(op, "filters", filters, 4);
  require_shape(op, "filters", filters, {filters.shape[0], x.shape[1], 1, 1});
}

// Statistics, weight? and bias? of a norm of x, or none of them.
void require_norm(std::string_view op, const TensorMeta& x, std::span<const TensorMeta> norm) {
  if (is_absent(norm[0]) != is_absent(norm[1])) fail(op, "mean and deviation are given together, or neither is");
  if (is_absent(norm[2]) && !is_absent(norm[3])) fail(op, "a bias without a weight is not supported");
  if (!is_absent(norm[3]) && norm[2].dtype != norm[3].dtype)
    fail(op, "dtypes differ: weight {} and bias {}", describe(norm[2]), describe(norm[3]));
  for (const TensorMeta& t : norm) require_shape(op, "what belongs to channels", t, {x.shape[1]});
  for (const TensorMeta& t : norm.first(2))
    if (!is_absent(t) && t.dtype != statistics_dtype(x.dtype))
      fail(op, "dtypes differ: {} and {}", describe(x), describe(t));
  for (const TensorMeta& t : norm.subspan(2))
    if (!is_absent(t) && (is_absent(norm[0]) || (t.dtype != x.dtype && t.dtype != statistics_dtype(x.dtype))))
      fail(op, "a weight {} does not fit x {}", describe(t), describe(x));
}

void require_relu_unlimited(std::string_view op, const Attrs& attrs) {
  if (!std::isinf(norm_of(attrs).high)) fail(op, "a highest value of ReLU is not supported");
}

// ---- the forward

Metas infer_forward(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_relu_unlimited("norm_conv2d", attrs);
  const TensorMeta y = conv2d_op.infer(in.first(3), conv_of(attrs))[0];
  require_norm("norm_conv2d", in[X], in.subspan(Mean, 4));
  const Dim channels = is_absent(in[Mean]) ? Dim(0) : in[X].shape[1];
  const TensorMeta rstd{{channels}, statistics_dtype(y.dtype), y.device};
  if (!is_training(attrs)) return {y, rstd};
  const TensorMeta statistics{{y.shape[1]}, rstd.dtype, y.device};
  return {y, statistics, statistics, rstd};
}

// The norm's operator, and what it takes.
struct NormCall {
  const Op& op;
  Tensors in;
  Attrs attrs;
};
NormCall norm_call(std::span<const Tensor> in, const Attrs& attrs) {
  if (is_training(attrs)) return {find_op("batch_norm"), {in[X], in[NormWeight], in[NormBias]}, norm_of(attrs)};
  return {
      find_op("batch_norm_inference"), {in[X], in[Mean], in[Var], in[NormWeight], in[NormBias], {}}, norm_of(attrs)};
}

Tensors reference_of(const Op& op, const Tensors& in, const Attrs& attrs) {
  return op.reference({in.data(), in.size()}, attrs);
}

Tensors forward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Tensor x = in[X];
  if (in[Mean].defined()) {
    const NormCall norm = norm_call(in, attrs);
    x = reference_of(norm.op, norm.in, norm.attrs)[0];
  }
  const Tensor y = reference_of(conv2d_op, {x, in[Filters], in[Bias]}, conv_of(attrs))[0];
  if (!is_training(attrs)) return {y};
  const Tensors moments = reference_of(find_op("batch_norm"), {y, {}, {}}, NormAttrs{.training = true});
  return {y, moments[1], moments[2]};
}

// The gradient of y, from that of it and of its moments; `y` may be without the bias.
Tensor with_moments(const Tensors& grads, const Tensor& y) {
  Tensor dy = grads[0].defined() ? grads[0] : zeros_like(y);
  if (grads.size() < 3) return dy;
  const double count = static_cast<double>((y.shape().numel() / y.shape()[1]).value());
  const Shape channel{Dim(1), y.shape()[1], Dim(1), Dim(1)};
  const auto each = [&](const Tensor& t) { return expand(reshape(cast(t, y.dtype()), channel), y.shape()); };
  if (grads[1].defined()) dy = dy + each(grads[1]) * (1 / count);
  if (grads[2].defined()) dy = dy + each(grads[2]) * (y - mean(y, {0, 2, 3}, true)) * (2 / (count - 1));
  return dy;
}

// The gradients of x, weight and bias, and given statistics of the norm, from that of its result.
void add_norm_gradients(const Saved& s, const Tensor& da, Tensors& out) {
  const NormCall norm = norm_call(s.inputs, s.attrs);
  Tensors in = norm.in;
  const bool training = is_training(s.attrs);
  Saved saved{norm.attrs, {in.data(), in.size()}, {}, {}, kAll};
  Tensors found = norm.op.vjp(saved, training ? Tensors{da, {}, {}} : Tensors{da});
  out[X] = found[0];
  const size_t weight = training ? 1 : 3;
  if (s.inputs[NormWeight].defined()) out[NormWeight] = found[weight];
  if (s.inputs[NormBias].defined()) out[NormBias] = found[weight + 1];
  if (!training) out[Mean] = found[1], out[Var] = found[2];
}

Tensors wanted(const Saved& s, Tensors out) {
  for (size_t i = 0; i < out.size(); ++i)
    if (!s.needs_input(static_cast<int>(i))) out[i] = {};
  return out;
}

Tensors forward_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &x = s.inputs[X], &filters = s.inputs[Filters], &mean = s.inputs[Mean];
  Tensor a = x;
  if (mean.defined()) {
    NormCall norm = norm_call(s.inputs, s.attrs);
    a = dispatch_one(norm.op, std::move(norm.in), norm.attrs);
  }
  const Tensor dy = with_moments(grads, dispatch_one(conv2d_op, {a, filters, {}}, conv_of(s.attrs)));
  Tensors out(InputCount);
  out[Filters] = dispatch_one(conv2d_weight_grad_op, {a, dy, filters}, sized(s.attrs, filters));
  out[Bias] = sum(dy, {0, 2, 3});
  const Tensor da = dispatch_one(conv2d_input_grad_op, {dy, filters}, sized(s.attrs, x));
  if (mean.defined()) add_norm_gradients(s, da, out);
  else out[X] = da;
  return wanted(s, std::move(out));
}

// ---- norm_conv2d_weight_grad: x, dy, mean?, rstd?, weight?, bias? -> dfilters, dbias

Metas infer_weight_grad(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_relu_unlimited("norm_conv2d_weight_grad", attrs);
  const Metas given{in[0], in[1], absent_meta()};
  const TensorMeta filters = conv2d_weight_grad_op.infer({given.data(), given.size()}, conv_of(attrs))[0];
  require_norm("norm_conv2d_weight_grad", in[0], in.subspan(2, 4));
  return {filters, {{filters.shape[0]}, filters.dtype, filters.device}};
}

Tensors weight_grad_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Tensor a = in[0];
  if (in[2].defined()) {
    NormAttrs given = norm_of(attrs);
    given.eps = 0;
    given.training = false;
    a = reference_of(find_op("batch_norm_inference"), {a, in[2], pow(in[3], -2.0), in[4], in[5], {}}, given)[0];
  }
  return {reference_of(conv2d_weight_grad_op, {a, in[1], {}}, conv_of(attrs))[0], sum(in[1], {0, 2, 3})};
}

const Op weight_grad_op = {.name = "norm_conv2d_weight_grad",
                           .inputs = "x, dy, mean?, rstd?, norm_weight?, norm_bias?",
                           .outputs = "dfilters, dbias",
                           .attrs = attrs_of<NormConvAttrs>,
                           .infer = infer_weight_grad,
                           .reference = weight_grad_reference,
                           .made_of = &conv2d_weight_grad_op,
                           .flops = conv2d_weight_grad_flops};

// ---- norm_conv1x1_one_filter_backward: x, dy, filters, mean, rstd, weight?, bias? -> dx, dweight, dbias, dfilters and
// the filter's dbias

Metas infer_one_filter(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr auto op = "norm_conv1x1_one_filter_backward";
  require_planes(op, in[0], in[2]);
  require_shape(op, "filters", in[2], {Dim(1), in[0].shape[1], Dim(1), Dim(1)});
  require_one_floating_dtype(op, in, 3);
  require_norm(op, in[0], in.subspan(3, 4));
  if (is_absent(in[3])) fail(op, "mean and deviation are needed");
  const TensorMeta none{{0}, in[0].dtype, in[0].device}, weight = is_absent(in[5]) ? none : in[5];
  const TensorMeta factors[] = {in[0], in[1], in[3], in[4], in[5], in[6]};
  const Metas sums = infer_weight_grad(factors, attrs);
  return {in[0], weight, weight, sums[0], sums[1]};
}

Tensors one_filter_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor gradient = in[1] * in[2];
  Tensors out =
      reference_of(find_op("batch_norm_backward"), {gradient, in[0], in[5], in[3], in[4], in[6], {}}, norm_of(attrs));
  out.resize(3);
  const Tensors factors{in[0], in[1], in[3], in[4], in[5], in[6]};
  for (const Tensor& t : reference_of(weight_grad_op, factors, attrs)) out.push_back(t);
  return out;
}

double one_filter_flops(std::span<const TensorMeta> in, std::span<const TensorMeta>, const Attrs&) {
  return 2 * convolution_flops(in[1].shape, in[2].shape);
}

const Op one_filter_op = {.name = "norm_conv1x1_one_filter_backward",
                          .inputs = "x, dy, filters, mean, rstd, norm_weight?, norm_bias?",
                          .outputs = "dx, dnorm_weight, dnorm_bias, dfilters, dbias",
                          .attrs = attrs_of<NormConvAttrs>,
                          .infer = infer_one_filter,
                          .reference = one_filter_reference,
                          .made_of = &weight_grad_op,
                          .flops = one_filter_flops};

// Of filters of one element, to each pixel.
bool is_pointwise(const ConvAttrs& of_filters) {
  for (int d = 0; d < 2; ++d)
    if (of_filters.size[d] != 1 || of_filters.stride[d] != 1 || of_filters.padding[d] != 0) return false;
  return of_filters.groups == 1;
}

Tensors forward_fused_vjp(const Saved& s, const Tensors& grads) {
  if (!grads[0].defined() || s.needs_input(Mean) || s.needs_input(Var)) return forward_vjp(s, grads);
  for (size_t i = 1; i < grads.size(); ++i)
    if (grads[i].defined()) return forward_vjp(s, grads);
  const Tensor &x = s.inputs[X], &mean = s.inputs[Mean], &weight = s.inputs[NormWeight], &bias = s.inputs[NormBias];
  const Tensor& dy = grads[0];
  const Tensor rstd = mean.defined() ? s.outputs[s.outputs.size() - 1] : Tensor();
  Tensors out(InputCount);
  const bool before = s.needs_input(X) || s.needs_input(NormWeight) || s.needs_input(NormBias);
  const NormConvAttrs of_filters{sized(s.attrs, s.inputs[Filters]), norm_of(s.attrs)};
  if (before && mean.defined() && dy.size(1) == 1 && is_pointwise(of_filters.conv)) {
    Tensors found = dispatch(one_filter_op, {x, dy, s.inputs[Filters], mean, rstd, weight, bias}, of_filters);
    constexpr Input of[] = {X, NormWeight, NormBias, Filters, Bias};
    for (size_t i = 0; i < 5; ++i) out[of[i]] = found[i];
    return wanted(s, std::move(out));
  }
  if (s.needs_input(Filters) || s.needs_input(Bias)) {
    Tensors found = dispatch(weight_grad_op, {x, dy, mean, rstd, weight, bias}, of_filters);
    out[Filters] = found[0];
    out[Bias] = found[1];
  }
  if (!before) return wanted(s, std::move(out));
  out[X] = dispatch_one(conv2d_input_grad_op, {dy, s.inputs[Filters]}, sized(s.attrs, x));
  if (mean.defined()) {
    Tensors found =
        dispatch(find_op("batch_norm_backward"), {out[X], x, weight, mean, rstd, bias, {}}, norm_of(s.attrs));
    out[X] = found[0];
    out[NormWeight] = found[1];
    out[NormBias] = found[2];
  }
  return wanted(s, std::move(out));
}

// ---- conv2d_moments: x, weight, bias? -> y, mean, var

Metas infer_moments(std::span<const TensorMeta> in, const Attrs& attrs) {
  const TensorMeta y = conv2d_op.infer(in, attrs)[0];
  if (y.shape.numel() == y.shape[1]) fail("conv2d_moments", "a variance needs two values: {}", to_string(y.shape));
  const TensorMeta statistics{{y.shape[1]}, statistics_dtype(y.dtype), y.device};
  return {y, statistics, statistics};
}

Tensors moments_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor y = conv2d_op.reference(in, attrs)[0];
  const Tensors moments = reference_of(find_op("batch_norm"), {y, {}, {}}, NormAttrs{.training = true});
  return {y, moments[1], moments[2]};
}

Tensors moments_vjp(const Saved& s, const Tensors& grads) {
  if (!grads[1].defined() && !grads[2].defined()) return conv2d_op.vjp(s, {grads[0]});
  const Tensor y = dispatch_one(conv2d_op, {s.inputs[0], s.inputs[1], {}}, s.attrs);
  return conv2d_op.vjp(s, {with_moments(grads, y)});
}

// ---- batch_norm_known: x, mean, var, weight?, bias? -> y, rstd

Metas infer_known(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr auto op = "batch_norm_known";
  for (const TensorMeta& t : in.first(3))
    if (is_absent(t)) fail(op, "x, mean and variance are needed");
  const Metas of_batch{in[0], in[3], in[4]};
  const Metas out = find_op("batch_norm").infer({of_batch.data(), of_batch.size()}, attrs);
  for (const TensorMeta& t : in.subspan(1, 2)) {
    require_shape(op, "statistic", t, out[1].shape);
    if (t.dtype != out[1].dtype) fail(op, "dtypes differ: {} and {}", describe(in[0]), describe(t));
  }
  return {out[0], out[3]};
}

Tensors known_reference(std::span<const Tensor> in, const Attrs& attrs) {
  return {reference_of(find_op("batch_norm"), {in[0], in[3], in[4]}, attrs)[0]};
}

// Gradients of x, weight and bias among those of all inputs.
Tensors of_known(const Saved& s, const Tensors& found) { return wanted(s, {found[0], {}, {}, found[1], found[2]}); }
Tensors known_vjp(const Saved& s, const Tensors& grads) {
  Tensors in{s.inputs[0], s.inputs[3], s.inputs[4]};
  const Saved saved{s.attrs, {in.data(), in.size()}, {}, {}, kAll};
  return of_known(s, find_op("batch_norm").vjp(saved, {grads[0], {}, {}}));
}
Tensors known_fused_vjp(const Saved& s, const Tensors& grads) {
  Tensors in{grads[0], s.inputs[0], s.inputs[3], s.inputs[1], s.outputs[1], s.inputs[4], {}};
  return of_known(s, dispatch(find_op("batch_norm_backward"), std::move(in), s.attrs));
}

}  // namespace

const Op norm_conv2d_op = {.name = "norm_conv2d",
                           .inputs = "x, filters, bias?, mean?, var?, norm_weight?, norm_bias?",
                           .outputs = "y, mean?, var?, rstd?",
                           .attrs = attrs_of<NormConvAttrs>,
                           .infer = infer_forward,
                           .vjp = forward_vjp,
                           .fused_vjp = forward_fused_vjp,
                           .reference = forward_reference,
                           .saves = {.inputs = 0b1111011, .outputs = 0b1010},
                           .hidden_outputs = 1,
                           .keeps_layout = true,
                           .made_of = &conv2d_op,
                           .flops = conv2d_flops};

const Op conv2d_moments_op = {.name = "conv2d_moments",
                              .inputs = "x, weight, bias?",
                              .outputs = "y, mean, var",
                              .attrs = attrs_of<ConvAttrs>,
                              .infer = infer_moments,
                              .vjp = moments_vjp,
                              .reference = moments_reference,
                              .saves = {.inputs = 0b011},
                              .autocast = Autocast::Lower,
                              .keeps_layout = true,
                              .made_of = &conv2d_op,
                              .flops = conv2d_flops};

const Op batch_norm_known_op = {.name = "batch_norm_known",
                                .inputs = "x, mean, var, weight?, bias?",
                                .outputs = "y, rstd?",
                                .attrs = attrs_of<NormAttrs>,
                                .infer = infer_known,
                                .vjp = known_vjp,
                                .fused_vjp = known_fused_vjp,
                                .reference = known_reference,
                                .saves = {.inputs = 0b11011, .outputs = 0b10},
                                .hidden_outputs = 1,
                                .keeps_layout = true};

std::span<const Op* const> norm_conv_ops() {
  static constexpr const Op* ops[] = {&norm_conv2d_op, &weight_grad_op, &one_filter_op, &conv2d_moments_op,
                                      &batch_norm_known_op};
  return ops;
}

}  // namespace tessera
