// Normalisation over rows, groups of channels or the batch; one formula, three ways to look at x.
#include "ops/batch_norm.h"

#include <cmath>

#include "ops/check.h"
#include "ops/gradient.h"
#include "ops/norm_conv.h"
#include "ops/op_name.h"
#include "ops/op_table.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

// ---- the formula in plain operators: the vjps, and the oracle of the kernels

enum class Kind { Rows, Groups, Batch };

// x seen so that the reduced dims are fixed: [rows, width] over 1, [n, groups, c / groups, rest] over 2 and 3, or
// [n, c, rest] over 0 and 2; with the shapes of weights and statistics that broadcast to it.
struct Seen {
  Kind kind;
  Shape x, weight, statistics;

  Tensor average(const Tensor& t) const {
    switch (kind) {
      case Kind::Rows:
        return mean(t, {1}, true);
      case Kind::Groups:
        return mean(t, {2, 3}, true);
      case Kind::Batch:
        break;
    }
    return mean(t, {0, 2}, true);
  }
};

Dim product(const Dim* first, const Dim* last) { return Shape(first, last).numel(); }

Seen rows_of(const Shape& x, int64_t normalized_dims) {
  const Dim* split = x.end() - normalized_dims;
  Dim rows = product(x.begin(), split), width = product(split, x.end());
  return {Kind::Rows, {rows, width}, {width}, {rows, Dim(1)}};
}
Seen groups_of(const Shape& x, int64_t groups) {
  Dim rest = product(x.begin() + 2, x.end()), channels = x[1] / groups;
  return {Kind::Groups,
          {x[0], Dim(groups), channels, rest},
          {Dim(1), Dim(groups), channels, Dim(1)},
          {x[0], Dim(groups), Dim(1), Dim(1)}};
}
Seen channels_of(const Shape& x) {
  Dim rest = product(x.begin() + 2, x.end());
  return {Kind::Batch, {x[0], x[1], rest}, {Dim(1), x[1], Dim(1)}, {Dim(1), x[1], Dim(1)}};
}

struct Moments {
  Tensor mean, rstd;  // mean is undefined where it is not subtracted
};
Moments moments(const Seen& seen, const Tensor& x, bool centered, double eps) {
  Tensor t = reshape(x, seen.x), mean = centered ? seen.average(t) : Tensor();
  return {mean, rsqrt(seen.average(square(centered ? t - mean : t)) + eps)};
}

Tensor normalized(const Seen& seen, const Tensor& x, const Moments& m) {
  Tensor t = reshape(x, seen.x);
  if (m.mean.defined()) t = t - reshape(m.mean, seen.statistics);
  return t * reshape(m.rstd, seen.statistics);
}

Tensor scale_and_shift(const Seen& seen, Tensor y, const Tensor& weight, const Tensor& bias, const Shape& shape) {
  if (weight.defined()) y = y * reshape(weight, seen.weight);
  if (bias.defined()) y = y + reshape(bias, seen.weight);
  return reshape(y, shape);
}

// dx, dweight, dbias. Without weight the last two are empty, as the fused kernels give them. `constant`: the moments
// are given and do not depend on x.
Tensors gradients(const Seen& seen, const Tensor& g, const Tensor& x, const Tensor& weight, const Moments& m,
                  bool constant = false) {
  Tensor dy = reshape(g, seen.x), xhat = normalized(seen, x, m);
  Tensor dxhat = weight.defined() ? dy * reshape(weight, seen.weight) : dy;
  Tensor dx = constant ? dxhat : dxhat - xhat * seen.average(dxhat * xhat);
  if (m.mean.defined() && !constant) dx = dx - seen.average(dxhat);
  dx = cast(reshape(dx * reshape(m.rstd, seen.statistics), x.shape()), x.dtype());
  if (!weight.defined()) return {dx, empty({0}, x.dtype(), x.device()), empty({0}, x.dtype(), x.device())};
  auto weight_gradient = [&](const Tensor& t) {
    return reshape(sum_to(cast(t, weight.dtype()), seen.weight), weight.shape());
  };
  return {dx, weight_gradient(dy * xhat), weight_gradient(dy)};
}

