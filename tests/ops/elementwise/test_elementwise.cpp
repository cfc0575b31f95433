#include <limits>

#include "ops/ops_check.h"

namespace tessera {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Elementwise, PromotesDtypesAsPyTorchDoes) {
  auto result = [](DType a, Shape sa, DType b, Shape sb) { return add(ones(sa, a), ones(sb, b)).dtype(); };
  EXPECT_EQ(result(Float16, {3}, BFloat16, {3}), Float32);
  EXPECT_EQ(result(Int64, {3}, Float16, {3}), Float16);
  EXPECT_EQ(result(UInt8, {3}, Int8, {3}), Int32);
  EXPECT_EQ(result(Bool, {3}, Int32, {3}), Int32);
  EXPECT_EQ(result(Float16, {3}, Float32, {}), Float16);  // a number does not widen
  EXPECT_EQ(result(Int32, {3}, Float64, {}), Float64);    // unless it is of another kind
  EXPECT_EQ(result(Float16, {}, Float32, {}), Float32);
  EXPECT_EQ(div(ones({3}, Int64), ones({3}, Int32)).dtype(), Float32);
  EXPECT_EQ(exp(ones({3}, Int32)).dtype(), Float32);
  EXPECT_EQ(floor(ones({3}, Int32)).dtype(), Int32);
  EXPECT_EQ(lt(ones({3}, Int32), ones({3})).dtype(), Bool);
  EXPECT_EQ(mul(ones({3}, Int32), 2).dtype(), Int32);
  EXPECT_EQ(mul(ones({3}, Int32), 0.5).dtype(), Float32);
  EXPECT_EQ(add(ones({3}, Bool), 1).dtype(), Int64);
}

TEST(Elementwise, ComputesOnIntegersExactly) {
  Tensor a = tensor<int64_t>({(int64_t{1} << 62) + 1, -7, 7, -8, 0}, {5});
  Tensor b = tensor<int64_t>({1, 2, -2, 2, 5}, {5});
  EXPECT_EQ(add(a, b).to_vector<int64_t>(), (std::vector<int64_t>{(int64_t{1} << 62) + 2, -5, 5, -6, 5}));
  EXPECT_EQ(floor_div(a, b).to_vector<int64_t>(), (std::vector<int64_t>{(int64_t{1} << 62) + 1, -4, -4, -4, 0}));
  EXPECT_EQ(remainder(a, b).to_vector<int64_t>(), (std::vector<int64_t>{0, 1, -1, 0, 0}));
  EXPECT_EQ(clamp(a, -7.0, kInfinity).to_vector<int64_t>(),
            (std::vector<int64_t>{(int64_t{1} << 62) + 1, -7, 7, -7, 0}));
  EXPECT_EQ(pow(tensor<int32_t>({3, -2}, {2}), 3).to_vector<int32_t>(), (std::vector<int32_t>{27, -8}));
  EXPECT_EQ(add(tensor<uint8_t>({250, 1}, {2}), tensor<uint8_t>({10, 1}, {2})).to_vector<uint8_t>(),
            (std::vector<uint8_t>{4, 2}));
  EXPECT_EQ(gt(a, b).to_vector<bool>(), (std::vector<bool>{true, false, true, false, false}));
}

TEST(Elementwise, HandlesSpecialValues) {
  Tensor x = tensor<double>({std::nan(""), kInfinity, -kInfinity, -0.0}, {4}), one = ones({4}, Float64);
  EXPECT_TRUE(std::isnan(maximum(x, one).to_vector<double>()[0]));
  EXPECT_TRUE(std::isnan(minimum(one, x).to_vector<double>()[0]));
  EXPECT_TRUE(std::isnan(clamp(x, 0, 1).to_vector<double>()[0]));
  EXPECT_EQ(sigmoid(x).to_vector<double>()[1], 1);
  EXPECT_EQ(sigmoid(x).to_vector<double>()[2], 0);
  EXPECT_EQ(tanh(x).to_vector<double>()[2], -1);
  EXPECT_EQ(softplus(x).to_vector<double>()[1], kInfinity);
  EXPECT_TRUE(std::signbit((x * 1.0).to_vector<double>()[3]));
  EXPECT_TRUE(std::signbit((x + -0.0).to_vector<double>()[3]));
}

