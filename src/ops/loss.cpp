// Losses. cross_entropy is one pass over the logits that keeps the log-sum-exp of each row; its backward another.
#include "ops/loss.h"

#include <cmath>
#include <utility>

#include "ops/autocast.h"
#include "ops/check.h"
#include "ops/gradient.h"
#include "ops/op_table.h"
#include "ops/reference.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

// ---- cross_entropy: logits [..., classes], target [...] -> loss, log-sum-exp [...] (hidden), both f32 for halves: so
// autocast needs no f32 copy of the logits

// Checks logits and target and gives the shape of the rows.
Shape rows_of_logits(std::string_view op, const TensorMeta& logits, const TensorMeta& target, const LossAttrs& attrs) {
  if (!is_floating(logits.dtype)) fail(op, "logits must be floating, not {}", describe(logits));
  if (target.dtype != Int64 && target.dtype != Int32) fail(op, "target must be i64 or i32, not {}", describe(target));
  if (logits.shape.empty() || logits.shape.back() == Dim(0))
    fail(op, "no classes in logits {}", to_string(logits.shape));
  if (!(attrs.label_smoothing >= 0 && attrs.label_smoothing <= 1))
    fail(op, "label smoothing {} is not between 0 and 1", attrs.label_smoothing);
  Shape rows(logits.shape.begin(), logits.shape.end() - 1);
  require_shape(op, "target", target, rows);
  return rows;
}

Metas infer_cross_entropy(std::span<const TensorMeta> in, const Attrs& attrs) {
  auto& loss = attrs.as<LossAttrs>();
  Shape rows = rows_of_logits("cross_entropy", in[0], in[1], loss);
  const DType dtype = statistics_dtype(in[0].dtype);
  return {{loss.reduction == Reduction::None ? rows : Shape(), dtype, in[0].device}, {rows, dtype, in[0].device}};
}

// d loss / d logits = dloss (softmax - smoothed target), and zero in rows that are ignored.
Tensors cross_entropy_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &logits = s.inputs[0], &target = s.inputs[1];
  auto& attrs = s.attrs.as<LossAttrs>();
  int64_t classes = logits.shape().back().value();
  Tensor ignored = full({}, static_cast<double>(attrs.ignore_index), target.dtype(), target.device());
  Tensor counted = ne(target, ignored), weight = cast(counted, grads[0].dtype());
  Tensor g = attrs.reduction == Reduction::Mean ? grads[0] / sum(weight) : grads[0];
  Tensor smoothed = one_hot(where(counted, target, zeros_like(ignored)), classes);
  smoothed = cast(smoothed, logits.dtype()) * (1 - attrs.label_smoothing) +
             attrs.label_smoothing / static_cast<double>(classes);
  return {cast((softmax(logits, -1) - smoothed) * unsqueeze(weight * g, -1), logits.dtype()), {}};
}

template <class F>
void each_row(const Tensor& logits, const Tensor& target, const LossAttrs& attrs, F fn) {
  reference::each_index(target.shape(), [&](const reference::Index& row) {
    auto label = static_cast<int64_t>(reference::get(target, row));
    reference::Index at = row;
    at.push_back(0);
    auto logit = [&](int64_t c) {
      at.back() = c;
      return reference::get(logits, at);
    };
    double high = -INFINITY, total = 0;
    for (int64_t c = 0; c < logits.size(-1); ++c) high = std::max(high, logit(c));
    for (int64_t c = 0; c < logits.size(-1); ++c) total += std::exp(logit(c) - high);
    fn(row, label, label != attrs.ignore_index, high + std::log(total), logit);
  });
}

