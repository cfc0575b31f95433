// Normalisation over rows and groups of channels, and softmax.
#include "ops/gradient.h"
#include "ops/norm_formula.h"
#include "ops/op_name.h"
#include "ops/op_table.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

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
  if (product_of(last.begin(), last.end()) == Dim(0))
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
  return wanted(s,
                norm_gradients(seen, grads[0], x, weight, moments_of(seen, x, centered, s.attrs.as<NormAttrs>().eps)),
                centered ? 3 : 2);
}

template <bool centered>
Tensors row_norm_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor &x = in[0], &weight = in[1], bias = centered ? in[2] : Tensor();
  Seen seen = rows_of(x.shape(), normalized_dims(weight));
  Tensor y = normalized(seen, x, moments_of(seen, x, centered, attrs.as<NormAttrs>().eps));
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
  return {in[1], dweight, attrs.as<NormAttrs>().dbias ? dweight : meta_like(dweight, Shape{0})};
}

Metas infer_rms_norm_backward(std::span<const TensorMeta> in, const Attrs&) {
  require_one_floating_dtype("rms_norm_backward", in, 2);
  require_norm_dtypes("rms_norm_backward", in[1], in.subspan(2, 1));
  require_shape("rms_norm_backward", "gradient", in[0], in[1].shape);
  require_shape("rms_norm_backward", "rstd", in[3], statistics_shape<"rms_norm_backward">(in[1], in[2]));
  return {in[1], gradient_like(in[1], in[2])};
}

Tensors layer_norm_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Tensors out = norm_gradients(rows_of(in[1].shape(), normalized_dims(in[2])), in[0], in[1], in[2], {in[3], in[4]});
  if (in[5].defined()) out[0] = out[0] + in[5];
  if (!attrs.as<NormAttrs>().dbias) out[2] = empty({0}, out[2].dtype(), out[2].device());
  return out;
}
Tensors rms_norm_backward_reference(std::span<const Tensor> in, const Attrs&) {
  Tensors out = norm_gradients(rows_of(in[1].shape(), normalized_dims(in[2])), in[0], in[1], in[2], {{}, in[3]});
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
  const Tensors of_norm = norm_gradients(seen, cast(grads[1], sum.dtype()), sum, weight,
                                         moments_of(seen, sum, true, s.attrs.as<NormAttrs>().eps));
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
  return {in[1], dweight, attrs.as<NormAttrs>().dbias ? dweight : meta_like(dweight, Shape{0}),
          meta_like(in[0], narrow ? in[1].shape : Shape{0}), is_absent(bias) ? meta_like(in[1], Shape{0}) : bias};
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
  return wanted(
      s, norm_gradients(seen, grads[0], s.inputs[0], s.inputs[1], moments_of(seen, s.inputs[0], true, attrs.eps)), 3);
}
Tensors group_norm_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Seen seen = groups_of(in[0].shape(), attrs.as<NormAttrs>().groups);
  Tensor y = normalized(seen, in[0], moments_of(seen, in[0], true, attrs.as<NormAttrs>().eps));
  return {scale_and_shift(seen, y, in[1], in[2], in[0].shape())};
}
Tensors group_norm_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  return norm_gradients(groups_of(in[1].shape(), attrs.as<NormAttrs>().groups), in[0], in[1], in[2], {in[3], in[4]});
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
  static constexpr const Op* ops[] = {&layer_norm_op,        &layer_norm_backward, &rms_norm_op,
                                      &rms_norm_backward,    &group_norm_op,       &group_norm_backward,
                                      &softmax_op,           &softmax_backward,    &log_softmax_op,
                                      &log_softmax_backward, &add_layer_norm_op,   &add_layer_norm_backward};
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
