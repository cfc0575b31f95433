// Gradients of functions made of operators against finite differences.
#pragma once
#include "ops/ops_check.h"

namespace tessera {

/// In f64: the slope of <f(inputs), weights> along random directions, by its gradients and by central differences.
template <class F>
void expect_slopes(F f, const Tensors& inputs, double tolerance = 1e-6) {
  Generator generator(7);
  const Tensor y = [&] {
    const NoGrad guard;
    return f(inputs);
  }();
  const Tensor weights = normal64(y.shape(), generator);
  const auto value = [&](const Tensors& in) {
    const NoGrad guard;
    return sum(mul(f(in), weights)).item();
  };
  for (const bool composed : {false, true}) {
    Tensors leaves;
    for (const Tensor& t : inputs) leaves.push_back(t.detach().clone().set_requires_grad());
    const Tensors gradients = grad({f(leaves)}, leaves, {weights}, false, composed);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor direction = normal64(inputs[i].shape(), generator);
      constexpr double step = 1e-5;
      Tensors low = inputs, high = inputs;
      low[i] = sub(inputs[i], mul(direction, step)).detach();
      high[i] = add(inputs[i], mul(direction, step)).detach();
      const double numeric = (value(high) - value(low)) / (2 * step);
      const double analytic = sum(mul(gradients[i].detach(), direction)).item();
      EXPECT_NEAR(analytic, numeric, tolerance * (1 + std::abs(numeric))) << "input " << i;
    }
  }
}

}  // namespace tessera