TEST(Elementwise, GradientsHaveTheDtypeAndShapeOfTheirInputs) {
  Tensor a = ones({2, 3}, Float16).set_requires_grad(), b = ones({3}).set_requires_grad(),
         c = ones({}, Float64).set_requires_grad();
  Tensor y = a * b + c;
  sum(y).backward();
  for (const Tensor& t : {a, b, c}) {
    EXPECT_EQ(t.grad().dtype(), t.dtype());
    EXPECT_EQ(to_string(t.grad().shape()), to_string(t.shape()));
  }
  EXPECT_EQ(c.grad().item(), 6);
  EXPECT_EQ(b.grad().to_vector<float>(), (std::vector<float>{2, 2, 2}));
}

TEST(Elementwise, GradientsDoNotLeakThroughWhatWasNotChosen) {
  Tensor x = tensor<double>({0, 4}, {2}).set_requires_grad();
  Tensor y = where(gt(x, full({}, 1, Float64)), sqrt(x), zeros({2}, Float64));
  y.backward(ones({2}, Float64));
  EXPECT_TRUE(std::isnan(x.grad().to_vector<double>()[0]));  // 0 / 0 of sqrt itself
  Tensor z = tensor<double>({-1, 4}, {2}).set_requires_grad();
  relu(z).backward(tensor<double>({std::nan(""), 3}, {2}));
  EXPECT_EQ(z.grad().to_vector<double>(), (std::vector<double>{0, 3}));
}

// As in PyTorch: on a bound, beyond one and at NaN there is none.
TEST(Elementwise, ClampedElementsGetNoGradient) {
  for (DType dtype : {Float64, Float32, Float16})
    for (const bool composed : {false, true}) {
      const Tensor x = tensor<double>({-2, -1, 0, 1, 2, std::nan("")}, {6}).to(dtype).set_requires_grad();
      const Tensor g = grad({clamp(x, -1, 1)}, {x}, {ones({6}, dtype)}, false, composed)[0];
      EXPECT_EQ(g.to_vector<double>(), (std::vector<double>{0, 0, 1, 0, 0, 0})) << name(dtype) << composed;
    }
  Tensor x = tensor<double>({-kInfinity, 3}, {2}).set_requires_grad();
  clamp(x, -kInfinity, 5).backward(ones({2}, Float64));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{1, 1}));
}

TEST(Elementwise, ABoundWithAFractionMakesFloatsOfIntegers) {
  const Tensor x = tensor<int64_t>({-5, 2, 7}, {3});
  EXPECT_EQ(clamp(x, 0.5, 2.5).dtype(), Float32);
  EXPECT_EQ(clamp(x, 0.5, 2.5).to_vector<double>(), (std::vector<double>{0.5, 2, 2.5}));
  EXPECT_EQ(clamp(x, 0, kInfinity).dtype(), Int64);
}

TEST(Elementwise, RoundedQuotientsHaveASlopeOfZero) {
  Tensor a = tensor<double>({3.5, -1}, {2}).set_requires_grad(), b = full({}, 2.0, Float64).set_requires_grad();
  sum(floor_div(a, b)).backward();
  EXPECT_EQ(a.grad().to_vector<double>(), (std::vector<double>{0, 0}));
  EXPECT_EQ(b.grad().item(), 0);
}

TEST(Elementwise, RefusesToDivideAnIntegerByZero) {
  const Tensor a = tensor<int64_t>({1, 2}, {2}), b = tensor<uint8_t>({1, 0}, {2});
  EXPECT_EQ(error_of([&] { remainder(a, b); }), "remainder: an integer is divided by 0: i64[2] on cpu by u8[2] on cpu");
  EXPECT_EQ(error_of([&] { floor_div(a, zeros({}, Int64)); }),
            "floor_div: an integer is divided by 0: i64[2] on cpu by i64[] on cpu");
  EXPECT_EQ(floor_div(ones({1}), zeros({1}, Int64)).item(), kInfinity);
}

