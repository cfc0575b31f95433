#include <cmath>

#include "ops/call_plan.h"
#include "ops/conv_act.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"
#include "tessera/autograd.h"

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

std::string explained(const char* name, const Tensors& in, const ConvAttrs& a) {
  const Op& op = find_op(name);
  SmallVector<TensorMeta, 4> metas;
  for (const Tensor& t : in) metas.push_back(t.defined() ? t.meta() : TensorMeta{{Dim(-1)}, Float32, {}});
  const Attrs attrs(a);
  Tensor out = empty(op.infer({metas.data(), metas.size()}, attrs)[0].shape, in[0].dtype());
  const auto ins = operands_of({in.data(), in.size()}), outs = operands_of({&out, 1});
  return explain(Call{op, {ins.data(), ins.size()}, attrs, {outs.data(), outs.size()}});
}

TEST(Conv2d, NamesWhyWinogradIsPassedOver) {
  auto conv = [](const Shape& x, const Shape& w, const ConvAttrs& a = {}, DType dtype = Float32) {
    return explained("conv2d", {empty(x, dtype), empty(w, dtype), {}}, a);
  };
  const std::string window = "needs 3x3 windows of stride 1 and dilation 1, in one group",
                    small = "is slower on something this small";
  auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const Shape x{2, 64, 64, 64}, w{64, 64, 3, 3};
  expect(conv(x, w, {.padding = {1, 1}}), "-> winograd         chosen");
  expect(conv(x, w, {.padding = {1, 1}}, BFloat16), "-> winograd         chosen");
  expect(conv(x, w, {}, Float64), "does not compute in this dtype");
  expect(conv(x, {64, 64, 3, 5}), window);
  expect(conv(x, w, {.stride = {1, 2}}), window);
  expect(conv(x, w, {.dilation = {2, 1}}), window);
  expect(conv(x, {64, 32, 3, 3}, {.groups = 2}), window);
  expect(conv({2, 15, 64, 64}, {64, 15, 3, 3}), small);
  expect(conv(x, {15, 64, 3, 3}), small);
  expect(conv({1, 64, 16, 16}, w), small);
  expect(conv({64, 64, 3, 3}, w), "   winograd         takes longer than another one");
  auto gradient = [&](int64_t padding) {
    return explained("conv2d_input_grad", {empty({2, 64, 62 + 2 * padding, 64}), empty(w)},
                     {.padding = {padding, 1}, .size = {64, 64}});
  };
  expect(gradient(2), "-> winograd         chosen");
  expect(gradient(3), "does not take these shapes");
}

TEST(Conv2d, RefusesResidualsAndBoundsThatDoNotFit) {
  const Tensor x = zeros({2, 3, 5, 5}), w = zeros({6, 3, 3, 3});
  const auto error = [&](const Tensor& residual, Activation activation, double high) {
    return error_of([&] { conv2d_act(x, w, {}, {}, activation, high, residual); });
  };
  EXPECT_EQ(error(zeros({2, 6, 3, 1}), Activation::Relu, INFINITY),
            "conv2d_act: residual has shape [2, 6, 3, 1], not [2, 6, 3, 3]");
  const std::string bound = "conv2d_act: a highest value of ";
  EXPECT_TRUE(error({}, Activation::Silu, 6).starts_with(bound));
  EXPECT_TRUE(error({}, Activation::Relu, -1).starts_with(bound));
  EXPECT_TRUE(error({}, Activation::Relu, NAN).starts_with(bound));
}

