// Losses of classes.
#include "ops/losses.h"
#include "ops/losses_on_card.h"
#include "ops/on_card.h"
#include "ops/on_host.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_loss.h"
#include "tessera/ops_shape.h"

namespace tessera {
namespace {

void require_classes(std::string_view op, const Tensor& target) {
  if (target.dtype() != Int64 && target.dtype() != Int32)
    fail(op, "target must be i64 or i32, not {}", describe(target));
}
void require_weight_of_classes(std::string_view op, const Tensor& weight, const Dim classes) {
  if (weight.defined() && !(weight.shape() == Shape{classes}))
    fail(op, "the weight {} is not one number for each of {} classes", to_string(weight.shape()), classes.to_string());
}
// The shape without the last dim.
Shape rows_of(const Shape& shape) { return Shape(shape.begin(), shape.end() - 1); }

/// -value * factor of examples that are counted, 0 of others.
Tensor where_counted(const Tensor& value, const Tensor& factor, const Tensor& counted) {
  return map_elements({value, factor, counted}, value.dtype(), value.dtype(),
                      [](const Tensor& v, const Tensor& f, const Tensor& c) {
                        const Tensor zero = number_like(c, 0);
                        return where(ne(c, zero), -(v * f), zero);
                      });
}

/// A number for each example: its loss, what it counts in a mean, and whether it is counted; 0 for those that are
/// ignored.
struct Likelihood {
  Tensor loss, weight, counted;
};
void check_likelihood(std::string_view op, const Tensor& logs, const Tensor& target, const Tensor& weight) {
  require_classes(op, target);
  require_shape(op, "target", target.meta(), rows_of(logs.shape()));
  require_weight_of_classes(op, weight, logs.shape().back());
}
// Of logarithms [..., classes].
Likelihood likelihood_of(std::string_view op, const Tensor& logs, const Tensor& target, const Tensor& weight,
                         int64_t ignore_index) {
  check_likelihood(op, logs, target, weight);
  const DType dtype = logs.dtype();
  const double ignored = static_cast<double>(ignore_index);
  const Tensor counted = map_elements(
      {target}, Int64, dtype, [](const Tensor& t, double none) { return ne(t, number_like(t, none)); }, ignored);
  const Tensor at = map_elements(
      {target}, Int64, Int64,
      [](const Tensor& t, double none) { return where(ne(t, number_like(t, none)), t, number_like(t, 0)); }, ignored);
  const Tensor picked = squeeze(gather(logs, -1, unsqueeze(at, -1)), -1);
  Tensor factor = counted;
  if (weight.defined()) factor = factor * squeeze(embedding(at, unsqueeze(cast(weight, dtype), 1)), -1);
  const Tensor loss = where_counted(picked, factor, counted);
  return {loss, factor, counted};
}

Tensor likelihood_loss(std::string_view op, const Tensor& logs, const Tensor& target, const Tensor& weight,
                       int64_t ignore_index, Reduction reduction) {
  const auto composed = [=](const Tensor& x) {
    const Likelihood each = likelihood_of(op, x, target, weight, ignore_index);
    return reduced(each.loss, each.weight, reduction);
  };
  const bool learns = weight.defined() && weight.requires_grad();
  const auto is_there = [&](const Tensor& t) { return !t.defined() || t.device() == logs.device(); };
  const bool is_loop = (on_host(logs) || on_card(logs)) && is_there(target) && is_there(weight);
  if (!is_loop || logs.dim() != 2 || learns) return composed(logs);  // which refuses tensors of other devices
  check_likelihood(op, logs, target, weight);
  const Tensor of_class = weight.defined() ? cast(weight, logs.dtype()) : Tensor();
  const auto by = on_host(logs) ? host_nll_loss : card_nll_loss;
  return by(logs, cast(target, Int64), of_class, ignore_index, reduction, composed);
}

// Examples as rows [n, classes], classes of targets [n, ...]: a single example is one row.
struct Rows {
  Tensor x, target;
};
Rows rows_of_examples(std::string_view op, const Tensor& x, const Tensor& target, bool target_has_classes) {
  require_classes(op, target);
  if (x.dim() > 2) fail(op, "x must have 1 or 2 dims, not shape {}", to_string(x.shape()));
  const bool single = x.dim() < 2, one_class = single && !target_has_classes;
  if (!(one_class && target.shape() == Shape{1}))
    require_shape(op, "target", target.meta(),
                  target_has_classes ? x.shape()
                  : one_class        ? Shape()
                                     : rows_of(x.shape()));
  const Tensor in = in_loss_dtype(loss_input(op, x));
  if (!single) return {in, target};
  return {reshape(in, {1, -1}), target_has_classes ? reshape(target, {1, -1}) : reshape(target, {1})};
}
Tensor reduced_examples(const Tensor& values, const Tensor& x, Reduction reduction) {
  const Tensor y = reduced(values, reduction);
  return cast(x.dim() < 2 && reduction == Reduction::None ? squeeze(y, 0) : y, amp::autocast_to_float32(x).dtype());
}

// Whether classes lie before other dims, and enough of these: so that logits need not be turned round.
bool is_of_planes(const Tensor& logits, const Tensor& target, int64_t dim, const CrossEntropyOptions& o) {
  if (!on_host(logits) || !on_host(target) || (logits.dtype() != Float32 && logits.dtype() != Float64)) return false;
  if (dim + 1 >= logits.dim() || o.label_smoothing > 0 || logits.numel() == 0 || !logits.is_contiguous()) return false;
  if (amp::autocast_to_float32(logits).dtype() != logits.dtype()) return false;
  int64_t inner = 1;
  for (int64_t d = dim + 1; d < logits.dim(); ++d) inner *= logits.size(d);
  return inner >= 16;
}
Tensor entropy_of_planes(const Tensor& logits, const Tensor& target, int64_t dim, const CrossEntropyOptions& o) {
  constexpr std::string_view op = "cross_entropy";
  require_classes(op, target);
  const Tensor last = movedim(logits, dim, -1);
  require_shape(op, "target", target.meta(), rows_of(last.shape()));
  const int64_t classes = logits.size(dim), examples = logits.numel() / classes;
  int64_t outer = 1;
  for (int64_t d = 0; d < dim; ++d) outer *= logits.size(d);
  const Shape planes{outer, classes, examples / outer};
  const Tensor places = reshape(cast(target, Int64), {outer, examples / outer});
  const auto composed = [places, reduction = o.reduction, none = o.ignore_index](const Tensor& x) {
    return cross_entropy(movedim(x, 1, -1), places, reduction, none, 0);
  };
  const Tensor y = host_cross_entropy(reshape(logits, planes), places, o.ignore_index, o.reduction, composed);
  return o.reduction == Reduction::None ? reshape(y, target.shape()) : y;
}

}  // namespace

Tensor nll_loss(const Tensor& x, const Tensor& target, const Tensor& weight, int64_t ignore_index,
                Reduction reduction) {
  constexpr std::string_view op = "nll_loss";
  if (x.dim() < 1) fail(op, "no classes in {}", to_string(x.shape()));
  const Tensor in = loss_input(op, x), logs = in_loss_dtype(movedim(in, x.dim() == 1 ? 0 : 1, -1));
  return cast(likelihood_loss(op, logs, target, weight, ignore_index, reduction), in.dtype());
}

Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& o) {
  constexpr std::string_view op = "cross_entropy";
  if (!is_floating(logits.dtype())) fail(op, "logits must be floating, not {}", describe(logits));
  if (!(o.label_smoothing >= 0 && o.label_smoothing <= 1))
    fail(op, "label smoothing {} is not between 0 and 1", o.label_smoothing);
  const int64_t dim = logits.dim() == 1 ? 0 : normalize_dim(op, o.dim, logits.shape());
  const Tensor last = movedim(logits, dim, -1);
  const bool soft = is_floating(target.dtype());
  if (!soft && !o.weight.defined()) {
    if (is_of_planes(logits, target, dim, o)) return entropy_of_planes(logits, target, dim, o);
    return cross_entropy(last, target, o.reduction, o.ignore_index, o.label_smoothing);
  }

  const Dim classes = last.shape().back();
  require_weight_of_classes(op, o.weight, classes);
  const Tensor logs = log_softmax(in_loss_dtype(amp::autocast_to_float32(last)), -1);
  const double shared = o.label_smoothing / static_cast<double>(classes.value());
  const Tensor weight = o.weight.defined() ? cast(o.weight, logs.dtype()) : Tensor();
  const auto weighted = [&](const Tensor& t) { return weight.defined() ? t * weight : t; };
  if (soft) {
    require_shape(op, "target", target.meta(), logits.shape());
    Tensor wanted = cast(movedim(target, dim, -1), logs.dtype());
    if (o.label_smoothing > 0) wanted = wanted * (1 - o.label_smoothing) + shared;
    return reduced(-sum(weighted(wanted) * logs, {-1}), o.reduction);
  }
  if (o.label_smoothing == 0) return likelihood_loss(op, logs, target, weight, o.ignore_index, o.reduction);
  const Likelihood each = likelihood_of(op, logs, target, weight, o.ignore_index);
  const Tensor smooth = where_counted(sum(weighted(logs), {-1}), each.counted, each.counted);
  return reduced(each.loss * (1 - o.label_smoothing) + smooth * shared, each.weight, o.reduction);
}

