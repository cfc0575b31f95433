// Functions and activations that are made of operators, against the C library's in float64.
#include <limits>
#include <numbers>

#include "ops/composed_check.h"
#include "tessera/ops_math.h"

namespace tessera {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

struct Function {
  const char* name;
  std::function<Tensor(const Tensor&)> made;
  std::function<double(double)> value;
  double low, high;
};

double sigmoid_at(double x) { return 1 / (1 + std::exp(-x)); }
// By halves: erf grows.
double inverse_of_erf(double x) {
  double low = -7, high = 7;
  for (int i = 0; i < 200; ++i) (std::erf((low + high) / 2) < x ? low : high) = (low + high) / 2;
  return (low + high) / 2;
}
// The derivative of lgamma by a long sum: psi(x) = -gamma + sum of 1 / (k + 1) - 1 / (k + x), its tail as an integral.
double digamma_at(double x) {
  double sum = -std::numbers::egamma;
  constexpr int terms = 200000;
  for (int k = 0; k < terms; ++k) sum += (x - 1) / ((k + 1.0) * (k + x));
  return sum + std::log((terms + x - 0.5) / (terms + 0.5));
}

using OfOne = std::function<Tensor(const Tensor&)>;

std::vector<Function> functions() {
  const auto of = [](std::function<Tensor(const Tensor&)> f) { return f; };
  return {
      {"acos", of(acos), [](double x) { return std::acos(x); }, -0.99, 0.99},
      {"asin", of(asin), [](double x) { return std::asin(x); }, -0.99, 0.99},
      {"sinh", of(sinh), [](double x) { return std::sinh(x); }, -4, 4},
      {"cosh", of(cosh), [](double x) { return std::cosh(x); }, -4, 4},
      {"asinh", of(asinh), [](double x) { return std::asinh(x); }, -4, 4},
      {"acosh", of(acosh), [](double x) { return std::acosh(x); }, 1.1, 5},
      {"atanh", of(atanh), [](double x) { return std::atanh(x); }, -0.95, 0.95},
      {"log2", of(log2), [](double x) { return std::log2(x); }, 0.1, 9},
      {"log10", of(log10), [](double x) { return std::log10(x); }, 0.1, 9},
      {"erfinv", of(erfinv), inverse_of_erf, -0.97, 0.97},
      {"lgamma", of(lgamma), [](double x) { return std::lgamma(x); }, 0.1, 30},
      {"lgamma below 0", of(lgamma), [](double x) { return std::lgamma(x); }, -2.9, -2.1},
      {"digamma", of(digamma), digamma_at, 0.3, 20},
      {"digamma below 0", of(digamma), digamma_at, -1.9, -1.1},
      {"elu", [](const Tensor& x) { return elu(x, 0.7); }, [](double x) { return x > 0 ? x : 0.7 * std::expm1(x); }, -3,
       3},
      {"selu", [](const Tensor& x) { return selu(x); },
       [](double x) { return 1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * std::expm1(x)); }, -3, 3},
      {"celu", [](const Tensor& x) { return celu(x, 1.5); },
       [](double x) { return x > 0 ? x : 1.5 * std::expm1(x / 1.5); }, -3, 3},
      {"leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.2); }, [](double x) { return x > 0 ? x : 0.2 * x; },
       -3, 3},
      {"thresholded_relu", [](const Tensor& x) { return thresholded_relu(x, 0.6); },
       [](double x) { return x > 0.6 ? x : 0; }, -3, 3},
      {"relu6", of(relu6), [](double x) { return std::min(std::max(x, 0.0), 6.0); }, -3, 9},
      {"hardsigmoid", [](const Tensor& x) { return hardsigmoid(x); },
       [](double x) { return std::min(std::max(x / 6 + 0.5, 0.0), 1.0); }, -5, 5},
      {"hardswish", of(hardswish), [](double x) { return x * std::min(std::max(x / 6 + 0.5, 0.0), 1.0); }, -5, 5},
      {"hardtanh", [](const Tensor& x) { return hardtanh(x, -0.5, 1.5); },
       [](double x) { return std::min(std::max(x, -0.5), 1.5); }, -3, 3},
      {"mish", of(mish), [](double x) { return x * std::tanh(std::log1p(std::exp(x))); }, -4, 4},
      {"softsign", of(softsign), [](double x) { return x / (1 + std::abs(x)); }, -4, 4},
      {"softshrink", [](const Tensor& x) { return softshrink(x, 0.3); },
       [](double x) { return x > 0.3    ? x - 0.3
                             : x < -0.3 ? x + 0.3
                                        : 0; }, -2, 2},
      {"hardshrink", [](const Tensor& x) { return hardshrink(x, 0.3); },
       [](double x) { return std::abs(x) > 0.3 ? x : 0; }, -2, 2},
      {"tanhshrink", of(tanhshrink), [](double x) { return x - std::tanh(x); }, -4, 4},
      {"log_sigmoid", of(log_sigmoid), [](double x) { return std::log(sigmoid_at(x)); }, -4, 4},
  };
}

