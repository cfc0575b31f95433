// Functions that only maps have, against the C library: errors in units in the last place, and exact divisions.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tile/kernels/functors.h"

namespace {
namespace tile = tessera::tile;

template <class V>
class Functors : public testing::Test {};
using FunctorWidths =
    testing::Types<float, double, tile::Vec<float, 4>, tile::NativeVec<float>, tile::NativeVec<double>>;
TYPED_TEST_SUITE(Functors, FunctorWidths);

/// Worst error of e^x - 1 in [low, high].
template <class V>
double worst_of_exponential(double low, double high) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> uniform(low, high);
  double worst = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    V x{};
    for (int i = 0; i < tile::lanes_v<V>; ++i) tile::set(x, i, static_cast<tile::element_t<V>>(uniform(random)));
    const V y = tile::op::exp_less_one(x);
    for (int i = 0; i < tile::lanes_v<V>; ++i) {
      const double want = std::expm1(static_cast<double>(tile::get(x, i)));
      const double unit = std::ldexp(1.0, std::ilogb(want) - 23);
      worst = std::max(worst, std::fabs(static_cast<double>(tile::get(y, i)) - want) / unit);
    }
  }
  return worst;
}

TYPED_TEST(Functors, ExponentialsLessOneDoNotCancel) {
  EXPECT_LT(worst_of_exponential<TypeParam>(-1e-6, 1e-6), 2);
  EXPECT_LT(worst_of_exponential<TypeParam>(-1, 1), 2);
  EXPECT_LT(worst_of_exponential<TypeParam>(-40, 88.7), 2);
  const auto at = [](double x) {
    return static_cast<double>(
        tile::get(tile::op::exp_less_one(TypeParam(static_cast<tile::element_t<TypeParam>>(x))), 0));
  };
  EXPECT_EQ(at(INFINITY), INFINITY);
  EXPECT_EQ(at(-INFINITY), -1);
  EXPECT_EQ(at(0), 0);
  EXPECT_TRUE(std::isnan(at(NAN)));
}

template <class T>
T exact_remainder(T x, T y) {
  const T r = std::fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

// Quotients of every size, those that are whole but for their last bit, and what is no number.
TYPED_TEST(Functors, DivisionsAreExact) {
  using T = tile::element_t<TypeParam>;
  std::mt19937 random(12);
  std::uniform_real_distribution<double> size(-40, 40), part(-2, 2);
  std::vector<std::pair<T, T>> pairs;
  for (int i = 0; i < 20000; ++i) {
    const T y = static_cast<T>(part(random) * std::exp2(size(random) / 4));
    const T whole = static_cast<T>(std::round(part(random) * 1000));
    pairs.push_back({static_cast<T>(part(random) * std::exp2(size(random) / 2)), y});
    pairs.push_back({whole * y, y});
    pairs.push_back({std::nextafter(whole * y, T(0)), y});
  }
  for (const T x : {T(0), T(-0.0), T(1), T(-5.5), T(1e30), T(INFINITY), T(-INFINITY), T(NAN)})
    for (const T y : {T(0), T(1), T(-3), T(1e-30), T(INFINITY), T(-INFINITY), T(NAN)}) pairs.push_back({x, y});
  for (const auto& [x, y] : pairs) {
    const T r = tile::get(tile::op::floor_remainder(TypeParam(x), TypeParam(y)), 0), want = exact_remainder(x, y);
    EXPECT_TRUE(r == want || (r != r && want != want)) << x << " % " << y << ": " << r << ", not " << want;
    const T q = tile::get(tile::op::floor_quotient(TypeParam(x), TypeParam(y)), 0);
    const T exact = tile::op::detail::floor_quotient(x, y);
    EXPECT_TRUE(q == exact || (q != q && exact != exact) || std::abs(q - exact) <= std::abs(exact) * T(2e-7))
        << x << " // " << y << ": " << q << ", not " << exact;
    if (std::abs(exact) < T(1 << 20)) {
      EXPECT_EQ(q, exact) << x << " // " << y;
    }
  }
}

}  // namespace
