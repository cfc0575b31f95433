// Elementary functions against the C library in double, in units in the last place of float.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tile/math.h"

namespace {
namespace tile = tessera::tile;

/// Worst error over fresh inputs in [low, high], in units of the last place of the exact result.
template <class V, class Function, class Exact>
double worst_ulp(double low, double high, Function function, Exact exact) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> uniform(low, high);
  double worst = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    V x{};
    for (int i = 0; i < tile::lanes_v<V>; ++i) tile::set(x, i, static_cast<tile::element_t<V>>(uniform(random)));
    const V y = function(x);
    for (int i = 0; i < tile::lanes_v<V>; ++i) {
      const double expected = exact(static_cast<double>(tile::get(x, i)));
      const double ulp = std::ldexp(1.0, std::max(std::ilogb(expected), -126) - 23);
      const double error = std::fabs(tile::get(y, i) - expected) / ulp;
      if (!(error <= worst)) worst = error;
    }
  }
  return worst;
}

template <class V>
class Math : public testing::Test {};
using Widths = testing::Types<float, double, tile::Vec<float, 4>, tile::NativeVec<float>, tile::NativeVec<double>>;
TYPED_TEST_SUITE(Math, Widths);

#define WORST(function, exact, low, high) \
  worst_ulp<TypeParam>(                   \
      low, high, [&](TypeParam v) { return function; }, [&](double x) -> double { return exact; })

TYPED_TEST(Math, exponentials) {
  EXPECT_LT(WORST(tile::exp(v), std::exp(x), -87, 88), 1.5);
  EXPECT_LT(WORST(tile::exp(v), std::exp(x), -103, -87), 1.5);
  EXPECT_LT(WORST(tile::exp2(v), std::exp2(x), -125, 127), 1.5);
  EXPECT_LT(WORST(tile::log(v), std::log(x), 0.4, 3), 1.5);
  EXPECT_LT(WORST(tile::log(v), std::log(x), 1e-40, 1e-37), 1.5);
  EXPECT_LT(WORST(tile::log(v), std::log(x), 1, 1e38), 1.5);
  EXPECT_LT(WORST(tile::log2(v), std::log2(x), 0.1, 1e3), 2.5);
  EXPECT_LT(WORST(tile::expm1(v), std::expm1(x), -1, 1), 1);
  EXPECT_LT(WORST(tile::log1p(v), std::log1p(x), -0.5, 1), 1);
  EXPECT_LT(WORST(tile::pow(v, TypeParam(2.5f)), std::pow(x, 2.5), 0, 1e6), 1);
}

TYPED_TEST(Math, sigmoids) {
  EXPECT_LT(WORST(tile::sigmoid(v), 1 / (1 + std::exp(-x)), -80, 80), 4);
  EXPECT_LT(WORST(tile::tanh(v), std::tanh(x), -12, 12), 3);
  EXPECT_LT(WORST(tile::tanh(v), std::tanh(x), -0.7, 0.7), 3);
  EXPECT_LT(WORST(tile::silu(v), x / (1 + std::exp(-x)), -80, 80), 4);
}

TYPED_TEST(Math, sigmoids_at_their_ends) {
  const auto at = [](auto f, float x) {
    const TypeParam y = f(TypeParam(x));
    if constexpr (std::is_floating_point_v<TypeParam>) return y;
    else return y[0];
  };
  const float infinity = __builtin_inff(), nan = __builtin_nanf("");
  const auto sigmoid = [](TypeParam v) { return tile::sigmoid(v); };
  const auto silu = [](TypeParam v) { return tile::silu(v); };
  const auto tanh = [](TypeParam v) { return tile::tanh(v); };
  const auto erf = [](TypeParam v) { return tile::erf(v); };
  EXPECT_EQ(at(sigmoid, infinity), 1);
  EXPECT_EQ(at(sigmoid, -infinity), 0);
  EXPECT_EQ(at(sigmoid, -1e30f), 0);
  EXPECT_EQ(at(silu, 1e30f), 1e30f);
  EXPECT_EQ(at(silu, -1e30f), 0);
  EXPECT_EQ(at(silu, infinity), infinity);
  EXPECT_EQ(at(tanh, infinity), 1);
  EXPECT_EQ(at(tanh, -infinity), -1);
  EXPECT_EQ(at(erf, infinity), 1);
  EXPECT_EQ(at(erf, -infinity), -1);
  EXPECT_TRUE(std::isnan(at(sigmoid, nan)) && std::isnan(at(silu, nan)) && std::isnan(at(tanh, nan)));
  EXPECT_TRUE(std::isnan(at(erf, nan)));
}

