#include "check.h"

namespace tessera {
namespace {

TEST(Conv2d, NamesTheRuleThatIsBroken) {
  Tensor x = zeros({2, 4, 5, 5}), w = zeros({6, 4, 3, 3});
  EXPECT_EQ(error_of([&] { conv2d(zeros({4, 5, 5}), w); }), "conv2d: x must have 4 dims, not shape [4, 5, 5]");
  EXPECT_EQ(error_of([&] {
              conv2d(x, zeros({6, 3, 3, 3}));
            }),
            "conv2d: weight [6, 3, 3, 3] in 1 groups does not fit 4 channels");
  EXPECT_EQ(error_of([&] {
              conv2d(x, zeros({5, 2, 3, 3}), {}, {.groups = 2});
            }),
            "conv2d: 5 output channels do not split into 2 groups");
  EXPECT_EQ(error_of([&] { conv2d(x, w, zeros({4})); }), "conv2d: bias has shape [4], not [6]");
  EXPECT_EQ(error_of([&] {
              conv2d(x, zeros({6, 4, 7, 3}));
            }),
            "conv2d: a window of 7 with dilation 1 exceeds the size 5 padded by 0");
  EXPECT_EQ(error_of([&] {
              conv2d(x, w, {}, {.stride = {0, 1}});
            }),
            "conv2d: stride 0 and dilation 1 must be positive and padding 0 not negative");
  EXPECT_EQ(error_of([&] {
              max_pool2d(x, {.window = {2, 2}, .padding = {2, 0}});
            }),
            "max_pool2d: padding 2 exceeds half the window 2");
  EXPECT_EQ(error_of([&] {
              max_pool2d(x, {.window = {7, 7}});
            }),
            "max_pool2d: a window of 7 with dilation 1 exceeds the size 5 padded by 0");
  EXPECT_EQ(error_of([&] { avg_pool2d(x, {.dilation = {2, 2}}); }), "avg_pool2d: dilation is not supported");
}

TEST(Conv2d, TakesExtremeParameters) {
  Tensor x = ones({1, 1, 5, 5}), w = ones({1, 1, 3, 3});
  for (int64_t n : {INT64_MAX, INT64_MAX / 2, int64_t(1) << 61, (int64_t(1) << 31) + 1}) {
    for (Conv2dOptions o : {Conv2dOptions{.stride = {1, n}}, {.padding = {n, 0}}, {.dilation = {1, n}}})
      EXPECT_NE(error_of([&] { conv2d(x, w, {}, o); }).find("must not exceed 2^31"), std::string::npos) << n;
    EXPECT_EQ(error_of([&] {
                max_pool2d(x, {.window = {2, n}, .stride = {1, 1}});
              }),
              "max_pool2d: window " + std::to_string(n) + " must not exceed 2^31");
    EXPECT_THROW(conv2d(x, w, {}, {.groups = n}), Error);
  }
  const int64_t most = int64_t(1) << 31;
  EXPECT_EQ(conv2d(x, w, {}, {.stride = {most, most}}).to_vector<float>(), std::vector<float>{9});
  EXPECT_EQ(conv2d(x, ones({1, 1, 1, 1}), {}, {.dilation = {most, most}}).sum().item(), 25);
  EXPECT_EQ(max_pool2d(x, {.window = {most, most}, .padding = {most / 2, most / 2}}).sum().item(), 1);
}

TEST(Conv2d, CanBeDifferentiatedTwice) {
  Generator g(1);
  Tensor x = normal64({1, 2, 5, 5}, g).set_requires_grad(), w = normal64({3, 2, 3, 3}, g).set_requires_grad();
  auto slope = [&](const Tensor& weight) {  // d/dx of the sum of y², squared and summed: a scalar of the weight
    Tensor dx = grad({sum(square(conv2d(x, weight)))}, {x}, {}, false, true)[0];
    return sum(square(dx));
  };
  Tensor second = grad({slope(w)}, {w})[0];
  Tensor moved = w.detach();
  double* p = moved.data<double>();
  for (int64_t i : {0, 17, 53}) {
    double saved = p[i], h = 1e-5;
    auto at = [&](double v) {
      p[i] = v;
      return slope(moved.clone().set_requires_grad()).item();
    };
    double numeric = (at(saved + h) - at(saved - h)) / (2 * h);
    p[i] = saved;
    EXPECT_NEAR(second.to_vector<double>()[i], numeric, 1e-4 * std::abs(numeric) + 1e-6);
  }
}

TEST(Pool2d, MaximumKeepsNaN) {
  Tensor x = tensor<float>({1, NAN, 3, 2}, {1, 1, 2, 2});
  EXPECT_TRUE(std::isnan(max_pool2d(x).item()));
}

TEST(Conv2d, IsCloseInHalfPrecision) {
  Generator g(2);
  expect_half_precision_close(
      [](const Tensors& in) {
        return conv2d(in[0], in[1], in[2], {.padding = {1, 1}});
      },
      {normal64({2, 5, 7, 6}, g), normal64({4, 5, 3, 3}, g), normal64({4}, g)}, 1e-3);
}

}  // namespace
}  // namespace tessera