// Channels last, by the kernels that read images in place: with activation and residual, and on packed filters.
TEST(Conv2d, TakesWhatIsBehindItAndPackedFilters) {
  struct Case {
    Shape x, weight;
    Conv2dOptions options;
  };
  for (const Case& c : {Case{{2, 9, 7, 5}, {70, 9, 1, 1}, {}}, Case{{2, 9, 7, 5}, {70, 9, 1, 1}, {.stride = {2, 3}}},
                        Case{{1, 33, 6, 9}, {33, 33, 1, 1}, {.padding = {1, 2}}},
                        Case{{2, 16, 12, 13}, {17, 16, 3, 3}, {.padding = {1, 1}}},
                        Case{{2, 12, 9, 9}, {8, 6, 3, 3}, {.stride = {2, 2}, .groups = 2}}}) {
    Generator g(11);
    const Tensor x = randn(c.x, g).to(ChannelsLast), weight = randn(c.weight, g).to(ChannelsLast),
                 bias = randn({c.weight[0]}, g);
    const Tensor h = conv2d(x, weight, bias, c.options), residual = randn(h.shape(), g).to(ChannelsLast);
    const NoGrad plain;
    const Tensor packed = pack_filters(weight);
    for (const Tensor& filters : {weight, packed}) {
      const auto near = [&](const Tensor& got, const Tensor& want) {
        EXPECT_LE(norm(sub(got, want)).item(), 1e-6 * norm(want).item());
      };
      near(conv2d(x, filters, bias, c.options), h);
      near(conv2d_act(x, filters, bias, c.options, Activation::Silu), silu(h));
      near(conv2d_act(x, filters, bias, c.options, Activation::Relu, 1, residual), clamp(add(h, residual), 0, 1));
    }
    EXPECT_EQ(contiguous(packed).to_vector<float>(), weight.to_vector<float>());
  }
  const Tensor packed = pack_filters(randn({64, 8, 1, 1}));
  if (packed.is_packed()) {
    EXPECT_NE(error_of([&] { relu(packed); }).find("which it does not read"), std::string::npos);
  }
}

TEST(Conv2d, KernelsAgree) {
  Generator g(3);
  for (int64_t padding : {0, 1, 2}) {
    Tensors in = {normal64({2, 49, 37, 38}, g).to(Float32), normal64({51, 49, 3, 3}, g).to(Float32),
                  normal64({51}, g).to(Float32)};
    auto convolve = [&](const Tensors& t) { return conv2d(t[0], t[1], t[2], {.padding = {padding, padding}}); };
    auto with = [&](const char* kernel) {
      ForceKernel forward("conv2d", kernel), backward("conv2d_input_grad", kernel);
      Tensors out = gradients_of(convolve, in, false);
      out.push_back(convolve(in));
      return out;
    };
    Tensors winograd = with("winograd"), direct = with("implicit_gemm");
    for (size_t i = 0; i < direct.size(); ++i) EXPECT_LE(relative_error(winograd[i], direct[i]), 1e-6) << i;
  }
}

TEST(Pool2d, ATapIsAByteInWindowsOfUpTo255) {
  const TensorMeta x = zeros({1, 1, 17, 16}).meta();
  const auto taps = [&](int64_t rows, int64_t columns) {
    return find_op("max_pool2d").infer({&x, 1}, PoolAttrs{.window = {rows, columns}})[1].dtype;
  };
  EXPECT_EQ(taps(3, 3), UInt8);
  EXPECT_EQ(taps(17, 15), UInt8);
  EXPECT_EQ(taps(16, 16), Int64);
  const PoolAttrs a{.window = {2, 2}, .size = {2, 2}};
  EXPECT_EQ(error_of([&] {
              dispatch(find_op("max_pool2d_backward"), {zeros({1, 1, 1, 1}), zeros({1, 1, 1, 1}, Int64)}, a);
            }),
            "max_pool2d_backward: taps of a window 2x2 must be u8, not i64[1, 1, 1, 1] on cpu");
}

TEST(Pool2d, WindowsOnPaddingOnlyHaveNoMaximumAndNoGradient) {
  const Tensor x = ones({1, 1, 4, 4}).set_requires_grad();
  const Tensor y = max_pool2d(x, {.window = {2, 2}, .stride = {1, 1}, .padding = {1, 1}, .dilation = {5, 5}});
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>{-INFINITY});
  const Tensor dy = ones({1, 1, 1, 1}).set_requires_grad(), dx = grad({y}, {x}, {dy}, false, true)[0];
  EXPECT_EQ(dx.to_vector<float>(), std::vector<float>(16));
  EXPECT_EQ(grad({dx}, {dy}, {ones({1, 1, 4, 4})})[0].item(), 0);
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

TEST(Conv2d, StridesPastTheImageCostNothing) {
  Generator generator(5);
  Tensor x = uniform64({1, 2, 5, 4}, generator), w = uniform64({3, 2, 3, 3}, generator);
  auto gradients = [&](int64_t stride) {
    Tensor a = x.detach().set_requires_grad(), b = w.detach().set_requires_grad();
    Tensor y = conv2d(a, b, {}, {.stride = {stride, stride}});
    EXPECT_EQ(to_string(y.shape()), "[1, 3, 1, 1]");
    return grad({y.sum()}, {a, b});
  };
  const Tensors want = gradients(5), got = gradients(int64_t(1) << 31);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(got[i].to_vector<double>(), want[i].to_vector<double>());
}

}  // namespace
}  // namespace tessera