Tensor multi_margin_loss(const Tensor& x, const Tensor& target, int64_t p, double margin, const Tensor& weight,
                         Reduction reduction) {
  constexpr std::string_view op = "multi_margin_loss";
  if (p != 1 && p != 2) fail(op, "p is {}, neither 1 nor 2", p);
  const auto [in, classes] = rows_of_examples(op, x, target, false);
  require_weight_of_classes(op, weight, in.shape()[1]);
  const Tensor column = unsqueeze(cast(classes, Int64), 1);
  const int64_t count = in.size(1);
  const auto composed = [=](const Tensor& v) {
    const Tensor over = relu(v - gather(v, 1, column) + margin), powers = p == 2 ? square(over) : over;
    const Tensor own = eq(arange(0, static_cast<double>(count), 1, Int64, v.device()), column);
    return sum(where(own, number_like(v, 0), powers), {1});
  };
  const Tensor own = squeeze(column, 1);
  Tensor each = on_host(in)                                  ? host_margins(in, own, p, margin, composed)
                : on_card(in) && own.device() == in.device() ? card_margins(in, own, p, margin, composed)
                                                             : composed(in);
  each = each / static_cast<double>(count);
  if (weight.defined()) each = each * index_select(cast(weight, in.dtype()), 0, own);
  return reduced_examples(each, x, reduction);
}

