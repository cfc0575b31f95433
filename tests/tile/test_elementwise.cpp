// Elementwise maps against loops in float64, over odd sizes, strides, broadcasts and every element type.
#include "tile/kernels/elementwise.h"

#include <memory>

#include "rows_check.h"
#include "tile/kernels/functors.h"

namespace tessera::tile {
namespace {

template <class T>
class ElementwiseTyped : public testing::Test {};
using Floats = testing::Types<float, double, f16, bf16>;
TYPED_TEST_SUITE(ElementwiseTyped, Floats);

TYPED_TEST(ElementwiseTyped, UnaryOfEveryLength) {
  using T = TypeParam;
  for (i64 n : {1, 7, 63, 64, 65, 257, 1000, 100003}) {
    const auto x = converted<T>(random_values(n, 1 + n));
    std::vector<T> y(n + 1, T(7.0f));
    map(executor(), op::GeluTanh{}, strided(y.data(), {n}, {1}), strided(x.data(), {n}, {1}));
    std::vector<double> want;
    for (double v : widened(x)) {
      want.push_back(0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))));
    }
    EXPECT_EQ(convert_element<double>(y.back()), 7) << "wrote behind the end";
    y.pop_back();
    EXPECT_LT(relative_l2(widened(y), want), tolerance<T>) << n;
  }
}

TYPED_TEST(ElementwiseTyped, BinaryWithStridesAndBroadcasts) {
  using T = TypeParam;
  struct Shape {
    i64 a, b, c;
  };
  for (const auto [a, b, c] : {Shape{1, 1, 1}, {3, 5, 7}, {2, 1, 300}, {5, 67, 3}, {13, 4, 64}, {2, 300, 65}}) {
    const auto x = converted<T>(random_values(a * b * c * 2, 2)), y = converted<T>(random_values(a * c, 3));
    std::vector<T> z(a * b * c);
    // x is transposed and has holes, y is broadcast along the middle, z is dense
    const auto vx = strided(x.data(), {a, b, c}, {2 * c, 2 * a * c, 2});
    const auto vy = strided(y.data(), {a, b, c}, {c, 0, 1});
    map(executor(), op::Sub{}, packed(z.data(), {a, b, c}), vx, vy);
    std::vector<double> want;
    for (i64 i = 0; i < a; ++i)
      for (i64 j = 0; j < b; ++j)
        for (i64 k = 0; k < c; ++k) {
          want.push_back(convert_element<double>(vx.at(i, j, k)) - convert_element<double>(vy.at(i, j, k)));
        }
    EXPECT_LT(relative_l2(widened(z), want), tolerance<T>) << a << ' ' << b << ' ' << c;
  }
}

TYPED_TEST(ElementwiseTyped, InnerBroadcastAndStridedOutput) {
  using T = TypeParam;
  const i64 rows = 9, columns = 131;
  const auto x = converted<T>(random_values(rows * columns, 4)), s = converted<T>(random_values(rows, 5));
  std::vector<T> z(rows * columns * 3, T(5.0f));
  const auto vz = strided(z.data(), {rows, columns}, {columns * 3, 3});
  map(executor(), op::Mul{}, vz, packed(x.data(), {rows, columns}), strided(s.data(), {rows, columns}, {1, 0}));
  std::vector<double> got, want;
  for (i64 i = 0; i < rows; ++i)
    for (i64 j = 0; j < columns; ++j) {
      got.push_back(convert_element<double>(vz.at(i, j)));
      want.push_back(convert_element<double>(x[i * columns + j]) * convert_element<double>(s[i]));
      EXPECT_EQ(convert_element<double>(z[(i * columns + j) * 3 + 1]), 5) << "wrote between its elements";
    }
  EXPECT_LT(relative_l2(got, want), tolerance<T>);
}