Tensors wanted(const Saved& s, Tensors grads, size_t count) {
  grads.resize(count);
  for (size_t i = 0; i < count; ++i)
    if (!s.needs_input(static_cast<int>(i))) grads[i] = {};
  return grads;
}

TensorMeta like(const TensorMeta& x, const Shape& shape) { return {shape, x.dtype, x.device}; }
TensorMeta statistics_like(const TensorMeta& x, const Shape& shape) {
  return {shape, statistics_dtype(x.dtype), x.device};
}
TensorMeta gradient_like(const TensorMeta& x, const TensorMeta& weight) {
  return is_absent(weight) ? like(x, {0}) : TensorMeta{weight.shape, weight.dtype, x.device};
}

// Weights have the dtype of x or, beside halves, that of the statistics.
void require_norm_dtypes(std::string_view op, const TensorMeta& x, std::span<const TensorMeta> weights) {
  require_one_floating_dtype(op, {&x, 1}, 1);
  for (const TensorMeta& w : weights)
    if (!is_absent(w) && w.dtype != x.dtype && w.dtype != statistics_dtype(x.dtype))
      fail(op, "dtypes differ: {} and {}", describe(x), describe(w));
}

void require_bias_like_weight(std::string_view op, const TensorMeta& weight, const TensorMeta& bias) {
  if (is_absent(bias)) return;
  if (is_absent(weight)) fail(op, "a bias without a weight is not supported");
  require_shape(op, "bias", bias, weight.shape);
  if (bias.dtype != weight.dtype) fail(op, "dtypes differ: weight {} and bias {}", describe(weight), describe(bias));
}

// ---- layer_norm: x, weight?, bias? -> y, mean, rstd; rms_norm: x, weight? -> y, rstd

int64_t normalized_dims(const Tensor& weight) { return weight.defined() ? weight.dim() : 1; }

// Checks the weight against the last dims of x and gives the shape of the statistics.
template <OpName op>
Shape statistics_shape(const TensorMeta& x, const TensorMeta& weight) {
  int64_t dims = is_absent(weight) ? 1 : weight.shape.rank();
  if (x.shape.rank() < dims || dims < 1)
    fail(op.view(), "weight {} does not fit x {}", to_string(weight.shape), to_string(x.shape));
  Shape last(x.shape.end() - dims, x.shape.end());
  require_shape(op.view(), "weight", weight, last);
  if (product(last.begin(), last.end()) == Dim(0))
    fail(op.view(), "nothing to normalise over in {}", to_string(x.shape));
  return Shape(x.shape.begin(), x.shape.end() - dims);
}

Metas infer_layer_norm(std::span<const TensorMeta> in, const Attrs&) {
  require_norm_dtypes("layer_norm", in[0], in.subspan(1));
  Shape statistics = statistics_shape<"layer_norm">(in[0], in[1]);
  require_bias_like_weight("layer_norm", in[1], in[2]);
  return {in[0], statistics_like(in[0], statistics), statistics_like(in[0], statistics)};
}

Metas infer_rms_norm(std::span<const TensorMeta> in, const Attrs&) {
  require_norm_dtypes("rms_norm", in[0], in.subspan(1));
  if (!is_absent(in[1])) require_rank("rms_norm", "weight", in[1], 1);
  return {in[0], statistics_like(in[0], statistics_shape<"rms_norm">(in[0], in[1]))};
}

template <bool centered>
Tensors row_norm_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &x = s.inputs[0], &weight = s.inputs[1];
  Seen seen = rows_of(x.shape(), normalized_dims(weight));
  return wanted(s, gradients(seen, grads[0], x, weight, moments(seen, x, centered, s.attrs.as<NormAttrs>().eps)),
                centered ? 3 : 2);
}

