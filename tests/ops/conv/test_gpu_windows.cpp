// Convolutions by Hopper's own instructions, on a card that has them, against float64.
#include <fmt/format.h>

#include "core/op.h"
#include "ops/call_plan.h"
#include "ops/conv.h"
#include "ops/gpu_against_float64.h"
#include "ops/norm_conv.h"
#include "ops/op_table.h"
#include "tessera/autocast.h"
#include "tessera/nn.h"

namespace tessera {
namespace {

struct PoolWindows {
  int64_t images, channels, filters, height, width, rows, columns;
  Conv2dOptions options;
};
std::string name_of_windows(const testing::TestParamInfo<PoolWindows>& info) {
  const PoolWindows& s = info.param;
  const Conv2dOptions& o = s.options;
  return fmt::format("{}x{}x{}x{}_{}x{}x{}_stride{}x{}_padding{}x{}_dilation{}x{}", s.images, s.channels, s.height,
                     s.width, s.filters, s.rows, s.columns, o.stride[0], o.stride[1], o.padding[0], o.padding[1],
                     o.dilation[0], o.dilation[1]);
}

class Sm90Windows : public GpuAgainstFloat64 {
 protected:
  void SetUp() override {
    GpuAgainstFloat64::SetUp();
    if (IsSkipped()) return;
    const std::string why = refusal({1, 8, 8, 3, 3, 1, 1, {{1, 1}, {0, 0}, {1, 1}}});
    if (why.find("instructions that this device lacks") != std::string::npos) GTEST_SKIP() << why;
    ASSERT_EQ(why, "no error");
  }

  /// Channels last in memory or, as they come, first.
  static Tensor there(const Tensor& t, DType dtype, bool channels_last) {
    const Tensor moved = t.to(dtype).to(card());
    return channels_last ? moved.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}) : moved;
  }
  static std::string refusal(const PoolWindows& s, DType dtype = Float16) {
    const ForceKernel forced("conv2d", "sm90.windows");
    return error_of([&] {
      conv2d(zeros({s.images, s.channels, s.height, s.width}, dtype, card()),
             zeros({s.filters, s.channels / s.options.groups, s.rows, s.columns}, dtype, card()), {}, s.options);
    });
  }
};

class Sm90WindowsOfSize : public Sm90Windows, public testing::WithParamInterface<PoolWindows> {
 protected:
  /// Images, filters and, if asked for, a bias, of numbers that `dtype` has.
  Tensors inputs(DType dtype, bool biased) {
    return {values({s.images, s.channels, s.height, s.width}, dtype),
            values({s.filters, s.channels, s.rows, s.columns}, dtype), biased ? values({s.filters}, dtype) : Tensor()};
  }
  /// Images of one pixel are dense with their channels first and last.
  bool lies_last() const { return s.height * s.width > 1; }

  const PoolWindows s = GetParam();
};

TEST_P(Sm90WindowsOfSize, AgainstFloat64) {
  for (DType dtype : {Float16, BFloat16}) {
    Tensors in = inputs(dtype, true);
    const Tensors exact{in[0].set_requires_grad(), in[1].set_requires_grad()};
    const Tensor want = conv2d(exact[0], exact[1], in[2], s.options), g = values(want.shape(), dtype);
    const Tensors wanted = grad({want}, exact, {g});
    const double limit = dtype == Float16 ? 6e-4 : 5e-3;
    for (bool channels_last : {true, false}) {
      const std::string label = fmt::format("{} {}", name(dtype), channels_last ? "channels last" : "channels first");
      const Tensors near{there(in[0].detach(), dtype, channels_last).set_requires_grad(),
                         there(in[1].detach(), dtype, channels_last).set_requires_grad()};
      const ForceKernel forward("conv2d", "sm90.windows"), weights("conv2d_weight_grad", "sm90.windows"),
          images("conv2d_input_grad", "sm90.windows");
      const Tensor got = conv2d(near[0], near[1], in[2].to(dtype).to(card()), s.options);
      EXPECT_LE(error(got.detach(), want.detach()), limit) << label;
      const auto gradients = [&](bool of_images) {
        return grad({got}, of_images ? near : Tensors{near[1]}, {there(g, dtype, channels_last)}, true);
      };
      const Tensor first = gradients(false)[0];
      EXPECT_LE(error(first, wanted[1]), limit) << label;
      EXPECT_EQ(error(gradients(false)[0], first.to(cpu()).to(Float64)), 0) << label;
      EXPECT_LE(error(gradients(true)[0], wanted[0]), limit) << label;
    }
  }
}

