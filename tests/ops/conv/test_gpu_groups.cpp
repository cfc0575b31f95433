// Convolutions of halves on GPUs whose groups are computed one by one, and whose images lie in no order of their own,
// against float64.
#include <fmt/format.h>

#include <memory>
#include <vector>

#include "ops/call_plan.h"
#include "ops/gpu_against_float64.h"
#include "tessera/ops_pool.h"

namespace tessera {
namespace {

Tensor last(const Tensor& t) { return t.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}); }

class GpuConvolutionWays : public GpuAgainstFloat64 {
 protected:
  /// A convolution and its gradients by what a card picks, or by `forced`, of f16 tensors.
  void expect_as_float64(const Tensor& x, const Tensor& w, const Conv2dOptions& options, bool channels_last,
                         const std::string& label, const char* forced = nullptr) {
    const Tensors exact{x.clone().set_requires_grad(), w.clone().set_requires_grad()};
    const Tensor want = conv2d(exact[0], exact[1], {}, options), g = values(want.shape(), Float16);
    const Tensors wanted = grad({want}, exact, {g});
    const auto there = [&](const Tensor& t) {
      const Tensor moved = t.to(Float16).to(card());
      return channels_last ? last(moved) : moved;
    };
    std::vector<std::unique_ptr<ForceKernel>> all;
    for (const char* pass : {"conv2d", "conv2d_input_grad", "conv2d_weight_grad"})
      if (forced) all.push_back(std::make_unique<ForceKernel>(pass, forced));
    const Tensors near{there(x).set_requires_grad(), there(w).set_requires_grad()};
    const Tensor got = conv2d(near[0], near[1], {}, options);
    const Tensors slopes = grad({got}, near, {there(g)});
    EXPECT_LE(error(got.detach(), want.detach()), 6e-4) << label;
    EXPECT_LE(error(slopes[0], wanted[0]), 6e-4) << label << ", images";
    EXPECT_LE(error(slopes[1], wanted[1]), 6e-4) << label << ", filters";
  }
};

TEST_F(GpuConvolutionWays, GroupsOneByOne) {
  if (const std::string why = error_of([&] {
        const ForceKernel forced("conv2d", "each_group");
        conv2d(zeros({64, 32, 32, 32}, Float16, card()), zeros({32, 16, 3, 3}, Float16, card()), {}, {.groups = 2});
      });
      why.find("instructions that this device lacks") != std::string::npos)
    GTEST_SKIP() << why;
  for (const bool channels_last : {false, true})
    for (const int64_t groups : {2, 5}) {
      const Conv2dOptions options{{2, 1}, {1, 2}, {1, 2}, groups};
      expect_as_float64(values({9, 13 * groups, 40, 37}, Float16), values({24 * groups, 13, 3, 5}, Float16), options,
                        channels_last, fmt::format("{} groups{}", groups, channels_last ? ", channels last" : ""),
                        "each_group");
    }
}

TEST_F(GpuConvolutionWays, OnePlaceOfEachImage) {
  for (const bool channels_last : {false, true})
    for (const int64_t channels : {1, 20, 64})
      expect_as_float64(values({3, channels, 7, 5}, Float16), values({98, channels, 7, 5}, Float16), {}, channels_last,
                        fmt::format("{} channels{}", channels, channels_last ? ", last" : ""));
}

// Rows of uploaded tensors are padded to 16 bytes.
TEST_F(GpuConvolutionWays, RowsWithGapsInFloat32) {
  const Tensor x = values({5, 16, 2999}, Float32), w = values({12, 16, 3}, Float32), bias = values({12}, Float32);
  const ConvOptions options{.low = {1}, .high = {1}};
  const Tensors exact{x.clone().set_requires_grad(), w.clone().set_requires_grad()};
  const Tensors near{x.to(Float32).to(card()).set_requires_grad(), w.to(Float32).to(card()).set_requires_grad()};
  const Tensor want = conv(exact[0], exact[1], bias, options), g = values(want.shape(), Float32);
  const Tensor got = conv(near[0], near[1], bias.to(Float32).to(card()), options);
  EXPECT_LE(error(got.detach(), want.detach()), 1e-6);
  const Tensors wanted = grad({want}, exact, {g}), slopes = grad({got}, near, {g.to(Float32).to(card())});
  for (size_t i = 0; i < 2; ++i) EXPECT_LE(error(slopes[i], wanted[i]), 3e-6) << i;
}

}  // namespace
}  // namespace tessera