TYPED_TEST(Math, error_function_and_gelu) {
  EXPECT_LT(WORST(tile::erf(v), std::erf(x), -1.3, 1.3), 3);
  EXPECT_LT(WORST(tile::erf(v), std::erf(x), -6, 6), 3);
  EXPECT_LT(WORST(tile::gelu_erf(v), x / 2 * std::erfc(-x / std::sqrt(2.0)), -12, 8), 12);
  // The argument of the sigmoid is rounded, which e^-u amplifies by u: at most 2^-19 where it matters.
  const auto fast = [](double x) { return x / (1 + std::exp(-std::sqrt(8 / M_PI) * (x + 0.044715 * x * x * x))); };
  EXPECT_LT(worst_ulp<TypeParam>(
                -1, 8, [](TypeParam v) { return tile::gelu_tanh(v); }, fast),
            6);
  EXPECT_LT(worst_ulp<TypeParam>(
                -4, 0, [](TypeParam v) { return tile::gelu_tanh(v); }, fast),
            32);
  EXPECT_LT(worst_ulp<TypeParam>(
                -9.9, -4, [](TypeParam v) { return tile::gelu_tanh(v); }, fast),
            192);
}

TYPED_TEST(Math, derivatives_match_differences) {
  const auto check = [](auto function, auto derivative) {
    for (double x = -4; x < 4; x += 0.171) {
      const double numeric = (function(x + 1e-5) - function(x - 1e-5)) / 2e-5;
      const TypeParam v(static_cast<tile::element_t<TypeParam>>(x));
      EXPECT_NEAR(tile::get(derivative(v), 0), numeric, 1e-6) << x;
    }
  };
  check([](double x) { return tile::gelu_tanh(x); }, [](auto v) { return tile::gelu_tanh_grad(v); });
  check([](double x) { return tile::gelu_erf(x); }, [](auto v) { return tile::gelu_erf_grad(v); });
  check([](double x) { return tile::silu(x); }, [](auto v) { return tile::silu_grad(v); });
}

TYPED_TEST(Math, circular) {
  EXPECT_LT(WORST(tile::sin(v), std::sin(x), -10, 10), 3);
  EXPECT_LT(WORST(tile::cos(v), std::cos(x), -10, 10), 3);
  EXPECT_LT(WORST(tile::sin(v), std::sin(x), -1e5, 1e5), 3);
  EXPECT_LT(WORST(tile::cos(v), std::cos(x), -1e9, 1e9), 3);
  EXPECT_LT(WORST(tile::tan(v), std::tan(x), -1.5, 1.5), 4);
  EXPECT_LT(WORST(tile::tan(v), std::tan(x), -8191, 8191), 4);  // reduced in f32
  EXPECT_LT(WORST(tile::tan(v), std::tan(x), -1e5, 1e5), 4);
  EXPECT_LT(WORST(tile::atan(v), std::atan(x), -0.5, 0.5), 3);
  EXPECT_LT(WORST(tile::atan(v), std::atan(x), -3, 3), 3);
  EXPECT_LT(WORST(tile::atan(v), std::atan(x), -1e9, 1e9), 3);
}