/// Mean and variance as they are found on the way are those of what is stored.
TEST_P(Sm90WindowsOfSize, FindsMoments) {
  if (!lies_last()) return;
  for (DType dtype : {Float16, BFloat16})
    for (bool biased : {false, true}) {
      const std::string label = fmt::format("{}{}", name(dtype), biased ? " biased" : "");
      const Tensors exact = inputs(dtype, biased);
      const Tensor x = there(exact[0], dtype, true), w = there(exact[1] * 0.1, dtype, true),
                   bias = biased ? there(exact[2] + 50.0, dtype, false) : Tensor();
      const ForceKernel forced("conv2d_moments", "sm90.windows"), plain("conv2d", "sm90.windows");
      EXPECT_TRUE(fuses_norm(conv2d_moments_op, std::array{x, w, bias}, conv_attrs(s.options))) << label;
      const auto run = [&] { return dispatch(conv2d_moments_op, {x, w, bias}, conv_attrs(s.options)); };
      const Tensors got = run(), again = run();
      EXPECT_EQ(error(got[0], conv2d(x, w, bias, s.options).to(cpu()).to(Float64)), 0) << label;
      const Tensor y = got[0].to(cpu()).to(Float64);
      EXPECT_LE(error(got[1], mean(y, {0, 2, 3})), 1e-6) << label;
      EXPECT_LE(error(got[2], var(y, {0, 2, 3})), 3e-6) << label;
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(error(again[i], got[i].to(cpu()).to(Float64)), 0) << label << i;
    }
}

/// Batch norm and ReLU on the way from shared memory: zeros beyond the edges are not normalised.
TEST_P(Sm90WindowsOfSize, NormalisesWindows) {
  if (!lies_last() || s.rows * s.columns > 32) return;
  for (DType dtype : {Float16, BFloat16})
    for (bool bare : {false, true}) {
      const Shape channel{s.channels};
      Tensors exact = inputs(dtype, !bare);
      exact.push_back(values(channel, Float32));
      exact.push_back(uniform64(channel, generator, 0.5, 2).to(Float32).to(Float64));
      for (int i = 0; i < 2; ++i) exact.push_back(bare ? Tensor() : values(channel, Float32));
      Tensors near(7);
      for (size_t i = 0; i < 7; ++i)
        if (exact[i].defined()) near[i] = there(exact[i], i < 3 ? dtype : Float32, i == 0);
      const NormConvAttrs attrs{conv_attrs(s.options), {.relu = true}};
      Tensor g;
      const auto run = [&](Tensors& in) {
        Tensors leaves;
        for (size_t i : {0, 1, 2, 5, 6})
          if (in[i].defined()) leaves.push_back(in[i].set_requires_grad());
        Tensors out = dispatch(norm_conv2d_op, Tensors(in), attrs);
        g = g.defined() ? there(g, dtype, true) : values(out[0].shape(), dtype);
        for (const Tensor& t : grad({out[0]}, leaves, {g})) out.push_back(t);
        return out;
      };
      const Tensors want = run(exact);
      const ForceKernel forced("norm_conv2d", "sm90.windows");
      EXPECT_TRUE(fuses_norm(norm_conv2d_op, {near.data(), near.size()}, attrs)) << name(dtype);
      const Tensors got = run(near);
      const double limit = dtype == Float16 ? 6e-4 : 5e-3;
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_LE(error(got[i].detach(), want[i].detach()), i == 0 ? limit : 4 * limit)
            << name(dtype) << " " << bare << " " << i;
    }
}

// The small ones are what racecheck takes.
const PoolWindows small_windows[] = {
    {1, 8, 8, 1, 1, 1, 1, {{1, 1}, {0, 0}, {1, 1}}},     {1, 8, 8, 1, 2, 1, 1, {{1, 1}, {0, 0}, {1, 1}}},
    {3, 24, 40, 7, 5, 1, 1, {{1, 1}, {0, 0}, {1, 1}}},   {3, 24, 40, 7, 5, 3, 3, {{1, 1}, {1, 1}, {1, 1}}},
    {1, 64, 64, 7, 5, 3, 3, {{1, 1}, {0, 1}, {1, 1}}},   {2, 64, 24, 9, 14, 1, 5, {{1, 1}, {0, 2}, {1, 1}}},
    {2, 64, 24, 9, 14, 5, 1, {{1, 1}, {3, 0}, {1, 1}}},  {3, 256, 72, 7, 5, 5, 5, {{1, 1}, {2, 3}, {1, 1}}},
    {2, 8, 16, 30, 29, 7, 7, {{2, 2}, {3, 3}, {1, 1}}},  {32, 64, 64, 1, 1, 3, 3, {{1, 1}, {1, 1}, {1, 1}}},
    {32, 64, 64, 2, 1, 3, 3, {{1, 1}, {1, 1}, {1, 1}}},  {3, 72, 24, 11, 17, 3, 3, {{3, 2}, {2, 3}, {2, 1}}},
    {2, 40, 72, 14, 14, 3, 3, {{1, 1}, {2, 3}, {2, 3}}}, {3, 24, 40, 13, 9, 1, 1, {{3, 2}, {0, 1}, {1, 1}}},
    {2, 16, 72, 12, 19, 4, 3, {{2, 3}, {1, 2}, {2, 3}}}, {5, 40, 64, 33, 3, 2, 5, {{8, 1}, {0, 4}, {1, 2}}},
    {1, 16, 40, 100, 3, 3, 2, {{1, 1}, {1, 1}, {1, 1}}}};