template <bool centered>
Tensors row_norm_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor &x = in[0], &weight = in[1], bias = centered ? in[2] : Tensor();
  Seen seen = rows_of(x.shape(), normalized_dims(weight));
  Tensor y = normalized(seen, x, moments(seen, x, centered, attrs.as<NormAttrs>().eps));
  return {scale_and_shift(seen, y, weight, bias, x.shape())};
}

// ---- layer_norm_backward: dy, x, weight?, mean, rstd, addend? -> dx + addend, dweight, dbias (empty unless wanted);
// rms_norm_backward: without mean, addend and dbias

Metas infer_layer_norm_backward(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_one_floating_dtype("layer_norm_backward", in, 2);
  require_norm_dtypes("layer_norm_backward", in[1], in.subspan(2, 1));
  require_shape("layer_norm_backward", "gradient", in[0], in[1].shape);
  Shape statistics = statistics_shape<"layer_norm_backward">(in[1], in[2]);
  require_shape("layer_norm_backward", "mean", in[3], statistics);
  require_shape("layer_norm_backward", "rstd", in[4], statistics);
  require_shape("layer_norm_backward", "addend", in[5], in[1].shape);
  if (!is_absent(in[5])) require_one_floating_dtype("layer_norm_backward", in.subspan(5), 1);
  const TensorMeta dweight = gradient_like(in[1], in[2]);
  return {in[1], dweight, attrs.as<NormAttrs>().dbias ? dweight : like(dweight, Shape{0})};
}

Metas infer_rms_norm_backward(std::span<const TensorMeta> in, const Attrs&) {
  require_one_floating_dtype("rms_norm_backward", in, 2);
  require_norm_dtypes("rms_norm_backward", in[1], in.subspan(2, 1));
  require_shape("rms_norm_backward", "gradient", in[0], in[1].shape);
  require_shape("rms_norm_backward", "rstd", in[3], statistics_shape<"rms_norm_backward">(in[1], in[2]));
  return {in[1], gradient_like(in[1], in[2])};
}

Tensors layer_norm_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Tensors out = gradients(rows_of(in[1].shape(), normalized_dims(in[2])), in[0], in[1], in[2], {in[3], in[4]});
  if (in[5].defined()) out[0] = out[0] + in[5];
  if (!attrs.as<NormAttrs>().dbias) out[2] = empty({0}, out[2].dtype(), out[2].device());
  return out;
}
Tensors rms_norm_backward_reference(std::span<const Tensor> in, const Attrs&) {
  Tensors out = gradients(rows_of(in[1].shape(), normalized_dims(in[2])), in[0], in[1], in[2], {{}, in[3]});
  out.pop_back();
  return out;
}

const Op layer_norm_backward = {.name = "layer_norm_backward",
                                .inputs = "dy, x, weight?, mean, rstd, addend?",
                                .outputs = "dx, dweight, dbias",
                                .attrs = attrs_of<NormAttrs>,
                                .infer = infer_layer_norm_backward,
                                .reference = layer_norm_backward_reference};
const Op rms_norm_backward = {.name = "rms_norm_backward",
                              .inputs = "dy, x, weight?, rstd",
                              .outputs = "dx, dweight",
                              .attrs = attrs_of<NormAttrs>,
                              .infer = infer_rms_norm_backward,
                              .reference = rms_norm_backward_reference};

Tensors layer_norm_fused_vjp(const Saved& s, const Tensors& grads) {
  NormAttrs attrs = s.attrs.as<NormAttrs>();
  attrs.dbias = s.needs_input(2);
  Tensors in{grads[0], s.inputs[0], s.inputs[1], s.outputs[1], s.outputs[2], s.so_far};
  return wanted(s, dispatch(layer_norm_backward, std::move(in), attrs), 3);
}
Tensors rms_norm_fused_vjp(const Saved& s, const Tensors& grads) {
  return wanted(s, dispatch(rms_norm_backward, {grads[0], s.inputs[0], s.inputs[1], s.outputs[1]}, s.attrs), 2);
}