TEST(Elementwise, LambdaWithState) {
  const i64 n = 1234;
  const auto x = converted<float>(random_values(n, 6));
  std::vector<float> y(n);
  const float scale = 3;
  map(
      executor(), [scale](auto v) { return v * decltype(v)(scale); }, strided(y.data(), {n}, {1}),
      strided(x.data(), {n}, {1}));
  for (i64 i = 0; i < n; ++i) ASSERT_EQ(y[i], x[i] * 3);
}

TEST(Elementwise, InPlace) {
  const i64 n = 70001;
  auto x = converted<float>(random_values(n, 7));
  const auto before = x;
  const auto v = strided(x.data(), {n}, {1});
  map(executor(), op::Add{}, v, v, v);
  for (i64 i = 0; i < n; ++i) ASSERT_EQ(x[i], 2 * before[i]);
}

template <class F, class T, class Want>
void check_predicate(F f, const std::vector<T>& a, const std::vector<T>& b, Want want) {
  const i64 n = a.size();
  std::vector<char> z(n);
  map(executor(), f, strided(reinterpret_cast<bool*>(z.data()), {n}, {1}), strided(a.data(), {n}, {1}),
      strided(b.data(), {n}, {1}));
  for (i64 i = 0; i < n; ++i) ASSERT_EQ(z[i], want(a[i], b[i]) ? 1 : 0) << a[i] << ' ' << b[i];
}

template <class T>
void check_comparisons() {
  auto a = converted<T>(random_values(517, 8)), b = converted<T>(random_values(517, 9));
  for (size_t i = 0; i < a.size(); i += 3) b[i] = a[i];
  if constexpr (static_cast<T>(0.5) != 0) a[5] = std::nan("");
  check_predicate(op::Equal{}, a, b, [](T x, T y) { return x == y; });
  check_predicate(op::NotEqual{}, a, b, [](T x, T y) { return x != y; });
  check_predicate(op::Less{}, a, b, [](T x, T y) { return x < y; });
  check_predicate(op::LessEqual{}, a, b, [](T x, T y) { return x <= y; });
  check_predicate(op::Greater{}, a, b, [](T x, T y) { return x > y; });
  check_predicate(op::GreaterEqual{}, a, b, [](T x, T y) { return x >= y; });
  check_predicate(op::LogicalAnd{}, a, b, [](T x, T y) { return x != 0 && y != 0; });
  check_predicate(op::LogicalXor{}, a, b, [](T x, T y) { return (x != 0) != (y != 0); });
}

TEST(Elementwise, ComparisonsYieldBool) {
  check_comparisons<float>();
  check_comparisons<double>();
  check_comparisons<i32>();
  check_comparisons<i64>();
}

/// One function against its definition in float64.
template <class T, class F, class Want>
void check_unary(const char* name, F f, Want want, double low, double high, double allowed = tolerance<T>) {
  const i64 n = 3001;
  const auto x = converted<T>(random_values(n, 10, low, high));
  std::vector<T> y(n);
  map(executor(), f, strided(y.data(), {n}, {1}), strided(x.data(), {n}, {1}));
  std::vector<double> wanted;
  for (T v : x) wanted.push_back(want(static_cast<double>(v)));
  EXPECT_LT(relative_l2(widened(y), wanted), allowed) << name;
}