TYPED_TEST(Math, arcs) {
  for (double bound : {1e-3, 0.5, 1.0}) {
    EXPECT_LT(WORST(tile::asin(v), std::asin(x), -bound, bound), 3) << bound;
    EXPECT_LT(WORST(tile::acos(v), std::acos(x), -bound, bound), 3) << bound;
  }
  EXPECT_LT(WORST(tile::acos(v), std::acos(x), 0.99999, 1), 3);
  EXPECT_LT(WORST(tile::erf(tile::erfinv(v)), x, -0.5, 0.5), 4);
  EXPECT_LT(WORST(tile::erf(tile::erfinv(v)), x, 0.5, 0.99999), 4);
  for (double side : {1e-42, 1e-20, 0.7, 3.0, 1e20, 3e38})
    for (double bound : {side, side / 16, side * 16}) {
      const double most = std::min(bound, 3e38);
      const TypeParam other(static_cast<tile::element_t<TypeParam>>(side));
      const auto exact = static_cast<double>(tile::get(other, 0));
      EXPECT_LT(WORST(tile::atan2(v, other), std::atan2(x, exact), -most, most), 3) << side << " " << most;
      EXPECT_LT(WORST(tile::atan2(other, v), std::atan2(exact, x), -most, most), 3) << side << " " << most;
      EXPECT_LT(WORST(tile::atan2(v, -other), std::atan2(x, -exact), -most, most), 3) << side << " " << most;
      EXPECT_LT(WORST(tile::hypot(v, other), std::hypot(x, exact), -most / 2, most / 2), 3) << side << " " << most;
    }
}

TYPED_TEST(Math, arcs_of_special_values) {
  using T = tile::element_t<TypeParam>;
  const auto of = [](double x) { return TypeParam(static_cast<T>(x)); };
  const auto same = [](double got, double wanted) {
    return std::isnan(wanted)
               ? std::isnan(got)
               : got == static_cast<double>(static_cast<T>(wanted)) && std::signbit(got) == std::signbit(wanted);
  };
  const double values[] = {0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e-44, INFINITY, -INFINITY, NAN};
  for (double a : values) {
    const double asin = tile::get(tile::asin(of(a)), 0), erfinv = tile::get(tile::erfinv(of(a)), 0);
    EXPECT_TRUE(same(asin, std::asin(static_cast<double>(static_cast<T>(a))))) << a << " " << asin;
    EXPECT_EQ(std::isnan(tile::get(tile::acos(of(a)), 0)), std::isnan(std::acos(a))) << a;
    if (!(std::abs(a) < 1)) {
      EXPECT_TRUE(same(erfinv, std::abs(a) == 1 ? a * INFINITY : NAN)) << a << " " << erfinv;
    }
    for (double b : values) {
      const double exact_a = static_cast<double>(static_cast<T>(a)), exact_b = static_cast<double>(static_cast<T>(b));
      const double angle = tile::get(tile::atan2(of(a), of(b)), 0), wanted = std::atan2(exact_a, exact_b);
      EXPECT_EQ(std::isnan(angle), std::isnan(wanted)) << a << " " << b;
      if (!std::isnan(wanted)) {
        EXPECT_NEAR(angle, wanted, 3e-7) << a << " " << b;
        EXPECT_EQ(std::signbit(angle), std::signbit(wanted)) << a << " " << b;
      }
      const double side = tile::get(tile::hypot(of(a), of(b)), 0), length = std::hypot(exact_a, exact_b);
      EXPECT_EQ(std::isnan(side), std::isnan(length)) << a << " " << b;
      if (std::isinf(length)) {
        EXPECT_EQ(side, INFINITY) << a << " " << b;
      }
    }
  }
}

TYPED_TEST(Math, rounding) {
  EXPECT_EQ(WORST(tile::round(v), std::nearbyint(x), -100, 100), 0);
  EXPECT_EQ(WORST(tile::floor(v), std::floor(x), -100, 100), 0);
  EXPECT_EQ(WORST(tile::ceil(v), std::ceil(x), -100, 100), 0);
  EXPECT_EQ(WORST(tile::trunc(v), std::trunc(x), -100, 100), 0);
  EXPECT_EQ(WORST(tile::abs(v), std::fabs(x), -100, 100), 0);
  EXPECT_EQ(tile::get(tile::round(TypeParam(2.5f)), 0), 2);
  EXPECT_EQ(tile::get(tile::floor(TypeParam(-1e30f)), 0), static_cast<double>(-1e30f));
}

