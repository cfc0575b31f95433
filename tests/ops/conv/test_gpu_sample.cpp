// Sampling at points and regions on a GPU, if there is one, against the same made of operators, in float64 on the CPU.
#include <fmt/format.h>

#include "ops/gpu_against_float64.h"
#include "ops/ops_check.h"
#include "tessera/device.h"
#include "tessera/ops_image.h"

namespace tessera {
namespace {

class GpuSample : public GpuAgainstFloat64 {
 protected:
  void TearDown() override { allow_nondeterministic(false); }

  static constexpr DType dtypes[] = {Float32, Float64, Float16, BFloat16};
  static double limit(DType dtype) {
    return dtype == Float64 ? 1e-12 : dtype == Float32 ? 1e-5 : dtype == Float16 ? 1e-3 : 8e-3;
  }

  /// fn(inputs), and its gradients by the first `wanted` of them: with sums in one order, the same twice, and in any.
  template <class Fn>
  void check(const Fn& fn, const Tensors& exact, size_t wanted, DType dtype) {
    Tensors far = exact, near;
    for (size_t i = 0; i < wanted; ++i) far[i] = far[i].detach().set_requires_grad();
    for (const Tensor& t : exact) near.push_back((is_floating(t.dtype()) ? t.to(dtype) : t).to(card()));
    for (size_t i = 0; i < wanted; ++i) near[i] = near[i].set_requires_grad();
    const Tensor want = fn(far), g = values(want.shape(), dtype);
    const Tensors by_far(far.begin(), far.begin() + static_cast<ptrdiff_t>(wanted)),
        by_near(near.begin(), near.begin() + static_cast<ptrdiff_t>(wanted));
    const Tensors gradients = grad({want}, by_far, {g});
    for (const bool any_order : {false, true}) {
      allow_nondeterministic(any_order);
      const Tensor got = fn(near);
      EXPECT_EQ(got.dtype(), dtype);
      EXPECT_LE(error(got.detach(), want.detach()), limit(dtype));
      const auto again = [&] { return grad({got}, by_near, {g.to(dtype).to(card())}, true); };
      const Tensors first = again(), second = again();
      for (size_t i = 0; i < wanted; ++i) {
        EXPECT_LE(error(first[i], gradients[i]), limit(dtype)) << i << " in any order: " << any_order;
        if (any_order) continue;
        EXPECT_EQ(error(second[i], first[i].to(cpu()).to(Float64)), 0) << i;
      }
    }
    allow_nondeterministic(false);
  }