const Op layer_norm_op = {.name = "layer_norm",
                          .inputs = "x, weight?, bias?",
                          .outputs = "y, mean?, rstd?",
                          .attrs = attrs_of<NormAttrs>,
                          .infer = infer_layer_norm,
                          .vjp = row_norm_vjp<true>,
                          .fused_vjp = layer_norm_fused_vjp,
                          .reference = row_norm_reference<true>,
                          .saves = {.inputs = 0b011, .outputs = 0b110},
                          .autocast = Autocast::Norm,
                          .hidden_outputs = 2,
                          .adds_up = 0};
const Op rms_norm_op = {.name = "rms_norm",
                        .inputs = "x, weight?",
                        .outputs = "y, rstd?",
                        .attrs = attrs_of<NormAttrs>,
                        .infer = infer_rms_norm,
                        .vjp = row_norm_vjp<false>,
                        .fused_vjp = rms_norm_fused_vjp,
                        .reference = row_norm_reference<false>,
                        .saves = {.inputs = 0b11, .outputs = 0b10},
                        .autocast = Autocast::Norm,
                        .hidden_outputs = 1};

// ---- add_layer_norm: x, branch, branch_bias?, weight?, bias? -> sum = x + branch + branch_bias, y = layer_norm(sum),
// mean, rstd; sum has the dtype of x, y that of branch: a wide residual stream between products of halves. The branch's
// bias is rounded to its dtype, as in the product that it belongs to

Metas infer_add_layer_norm(std::span<const TensorMeta> in, const Attrs&) {
  constexpr OpName op = "add_layer_norm";
  require_norm_dtypes(op.view(), in[0], in.subspan(3));
  require_one_floating_dtype(op.view(), in.subspan(1), 1);
  require_shape(op.view(), "branch", in[1], in[0].shape);
  const Shape statistics = statistics_shape<op>(in[0], in[3]);
  require_shape(op.view(), "the bias of the branch", in[2],
                Shape(in[0].shape.begin() + statistics.rank(), in[0].shape.end()));
  if (!is_absent(in[2])) require_one_floating_dtype(op.view(), in.subspan(2), 1);
  require_bias_like_weight(op.view(), in[3], in[4]);
  return {in[0],
          {in[0].shape, in[1].dtype, in[0].device},
          statistics_like(in[0], statistics),
          statistics_like(in[0], statistics)};
}

// Gradients of all inputs from that of the sum, and those of weight and bias.
Tensors add_layer_norm_gradients(const Saved& s, const Tensor& dsum, const Tensor& dweight, const Tensor& dbias) {
  Tensors out{dsum, {}, {}, dweight, dbias};
  if (s.needs_input(1)) out[1] = gradient_for(dsum, s.metas[1]);
  if (s.needs_input(2)) out[2] = gradient_for(dsum, s.inputs[2]);
  return wanted(s, std::move(out), 5);
}

Tensors add_layer_norm_vjp(const Saved& s, const Tensors& grads) {
  if (!grads[1].defined()) return add_layer_norm_gradients(s, grads[0], {}, {});
  const Tensor &sum = s.outputs[0], &weight = s.inputs[3];
  const Seen seen = rows_of(sum.shape(), normalized_dims(weight));
  const Tensors of_norm =
      gradients(seen, cast(grads[1], sum.dtype()), sum, weight, moments(seen, sum, true, s.attrs.as<NormAttrs>().eps));
  return add_layer_norm_gradients(s, grads[0].defined() ? of_norm[0] + grads[0] : of_norm[0], of_norm[1], of_norm[2]);
}

Tensors add_layer_norm_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Tensor sum = in[0] + in[1];
  if (in[2].defined()) sum = sum + in[2];
  return {sum, row_norm_reference<true>(std::array{sum, in[3], in[4]}, attrs)[0]};
}

// dy, sum, weight?, mean, rstd, dsum?, branch_bias? -> dx (with dsum), dweight, dbias, dx in the dtype of dy (empty
// where it is dx), and the gradient of branch_bias

