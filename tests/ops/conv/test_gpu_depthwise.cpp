// Depthwise convolutions and pooling of dense images on a GPU, if there is one, in both layouts, against float64.
#include <fmt/format.h>

#include "ops/call_plan.h"
#include "ops/gpu_against_float64.h"
#include "ops/ops_check.h"

namespace tessera {
namespace {

constexpr DType dtypes[] = {Float32, Float16, BFloat16};
double limit(DType dtype) { return dtype == Float32 ? 2e-6 : dtype == Float16 ? 6e-4 : 5e-3; }

struct Depthwise {
  Shape x;
  int64_t rows, columns;
  Conv2dOptions options;
  int64_t multiplier = 1;  // results for each channel; of planes alone where there are several
};
Depthwise three(const Shape& x, int64_t stride) {
  return {x, 3, 3, {.stride = {stride, stride}, .padding = {1, 1}, .groups = x[1].value()}};
}

class GpuDepthwise : public GpuAgainstFloat64 {
 protected:
  static Tensor there(const Tensor& t, DType dtype, MemoryFormat format) { return t.to(dtype).to(card()).to(format); }

  /// By the entry of this name, twice the same.
  void check(const Depthwise& c, const char* kernel) {
    for (DType dtype : dtypes)
      for (MemoryFormat format : {ChannelsLast, Contiguous}) {
        if (format == ChannelsLast && c.multiplier > 1) continue;
        const Dim results = c.x[1] * Dim(c.multiplier);
        SCOPED_TRACE(fmt::format("{} {}x{} {} {}", to_string(c.x), c.rows, c.columns, name(dtype),
                                 format == Contiguous ? "planes" : "channels last"));
        const Tensors exact{values(c.x, dtype).set_requires_grad(),
                            values({results, Dim(1), Dim(c.rows), Dim(c.columns)}, dtype).set_requires_grad()};
        const Tensor bias = values({results}, dtype), want = conv2d(exact[0], exact[1], bias, c.options);
        const Tensor g = values(want.shape(), dtype);
        const Tensors wanted = grad({want}, exact, {g});
        const Tensors near{there(exact[0].detach(), dtype, format).set_requires_grad(),
                           there(exact[1].detach(), dtype, Contiguous).set_requires_grad()};
        const ForceKernel forward("conv2d", kernel), images("conv2d_input_grad", kernel),
            filters("conv2d_weight_grad", kernel);
        const Tensor got = conv2d(near[0], near[1], bias.to(dtype).to(card()), c.options);
        EXPECT_TRUE(got.is_contiguous(format));
        EXPECT_LE(error(got.detach(), want.detach()), limit(dtype));
        const auto gradients = [&] { return grad({got}, near, {there(g, dtype, format)}, true); };
        const Tensors first = gradients(), second = gradients();
        for (int i = 0; i < 2; ++i) {
          EXPECT_LE(error(first[i], wanted[i]), limit(dtype)) << i;
          EXPECT_EQ(error(second[i], first[i].to(cpu()).to(Float64)), 0) << i;
        }
      }
  }
};

TEST_F(GpuDepthwise, ThreeByThree) {
  for (int64_t stride : {1, 2})
    for (const Shape& x : {Shape{2, 32, 56, 56},
                           {3, 96, 28, 30},
                           {2, 144, 15, 13},
                           {4, 576, 14, 14},
                           {3, 960, 7, 7},
                           {2, 5, 17, 12},
                           {1, 2, 3, 1},
                           {2, 132, 1, 9}})
      check(three(x, stride), x[1].value() % 4 == 0 ? "depthwise" : "depthwise.any");  // whose filters go to cuDNN
}

TEST_F(GpuDepthwise, OtherWindows) {
  const auto of = [](const Shape& x, int64_t rows, int64_t columns, Conv2dOptions options, int64_t multiplier = 1) {
    options.groups = x[1].value();
    return Depthwise{x, rows, columns, options, multiplier};
  };
  for (const Depthwise& c :
       {of({2, 24, 13, 11}, 5, 5, {.padding = {2, 2}}),
        of({2, 40, 17, 19}, 7, 7, {.stride = {2, 2}, .padding = {3, 3}}),
        of({1, 6, 20, 21}, 3, 3, {.padding = {2, 2}, .dilation = {2, 2}}),
        of({2, 8, 9, 12}, 3, 2, {.stride = {3, 1}, .padding = {0, 1}}), of({2, 8, 9, 12}, 3, 3, {.padding = {1, 1}}),
        of({2, 4, 9, 30}, 2, 11, {.padding = {0, 4}}), of({3, 4, 8, 33}, 1, 9, {.stride = {1, 2}, .padding = {0, 3}}),
        of({2, 8, 84, 84}, 5, 1, {.stride = {3, 1}, .padding = {2, 0}}, 2),
        of({3, 5, 11, 12}, 3, 3, {.padding = {1, 1}}, 3)})
    check(c, "depthwise.any");
}

TEST_F(GpuDepthwise, SaysWhatItDoesNotTake) {
  const auto refusal = [](const char* kernel, int64_t filters, int64_t groups, int64_t size, DType dtype) {
    const ForceKernel forced("conv2d", kernel);
    return error_of([&] {
      conv2d(zeros({1, 4, 8, 8}, dtype, card()), zeros({filters, 4 / groups, size, size}, dtype, card()), {},
             {.padding = {1, 1}, .groups = groups});
    });
  };
  EXPECT_EQ(refusal("depthwise", 4, 4, 3, Float16), "no error");
  EXPECT_EQ(refusal("depthwise.any", 4, 4, 2, Float16), "no error");
  EXPECT_EQ(refusal("depthwise.any", 8, 4, 5, Float16), "no error");
  for (const std::string& why : {refusal("depthwise", 4, 2, 3, Float16), refusal("depthwise", 8, 4, 3, Float16),
                                 refusal("depthwise", 4, 4, 5, Float16), refusal("depthwise.any", 4, 2, 5, Float16)})
    EXPECT_NE(why.find("does not take these shapes"), std::string::npos) << why;
  EXPECT_NE(refusal("depthwise", 4, 4, 3, Float64).find("dtype"), std::string::npos);
}

class GpuPool : public GpuDepthwise {};

TEST_F(GpuPool, InBothLayouts) {
  const Pool2dOptions options[] = {{.window = {2, 2}},
                                   {.window = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
                                   {.window = {3, 3}, .stride = {1, 1}, .padding = {1, 1}, .count_include_pad = false},
                                   {.window = {5, 4}, .stride = {2, 3}, .padding = {2, 1}}};
  for (DType dtype : dtypes)
    for (MemoryFormat format : {ChannelsLast, Contiguous})
      for (const Shape& shape : {Shape{2, 64, 28, 32}, {3, 5, 17, 19}, {1, 24, 7, 6}})
        for (const Pool2dOptions& o : options)
          for (const bool max : {true, false}) {
            SCOPED_TRACE(fmt::format("{} {} {} {}", to_string(shape), o.window[0], name(dtype), max));
            const auto pool = [&](const Tensor& t) { return max ? max_pool2d(t, o) : avg_pool2d(t, o); };
            const Tensor x = values(shape, dtype).set_requires_grad(), want = pool(x), g = values(want.shape(), dtype);
            const Tensor wanted = grad({want}, {x}, {g})[0];
            const ForceKernel kernels[] = {{max ? "max_pool2d" : "avg_pool2d", "dense"},
                                           {max ? "max_pool2d_backward" : "avg_pool2d_backward", "dense"}};
            const Tensor near = there(x.detach(), dtype, format).set_requires_grad(), got = pool(near);
            EXPECT_LE(error(got.detach(), want.detach()), max ? 0 : limit(dtype));
            const auto gradient = [&] { return grad({got}, {near}, {there(g, dtype, format)}, true)[0]; };
            const Tensor first = gradient();
            EXPECT_TRUE(first.is_contiguous(format));
            EXPECT_LE(error(first, wanted), limit(dtype));
            EXPECT_EQ(error(gradient(), first.to(cpu()).to(Float64)), 0);
          }
}

TEST_F(GpuPool, KeepsNaN) {
  for (MemoryFormat format : {ChannelsLast, Contiguous}) {
    Tensor x = zeros({1, 8, 4, 8});
    x.data<float>()[0] = NAN;
    const Tensor y = max_pool2d(there(x, BFloat16, format)).to(cpu()).to(Float32);
    EXPECT_TRUE(std::isnan(y.to_vector<float>()[0]));
    EXPECT_EQ(y.to_vector<float>()[1], 0);
  }
}

TEST_F(GpuPool, OthersTakeTheKernelForAnyStrides) {
  const ForceKernel forced("max_pool2d", "dense");
  EXPECT_NE(error_of([] { max_pool2d(zeros({1, 2, 4, 4}, Float64, card())); }).find("dtype"), std::string::npos);
  EXPECT_NE(error_of([] {
              max_pool2d(zeros({1, 2, 4, 8}, Float32, card()).slice(3, 0, 8, 2));
            }).find("layout"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