template <class T>
void check_functions() {
  check_unary<T>(
      "log1p", op::Log1p{}, [](double x) { return std::log1p(x); }, -1e-4, 1e-4);
  check_unary<T>(
      "log1p", op::Log1p{}, [](double x) { return std::log1p(x); }, -0.9, 1e6);
  check_unary<T>(
      "expm1", op::Expm1{}, [](double x) { return std::expm1(x); }, -1e-4, 1e-4);
  check_unary<T>(
      "expm1", op::Expm1{}, [](double x) { return std::expm1(x); }, -20, 2);
  check_unary<T>(
      "softplus", op::Softplus{}, [](double x) { return std::log1p(std::exp(x)); }, -30, -10);
  check_unary<T>(
      "softplus", op::Softplus{}, [](double x) { return std::log1p(std::exp(x)); }, -10, 20);
  check_unary<T>(
      "floor", op::Floor{}, [](double x) { return std::floor(x); }, -9, 9);
  check_unary<T>(
      "ceil", op::Ceil{}, [](double x) { return std::ceil(x); }, -9, 9);
  check_unary<T>(
      "trunc", op::Trunc{}, [](double x) { return std::trunc(x); }, -9, 9);
  check_unary<T>(
      "round", op::Round{}, [](double x) { return std::nearbyint(x); }, -9, 9);
  check_unary<T>(
      "sign", op::Sign{}, [](double x) { return (x > 0) - (x < 0); }, -9, 9);
  check_unary<T>(
      "clamp", op::Clamp{-1, 2}, [](double x) { return std::fmin(std::fmax(x, -1), 2); }, -9, 9);
  check_unary<T>(
      "pow", op::PowScalar{2.5}, [](double x) { return std::pow(x, 2.5); }, 0, 9);
  check_unary<T>(
      "scale_shift", op::ScaleShift{0.5, 2}, [](double x) { return 0.5 * x + 2; }, -9, 9);
}

TEST(Elementwise, FunctionsMatchFloat64) {
  check_functions<float>();
  check_functions<double>();
}

TEST(Elementwise, SpecialValues) {
  const double inf = INFINITY;
  const std::vector<float> x{float(inf), -float(inf), NAN, 0.0f, -0.0f, -1.0f, 200.0f, -200.0f};
  const auto apply = [&](auto f) {
    std::vector<float> y(x.size());
    const i64 n = x.size();
    map(executor(), f, strided(y.data(), {n}, {1}), strided(x.data(), {n}, {1}));
    return y;
  };
  const auto same = [&](const std::vector<float>& got, const std::vector<double>& want, const char* name) {
    for (size_t i = 0; i < want.size(); ++i) {
      if (std::isnan(want[i])) EXPECT_TRUE(std::isnan(got[i])) << name << ' ' << x[i];
      else EXPECT_FLOAT_EQ(got[i], static_cast<float>(want[i])) << name << ' ' << x[i];
    }
  };
  same(apply(op::Log1p{}), {inf, NAN, NAN, 0, 0, -inf, std::log1p(200), NAN}, "log1p");
  same(apply(op::Expm1{}), {inf, -1, NAN, 0, 0, std::expm1(-1), inf, -1}, "expm1");
  same(apply(op::Softplus{}), {inf, 0, NAN, std::log(2), std::log(2), std::log1p(std::exp(-1)), 200, 0}, "softplus");
  same(apply(op::Relu{}), {inf, 0, NAN, 0, 0, 0, 200, 0}, "relu");
}

template <class T, class F>
T once(F f, T a, T b) {
  T y{};
  map(executor(), f, strided(&y, {1}, {1}), strided(static_cast<const T*>(&a), {1}, {1}),
      strided(static_cast<const T*>(&b), {1}, {1}));
  return y;
}

TEST(Elementwise, DivisionFollowsPython) {
  EXPECT_EQ(once(op::FloorDiv{}, i64(7), i64(-2)), -4);
  EXPECT_EQ(once(op::Remainder{}, i64(7), i64(-2)), -1);
  EXPECT_EQ(once(op::FloorDiv{}, i64(7), i64(0)), 0) << "integers have no infinity, and must not trap";
  EXPECT_EQ(once(op::FloorDiv{}, i32(-2147483647 - 1), i32(-1)), -2147483647 - 1);
  EXPECT_EQ(once(op::FloorDiv{}, 7.5f, -2.0f), -4);
  EXPECT_FLOAT_EQ(once(op::Remainder{}, 7.5f, -2.0f), -0.5f);
  EXPECT_EQ(once(op::Remainder{}, 6.0, 3.0), 0);
  EXPECT_TRUE(std::isinf(once(op::FloorDiv{}, 1.0f, 0.0f)));
  EXPECT_TRUE(std::isnan(once(op::Maximum{}, 1.0f, NAN)));
  EXPECT_TRUE(std::isnan(once(op::Minimum{}, NAN, 1.0f)));
  EXPECT_EQ(once(op::Pow{}, i64(3), i64(13)), 1594323);
  EXPECT_EQ(once(op::Pow{}, i64(2), i64(-1)), 0);
}

