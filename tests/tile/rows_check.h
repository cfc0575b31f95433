// Random inputs and the one measure of error for tests of row kernels.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tessera/parallel.h"
#include "tile/types.h"

namespace tessera::tile {

inline std::vector<double> random_values(size_t n, unsigned seed, double low = -3, double high = 3) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<double> v(n);
  for (double& x : v) x = uniform(generator);
  return v;
}

template <class T>
std::vector<T> converted(const std::vector<double>& v) {
  std::vector<T> r;
  r.reserve(v.size());
  for (double x : v) r.push_back(convert_element<T>(x));
  return r;
}
template <class T>
std::vector<double> widened(const std::vector<T>& v) {
  std::vector<double> r;
  r.reserve(v.size());
  for (T x : v) r.push_back(convert_element<double>(x));
  return r;
}

/// |a - b| / |b| over all elements.
inline double relative_l2(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double error = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}

template <class T>
inline constexpr double tolerance = 1e-6;
template <>
inline constexpr double tolerance<double> = 1e-14;
template <>
inline constexpr double tolerance<f16> = 1e-3;
template <>
inline constexpr double tolerance<bf16> = 8e-3;

}  // namespace tessera::tile