Tensors cross_entropy_reference(std::span<const Tensor> in, const Attrs& attrs) {
  auto& loss = attrs.as<LossAttrs>();
  Tensor each = empty(in[1].shape(), in[0].dtype());
  int64_t classes = in[0].size(-1);
  double total = 0, count = 0;
  each_row(in[0], in[1], loss, [&](auto& row, int64_t label, bool counted, double lse, auto logit) {
    double value = 0;
    if (counted) {
      double mean = 0;
      for (int64_t c = 0; c < classes; ++c) mean += logit(c) / static_cast<double>(classes);
      value = lse - (1 - loss.label_smoothing) * logit(label) - loss.label_smoothing * mean;
    }
    reference::set(each, row, value);
    total += value;
    count += counted;
  });
  if (loss.reduction == Reduction::None) return {each};
  return {full({}, loss.reduction == Reduction::Mean ? total / count : total, in[0].dtype())};
}

// ---- cross_entropy_backward: logits, dloss, target, log-sum-exp -> dlogits; cross_entropy_backward_ overwrites the
// logits

Metas infer_cross_entropy_backward(std::span<const TensorMeta> in, const Attrs& attrs) {
  auto& loss = attrs.as<LossAttrs>();
  Shape rows = rows_of_logits("cross_entropy_backward", in[0], in[2], loss);
  require_shape("cross_entropy_backward", "gradient", in[1], loss.reduction == Reduction::None ? rows : Shape());
  require_shape("cross_entropy_backward", "log-sum-exp", in[3], rows);
  return {in[0]};
}

Tensors cross_entropy_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  auto& loss = attrs.as<LossAttrs>();
  double classes = static_cast<double>(in[0].size(-1)), count = 0;
  each_row(in[0], in[2], loss, [&](auto&, int64_t, bool counted, double, auto) { count += counted; });
  if (loss.reduction != Reduction::Mean) count = 1;
  Tensor out = empty(in[0].shape(), in[0].dtype());
  each_row(in[0], in[2], loss, [&](auto& row, int64_t label, bool counted, double lse, auto logit) {
    reference::Index at = row;
    at.push_back(0);
    for (int64_t c = 0; c < in[0].size(-1); ++c) {
      double wanted = loss.label_smoothing / classes + (c == label ? 1 - loss.label_smoothing : 0);
      at.back() = c;
      reference::set(out, at, counted ? reference::get(in[1], row) / count * (std::exp(logit(c) - lse) - wanted) : 0);
    }
  });
  return {out};
}

const Op cross_entropy_backward = {.name = "cross_entropy_backward",
                                   .inputs = "logits, dloss, target, log_sum_exp",
                                   .outputs = "dlogits",
                                   .attrs = attrs_of<LossAttrs>,
                                   .infer = infer_cross_entropy_backward,
                                   .reference = cross_entropy_backward_reference,
                                   .pitched = Pitched::All};
const Op cross_entropy_backward_ = {.name = "cross_entropy_backward_",
                                    .inputs = "logits, dloss, target, log_sum_exp",
                                    .outputs = "dlogits",
                                    .attrs = attrs_of<LossAttrs>,
                                    .infer = infer_cross_entropy_backward,
                                    .reference = cross_entropy_backward_reference,
                                    .in_place = true};

// Whether elements lie in order and apart, as those of a dense tensor or of padded rows do, and expanded ones do not.
bool is_free_of_overlap(const Tensor& t) {
  int64_t end = 1;
  for (int64_t d = t.dim(); d-- > 0;) {
    if (t.size(d) == 1) continue;
    const int64_t stride = t.strides()[static_cast<size_t>(d)];
    if (stride < end) return false;
    end = stride * t.size(d);
  }
  return true;
}

// Logits that the caller gave away give their memory to their gradient: of a language model they are the largest
// tensor.
Tensors cross_entropy_fused_vjp(const Saved& s, const Tensors& grads) {
  Tensor& logits = s.inputs[0];
  LossAttrs attrs = s.attrs.as<LossAttrs>();
  const bool overwrite = std::exchange(attrs.overwrite, false) && s.last && is_free_of_overlap(logits);
  Tensor plain = overwrite ? std::exchange(logits, {}).detach() : logits.detach();
  return {dispatch_one(overwrite ? cross_entropy_backward_ : cross_entropy_backward,
                       {std::move(plain), grads[0], s.inputs[1], s.outputs[1]}, attrs),
          {}};
}