const PoolWindows large_windows[] = {
    {3, 72, 264, 14, 14, 3, 3, {{1, 1}, {1, 1}, {1, 1}}},  {1, 1000, 40, 13, 9, 3, 3, {{1, 1}, {1, 1}, {1, 1}}},
    {32, 64, 128, 14, 14, 3, 3, {{2, 2}, {1, 1}, {1, 1}}}, {32, 24, 16, 28, 28, 3, 3, {{1, 1}, {1, 1}, {1, 1}}},
    {32, 64, 64, 28, 28, 3, 3, {{1, 1}, {1, 1}, {1, 1}}},  {32, 64, 64, 56, 56, 3, 3, {{1, 1}, {1, 1}, {1, 1}}},
    {40, 128, 520, 14, 14, 3, 3, {{1, 1}, {1, 1}, {1, 1}}}};
INSTANTIATE_TEST_SUITE_P(Small, Sm90WindowsOfSize, testing::ValuesIn(small_windows), name_of_windows);
INSTANTIATE_TEST_SUITE_P(Large, Sm90WindowsOfSize, testing::ValuesIn(large_windows), name_of_windows);

// What is made of images with their channels last lies so, too, so that nothing is copied from one to the next.
TEST_F(Sm90Windows, KeepsChannelsLast) {
  const auto lies_last = [](const Tensor& t) { return t.strides()[1] == 1 && t.strides()[3] == t.size(1); };
  const Conv2dOptions options{{1, 1}, {0, 1}, {1, 1}};
  const Tensor exact = values({2, 16, 9, 7}, Float16), filters = values({72, 16, 3, 3}, Float16);
  const Tensor want = conv2d(exact, filters, {}, options);
  const ForceKernel forward("conv2d", "sm90.windows"), weights("conv2d_weight_grad", "sm90.windows"),
      images("conv2d_input_grad", "sm90.windows");
  const Tensor x = there(exact, Float16, true).set_requires_grad(),
               w = there(filters, Float16, false).set_requires_grad();
  const Tensor y = conv2d(x, w, {}, options);
  EXPECT_LE(error(y.detach(), want), 6e-4);
  const Tensors gradients = grad({y}, {x, w}, {y.detach()}, true);
  for (const Tensor& t : {y, relu(y), y + relu(y), cast(y, Float32), y * 2.0, gradients[0]})
    EXPECT_TRUE(lies_last(t)) << describe(t);
  EXPECT_TRUE(contiguous(y).is_contiguous());
  EXPECT_TRUE(gradients[1].is_contiguous());
  const Tensor w_last = there(filters, Float16, true).set_requires_grad();
  const Tensor of_last = grad({conv2d(x, w_last, {}, options)}, {w_last}, {y.detach()})[0];
  EXPECT_TRUE(lies_last(of_last));
  EXPECT_EQ(error(of_last, gradients[1].to(cpu()).to(Float64)), 0);
  EXPECT_EQ(error(contiguous(y).detach(), y.detach().to(cpu()).to(Float64)), 0);
}

/// Convolution, batch norm, convolution, of modules: in training statistics are found once, and what follows is what
/// float64 has.
TEST_F(Sm90Windows, GivesMomentsToBatchNorm) {
  Generator random(5);
  for (const auto& [stride, activation] :
       {std::pair{1, Activation::None}, {2, Activation::None}, {1, Activation::Relu}}) {
    nn::Conv2d first(16, 40, 3, {{stride, stride}, {1, 1}}, true, random),
        second(40, 24, 3, {{1, 1}, {1, 0}}, true, random);
    nn::BatchNorm2d norm(40);
    const Tensor x = values({3, 16, 13, 9}, Float16);
    const auto run = [&](Tensor in) {
      in.set_requires_grad();
      nn::Images h = nn::convolve(first, in, true);
      EXPECT_EQ(h.mean.defined(), in.device().is_gpu());
      const Tensor y = nn::norm_convolve(norm, activation, second, std::move(h)).values;
      Tensors out = grad({y}, {in, first.weight, norm.weight, norm.bias, second.weight}, {cast(y.detach(), y.dtype())});
      for (const Tensor& t : {y.detach(), norm.running_mean, norm.running_var}) out.push_back(t.clone());
      return out;
    };
    const auto reset = [&](Device device, DType dtype) {
      for (nn::Module* m : std::initializer_list<nn::Module*>{&first, &second, &norm}) m->to(device), m->to(dtype);
      norm.running_mean.fill_(0);
      norm.running_var.fill_(1);
    };
    reset(cpu(), Float64);
    const Tensors want = run(x.detach());
    reset(card(), Float32);
    const amp::Autocast half(Float16);
    const Tensors got = run(there(x, Float16, true));
    // Of values next to 0, ReLU keeps others than in float64, which their gradients show.
    for (size_t i = activation == Activation::None ? 0 : 5; i < want.size(); ++i)
      EXPECT_LE(error(got[i], want[i]), 5e-3) << stride << " " << i;
  }
}