  Tensor points(const Shape& shape, DType dtype, double reach) {
    return uniform64(shape, generator, -reach, reach).to(dtype).to(Float64);
  }
};

TEST_F(GpuSample, GridsOfAllKinds) {
  for (const DType dtype : dtypes)
    for (const auto mode : {Interpolation::Nearest, Interpolation::Linear, Interpolation::Cubic})
      for (const auto beyond : {Beyond::Zeros, Beyond::Border, Beyond::Reflection})
        for (const bool align : {false, true})
          for (const bool deep : {false, true}) {
            SCOPED_TRACE(fmt::format("{} {} {} {} {}", name(dtype), int(mode), int(beyond), align, deep));
            const Tensor x = values(deep ? Shape{2, 3, 3, 4, 5} : Shape{2, 11, 6, 7}, dtype);
            const Tensor grid = points(deep ? Shape{2, 2, 3, 3, 3} : Shape{2, 9, 13, 2}, dtype, 1.6);
            check(
                [&](const Tensors& in) {
                  return grid_sample(in[0], in[1], {mode, beyond, align});
                },
                {x, grid}, mode == Interpolation::Nearest || dtype != Float32 ? 1 : 2, dtype);  // halves hit kinks
          }
}

TEST_F(GpuSample, ManyPointsAboutFewElements) {
  const Tensor x = values({2, 9, 2, 3}, Float32), grid = points({2, 40, 50, 2}, Float32, 3);
  for (const auto beyond : {Beyond::Zeros, Beyond::Border})
    check([&](const Tensors& in) { return grid_sample(in[0], in[1], {.beyond = beyond}); }, {x, grid}, 2, Float32);
}

TEST_F(GpuSample, ImagesLargerThanAWave) {
  const Tensor x = values({3, 40, 61, 67}, Float32), grid = points({3, 64, 59, 2}, Float32, 1.1);
  check([](const Tensors& in) { return grid_sample(in[0], in[1]); }, {x, grid}, 2, Float32);
}

TEST_F(GpuSample, PointsOfMoreDigitsThanImages) {
  const Tensor x = values({1, 2, 40, 50}, BFloat16), grid = points({1, 6, 7, 2}, Float32, 1);
  const Tensor got = grid_sample(x.to(BFloat16).to(card()), grid.to(Float32).to(card()));
  EXPECT_EQ(got.dtype(), BFloat16);
  EXPECT_LE(error(got, grid_sample(x, grid)), limit(BFloat16));
}

TEST_F(GpuSample, DeformedConvolutions) {
  const ConvOptions o{.stride = {1, 2}, .low = {1, 1}, .high = {0, 1}, .groups = 2};
  for (const DType dtype : {Float32, Float64, BFloat16}) {
    SCOPED_TRACE(name(dtype));
    const Tensor offset = uniform64({2, 24, 5, 7}, generator, 0.1, 0.4).to(dtype).to(Float64);  // off the kinks
    check([&](const Tensors& in) { return deform_conv(in[0], in[1], in[2], in[3], in[4], o); },
          {values({2, 10, 5, 13}, dtype), values({4, 5, 2, 3}, dtype), offset, values({2, 12, 5, 7}, dtype),
           values({4}, dtype)},
          5, dtype);
  }
}

TEST_F(GpuSample, GradientsOfGradients) {
  const Tensor x = values({1, 2, 4, 5}, Float64), grid = points({1, 3, 3, 2}, Float64, 0.9);
  const auto twice = [](const Tensors& in) {
    const Tensor y = grid_sample(in[0], in[1]);
    return sum(square(grad({sum(square(y))}, {in[1]}, {}, true, true)[0]));
  };
  const auto by = [&](Device device) {
    Tensors in;
    for (const Tensor& t : {x, grid}) in.push_back(t.to(device).detach().set_requires_grad());
    return grad({twice(in)}, in);
  };
  const Tensors want = by(cpu()), got = by(card());
  for (size_t i = 0; i < 2; ++i) EXPECT_LE(error(got[i], want[i]), 1e-12) << i;
}

TEST_F(GpuSample, Regions) {
  const Tensor batch = indices({6}, 2, generator);
  for (const DType dtype : dtypes)
    for (const int64_t samples : {0, 1, 2, 5})
      for (const bool aligned : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name(dtype), samples, aligned));
        const bool within = dtype != Float32;  // halves hit the border, beyond which all is 0
        const Tensor low = uniform64({6, 2}, generator, within ? 1 : -2, within ? 4 : 8),
                     size = uniform64({6, 2}, generator, 1, within ? 4 : 9);
        const Tensor regions = concat({low, add(low, size)}, 1).to(dtype).to(Float64);
        const RoiAlignOptions o{
            .rows = 3, .columns = 4, .spatial_scale = 0.8, .sampling_ratio = samples, .aligned = aligned};
        check([&](const Tensors& in) { return roi_align(in[0], in[1], in[2], o); },
              {values({2, 11, 9, 10}, dtype), regions, batch}, 1, dtype);
      }
}

TEST_F(GpuSample, RegionsOfNoImageAreAnError) {
  const Tensor x = zeros({2, 1, 4, 4}, Float32, card()), regions = ones({1, 4}, Float32, card());
  const std::string error =
      error_of([&] { roi_align(x, regions, tensor<int64_t>({2}, {1}).to(card()), {.sampling_ratio = 1}).to(cpu()); });
  EXPECT_NE(error.find("roi_align"), std::string::npos) << error;
}

}  // namespace
}  // namespace tessera
