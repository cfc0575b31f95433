// 1x1 convolutions and batch norm on a GPU, if there is one, against float64: sizes that are cut into parts, layouts,
// halves beside f32 weights.
#include <fmt/format.h>

#include "ops/batch_norm.h"
#include "ops/call_plan.h"
#include "ops/check.h"
#include "ops/gpu_against_float64.h"
#include "ops/norm_conv.h"
#include "ops/op_table.h"
#include "tessera/autocast.h"
#include "tessera/nn.h"

namespace tessera {
namespace {

class GpuImages : public GpuAgainstFloat64 {
 protected:
  static double limit(DType dtype) {
    return dtype == Float64 ? 1e-12 : dtype == Float32 ? 3e-6 : dtype == Float16 ? 1e-3 : 8e-3;
  }
  static Tensor there(const Tensor& t, DType dtype, bool channels_last = false) {
    Tensor moved = t.to(dtype).to(card());
    if (channels_last) moved = moved.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
    return moved;
  }
};

struct Images {
  int64_t images, channels, filters, height, width;
};
std::string name_of(const testing::TestParamInfo<Images>& info) {
  const Images& s = info.param;
  return fmt::format("{}x{}x{}x{}_{}", s.images, s.channels, s.height, s.width, s.filters);
}

class GpuImagesPointwise : public GpuImages, public testing::WithParamInterface<Images> {};
using GpuImagesNormed = GpuImagesPointwise;
class GpuImagesOfShape : public GpuImages, public testing::WithParamInterface<Shape> {};

TEST_P(GpuImagesPointwise, Convolution) {
  const Images s = GetParam();
  for (DType dtype : {Float64, Float32, Float16, BFloat16})
    for (bool channels_last : {false, true}) {
      const auto convolve = [](const Tensors& in) { return conv2d(in[0], in[1], in[2]); };
      const Tensors in{values({s.images, s.channels, s.height, s.width}, dtype),
                       values({s.filters, s.channels, 1, 1}, dtype), values({s.filters}, dtype)};
      const Tensors on{there(in[0], dtype, channels_last), there(in[1], dtype), there(in[2], dtype)};
      const std::string label = fmt::format("{} {}", name(dtype), channels_last);
      const Tensor want = convolve(in), g = values(want.shape(), dtype);
      // A vendor's kernel rounds sums before it adds the bias, which may leave little of a single one.
      const double left = amax(abs(want)).item<double>() / amax(abs(conv2d(in[0], in[1]))).item<double>();
      EXPECT_LE(error(convolve(on), want) * std::min(left, 1.0), limit(dtype)) << label;
      const Tensors wanted = gradients(convolve, in, g), got = gradients(convolve, on, there(g, dtype));
      for (size_t i = 0; i < 3; ++i) EXPECT_LE(error(got[i], wanted[i]), limit(dtype)) << label << " input " << i;
    }
}

// The small ones are what racecheck takes, here and below.
const Images small[] = {{2, 7, 5, 3, 7}, {17, 5, 8, 16, 8}, {1, 1, 1, 1, 1}, {1, 3, 9, 1, 31}};
const Images large[] = {{1, 2, 64, 64, 64}, {1, 64, 1, 32, 48}, {3, 16, 24, 40, 32}, {1, 129, 130, 16, 64}};
INSTANTIATE_TEST_SUITE_P(Small, GpuImagesPointwise, testing::ValuesIn(small), name_of);
INSTANTIATE_TEST_SUITE_P(Large, GpuImagesPointwise, testing::ValuesIn(large), name_of);

/// Whether Hopper's kernel takes convolutions of that type here.
bool has_sm90(DType dtype) {
  if (dtype != Float16 && dtype != BFloat16) return false;
  try {
    const ForceKernel force("conv2d", "sm90");
    conv2d(zeros({1, 8, 8, 8}, dtype, card()), zeros({8, 8, 1, 1}, dtype, card()));
    return true;
  } catch (const Error& e) {
    return std::string_view(e.what()).find("instructions") == std::string_view::npos;
  }
}

TEST_F(GpuImages, PointwiseKernelsAgree) {
  for (DType dtype : {Float32, Float16, BFloat16}) {
    const Tensor x = values({1, 24, 64, 32}, dtype), w = values({40, 24, 1, 1}, dtype), b = values({40}, dtype);
    const Tensor want = conv2d(x, w, b);
    for (const char* kernel : {"sm90", "pointwise", "implicit_gemm"}) {
      if (kernel == std::string_view("sm90") && !has_sm90(dtype)) continue;
      ForceKernel force("conv2d", kernel);
      EXPECT_LE(error(conv2d(there(x, dtype), there(w, dtype), there(b, dtype)), want), limit(dtype)) << kernel;
    }
    const auto convolve = [](const Tensors& in) { return conv2d(in[0], in[1]); };
    const Tensor g = values(want.shape(), dtype);
    const Tensors wanted = gradients(convolve, {x, w}, g);
    for (const char* kernel : {"sm90", "pointwise", "implicit_gemm"}) {
      const bool sm90 = kernel == std::string_view("sm90");
      if (sm90 && !has_sm90(dtype)) continue;
      ForceKernel images("conv2d_input_grad", kernel), weights("conv2d_weight_grad", sm90 ? "pointwise" : kernel);
      const Tensors got = gradients(convolve, {there(x, dtype), there(w, dtype)}, there(g, dtype));
      for (size_t i = 0; i < 2; ++i) EXPECT_LE(error(got[i], wanted[i]), limit(dtype)) << kernel << " input " << i;
    }
  }
}

TEST_P(GpuImagesOfShape, BatchNormTakesHalvesBesideF32Weights) {
  const Shape shape = GetParam();
  for (const auto& [dtype, channels_last] : {std::pair{Float32, false},
                                             {Float32, true},
                                             {Float16, false},
                                             {Float16, true},
                                             {BFloat16, false},
                                             {BFloat16, true}})
    for (Activation activation : {Activation::None, Activation::Relu}) {
      const auto norm = [&](const Tensors& in) {
        return batch_norm(in[0], in[1], in[2], {}, {}, true, 0.1, 1e-5, activation);
      };
      const std::string label = fmt::format("{} {} {} {}", to_string(shape), name(dtype),
                                            activation != Activation::None, channels_last ? "last" : "first");
      const Shape channel{shape[1]};
      const Tensors in{
          (normal64(shape, generator) * 3.0 + (activation == Activation::None ? 50.0 : 1.0)).to(dtype).to(Float64),
          values(channel, Float32), values(channel, Float32)};
      const Tensors on{there(in[0], dtype, channels_last), there(in[1], Float32), there(in[2], Float32)};
      const Tensor want = norm(in), got = norm(on), g = values(shape, dtype);
      EXPECT_TRUE(on[0].is_contiguous() || got.strides() == on[0].strides()) << label;
      EXPECT_EQ(got.dtype(), dtype);
      EXPECT_LE(error(got, want), 10 * limit(dtype)) << label;
      const Tensors wanted = gradients(norm, in, g);
      const auto check_gradients = [&](const auto& of) {
        const Tensors found = gradients(of, on, there(g, dtype, channels_last));
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_EQ(found[i].dtype(), i ? Float32 : dtype);
          EXPECT_LE(error(found[i], wanted[i]), 10 * limit(dtype)) << label << " input " << i;
        }
      };
      check_gradients(norm);
      const Tensor mean = tessera::mean(in[0], {0, 2, 3}).to(Float32).to(card()),
                   variance = var(in[0], {0, 2, 3}).to(Float32).to(card());
      const auto known = [&](const Tensors& of) {
        const NormAttrs attrs{.eps = 1e-5, .training = true, .relu = activation == Activation::Relu};
        return dispatch_one(batch_norm_known_op, {of[0], mean, variance, of[1], of[2]}, attrs);
      };
      EXPECT_LE(error(known(on), want), 10 * limit(dtype)) << label;
      check_gradients(known);
    }
}

TEST_P(GpuImagesOfShape, BatchNormCutsReluOff) {
  const Shape shape = GetParam(), channel{shape[1]};
  for (const auto& [dtype, channels_last] : {std::pair{Float32, true}, {Float16, false}, {BFloat16, true}}) {
    const std::string label = fmt::format("{} {} {}", to_string(shape), name(dtype), channels_last ? "last" : "first");
    const auto norm = [](const Tensors& of) {
      return batch_norm_add(of[0], {}, of[1], of[2], {}, {}, true, 0.1, 1e-5, Activation::Relu, 0.75);
    };
    const Tensors in{values(shape, dtype), values(channel, Float32), values(channel, Float32)};
    const Tensors on{there(in[0], dtype, channels_last), there(in[1], Float32), there(in[2], Float32)};
    const Tensor want = norm(in), g = values(shape, dtype);
    EXPECT_LE(error(norm(on), want), 10 * limit(dtype)) << label;
    const Tensors wanted = gradients(norm, in, g), found = gradients(norm, on, there(g, dtype, channels_last));
    for (size_t i = 0; i < 3; ++i) EXPECT_LE(error(found[i], wanted[i]), 10 * limit(dtype)) << label << " input " << i;
  }
}

TEST_P(GpuImagesOfShape, BatchNormAddsAResidual) {
  const Shape shape = GetParam(), channel{shape[1]};
  for (const auto& [dtype, channels_last] :
       {std::pair{Float32, true}, {Float16, false}, {BFloat16, true}, {BFloat16, false}})
    for (const bool training : {true, false}) {
      const std::string label =
          fmt::format("{} {} {} {}", to_string(shape), name(dtype), training, channels_last ? "last" : "first");
      const Tensors in{values(shape, dtype) + 1.0, values(shape, dtype), values(channel, Float32),
                       values(channel, Float32)};
      const Tensors on{there(in[0], dtype, channels_last), there(in[1], dtype, channels_last), there(in[2], Float32),
                       there(in[3], Float32)};
      const Tensor exact_x = on[0].to(cpu()).to(Float64), g = values(shape, dtype);
      const auto norm = [&](const Tensors& of) {
        const Tensor mean = zeros(channel, statistics_dtype(of[0].dtype()), of[0].device()),
                     variance = ones(channel, statistics_dtype(of[0].dtype()), of[0].device());
        return batch_norm_add(of[0], of[1], of[2], of[3], mean, variance, training, 0.1, 1e-5, Activation::Relu);
      };
      const Tensors exact{exact_x, in[1], in[2], in[3]};
      const Tensor want = norm(exact), got = norm(on);
      EXPECT_TRUE(on[0].is_contiguous() || got.strides() == on[0].strides()) << label;
      EXPECT_LE(error(got, want), 10 * limit(dtype)) << label;
      const Tensors wanted = gradients(norm, exact, g), found = gradients(norm, on, there(g, dtype, channels_last));
      for (size_t i = 0; i < 4; ++i)
        EXPECT_LE(error(found[i], wanted[i]), 10 * limit(dtype)) << label << " input " << i;
    }
}

const Shape small_shapes[] = {{6, 3, 1, 1}, {3, 8, 11, 13}, {7, 300, 3, 5}, {9, 24, 7, 7}, {5, 72, 4, 8}};
const Shape large_shapes[] = {{1, 3, 160, 512},  {2, 5, 83, 309},  {64, 2, 40, 32},  {2, 200, 37, 29},
                              {64, 136, 14, 14}, {32, 16, 56, 56}, {64, 24, 28, 28}, {16, 2048, 7, 7}};
INSTANTIATE_TEST_SUITE_P(Small, GpuImagesOfShape, testing::ValuesIn(small_shapes));
INSTANTIATE_TEST_SUITE_P(Large, GpuImagesOfShape, testing::ValuesIn(large_shapes));

/// Hopper's kernel where the card has it, and one operator after the other.
TEST_P(GpuImagesNormed, PointwiseConvolution) {
  const Images s = GetParam();
  for (DType dtype : {Float32, Float16, BFloat16})
    for (int form = 0; form < 6; ++form) {
      const bool has_norm = form > 0, training = form % 2 == 0, relu = form > 2;
      const Tensor x = values({s.images, s.channels, s.height, s.width}, dtype) + (has_norm ? 3.0 : 0.0);
      const Shape channel{s.channels};
      Tensors exact{x.to(dtype).to(Float64), values({s.filters, s.channels, 1, 1}, dtype), values({s.filters}, dtype)};
      exact.resize(7);
      if (has_norm) {
        exact[3] = mean(exact[0], {0, 2, 3}).to(Float32).to(Float64);
        exact[4] = var(exact[0], {0, 2, 3}).to(Float32).to(Float64);
      }
      if (form > 1) exact[5] = values(channel, Float32), exact[6] = values(channel, Float32);
      const NormConvAttrs attrs{{}, {.training = training, .relu = relu}};
      Tensors near(7);
      for (size_t i = 0; i < 7; ++i)
        if (exact[i].defined()) near[i] = there(exact[i], i < 3 ? dtype : Float32);
      const auto run = [&](Tensors in, const Tensor& g) {
        Tensors leaves;
        for (size_t i : {0, 1, 2, 5, 6})
          if (in[i].defined()) leaves.push_back(in[i] = in[i].detach().set_requires_grad());
        Tensors out = dispatch(norm_conv2d_op, Tensors(in), attrs);
        for (const Tensor& t : grad({out[0]}, leaves, {g})) out.push_back(t);
        return out;
      };
      const Tensor g = values({s.images, s.filters, s.height, s.width}, dtype) + 0.3;
      const Tensors want = run(exact, g);
      for (const char* kernel : {"sm90", "composed"}) {
        const ForceKernel forward("norm_conv2d", kernel), weights("norm_conv2d_weight_grad", kernel);
        const std::string label = fmt::format("{} {} {}", name(dtype), form, kernel);
        Tensors got;
        try {
          got = run(near, there(g, dtype));
        } catch (const Error& e) {
          const bool takes = dtype != Float32 && s.height * s.width % 8 == 0;
          const bool may = kernel == std::string_view("sm90") &&
                           (!takes || std::string_view(e.what()).find("instructions") != std::string_view::npos);
          if (!may) ADD_FAILURE() << label << ": " << e.what();
          EXPECT_FALSE(fuses_norm(norm_conv2d_op, {near.data(), near.size()}, attrs)) << label;
          continue;
        }
        if (kernel == std::string_view("sm90")) {
          EXPECT_TRUE(fuses_norm(norm_conv2d_op, {near.data(), near.size()}, attrs)) << label;
        }
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_LE(error(got[i], want[i]), 12 * limit(dtype)) << label << " " << i;
      }
    }
}

const Images small_normed[] = {
    {2, 72, 40, 10, 20}, {1, 256, 1, 8, 65}, {3, 17, 33, 4, 26}, {2, 1, 1, 2, 4}, {2, 5, 7, 3, 5}};
const Images large_normed[] = {{1, 2, 256, 32, 40}, {1, 130, 200, 27, 152}, {5, 64, 128, 16, 64}};
INSTANTIATE_TEST_SUITE_P(Small, GpuImagesNormed, testing::ValuesIn(small_normed), name_of);
INSTANTIATE_TEST_SUITE_P(Large, GpuImagesNormed, testing::ValuesIn(large_normed), name_of);

TEST_F(GpuImages, NormAndConvolutionOfModules) {
  Generator random(5);
  nn::Conv2d first(3, 40, 1, {}, true, random), second(40, 24, 1, {}, true, random);
  nn::BatchNorm2d norm(40);
  const Tensor x = values({2, 3, 16, 20}, Float16);
  const auto run = [&](const Tensor& in) {
    nn::Images h = nn::convolve(first, in, norm.training());
    return nn::norm_convolve(norm, Activation::Relu, second, std::move(h)).values;
  };
  const auto reset = [&](Device device, DType dtype) {
    for (nn::Module* m : std::initializer_list<nn::Module*>{&first, &second, &norm}) {
      m->to(device);
      m->to(dtype);
      m->train();
    }
  };
  reset(cpu(), Float64);
  const Tensor trained = run(x);
  const Tensor mean = norm.running_mean.clone(), var = norm.running_var.clone();
  const nn::EvalMode eval(norm);
  const Tensor evaluated = run(x);
  norm.running_mean.fill_(0);
  norm.running_var.fill_(1);
  reset(card(), Float32);
  const amp::Autocast half(Float16);
  const Tensor near = x.to(Float32).to(card());
  EXPECT_LE(error(run(near), trained), 5e-3);
  EXPECT_LE(error(norm.running_mean, mean), 5e-3);
  EXPECT_LE(error(norm.running_var, var), 5e-3);
  norm.eval();
  EXPECT_LE(error(run(near), evaluated), 5e-3);
}

TEST_F(GpuImages, BatchNormMovesRunningStatistics) {
  for (int64_t channels : {3, 16})
    for (DType dtype : {Float32, Float16}) {
      const Tensor x = (values({2, channels, 128, 150}, Float32) * 2.0 + 7.0).to(dtype), one = ones({channels}),
                   zero = zeros({channels});
      const auto run = [&](const Tensor& images, Device device) {
        Tensor mean = clone(zero).to(device), variance = clone(one).to(device);
        batch_norm(images, one.to(device), zero.to(device), mean, variance, true);
        const Tensor y = batch_norm(images, one.to(device), zero.to(device), mean, variance, false);
        return Tensors{mean, variance, y};
      };
      const Tensors want = run(x.to(Float32), cpu());
      for (bool channels_last : {false, true}) {
        const Tensors got = run(there(x, dtype, channels_last), card());
        for (size_t i = 0; i < 3; ++i)
          EXPECT_LE(error(got[i], want[i].to(Float64)), i < 2 ? 1e-6 : limit(dtype)) << channels << name(dtype) << i;
      }
    }
}

}  // namespace
}  // namespace tessera