Metas infer_add_layer_norm_backward(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr OpName op = "add_layer_norm_backward";
  require_one_floating_dtype(op.view(), in, 1);
  require_norm_dtypes(op.view(), in[1], in.subspan(2, 1));
  require_shape(op.view(), "gradient", in[0], in[1].shape);
  const Shape statistics = statistics_shape<op>(in[1], in[2]);
  require_shape(op.view(), "mean", in[3], statistics);
  require_shape(op.view(), "rstd", in[4], statistics);
  require_shape(op.view(), "gradient of the sum", in[5], in[1].shape);
  require_shape(op.view(), "the bias of the branch", in[6],
                Shape(in[1].shape.begin() + statistics.rank(), in[1].shape.end()));
  const TensorMeta dweight = gradient_like(in[1], in[2]), &bias = in[6];
  const bool narrow = in[0].dtype != in[1].dtype;
  return {in[1], dweight, attrs.as<NormAttrs>().dbias ? dweight : like(dweight, Shape{0}),
          like(in[0], narrow ? in[1].shape : Shape{0}), is_absent(bias) ? like(in[1], Shape{0}) : bias};
}

Tensors add_layer_norm_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Tensors out = layer_norm_backward_reference(in.first(6), attrs);
  out.push_back(empty({0}, in[0].dtype()));
  const Shape columns(in[1].shape().begin() + in[3].dim(), in[1].shape().end());
  out.push_back(in[6].defined() ? sum_to(out[0], columns) : empty({0}, in[0].dtype()));
  return out;
}

const Op add_layer_norm_backward = {.name = "add_layer_norm_backward",
                                    .inputs = "dy, sum, weight?, mean, rstd, dsum?, branch_bias?",
                                    .outputs = "dx, dweight, dbias, dbranch, dbranch_bias",
                                    .attrs = attrs_of<NormAttrs>,
                                    .infer = infer_add_layer_norm_backward,
                                    .reference = add_layer_norm_backward_reference};

Tensors add_layer_norm_fused_vjp(const Saved& s, const Tensors& grads) {
  if (!grads[1].defined()) return add_layer_norm_gradients(s, grads[0], {}, {});
  NormAttrs attrs = s.attrs.as<NormAttrs>();
  attrs.dbias = s.needs_input(4);
  const Tensor branch_bias = s.needs_input(2) ? s.inputs[2] : Tensor();
  const Tensors out =
      dispatch(add_layer_norm_backward,
               {grads[1], s.outputs[0], s.inputs[3], s.outputs[2], s.outputs[3], grads[0], branch_bias}, attrs);
  return wanted(s, {out[0], grads[1].dtype() == out[0].dtype() ? out[0] : out[3], out[4], out[1], out[2]}, 5);
}

const Op add_layer_norm_op = {.name = "add_layer_norm",
                              .inputs = "x, branch, branch_bias?, weight?, bias?",
                              .outputs = "sum, y, mean?, rstd?",
                              .attrs = attrs_of<NormAttrs>,
                              .infer = infer_add_layer_norm,
                              .vjp = add_layer_norm_vjp,
                              .fused_vjp = add_layer_norm_fused_vjp,
                              .reference = add_layer_norm_reference,
                              .saves = {.inputs = 0b01100, .outputs = 0b1101, .metas = 0b10},
                              .hidden_outputs = 2};

// ---- group_norm: x [n, c, ...], weight? [c], bias? [c] -> y, mean [n, groups], rstd [n, groups]

// Checks x and weight and gives the shape of the statistics.
template <OpName op>
Shape group_statistics(const TensorMeta& x, const TensorMeta& weight, int64_t groups) {
  if (x.shape.rank() < 2) fail(op.view(), "x needs a batch and a channel dim: {}", to_string(x.shape));
  Dim channels = x.shape[1];
  if (groups < 1 || provably_different(channels / groups * groups, channels))
    fail(op.view(), "{} channels do not split into {} groups", channels.to_string(), groups);
  require_shape(op.view(), "weight", weight, {channels});
  return {x.shape[0], Dim(groups)};
}