// In a dtype, of the values that inputs have after rounding to it.
void expect_near_library(const Function& f, const Tensor& exact, DType dtype) {
  const Tensor x = exact.to(dtype), y = f.made(x);
  EXPECT_EQ(y.dtype(), dtype) << f.name;
  ASSERT_TRUE(y.shape() == x.shape()) << f.name;
  std::vector<double> want;
  for (double v : x.to_vector<double>()) want.push_back(f.value(v));
  EXPECT_LE(relative_error(y.to(Float64), tensor(want, x.shape())), tolerance(f.name, dtype))
      << f.name << " " << name(dtype);
}

TEST(Math, FunctionsAreThoseOfTheLibrary) {
  Generator g(3);
  for (const Function& f : functions())
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{7, 13}, Shape{3, 5, 7}})
      for (DType dtype : {Float64, Float32, Float16, BFloat16})
        expect_near_library(f, uniform64(shape, g, f.low, f.high), dtype);
}

TEST(Math, FunctionsHaveTheirGradients) {
  Generator g(5);
  for (const Function& f : functions())
    expect_gradients([&](const Tensors& in) { return f.made(in[0]); }, {uniform64({3, 5}, g, f.low, f.high)}, f.name);
}

TEST(Math, FunctionsOfIntegersAreF32) {
  const Tensor x = arange(1, 6);
  for (auto* f : {&asinh, &log2, &lgamma, &softsign, &log_sigmoid}) EXPECT_EQ(f(x).dtype(), Float32);
  EXPECT_EQ(log2(x).to_vector<double>()[3], 2);
}

// A gradient at the kink of abs, which odd functions do not have.
TEST(Math, OddFunctionsHaveASlopeAtZero) {
  for (const OfOne& f : {OfOne(asin), OfOne(sinh), OfOne(asinh), OfOne(atanh), OfOne(softsign)}) {
    Tensor x = zeros({1}, Float64).set_requires_grad();
    f(x).backward();
    EXPECT_EQ(x.grad().item(), 1);
  }
}

std::vector<double> at(const OfOne& f, const std::vector<double>& x) {
  return f(tensor(x, {static_cast<int64_t>(x.size())})).to_vector<double>();
}

TEST(Math, EndsOfTheirRanges) {
  EXPECT_EQ(at(acos, {1, -1})[0], 0);
  EXPECT_DOUBLE_EQ(at(acos, {1, -1})[1], std::numbers::pi);
  EXPECT_DOUBLE_EQ(at(asin, {-1})[0], -std::numbers::pi / 2);
  for (const OfOne& f : {OfOne(acos), OfOne(asin), OfOne(atanh), OfOne(erfinv)})
    EXPECT_TRUE(std::isnan(at(f, {1.5})[0]));
  EXPECT_TRUE(std::isnan(at(acosh, {0.5})[0]));
  EXPECT_EQ(at(atanh, {1, -1}), (std::vector<double>{kUnbounded, -kUnbounded}));
  EXPECT_EQ(at(erfinv, {1, -1, 0}), (std::vector<double>{kUnbounded, -kUnbounded, 0}));
  EXPECT_EQ(at(sinh, {-kUnbounded, 800}), (std::vector<double>{-kUnbounded, kUnbounded}));
  EXPECT_EQ(at(lgamma, {0, -3, kUnbounded}), (std::vector<double>{kUnbounded, kUnbounded, kUnbounded}));
  EXPECT_DOUBLE_EQ(at(asinh, {1e200})[0], std::asinh(1e200));
  EXPECT_DOUBLE_EQ(at(asinh, {-1e-9})[0], std::asinh(-1e-9));
  EXPECT_DOUBLE_EQ(at(acosh, {1e200})[0], std::acosh(1e200));
}