TYPED_TEST(Math, special_values) {
  using T = tile::element_t<TypeParam>;
  const auto at = [](auto f, double x) { return static_cast<double>(tile::get(f(TypeParam(static_cast<T>(x))), 0)); };
  const auto exp = [](auto v) { return tile::exp(v); };
  const auto log = [](auto v) { return tile::log(v); };
  const auto tanh = [](auto v) { return tile::tanh(v); };
  EXPECT_EQ(at(exp, INFINITY), INFINITY);
  EXPECT_EQ(at(exp, -INFINITY), 0);
  EXPECT_EQ(at(exp, 0), 1);
  EXPECT_TRUE(std::isnan(at(exp, NAN)));
  EXPECT_EQ(at(log, 0), -INFINITY);
  EXPECT_EQ(at(log, 1), 0);
  EXPECT_EQ(at(log, INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(at(log, -1)));
  EXPECT_TRUE(std::isnan(at(log, NAN)));
  EXPECT_EQ(at(tanh, INFINITY), 1);
  EXPECT_EQ(at(tanh, -INFINITY), -1);
  EXPECT_TRUE(std::signbit(at(tanh, -0.0)));
  EXPECT_TRUE(std::isnan(at(tanh, NAN)));
  EXPECT_TRUE(std::isnan(at([](auto v) { return tile::erf(v); }, NAN)));
  EXPECT_TRUE(std::isnan(at([](auto v) { return tile::gelu_tanh(v); }, NAN)));
  const auto gelu = [](auto v) { return tile::gelu_erf(v); };
  const auto slope = [](auto v) { return tile::gelu_erf_grad(v); };
  EXPECT_TRUE(std::isnan(at(gelu, NAN)));
  EXPECT_TRUE(std::isnan(at(slope, NAN)));
  for (double large : {13.3, 40.0, 1e30}) {
    EXPECT_NEAR(at(gelu, -large), 0, 1e-30);
    EXPECT_EQ(at(gelu, large), static_cast<double>(static_cast<T>(large)));
    EXPECT_NEAR(at(slope, -large), 0, 1e-30);
    EXPECT_EQ(at(slope, large), 1);
  }
  const auto fast = [](auto v) { return tile::gelu_tanh(v); };
  const auto fast_slope = [](auto v) { return tile::gelu_tanh_grad(v); };
  for (double large : {10.0, 10.1, 19.5, 1e13, 1e30, static_cast<double>(INFINITY)}) {
    EXPECT_NEAR(at(fast, -large), 0, 1e-36);
    EXPECT_EQ(at(fast, large), static_cast<double>(static_cast<T>(large)));
    EXPECT_NEAR(at(fast_slope, -large), 0, 1e-34);
    EXPECT_EQ(at(fast_slope, large), 1);
  }
  EXPECT_TRUE(std::isnan(at(fast_slope, NAN)));
  EXPECT_TRUE(std::isnan(at([](auto v) { return tile::sin(v); }, INFINITY)));
  const auto exp2 = [](auto v) { return tile::exp2(v); };
  EXPECT_EQ(at(exp2, INFINITY), INFINITY);
  EXPECT_EQ(at(exp2, -INFINITY), 0);
  EXPECT_EQ(at(exp2, -3), 0.125);
  EXPECT_TRUE(std::isnan(at(exp2, NAN)));
  const auto tan = [](auto v) { return tile::tan(v); };
  EXPECT_TRUE(std::isnan(at(tan, INFINITY)));
  EXPECT_TRUE(std::isnan(at(tan, NAN)));
  EXPECT_EQ(at(tan, 0), 0);
  const auto atan = [](auto v) { return tile::atan(v); };
  EXPECT_EQ(at(atan, INFINITY), static_cast<double>(static_cast<T>(M_PI / 2)));
  EXPECT_EQ(at(atan, -INFINITY), -static_cast<double>(static_cast<T>(M_PI / 2)));
  EXPECT_TRUE(std::signbit(at(atan, -0.0)));
  EXPECT_TRUE(std::isnan(at(atan, NAN)));
  EXPECT_TRUE(std::isnan(at([](auto v) { return tile::relu(v); }, NAN)));
}

}  // namespace
