// Checks of functions that are made of operators.
#pragma once
#include <cmath>
#include <functional>

#include "ops/ops_check.h"

namespace tessera {

/// Gradients of <f(inputs), weights> for the f64 inputs near those of finite differences.
template <class F>
void expect_gradients(F f, const Tensors& inputs, const char* what = "") {
  const Tensors got = gradients_of(f, inputs, true);
  const auto value = [&](const Tensors& in) {
    const NoGrad plain;
    const Tensor y = f(in);
    Generator generator(99);
    return sum(y * normal64(y.shape(), generator)).item();
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto analytic = got[i].to_vector<double>();
    double scale = 1;
    for (double g : analytic) scale = std::max(scale, std::abs(g));
    for (int64_t j = 0; j < inputs[i].numel(); ++j) {
      constexpr double step = 1e-5;
      Tensors high = inputs, low = inputs;
      high[i] = inputs[i].clone();
      low[i] = inputs[i].clone();
      high[i].data<double>()[j] += step;
      low[i].data<double>()[j] -= step;
      EXPECT_NEAR(analytic[static_cast<size_t>(j)], (value(high) - value(low)) / (2 * step), 2e-6 * scale)
          << what << " input " << i << " element " << j;
    }
  }
}

/// The elements of `got` near those that `want` gives one by one, in row-major order, for the shape of `got`.
inline void expect_elements(const Tensor& got, const std::vector<double>& want, const char* what = "") {
  ASSERT_EQ(got.numel(), static_cast<int64_t>(want.size())) << what;
  const double limit = is_floating(got.dtype()) ? tolerance(what, got.dtype()) : 0;
  EXPECT_LE(relative_error(got.to(Float64), tensor(want, got.shape())), limit) << what;
}

}  // namespace tessera