TEST(Elementwise, CanBeDifferentiatedTwice) {
  Tensor x = tensor<double>({0.3, -1.7}, {2}).set_requires_grad();
  for (auto* f : {&gelu_tanh, &gelu, &silu, &tanh, &sigmoid, &exp, &softplus}) {
    Tensor first = grad({sum(f(x))}, {x}, {}, false, true)[0];
    Tensor got = grad({sum(first)}, {x})[0];
    NoGrad guard;
    double h = 1e-4;
    Tensor want = (f(x + h) - f(x) * 2 + f(x + -h)) * (1 / (h * h));
    EXPECT_LE(relative_error(got, want), 1e-5);
  }
}

TEST(Elementwise, NamesTheRuleThatIsBroken) {
  Tensor a = ones({2, 3}), b = ones({4});
  EXPECT_EQ(error_of([&] { add(a, b); }), "add: shapes do not broadcast: [2, 3] and [4]");
  EXPECT_EQ(error_of([&] { a* b; }), "mul: shapes do not broadcast: [2, 3] and [4]");
  EXPECT_EQ(error_of([&] { add(a, Tensor()); }), "add: input 1 is undefined");
  EXPECT_EQ(error_of([&] { exp(Tensor()); }), "exp: input 0 is undefined");
  EXPECT_EQ(error_of([&] { where(a, a, a); }), "where: the condition is f32, not bool");
  EXPECT_EQ(error_of([&] { b.add_(a); }), "add_: shapes do not broadcast: [4] and [2, 3]");
  EXPECT_EQ(error_of([&] { ones({3}).add_(a); }), "add_: [2, 3] does not broadcast to [3]");
  EXPECT_EQ(error_of([&] { ones({3}, Int64).add_(ones({3})); }), "add_: a result of f32 cannot be stored in i64");
  EXPECT_EQ(error_of([&] { ones({3}, Int64).mul_(0.5); }), "mul_scalar_: a product with 0.5 cannot be stored in i64");
  EXPECT_EQ(error_of([&] {
              exp(empty({1, 1, 1, 1, 1, 1, 1, 1, 1}));
            }),
            "exp: f32[1, 1, 1, 1, 1, 1, 1, 1, 1] on cpu has more than 8 dims");
}

TEST(InPlace, WritesThroughViewsAndBumpsTheVersion) {
  Tensor x = zeros({3, 4});
  uint32_t before = x.storage()->version.load();
  x.select(1, 2).fill_(5);
  x.slice(0, 1, 3).add_(ones({4}), 2);
  x.mul_(2.0);
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{0, 0, 10, 0, 4, 4, 14, 4, 4, 4, 14, 4}));
  EXPECT_EQ(x.storage()->version.load(), before + 3);
}

TEST(InPlace, ReadsOverlappingSourcesBeforeWriting) {
  Tensor x = arange(0, 6);
  x.slice(0, 1, 6).copy_(x.slice(0, 0, 5));
  EXPECT_EQ(x.to_vector<int64_t>(), (std::vector<int64_t>{0, 0, 1, 2, 3, 4}));
  x.mul_(x);
  EXPECT_EQ(x.to_vector<int64_t>(), (std::vector<int64_t>{0, 0, 1, 4, 9, 16}));
}

TEST(InPlace, RefusesWhatAutogradCannotFollow) {
  Tensor leaf = ones({3}).set_requires_grad();
  EXPECT_NE(error_of([&] { leaf.add_(ones({3})); }), "no error");
  EXPECT_EQ(error_of([&] { expand(ones({1}), {3}).fill_(0); }),
            "fill_: f32[3] on cpu repeats elements and cannot be written; use clone()");
  Tensor y = exp(leaf);
  y.add_(ones({3}));
  EXPECT_NE(error_of([&] { sum(y).backward(); }).find("changed in place"), std::string::npos);
}

TEST(InPlace, IsDifferentiated) {
  Tensor x = tensor<double>({1, 2, 3}, {3}).set_requires_grad(), w = tensor<double>({4, 5, 6}, {3}).set_requires_grad();
  Tensor y = x * 2.0;
  y.add_(w, 3).mul_(w);  // (2x + 3w) w
  sum(y).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{8, 10, 12}));
  EXPECT_EQ(w.grad().to_vector<double>(), (std::vector<double>{26, 34, 42}));
  Tensor z = zeros({2, 3}, Float64);
  z.copy_(x);
  sum(z).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{10, 12, 14}));
}

}  // namespace
}  // namespace tessera
