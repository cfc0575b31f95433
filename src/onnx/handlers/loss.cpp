// Losses, and the optimizers of ONNX's training operators.
#include <cmath>
#include <limits>

#include "onnx/handler.h"
#include "tessera/ops.h"
#include "tessera/ops_loss.h"

namespace tessera::onnx {
namespace {

/// log-probabilities [n, classes, ...], labels [n, ...], weights of classes or nothing.
Tensor negative_log_likelihood(const Call& c, const Tensor& logs, const Tensor& labels, const Tensor& weights) {
  if (logs.dim() < 2 || labels.dim() != logs.dim() - 1) c.fail("labels {} for {}", describe(labels), describe(logs));
  constexpr int64_t none = std::numeric_limits<int64_t>::min();
  const int64_t ignored = c.has_attribute("ignore_index") ? c.integer("ignore_index", 0) : none;
  const std::string reduction = c.text("reduction", "mean");
  const auto loss = [&](Reduction r) { return nll_loss(logs, labels, weights, ignored, r); };
  if (reduction == "none") return loss(Reduction::None);
  if (reduction == "sum") return loss(Reduction::Sum);
  if (reduction == "mean") return loss(Reduction::Mean);
  c.fail("reduction {} is not known", reduction);
}
Values likelihood(const Call& c) { return {negative_log_likelihood(c, c.in(0), c.in(1), c.optional(2))}; }
Values softmax_cross_entropy(const Call& c) {
  const Tensor logs = log_softmax(c.in(0), 1);
  return {negative_log_likelihood(c, logs, c.in(1), c.optional(2)), logs};
}

// ---- optimizers: rate, step, and for each parameter itself, its gradient and its states

/// The i-th of the groups behind the first two inputs: all parameters, all gradients, and so on.
Tensor of_group(const Call& c, size_t groups, size_t group, size_t i) {
  return c.in(2 + group * ((c.inputs() - 2) / groups) + i);
}
size_t parameters(const Call& c, size_t groups) {
  if (c.inputs() < 2 || (c.inputs() - 2) % groups) c.fail("{} inputs", c.inputs());
  return (c.inputs() - 2) / groups;
}
/// All updated parameters, then all of each state.
Values grouped(const std::vector<Tensors>& groups) {
  Values out;
  for (const Tensors& g : groups)
    for (const Tensor& t : g) out.emplace_back(t);
  return out;
}

Values adagrad(const Call& c) {
  const size_t n = parameters(c, 3);
  const double rate = c.number(0) / (1 + c.number(1) * c.real("decay_factor", 0));
  std::vector<Tensors> out(2);
  for (size_t i = 0; i < n; ++i) {
    const Tensor x = of_group(c, 3, 0, i), g = of_group(c, 3, 1, i) + x * c.real("norm_coefficient", 0);
    const Tensor squares = add(of_group(c, 3, 2, i), square(g));
    out[0].push_back(sub(x, div(g * rate, sqrt(squares) + c.real("epsilon", 0))));
    out[1].push_back(squares);
  }
  return grouped(out);
}
Values adam(const Call& c) {
  const size_t n = parameters(c, 4);
  const double alpha = c.real("alpha", 0.9f), beta = c.real("beta", 0.999f), step = c.number(1);
  const double rate =
      step > 0 ? c.number(0) * std::sqrt(1 - std::pow(beta, step)) / (1 - std::pow(alpha, step)) : c.number(0);
  std::vector<Tensors> out(3);
  for (size_t i = 0; i < n; ++i) {
    const Tensor x = of_group(c, 4, 0, i), g = of_group(c, 4, 1, i) + x * c.real("norm_coefficient", 0);
    const Tensor v = of_group(c, 4, 2, i) * alpha + g * (1 - alpha),
                 h = of_group(c, 4, 3, i) * beta + square(g) * (1 - beta);
    out[0].push_back(sub(x, div(v * rate, sqrt(h) + c.real("epsilon", 0))) * (1 - c.real("norm_coefficient_post", 0)));
    out[1].push_back(v);
    out[2].push_back(h);
  }
  return grouped(out);
}
Values momentum(const Call& c) {
  const size_t n = parameters(c, 3);
  const double alpha = c.real("alpha", 0), beta = c.number(1) > 0 ? c.real("beta", 0) : 1;
  const std::string mode = c.text("mode", "standard");
  if (mode != "standard" && mode != "nesterov") c.fail("mode {} is not known", mode);
  std::vector<Tensors> out(2);
  for (size_t i = 0; i < n; ++i) {
    const Tensor x = of_group(c, 3, 0, i), g = of_group(c, 3, 1, i) + x * c.real("norm_coefficient", 0);
    const Tensor v = of_group(c, 3, 2, i) * alpha + g * beta;
    out[0].push_back(sub(x, (mode == "nesterov" ? g + v * alpha : v) * c.number(0)));
    out[1].push_back(v);
  }
  return grouped(out);
}

constexpr Entry entries[] = {
    {"Adagrad", 1, adagrad, "ai.onnx.preview.training"},    {"Adam", 1, adam, "ai.onnx.preview.training"},
    {"Momentum", 1, momentum, "ai.onnx.preview.training"},  {"NegativeLogLikelihoodLoss", 12, likelihood},
    {"SoftmaxCrossEntropyLoss", 12, softmax_cross_entropy},
};

}  // namespace

std::span<const Entry> loss_handlers() { return entries; }

}  // namespace tessera::onnx