const Op cross_entropy_op = {.name = "cross_entropy",
                             .inputs = "logits, target",
                             .outputs = "loss, log_sum_exp?",
                             .attrs = attrs_of<LossAttrs>,
                             .infer = infer_cross_entropy,
                             .vjp = cross_entropy_vjp,
                             .fused_vjp = cross_entropy_fused_vjp,
                             .reference = cross_entropy_reference,
                             .saves = {.inputs = 0b11, .outputs = 0b10},
                             .hidden_outputs = 1};

// ---- cross_entropy_and_gradient_: logits, loss | target, weight; both are overwritten, the first by weight times the
// gradient

Metas infer_cross_entropy_and_gradient(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr const char* op = "cross_entropy_and_gradient_";
  rows_of_logits(op, in[0], in[2], attrs.as<LossAttrs>());
  if (attrs.as<LossAttrs>().reduction != Reduction::Mean) fail(op, "gives the mean only");
  for (size_t i : {size_t{1}, size_t{3}}) {
    require_shape(op, i == 1 ? "loss" : "weight", in[i], {});
    if (in[i].dtype != statistics_dtype(in[0].dtype))
      fail(op, "{} is {} for logits of {}", i == 1 ? "loss" : "weight", name(in[i].dtype), name(in[0].dtype));
  }
  return {in[0], in[1]};
}

Tensors cross_entropy_and_gradient_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor loss = cross_entropy_reference(std::array{in[0], in[2]}, attrs)[0];
  Tensor lse = empty(in[2].shape(), in[1].dtype());
  each_row(in[0], in[2], attrs.as<LossAttrs>(),
           [&](auto& row, int64_t, bool, double value, auto) { reference::set(lse, row, value); });
  return {cross_entropy_backward_reference(std::array{in[0], in[3], in[2], lse}, attrs)[0],
          full({}, loss.item(), in[1].dtype())};
}

const Op cross_entropy_and_gradient_op = {.name = "cross_entropy_and_gradient_",
                                          .inputs = "logits, loss, target, weight",
                                          .outputs = "dlogits, loss",
                                          .attrs = attrs_of<LossAttrs>,
                                          .infer = infer_cross_entropy_and_gradient,
                                          .reference = cross_entropy_and_gradient_reference,
                                          .in_place = true};

}  // namespace

std::span<const Op* const> loss_ops() {
  static constexpr const Op* ops[] = {&cross_entropy_op, &cross_entropy_backward, &cross_entropy_backward_,
                                      &cross_entropy_and_gradient_op};
  return ops;
}

Tensor cross_entropy(const Tensor& logits, const Tensor& target, int64_t ignore_index, double label_smoothing) {
  return cross_entropy(logits, target, Reduction::Mean, ignore_index, label_smoothing);
}
Tensor cross_entropy(const Tensor& logits, const Tensor& target, Reduction reduction, int64_t ignore_index,
                     double label_smoothing) {
  return dispatch_one(cross_entropy_op, {logits, target}, LossAttrs{ignore_index, label_smoothing, reduction});
}
Tensor cross_entropy_overwriting(Tensor logits, const Tensor& target, int64_t ignore_index, double label_smoothing) {
  return dispatch_one(cross_entropy_op, {std::move(logits), target},
                      LossAttrs{ignore_index, label_smoothing, Reduction::Mean, true});
}

Tensor cross_entropy_and_gradient_(Tensor logits, const Tensor& target, const Tensor& weight) {
  NoGrad guard;
  const Tensor plain = logits.detach(), loss = empty({}, statistics_dtype(logits.dtype()), logits.device());
  dispatch(cross_entropy_and_gradient_op, {plain, loss, target, weight}, LossAttrs{});
  return loss;
}

Tensor mse_loss(const Tensor& x, const Tensor& target) {
  if (!(x.shape() == target.shape()))
    fail("mse_loss", "shapes differ: {} and {}", to_string(x.shape()), to_string(target.shape()));
  return mean(square(amp::autocast_to_float32(x) - amp::autocast_to_float32(target)));
}

}  // namespace tessera