Metas infer_group_norm(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_norm_dtypes("group_norm", in[0], in.subspan(1));
  Shape statistics = group_statistics<"group_norm">(in[0], in[1], attrs.as<NormAttrs>().groups);
  require_bias_like_weight("group_norm", in[1], in[2]);
  return {in[0], statistics_like(in[0], statistics), statistics_like(in[0], statistics)};
}

Metas infer_group_norm_backward(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_one_floating_dtype("group_norm_backward", in, 2);
  require_norm_dtypes("group_norm_backward", in[1], in.subspan(2, 1));
  require_shape("group_norm_backward", "gradient", in[0], in[1].shape);
  Shape statistics = group_statistics<"group_norm_backward">(in[1], in[2], attrs.as<NormAttrs>().groups);
  require_shape("group_norm_backward", "mean", in[3], statistics);
  require_shape("group_norm_backward", "rstd", in[4], statistics);
  return {in[1], gradient_like(in[1], in[2]), gradient_like(in[1], in[2])};
}

Tensors group_norm_vjp(const Saved& s, const Tensors& grads) {
  auto& attrs = s.attrs.as<NormAttrs>();
  Seen seen = groups_of(s.inputs[0].shape(), attrs.groups);
  return wanted(s, gradients(seen, grads[0], s.inputs[0], s.inputs[1], moments(seen, s.inputs[0], true, attrs.eps)), 3);
}
Tensors group_norm_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Seen seen = groups_of(in[0].shape(), attrs.as<NormAttrs>().groups);
  Tensor y = normalized(seen, in[0], moments(seen, in[0], true, attrs.as<NormAttrs>().eps));
  return {scale_and_shift(seen, y, in[1], in[2], in[0].shape())};
}
Tensors group_norm_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  return gradients(groups_of(in[1].shape(), attrs.as<NormAttrs>().groups), in[0], in[1], in[2], {in[3], in[4]});
}

const Op group_norm_backward = {.name = "group_norm_backward",
                                .inputs = "dy, x, weight?, mean, rstd",
                                .outputs = "dx, dweight, dbias",
                                .attrs = attrs_of<NormAttrs>,
                                .infer = infer_group_norm_backward,
                                .reference = group_norm_backward_reference,
                                .keeps_layout = true,
                                .layout_of = kAnyInput};

Tensors group_norm_fused_vjp(const Saved& s, const Tensors& grads) {
  return wanted(
      s, dispatch(group_norm_backward, {grads[0], s.inputs[0], s.inputs[1], s.outputs[1], s.outputs[2]}, s.attrs), 3);
}

const Op group_norm_op = {.name = "group_norm",
                          .inputs = "x, weight?, bias?",
                          .outputs = "y, mean?, rstd?",
                          .attrs = attrs_of<NormAttrs>,
                          .infer = infer_group_norm,
                          .vjp = group_norm_vjp,
                          .fused_vjp = group_norm_fused_vjp,
                          .reference = group_norm_reference,
                          .saves = {.inputs = 0b011, .outputs = 0b110},
                          .autocast = Autocast::Norm,
                          .hidden_outputs = 2,
                          .keeps_layout = true};

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
                   const Moments& m, const NormAttrs& attrs, const Tensor& residual = {}) {
  NoGrad flat;
  const Tensor y = scale_and_shift(seen, normalized(seen, x, m), weight, bias, x.shape());
  return before_relu(g, residual.defined() ? y + residual : y, attrs);
}

