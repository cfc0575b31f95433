// Helpers of the tests of modules.
#pragma once
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/tensor.h"

namespace tessera {

/// Relative L2 distance of `a` from `b`, in float64.
inline double distance(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(to_string(a.shape()), to_string(b.shape()));
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  double difference = 0, size = 1e-30;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return std::sqrt(difference / size);
}

}  // namespace tessera