/// A gradient map times a small step is the difference of the function's values.
template <class F, class G>
void check_gradient(const char* name, F f, G gradient) {
  for (double x : random_values(50, 11)) {
    const double h = 1e-6, y0 = once([&](auto a, auto) { return f(a); }, x - h, 0.0);
    const double y1 = once([&](auto a, auto) { return f(a); }, x + h, 0.0);
    EXPECT_NEAR(once(gradient, 2.0, x), 2 * (y1 - y0) / (2 * h), 1e-7) << name << ' ' << x;
  }
}

TEST(Elementwise, GradientMaps) {
  check_gradient("gelu_erf", op::GeluErf{}, op::GeluErfGrad{});
  check_gradient("gelu_tanh", op::GeluTanh{}, op::GeluTanhGrad{});
  check_gradient("silu", op::Silu{}, op::SiluGrad{});
  check_gradient("softplus", op::Softplus{}, op::SoftplusGrad{});
  check_gradient("relu", op::Relu{}, op::ReluGrad{});
  check_gradient("tanh", op::Tanh{}, [](auto g, auto x) { return op::TanhGrad{}(g, tanh(x)); });
  check_gradient("sigmoid", op::Sigmoid{}, [](auto g, auto x) { return op::SigmoidGrad{}(g, sigmoid(x)); });
}

// Results of many bytes, which go past the caches: an odd number of them, from an odd place on, in rows that are walked
// one by one, in place, and of other sizes than their inputs.
TEST(Elementwise, ResultsThatNoCacheHolds) {
  const i64 rows = 801, columns = 2503, n = rows * columns;
  ASSERT_GE(n * static_cast<i64>(sizeof(float)), cpu::streamed_bytes);
  const auto x = converted<float>(random_values(n, 8)), s = converted<float>(random_values(columns, 9));
  std::vector<float> y(n + 2, 7), z(n);
  const auto vx = strided(x.data(), {rows, columns}, {columns, 1}), vs = strided(s.data(), {rows, columns}, {0, 1});
  map(executor(), op::Add{}, strided(y.data() + 1, {rows, columns}, {columns, 1}), vx, vs);
  map(executor(), op::Neg{}, strided(z.data(), {n}, {1}), strided(x.data(), {n}, {1}));
  for (i64 i = 0; i < n; ++i) {
    ASSERT_EQ(y[i + 1], x[i] + s[i % columns]) << i;
    ASSERT_EQ(z[i], -x[i]) << i;
  }
  EXPECT_EQ(y.front(), 7);
  EXPECT_EQ(y.back(), 7);
  map(executor(), op::Mul{}, strided(z.data(), {n}, {1}), strided(z.data(), {n}, {1}), strided(x.data(), {n}, {1}));
  for (i64 i = 0; i < n; ++i) ASSERT_EQ(z[i], -x[i] * x[i]) << i;
  const i64 many = cpu::streamed_bytes + 77;
  std::vector<float> w = converted<float>(random_values(many, 10));
  const auto less = std::make_unique<bool[]>(many);
  map(
      executor(), [](auto v) { return v < decltype(v)(0.0f); }, strided(less.get(), {many}, {1}),
      strided(w.data(), {many}, {1}));
  for (i64 i = 0; i < many; ++i) ASSERT_EQ(less[i], w[i] < 0) << i;
}

}  // namespace
}  // namespace tessera::tile