// dx, dweight and dbias from the gradients of what the norm gave (before relu), and of mean and variance.
Tensors training_gradients(const Seen& seen, const Moments& m, const Tensor& x, const Tensor& weight, const Tensor& g,
                           const Tensors& grads) {
  Tensors out = g.defined() ? gradients(seen, g, x, weight, m) : Tensors(3);
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
  Moments m = moments(seen, x, true, s.attrs.as<NormAttrs>().eps);
  Tensor g = grads[0];
  if (g.defined() && s.attrs.as<NormAttrs>().relu)
    g = before_relu(seen, g, x, weight, s.inputs[2], m, s.attrs.as<NormAttrs>());
  return wanted(s, training_gradients(seen, m, x, weight, g, grads), 3);
}

Tensors batch_norm_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Seen seen = channels_of(in[0].shape());
  Moments m = moments(seen, in[0], true, attrs.as<NormAttrs>().eps);
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
  const TensorMeta dresidual = is_absent(in[6]) ? like(in[1], Shape{0}) : in[1];
  return {in[1], gradient_like(in[1], in[2]), gradient_like(in[1], in[2]), dresidual};
}
Tensors batch_norm_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Seen seen = channels_of(in[1].shape());
  const Moments m{in[3], in[4]};
  Tensor g = in[0];
  const auto& norm = attrs.as<NormAttrs>();
  if (in[6].defined()) g = before_relu(g, in[6], norm);
  else if (norm.relu) g = before_relu(seen, g, in[1], in[2], in[5], m, norm);
  Tensors out = gradients(seen, g, in[1], in[2], m, !norm.training);
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
  const Moments m = moments(seen, x, true, s.attrs.as<NormAttrs>().eps);
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

Moments given_moments(const Tensor& mean, const Tensor& var, const Attrs& attrs) {
  return {mean, rsqrt(var + attrs.as<NormAttrs>().eps)};
}

// From dx, dweight, dbias and dresidual; those of the statistics stay empty.
Tensors inference_gradients(const Saved& s, const Tensors& grads, const Tensor& dresidual) {
  return wanted(s, {grads[0], {}, {}, grads[1], grads[2], s.inputs[5].defined() ? dresidual : Tensor()}, 6);
}
Tensors batch_norm_inference_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &x = s.inputs[0], &weight = s.inputs[3];
  const Seen seen = channels_of(x.shape());
  const Moments m = given_moments(s.inputs[1], s.inputs[2], s.attrs);
  Tensor g = grads[0];
  if (s.attrs.as<NormAttrs>().relu)
    g = before_relu(seen, g, x, weight, s.inputs[4], m, s.attrs.as<NormAttrs>(), s.inputs[5]);
  Tensors out = inference_gradients(s, gradients(seen, g, x, weight, m, true), g);
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
  const Moments m = given_moments(s.inputs[1], s.inputs[2], s.attrs);
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

// ---- softmax and log_softmax over one dim; their backward ops take dy and y

template <OpName op>
Metas infer_softmax(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_one_floating_dtype(op.view(), in, 1);
  normalize_dim(op.view(), attrs.as<DimAttrs>().dim, in[0].shape);
  return {in[0]};
}
template <OpName op>
Metas infer_softmax_backward(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_one_floating_dtype(op.view(), in, 2);
  require_shape(op.view(), "gradient", in[0], in[1].shape);
  normalize_dim(op.view(), attrs.as<DimAttrs>().dim, in[1].shape);
  return {in[1]};
}

// Gradients in plain operators, from dy and y.
Tensor softmax_gradient(const Tensor& g, const Tensor& y, int64_t dim) { return y * (g - sum(g * y, {dim}, true)); }
Tensor log_softmax_gradient(const Tensor& g, const Tensor& y, int64_t dim) { return g - exp(y) * sum(g, {dim}, true); }

Tensor exact_softmax(const Tensor& x, int64_t dim) {
  Tensor e = exp(x - amax(x, {dim}, true));
  return e / sum(e, {dim}, true);
}
Tensor exact_log_softmax(const Tensor& x, int64_t dim) {
  Tensor shifted = x - amax(x, {dim}, true);
  return shifted - log(sum(exp(shifted), {dim}, true));
}

