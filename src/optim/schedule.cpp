// Learning-rate schedules and gradient clipping.
#include <cmath>
#include <numbers>

#include "ops/optim.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"
#include "tessera/optim.h"

namespace tessera::optim {

Schedule constant() {
  return [](int64_t) { return 1.0; };
}

Schedule warmup_cosine(int64_t warmup, int64_t total, double final_factor) {
  if (warmup < 0 || total < warmup) throw Error("warmup_cosine: needs 0 <= warmup <= total");
  return [=](int64_t step) {
    if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
    if (step >= total) return final_factor;
    const double done = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
    return final_factor + 0.5 * (1 + std::cos(std::numbers::pi * done)) * (1 - final_factor);
  };
}

Schedule step_decay(int64_t every, double factor) {
  if (every < 1) throw Error("step_decay: `every` must be at least 1");
  return [=](int64_t step) { return std::pow(factor, static_cast<double>(step / every)); };
}

namespace {

Tensors gradients(const std::vector<Tensor>& parameters) {
  Tensors out;
  for (const Tensor& p : parameters)
    if (p.grad().defined()) out.push_back(p.grad());
  return out;
}

}  // namespace

Tensor grad_norm(const std::vector<Tensor>& parameters) {
  NoGrad guard;
  const Tensors grads = gradients(parameters);
  return grads.empty() ? zeros({}) : global_norm(grads);
}

Tensor clip_coefficient(const Tensor& norm, double max_norm) {
  NoGrad guard;
  if (!(max_norm > 0)) throw Error("clip_coefficient: max_norm must be positive");
  return clamp(mul(reciprocal(add(norm, 1e-6)), max_norm), 0, 1);
}

Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm) {
  NoGrad guard;
  const Tensor norm = grad_norm(parameters), coefficient = clip_coefficient(norm, max_norm);
  for (Tensor& g : gradients(parameters)) g.mul_(coefficient);
  return norm;
}

}  // namespace tessera::optim