std::vector<double> slopes_at(const OfOne& f, const std::vector<double>& x) {
  Tensor leaf = tensor(x, {static_cast<int64_t>(x.size())}).set_requires_grad();
  sum(f(leaf)).backward();
  return leaf.grad().to_vector<double>();
}

TEST(Math, InfinitiesAndNaNAreThoseOfPyTorch) {
  EXPECT_EQ(at(asinh, {kUnbounded, -kUnbounded}), (std::vector<double>{kUnbounded, -kUnbounded}));
  EXPECT_EQ(at(lgamma, {-kUnbounded, -2}), (std::vector<double>{kUnbounded, kUnbounded}));
  for (double pole : {-1.0, -7.0, -kUnbounded}) EXPECT_TRUE(std::isnan(at(digamma, {pole})[0])) << pole;
  EXPECT_TRUE(std::isnan(hardshrink(full({}, NAN)).item()));
  const auto erfinv_slopes = slopes_at(erfinv, {-1, 1, 1.5, 0});
  EXPECT_EQ(erfinv_slopes[0], kUnbounded);
  EXPECT_EQ(erfinv_slopes[1], kUnbounded);
  EXPECT_TRUE(std::isnan(erfinv_slopes[2]));
  EXPECT_TRUE(std::isfinite(erfinv_slopes[3]));
}