namespace {
// Of rows [n, classes], and of lists of classes that end at the first negative number.
Tensor listed_margins(const Tensor& in, const Tensor& classes) {
  const Tensor none = number_like(classes, 0);
  const Tensor listed = eq(cumsum(cast(lt(classes, none), Int64), 1), none), at = where(listed, classes, none);
  // [places in the list, classes, n], so that what is alike in all three lies in long rows.
  const auto column = [](const Tensor& t) { return transpose(t, 0, 1).contiguous(); };
  const Dim count = in.shape()[1];  // of classes; what is no class is written behind them
  const Tensor named = where(listed, classes, number_like(classes, static_cast<double>(count.value())));
  const Tensor room = ones({in.shape()[0], count + 1}, in.dtype(), in.device());
  const Tensor written = scatter(room, 1, named, zeros(named.shape(), in.dtype(), in.device()));
  const Tensor others = unsqueeze(column(slice(written, 1, Dim(0), count)), 0);  // 0 for those that are listed
  const auto over = [](const Tensor& v, const Tensor& own, const Tensor& is_listed, const Tensor& is_other) {
    const Tensor zero = number_like(v, 0);
    return where(ne(is_listed * is_other, zero), relu(v - own + 1.0), zero);
  };
  const Tensor all = unsqueeze(column(in), 0), own = unsqueeze(column(gather(in, 1, at)), 1);
  return sum(map_elements({all, own, unsqueeze(column(listed), 1), others}, in.dtype(), in.dtype(), over), {0, 1});
}
}  // namespace

Tensor multilabel_margin_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  constexpr std::string_view op = "multilabel_margin_loss";
  const auto [in, given] = rows_of_examples(op, x, target, true);
  const Tensor classes = cast(given, Int64);
  const auto composed = [=](const Tensor& v) { return listed_margins(v, classes); };
  const Tensor each = on_host(in) ? host_listed_margins(in, classes, composed)
                      : card_takes_lists(in) && classes.device() == in.device()
                          ? card_listed_margins(in, classes, composed)
                          : composed(in);
  return reduced_examples(each / static_cast<double>(in.size(1)), x, reduction);
}

Tensor multilabel_soft_margin_loss(const Tensor& x, const Tensor& target, const Tensor& weight, Reduction reduction) {
  constexpr std::string_view op = "multilabel_soft_margin_loss";
  if (!(x.shape() == target.shape()))
    fail(op, "shapes differ: {} and {}", to_string(x.shape()), to_string(target.shape()));
  const Tensor in = loss_input(op, x), wide = in_loss_dtype(in);
  if (x.dim() < 1) fail(op, "no classes in {}", to_string(x.shape()));
  const Tensor each = binary_cross_entropy_with_logits(wide, cast(target, wide.dtype()), weight, {}, Reduction::None);
  return cast(reduced(mean(each, {-1}), reduction), in.dtype());
}

}  // namespace tessera