TEST_F(Sm90Windows, NormalisesForModules) {
  Generator random(5);
  nn::Conv2d conv(24, 40, 3, {{1, 1}, {1, 1}, {1, 1}}, true, random);
  nn::BatchNorm2d norm(24);
  norm.running_mean.copy_(values({24}, Float32).to(Float32));
  const nn::EvalMode eval(norm);
  const Tensor x = values({3, 24, 9, 7}, Float16);
  conv.to(Float16);
  conv.to(Float64);
  norm.to(Float64);
  const Tensor want = nn::norm_convolve(norm, Activation::Relu, conv, {x}).values.detach();
  conv.to(Float16);
  norm.to(Float32);
  conv.to(card());
  norm.to(card());
  const ForceKernel forced("norm_conv2d", "sm90.windows");
  Tensor near = there(x, Float16, true);
  EXPECT_LE(error(nn::norm_convolve(norm, Activation::Relu, conv, {near}).values.detach(), want), 6e-4);
  near.select(0, 1).select(0, 5).select(0, 4).select(0, 3).fill_(std::nan(""));
  const Tensor y = nn::norm_convolve(norm, Activation::Relu, conv, {near}).values.detach();
  EXPECT_EQ(sum(cast(isnan(y), Float64)).to(cpu()).item<double>(), 9 * 40) << "an input that is not a number";
}

TEST_F(Sm90Windows, RefusesToNormalise) {
  const auto refused = [&](const Shape& x, const Shape& w, DType dtype, const NormAttrs& norm, bool channels_last) {
    const ForceKernel forced("norm_conv2d", "sm90.windows");
    const Tensor channel = full({x[1]}, 1, Float32, card());
    return error_of([&] {
      dispatch(norm_conv2d_op,
               {there(zeros(x), dtype, channels_last), zeros(w, dtype, card()), {}, channel, channel, {}, {}},
               NormConvAttrs{{.padding = {1, 1}}, norm});
    });
  };
  const Shape x{2, 16, 9, 9}, w{24, 16, 3, 3};
  const NormAttrs good{.relu = true};
  EXPECT_EQ(refused(x, w, Float16, good, true), "no error");
  EXPECT_NE(refused(x, w, Float16, good, false).find("layout"), std::string::npos);
  EXPECT_NE(refused(x, w, Float32, good, true).find("dtype"), std::string::npos);
  EXPECT_NE(refused(x, w, Float16, {.relu = false}, true).find("shapes"), std::string::npos);
  EXPECT_NE(refused({2, 16, 9, 9}, {24, 16, 7, 5}, Float16, good, true).find("shapes"), std::string::npos);
  EXPECT_NE(refused({1, 1032, 9, 9}, {24, 1032, 3, 3}, Float16, good, true).find("shapes"), std::string::npos);
}

TEST_F(Sm90Windows, RefusesWhatItDoesNotTake) {
  const PoolWindows good{2, 16, 24, 9, 9, 3, 3, {{1, 1}, {1, 1}, {1, 1}}};
  EXPECT_EQ(refusal(good), "no error");
  const auto changed = [&](auto change) {
    PoolWindows s = good;
    change(s);
    return refusal(s);
  };
  const auto is_refused = [](const std::string& why) { return why.find("shapes") != std::string::npos; };
  EXPECT_TRUE(is_refused(changed([](PoolWindows& s) { s.channels = 12; })));
  EXPECT_TRUE(is_refused(changed([](PoolWindows& s) { s.filters = 12; })));
  EXPECT_TRUE(is_refused(changed([](PoolWindows& s) { s.options.padding[0] = 129; })));
  EXPECT_TRUE(is_refused(changed([](PoolWindows& s) { s.height = 99, s.options.stride[0] = 9; })));
  EXPECT_TRUE(is_refused(changed([](PoolWindows& s) { s.options.groups = 2; })));
  EXPECT_NE(refusal(good, Float32).find("dtype"), std::string::npos);
}

}  // namespace
}  // namespace tessera