template <auto value>
Tensors softmax_reference(std::span<const Tensor> in, const Attrs& attrs) {
  return {value(in[0], attrs.as<DimAttrs>().dim)};
}
template <auto gradient>
Tensors softmax_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  return {gradient(in[0], in[1], attrs.as<DimAttrs>().dim)};
}
template <auto gradient>
Tensors softmax_vjp(const Saved& s, const Tensors& grads) {
  return {gradient(grads[0], s.outputs[0], s.attrs.as<DimAttrs>().dim)};
}
template <const Op& backward>
Tensors softmax_fused_vjp(const Saved& s, const Tensors& grads) {
  return {dispatch_one(backward, {grads[0], s.outputs[0]}, s.attrs)};
}

const Op softmax_backward = {.name = "softmax_backward",
                             .inputs = "dy, y",
                             .outputs = "dx",
                             .attrs = attrs_of<DimAttrs>,
                             .infer = infer_softmax_backward<"softmax_backward">,
                             .reference = softmax_backward_reference<softmax_gradient>};
const Op log_softmax_backward = {.name = "log_softmax_backward",
                                 .inputs = "dy, y",
                                 .outputs = "dx",
                                 .attrs = attrs_of<DimAttrs>,
                                 .infer = infer_softmax_backward<"log_softmax_backward">,
                                 .reference = softmax_backward_reference<log_softmax_gradient>};
const Op softmax_op = {.name = "softmax",
                       .inputs = "x",
                       .outputs = "y",
                       .attrs = attrs_of<DimAttrs>,
                       .infer = infer_softmax<"softmax">,
                       .vjp = softmax_vjp<softmax_gradient>,
                       .fused_vjp = softmax_fused_vjp<softmax_backward>,
                       .reference = softmax_reference<exact_softmax>,
                       .saves = {.outputs = 1},
                       .autocast = Autocast::Float32};
const Op log_softmax_op = {.name = "log_softmax",
                           .inputs = "x",
                           .outputs = "y",
                           .attrs = attrs_of<DimAttrs>,
                           .infer = infer_softmax<"log_softmax">,
                           .vjp = softmax_vjp<log_softmax_gradient>,
                           .fused_vjp = softmax_fused_vjp<log_softmax_backward>,
                           .reference = softmax_reference<exact_log_softmax>,
                           .saves = {.outputs = 1},
                           .autocast = Autocast::Float32};

}  // namespace

std::span<const Op* const> norm_ops() {
  static constexpr const Op* ops[] = {&layer_norm_op,           &layer_norm_backward, &rms_norm_op,
                                      &rms_norm_backward,       &group_norm_op,       &group_norm_backward,
                                      &batch_norm_op,           &batch_norm_backward, &softmax_op,
                                      &softmax_backward,        &log_softmax_op,      &log_softmax_backward,
                                      &batch_norm_inference_op, &add_layer_norm_op,   &add_layer_norm_backward,
                                      &move_estimates_op,       &batch_norm_add_op};
  return ops;
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return dispatch_one(layer_norm_op, {x, weight, bias}, NormAttrs{.eps = eps});
}
std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& branch, const Tensor& branch_bias,
                                         const Tensor& weight, const Tensor& bias, double eps) {
  Tensors out = dispatch(add_layer_norm_op, {x, branch, branch_bias, weight, bias}, NormAttrs{.eps = eps});
  return {std::move(out[0]), std::move(out[1])};
}
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return dispatch_one(rms_norm_op, {x, weight}, NormAttrs{.eps = eps});
}
Tensor softmax(const Tensor& x, int64_t dim) { return dispatch_one(softmax_op, {x}, DimAttrs{dim}); }
Tensor log_softmax(const Tensor& x, int64_t dim) { return dispatch_one(log_softmax_op, {x}, DimAttrs{dim}); }
Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& weight, const Tensor& bias, double eps) {
  return dispatch_one(group_norm_op, {x, weight, bias}, NormAttrs{.eps = eps, .groups = groups});
}

}  // namespace tessera
