// Losses of elements.
#include "ops/losses.h"

#include <cmath>
#include <numbers>

#include "tessera/ops_loss.h"

namespace tessera {
namespace {

constexpr double kUnbounded = INFINITY;

// d²/2 up to delta, then along the tangent.
Tensor huber_of(const Tensor& difference, double delta) {
  const Tensor d = abs(difference), bounded = clamp(d, 0, delta);
  return bounded * (d - bounded * 0.5);
}

// log(p), -100 at least, with a slope of at most 1e12, which are PyTorch's bounds: or the same of 1 - p.
Tensor bounded_log(const Tensor& p, bool complement) {
  constexpr double least = 1e-12;
  const Tensor q = complement ? 1.0 - p : p, still = q.detach(), zero = number_like(p, 0);
  const Tensor tiny = logical_and(le(q, number_like(q, least)), ge(q, zero));
  const Tensor inside = complement ? log1p(-where(tiny, zero, p)) : log(where(tiny, number_like(p, 1), p));
  return where(tiny, clamp(log(still), -100, kUnbounded) + (q - still) * (1 / least), inside);
}

}  // namespace

Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  return loss_of_elements("l1_loss", {x, target}, {}, reduction,
                          [](const auto& a, const auto& b) { return abs(a - b); });
}
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  return loss_of_elements("mse_loss", {x, target}, {}, reduction,
                          [](const auto& a, const auto& b) { return square(a - b); });
}
Tensor huber_loss(const Tensor& x, const Tensor& target, double delta, Reduction reduction) {
  if (!(delta > 0)) fail("huber_loss", "delta is {}, not positive", delta);
  const auto f = [](const auto& a, const auto& b, double bound) { return huber_of(a - b, bound); };
  return loss_of_elements("huber_loss", {x, target}, {}, reduction, f, delta);
}
Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, double beta, Reduction reduction) {
  if (!(beta >= 0)) fail("smooth_l1_loss", "beta is {}, negative", beta);
  const auto f = [](const auto& a, const auto& b, double bound) {
    return bound == 0 ? abs(a - b) : huber_of(a - b, bound) * (1 / bound);
  };
  return loss_of_elements("smooth_l1_loss", {x, target}, {}, reduction, f, beta);
}

Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const Tensor& weight, Reduction reduction) {
  return loss_of_elements("binary_cross_entropy", {x, target}, weight, reduction, [](const auto& p, const auto& t) {
    return -(t * bounded_log(p, false) + (1.0 - t) * bounded_log(p, true));
  });
}
// As a sum of two terms of one sign, so that nothing cancels.
Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target, const Tensor& weight,
                                        const Tensor& positive_weight, Reduction reduction) {
  constexpr std::string_view op = "binary_cross_entropy_with_logits";
  if (!positive_weight.defined())
    return loss_of_elements(op, {x, target}, weight, reduction,
                            [](const auto& v, const auto& t) { return t * softplus(-v) + (1.0 - t) * softplus(v); });
  require_fits(op, "the weight", positive_weight, x.shape());
  return loss_of_elements(op, {x, target, positive_weight}, weight, reduction,
                          [](const auto& v, const auto& t, const auto& positive) {
                            return t * softplus(-v) * positive + (1.0 - t) * softplus(v);
                          });
}

Tensor kl_div(const Tensor& x, const Tensor& target, bool log_target, Reduction reduction) {
  const auto f = [](const auto& v, const auto& t, double in_logs) {
    if (in_logs != 0) return exp(t) * (t - v);
    const Tensor none = eq(t, number_like(t, 0));
    return t * log(where(none, number_like(t, 1), t)) - t * v;
  };
  return loss_of_elements("kl_div", {x, target}, {}, reduction, f, log_target);
}
Tensor poisson_nll_loss(const Tensor& x, const Tensor& target, bool log_input, bool full, double eps,
                        Reduction reduction) {
  const auto f = [](const auto& v, const auto& t, double in_logs, double whole, double least) {
    const Tensor loss = in_logs != 0 ? exp(v) - t * v : v - t * log(v + least);
    if (whole == 0) return loss;
    const Tensor large = gt(t, number_like(t, 1)), n = where(large, t, number_like(t, 1));
    return loss + where(large, n * log(n) - n + log(n * (2 * std::numbers::pi)) * 0.5, number_like(t, 0));
  };
  return loss_of_elements("poisson_nll_loss", {x, target}, {}, reduction, f, log_input, full, eps);
}
Tensor gaussian_nll_loss(const Tensor& x, const Tensor& target, const Tensor& variance, bool full, double eps,
                         Reduction reduction) {
  constexpr std::string_view op = "gaussian_nll_loss";
  if (!(eps > 0)) fail(op, "eps is {}, not positive", eps);
  const Shape shape = broadcast_shapes(op, x.shape(), target.shape());
  const Shape rows(shape.begin(), shape.end() - (shape.rank() > 0));
  const bool by_row = shape.rank() > 0 && !(variance.shape() == shape) && variance.shape() == rows;
  const Tensor given = by_row ? unsqueeze(variance, -1) : variance;
  require_fits(op, "the variance", given, shape);
  const auto f = [](const auto& v, const auto& t, const auto& raw, double least, double constant) {
    const Tensor still = raw.detach();  // the bound does not stop its gradient
    const Tensor bounded = raw + (clamp(still, least, kUnbounded) - still);
    const Tensor spread = where(lt(still, number_like(still, 0)), number_like(still, NAN), bounded);
    return (log(spread) + square(v - t) / spread) * 0.5 + constant;
  };
  const double constant = full ? 0.5 * std::log(2 * std::numbers::pi) : 0;
  return loss_of_elements(op, {expand(x, shape), expand(target, shape), given}, {}, reduction, f, eps, constant);
}
Tensor soft_margin_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  return loss_of_elements("soft_margin_loss", {x, target}, {}, reduction,
                          [](const auto& v, const auto& t) { return softplus(-(t * v)); });
}
Tensor hinge_embedding_loss(const Tensor& x, const Tensor& target, double margin, Reduction reduction) {
  const auto f = [](const auto& v, const auto& t, double apart) {
    const Tensor zero = number_like(v, 0);
    return where(ne(t, number_like(t, 1)), relu(apart - v), zero) + where(ne(t, number_like(t, -1)), v, zero);
  };
  return loss_of_elements("hinge_embedding_loss", {x, target}, {}, reduction, f, margin);
}

}  // namespace tessera