// On the edge of two pieces it is PyTorch's choice which one counts.
TEST(Math, SlopesOnEdgesAndAtNaN) {
  EXPECT_EQ(slopes_at([](const Tensor& x) { return elu(x, 3); }, {0, NAN}), (std::vector<double>{3, 1}));
  EXPECT_EQ(slopes_at([](const Tensor& x) { return celu(x); }, {0, NAN}), (std::vector<double>{1, 1}));
  EXPECT_EQ(slopes_at([](const Tensor& x) { return softshrink(x); }, {-0.5, 0.5, -2, NAN}),
            (std::vector<double>{0, 0, 1, 1}));
  EXPECT_EQ(slopes_at([](const Tensor& x) { return hardshrink(x); }, {-0.5, 0.5, -2, NAN}),
            (std::vector<double>{0, 0, 1, 1}));
  for (const double high : {std::numeric_limits<double>::max(), 7.0})
    EXPECT_EQ(slopes_at([&](const Tensor& x) { return nan_to_num(x, 0, high); },
                        {INFINITY, -INFINITY, NAN, std::numeric_limits<double>::max(), 9, -2}),
              (std::vector<double>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(slopes_at(relu6, {0, 6, 3}), (std::vector<double>{0, 0, 1}));
  EXPECT_EQ(slopes_at(hardswish, {-3, 3}), (std::vector<double>{0, 1}));
}

// Two operands, of which one is broadcast, as the library has it.
void expect_binary(const char* what, const std::function<Tensor(const Tensor&, const Tensor&)>& f,
                   double (*value)(double, double), double low = -3, double high = 3, bool smooth = true) {
  Generator g(7);
  const Tensor a = uniform64({5, 1, 3}, g, low, high), b = uniform64({7, 1}, g, low, high);
  for (DType dtype : {Float64, Float32, Float16}) {
    const Tensor x = a.to(dtype), y = b.to(dtype), got = f(x, y);
    EXPECT_EQ(got.dtype(), dtype) << what;
    const auto left = expand(x, {5, 7, 3}).to_vector<double>(), right = expand(y, {5, 7, 3}).to_vector<double>();
    std::vector<double> want;
    for (size_t i = 0; i < left.size(); ++i) want.push_back(value(left[i], right[i]));
    EXPECT_LE(relative_error(got.to(Float64), tensor(want, {5, 7, 3})), tolerance(what, dtype)) << what;
  }
  if (smooth) expect_gradients([&](const Tensors& in) { return f(in[0], in[1]); }, {a, b}, what);
}

TEST(Math, FunctionsOfTwoAreThoseOfTheLibrary) {
  expect_binary("atan2", atan2, std::atan2);
  expect_binary("hypot", hypot, std::hypot);
  expect_binary("fmod", fmod, std::fmod);
  expect_binary(
      "div_trunc", div_trunc, [](double a, double b) { return std::trunc(a / b); }, 0.3, 9, false);
}

TEST(Math, AnglesOfAxesAndInfinities) {
  for (double y : {-kUnbounded, -2.0, 0.0, 3.0, kUnbounded})
    for (double x : {-kUnbounded, -2.0, 0.0, 3.0, kUnbounded}) {
      const double got = atan2(full({}, y, Float64), full({}, x, Float64)).item();
      EXPECT_DOUBLE_EQ(got, std::atan2(y, x)) << y << " " << x;
    }
  EXPECT_EQ(hypot(full({}, kUnbounded), full({}, -kUnbounded)).item(), kUnbounded);
  EXPECT_EQ(hypot(full({}, 3e38), full({}, 4.0)).item<float>(), 3e38f);
  EXPECT_EQ(hypot(zeros({}), zeros({})).item(), 0);
}

// A scale of the operands, which has no gradient, keeps squares from overflow.
TEST(Math, SlopesOfHypotenuses) {
  const auto beside = [](double leg) { return [leg](const Tensor& x) { return hypot(x, full({}, leg, Float64)); }; };
  EXPECT_EQ(slopes_at(beside(0), {0, -2, 5e200}), (std::vector<double>{0, -1, 1}));
  const auto large = slopes_at(beside(4e200), {3e200, -3e200}), small = slopes_at(beside(4e-200), {3e-200, -3e-200});
  for (const auto& found : {large, small}) {
    EXPECT_DOUBLE_EQ(found[0], 0.6);
    EXPECT_DOUBLE_EQ(found[1], -0.6);
  }
  Tensor x = full({}, 3.0, Float64).set_requires_grad();
  const Tensor slope = grad({hypot(x, full({}, 4.0, Float64))}, {x}, {}, false, true)[0];
  EXPECT_DOUBLE_EQ(grad({slope}, {x})[0].item(), 16.0 / 125);
}

TEST(Math, GatesHaveOneGradient) {
  Generator g(8);
  const Tensor whole = uniform64({4, 6, 10}, g);
  for (const Tensor& x : {whole, transpose(whole, 0, 2), slice(whole, 1, 1, 5)})
    for (int64_t dim = 0; dim < 3; ++dim) {
      const auto f = [dim](const Tensors& in) { return glu(in[0], dim); };
      const Tensor fast = gradients_of(f, {x}, false)[0], walked = gradients_of(f, {x}, true)[0];
      EXPECT_EQ(fast.shape(), x.shape());
      EXPECT_LE(relative_error(fast, walked), 1e-14) << dim;
      EXPECT_LE(relative_error(gradients_of(f, {x.to(Float32)}, false)[0], walked), tolerance("glu", Float32)) << dim;
    }
  Tensor leaf = whole.detach().set_requires_grad();
  const Tensor slope = grad({sum(glu(leaf, 1))}, {leaf}, {}, false, true)[0];
  EXPECT_TRUE(slope.requires_grad());
  EXPECT_EQ(error_of([&] { glu(slice(leaf, 0, 0, 3), 0); }), "glu: dim 0 of [3, 6, 10] is not even");
}

TEST(Math, DivisionsOfIntegersAreThoseOfC) {
  const std::vector<int64_t> numbers = {-7, -6, -1, 0, 1, 6, 7, INT64_MIN + 1};
  for (int64_t a : numbers)
    for (int64_t b : numbers) {
      if (b == 0) continue;
      const Tensor x = tensor<int64_t>({a}, {1}), y = tensor<int64_t>({b}, {1});
      EXPECT_EQ(div_trunc(x, y).item<int64_t>(), a / b) << a << " " << b;
      EXPECT_EQ(fmod(x, y).item<int64_t>(), a % b) << a << " " << b;
    }
  const Tensor some = tensor<int32_t>({1, 2}, {2}), none = tensor<int32_t>({1, 0}, {2});
  for (const auto function : {div_trunc, fmod})
    EXPECT_EQ(error_of([&] { function(some, none); }),
              "floor_div: an integer is divided by 0: i32[2] on cpu by i32[2] on cpu");
  EXPECT_EQ(fmod(full({1}, -1e-10, Float64), ones({1}, Float64)).item(), -1e-10);
}

TEST(Math, InterpolatesReplacesAndCompares) {
  Generator g(11);
  const Tensor a = uniform64({3, 5}, g), b = uniform64({5}, g), w = uniform64({3, 1}, g);
  std::vector<double> want;
  for (int64_t i = 0; i < 15; ++i) {
    const double x = a.data<double>()[i], y = b.data<double>()[i % 5];
    want.push_back(x + w.data<double>()[i / 5] * (y - x));
  }
  expect_elements(lerp(a, b, w), want, "lerp");
  EXPECT_LE(relative_error(lerp(a, b, 0.25), a * 0.75 + b * 0.25), 1e-15);

  const Tensor odd = tensor<float>({NAN, INFINITY, -INFINITY, 2}, {4});
  constexpr float most = std::numeric_limits<float>::max();
  EXPECT_EQ(nan_to_num(odd).to_vector<float>(), (std::vector<float>{0, most, -most, 2}));
  EXPECT_EQ(nan_to_num(odd, 5, 7, 9).to_vector<float>(), (std::vector<float>{5, 7, 9, 2}));
  EXPECT_EQ(nan_to_num(odd.to(Float16)).to_vector<float>()[1], 65504);
  EXPECT_EQ(nan_to_num(odd.to(BFloat16)).to_vector<float>()[2], -0x1.fep127f);

  const Tensor near = tensor<float>({NAN, INFINITY, INFINITY, 2.00001f, 2.1f}, {5});
  const Tensor other = tensor<float>({NAN, INFINITY, -INFINITY, 2, 2}, {5});
  EXPECT_EQ(isclose(near, other).to_vector<bool>(), (std::vector<bool>{false, true, false, true, false}));
  EXPECT_EQ(isclose(near, other, 0.1, 0, true).to_vector<bool>(), (std::vector<bool>{true, true, false, true, true}));
  EXPECT_EQ(error_of([&] { isclose(near, other, -1); }), "isclose: tolerances of -1 and 1e-08 are not positive");
}

TEST(Math, BitsOfIntegers) {
  Generator g(13);
  const Tensor a = indices({5, 7}, 256, g) + -128.0, b = indices({7}, 256, g) + -128.0;
  const auto x = a.to_vector<int64_t>(), y = expand(b, {5, 7}).to_vector<int64_t>();
  const auto expect = [&](const Tensor& got, auto value) {
    const auto all = got.to_vector<int64_t>();
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(all[i], value(x[i], y[i]));
  };
  expect(bitwise_and(a, b.to(Int8)), [](int64_t p, int64_t q) { return p & q; });
  expect(bitwise_or(a.to(Int32), b), [](int64_t p, int64_t q) { return p | q; });
  expect(bitwise_xor(a.to(Int8), b.to(Int8)), [](int64_t p, int64_t q) { return p ^ q; });
  expect(bitwise_not(a), [](int64_t p, int64_t) { return ~p; });
  const Tensor number = full({}, 3, Int64);  // widens nothing but bools
  EXPECT_EQ(bitwise_and(a.to(Int8), number).dtype(), Int8);
  EXPECT_EQ(bitwise_or(number, a.to(Int16)).dtype(), Int16);
  EXPECT_EQ(left_shift(a.to(Int8), number).dtype(), Int8);
  EXPECT_EQ(bitwise_xor(a.to(Bool), number).dtype(), Int64);
  EXPECT_EQ(bitwise_and(number, full({}, 1, Int8)).dtype(), Int64);
  EXPECT_EQ(bitwise_not(tensor<uint8_t>({0, 5, 255}, {3})).to_vector<int64_t>(), (std::vector<int64_t>{255, 250, 0}));
  EXPECT_EQ(bitwise_not(tensor<bool>({true, false}, {2})).to_vector<bool>(), (std::vector<bool>{false, true}));
  EXPECT_EQ(error_of([&] { bitwise_and(a, ones({7})); }), "bitwise_and: takes integers and bools, not f32");
  EXPECT_EQ(error_of([&] { bitwise_not(ones({7})); }), "bitwise_not: takes integers and bools, not f32");
}

TEST(Math, BitsAsAnotherType) {
  const Tensor x = tensor<float>({1, -0.5f, 3e38f}, {3});
  EXPECT_EQ(bitcast(x, Int32).to_vector<int64_t>(),
            (std::vector<int64_t>{0x3f800000, int32_t(0xbf000000), 0x7f61b1e6}));
  EXPECT_EQ(bitcast(bitcast(x, Int32), Float32).to_vector<float>(), x.to_vector<float>());
  EXPECT_EQ(bitcast(tensor<bool>({true, false}, {2}), UInt8).to_vector<int64_t>(), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(bitcast(full({1}, 1.0, BFloat16), Float16).item(), 1.875);
  const Tensor narrow = bitcast(x, UInt16);
  EXPECT_EQ(narrow.to_vector<int64_t>(), (std::vector<int64_t>{0, 0x3f80, 0, 0xbf00, 0xb1e6, 0x7f61}));
  EXPECT_EQ(bitcast(narrow, Float32).to_vector<float>(), x.to_vector<float>());
  const Tensor turned = transpose(tensor<int16_t>({1, 2, 3, 4, 5, 6}, {2, 3}), 0, 1);
  EXPECT_EQ(bitcast(turned, Int32).to_vector<int64_t>(),
            (std::vector<int64_t>{1 + (4 << 16), 2 + (5 << 16), 3 + (6 << 16)}));
  EXPECT_EQ(error_of([&] { bitcast(x, Int64); }), "bitcast: rows of 3 f32 are no whole number of i64");
  EXPECT_EQ(error_of([&] { bitcast(zeros({}), Int64); }), "bitcast: one f32 is not one i64");
  EXPECT_EQ(error_of([&] { bitcast(zeros({1}, Int8), Bool); }), "bitcast: not every i8 is a bool");
}

template <class T>
void expect_shifts() {
  const int bits = static_cast<int>(8 * sizeof(T));
  for (T value : {T(0), T(1), T(3), T(100), std::numeric_limits<T>::max(), std::numeric_limits<T>::min()})
    for (int count = 0; count <= bits; ++count) {
      const Tensor a = tensor<T>({value}, {1}), n = full({1}, count, dtype_of<T>);
      const auto left = count == bits ? T(0) : static_cast<T>(static_cast<uint64_t>(value) << count);
      const auto right = count == bits ? static_cast<T>(value < 0 ? -1 : 0) : static_cast<T>(value >> count);
      EXPECT_EQ(left_shift(a, n).template item<int64_t>(), left) << int64_t(value) << " << " << count;
      EXPECT_EQ(right_shift(a, n).template item<int64_t>(), right) << int64_t(value) << " >> " << count;
    }
}
TEST(Math, ShiftsBits) {
  expect_shifts<uint8_t>();
  expect_shifts<int8_t>();
  expect_shifts<int32_t>();
  expect_shifts<int64_t>();
  EXPECT_EQ(left_shift(full({}, 5, Int32), full({}, -1, Int32)).item(), 0);
  EXPECT_EQ(error_of([] { left_shift(ones({1}), ones({1})); }), "left_shift: takes integers and bools, not f32");
  EXPECT_EQ(error_of([] { right_shift(ones({1}, Bool), ones({1}, Bool)); }), "right_shift: takes integers, not bools");
}

TEST(Math, ActivationsWithWeightsAndGates) {
  Generator g(17);
  const Tensor x = uniform64({2, 3, 5}, g), weight = uniform64({3}, g);
  std::vector<double> want;
  for (int64_t i = 0; i < 30; ++i) {
    const double v = x.data<double>()[i];
    want.push_back(v > 0 ? v : v * weight.data<double>()[i / 5 % 3]);
  }
  expect_elements(prelu(x, weight), want, "prelu");
  expect_gradients([](const Tensors& in) { return prelu(in[0], in[1]); }, {x, weight}, "prelu");
  EXPECT_LE(relative_error(prelu(x, full({1}, 0.2, Float64)), leaky_relu(x, 0.2)), 1e-15);
  EXPECT_EQ(error_of([&] { prelu(x, ones({5})); }),
            "prelu: the weight [5] has neither one element nor one for each channel of [2, 3, 5]");

  const Tensor pair = uniform64({2, 4, 3}, g);
  want.clear();
  for (int64_t n = 0; n < 2; ++n)
    for (int64_t i = 0; i < 6; ++i)
      want.push_back(pair.data<double>()[n * 12 + i] * sigmoid_at(pair.data<double>()[n * 12 + 6 + i]));
  expect_elements(glu(pair, 1), want, "glu");
  expect_gradients([](const Tensors& in) { return glu(in[0], 1); }, {pair}, "glu");
  EXPECT_EQ(error_of([&] { glu(pair); }), "glu: dim 2 of [2, 4, 3] is not even");
}

TEST(Math, ActivationsNameTheRuleThatIsBroken) {
  const Tensor x = ones({3});
  EXPECT_EQ(error_of([&] { celu(x, 0); }), "celu: alpha is 0, which x is divided by");
  EXPECT_EQ(error_of([&] { hardtanh(x, 2, 1); }), "hardtanh: 2 is not below 1");
  EXPECT_EQ(error_of([&] { softshrink(x, -1); }), "softshrink: lambda is -1, negative");
  EXPECT_EQ(error_of([&] { hardshrink(x, -1); }), "hardshrink: lambda is -1, negative");
}

// Where exp would overflow, nothing of it reaches the gradient.
TEST(Math, ExponentialsOfLargeNumbersStayOut) {
  for (double v : {-1e4, 1e4}) {
    Tensor x = full({1}, v).set_requires_grad();
    (elu(x) + selu(x) + celu(x, 0.5) + mish(x) + log_sigmoid(x)).backward();
    EXPECT_TRUE(std::isfinite(x.grad().item())) << v;
  }
}

// f32 has formulas of its own, to a few units in the last place of values, or of 1 where values are smaller.
TEST(Math, SpecialFunctionsInSingle) {
  struct Range {
    const char* name;
    OfOne f;
    double low, high;
  };
  for (const Range& r : {Range{"erfinv", erfinv, -1, 1},
                         {"erfinv of small", erfinv, -1e-3, 1e-3},
                         {"erfinv near 1", erfinv, 0.9999, 1},
                         {"digamma", digamma, 0.01, 4},
                         {"digamma", digamma, 2.9, 1e4}}) {
    Generator g(21);
    const Tensor x = uniform64({5000}, g, r.low, r.high).to(Float32);
    const auto run = [&](DType dtype) {
      const Tensor leaf = x.to(dtype).detach().set_requires_grad(), y = r.f(leaf);
      return Tensors{y, grad({y}, {leaf}, {ones(y.shape(), dtype)})[0]};
    };
    const Tensors got = run(Float32), want = run(Float64);
    for (size_t k : {0, 1}) {
      const auto a = got[k].to_vector<double>(), b = want[k].to_vector<double>();
      for (size_t i = 0; i < a.size(); ++i) {
        if (!std::isfinite(b[i])) continue;
        const double limit = (k ? 4e-6 : 1e-6) * std::max(1.0, std::abs(b[i]));
        ASSERT_NEAR(a[i], b[i], limit) << r.name << (k ? ": slope at " : " of ") << x.to_vector<double>()[i];
      }
    }
  }
}

}  // namespace
}  // namespace tessera
