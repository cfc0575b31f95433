#include "ops/reference.h"
#include "ops/slope_check.h"
#include "tessera/ops_image.h"

namespace tessera {
namespace {

using reference::Index;

double unnormalized(double at, int64_t size, bool align) {
  const auto n = static_cast<double>(size);
  return align ? (at + 1) / 2 * (n - 1) : ((at + 1) * n - 1) / 2;
}
double mirrored(double at, double low, double high) {
  while (at < low || at > high) at = at < low ? 2 * low - at : 2 * high - at;
  return at;
}
double cubic_weight(double distance) {
  const double x = std::abs(distance), a = -0.75;
  if (x <= 1) return (a + 2) * x * x * x - (a + 3) * x * x + 1;
  return x < 2 ? a * x * x * x - 5 * a * x * x + 8 * a * x - 4 * a : 0;
}

// Elements and weights along one dim for a point.
std::vector<std::pair<int64_t, double>> taps_about(double at, int64_t size, const GridSampleOptions& o) {
  const auto last = static_cast<double>(size - 1);
  const auto inside = [&](double v) {
    if (o.beyond == Beyond::Border) return std::clamp(v, 0.0, last);
    if (o.beyond == Beyond::Reflection)
      return std::clamp(o.align_corners ? mirrored(v, 0, last) : mirrored(v, -0.5, last + 0.5), 0.0, last);
    return v;
  };
  std::vector<std::pair<int64_t, double>> taps;
  const auto add = [&](double place, double weight) {
    if (place >= 0 && place <= last) taps.push_back({static_cast<int64_t>(place), weight});
  };
  if (o.interpolation == Interpolation::Nearest) add(inside(std::nearbyint(at)), 1);
  if (o.interpolation == Interpolation::Linear)
    for (const double k : {std::floor(inside(at)), std::floor(inside(at)) + 1}) add(k, 1 - std::abs(inside(at) - k));
  if (o.interpolation == Interpolation::Cubic)
    for (int k = -1; k < 3; ++k) add(std::round(inside(std::floor(at) + k)), cubic_weight(std::floor(at) + k - at));
  return taps;
}

Tensor sampled(const Tensor& x, const Tensor& grid, const GridSampleOptions& o) {
  const int64_t spatial = x.dim() - 2;
  Shape shape{x.shape()[0], x.shape()[1]};
  for (int64_t d = 1; d + 1 < grid.dim(); ++d) shape.push_back(grid.shape()[d]);
  return reference::generate(shape, Float64, [&](const Index& i) {
    std::vector<std::pair<Index, double>> points{{{i[0], i[1]}, 1}};
    for (int64_t d = 0; d < spatial; ++d) {
      Index at{i[0]};
      at.insert(at.end(), i.begin() + 2, i.end());
      at.push_back(spatial - 1 - d);
      const auto taps =
          taps_about(unnormalized(reference::get(grid, at), x.size(2 + d), o.align_corners), x.size(2 + d), o);
      std::vector<std::pair<Index, double>> next;
      for (const auto& [place, weight] : points)
        for (const auto& [k, w] : taps) {
          Index to = place;
          to.push_back(k);
          next.push_back({to, weight * w});
        }
      points = next;
    }
    double sum = 0;
    for (const auto& [place, weight] : points) sum += weight * reference::get(x, place);
    return sum;
  });
}

TEST(GridSample, OfTwoAndThreeDims) {
  Generator g(1);
  for (const auto mode : {Interpolation::Nearest, Interpolation::Linear, Interpolation::Cubic})
    for (const auto beyond : {Beyond::Zeros, Beyond::Border, Beyond::Reflection})
      for (const bool align : {false, true})
        for (const bool deep : {false, true}) {
          const GridSampleOptions o{mode, beyond, align};
          const Tensor x = normal64(deep ? Shape{2, 3, 3, 4, 5} : Shape{2, 3, 4, 7}, g);
          const Tensor grid = uniform64(deep ? Shape{2, 2, 3, 3, 3} : Shape{2, 5, 3, 2}, g, -1.6, 1.6);
          EXPECT_LE(relative_error(grid_sample(x, grid, o), sampled(x, grid, o)), 1e-13)
              << int(mode) << int(beyond) << align << deep;
          if (mode == Interpolation::Nearest)
            expect_slopes([&](const Tensors& in) { return grid_sample(in[0], grid, o); }, {x});
          else expect_slopes([&](const Tensors& in) { return grid_sample(in[0], in[1], o); }, {x, grid}, 1e-5);
        }
}

TEST(GridSample, OfHalvesAtPointsOfMoreDigits) {
  Generator g(5);
  const Tensor exact = normal64({1, 2, 40, 50}, g), grid = uniform64({1, 6, 7, 2}, g).to(Float32);
  for (const DType dtype : {Float16, BFloat16}) {
    const Tensor x = exact.to(dtype), y = grid_sample(x, grid);
    EXPECT_EQ(y.dtype(), dtype);
    const Tensor want = grid_sample(x.to(Float64), grid.to(Float64));
    EXPECT_LE(relative_error(y.to(Float64), want), dtype == Float16 ? 1e-3 : 8e-3) << name(dtype);
  }
}

TEST(GridSample, TakesAnAffineGrid) {
  Generator g(2);
  const Tensor x = normal64({2, 3, 4, 5}, g);
  const Tensor same = tensor<double>({1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0}, {2, 2, 3});
  for (const bool align : {false, true})
    EXPECT_LE(relative_error(grid_sample(x, affine_grid(same, {4, 5}, align), {.align_corners = align}), x), 1e-14);
  const Tensor theta = normal64({2, 3, 4}, g);
  for (const bool align : {false, true}) {
    const Tensor want = reference::generate({2, 2, 3, 4, 3}, Float64, [&](const Index& i) {
      double sum = reference::get(theta, Index{i[0], i[4], 3});
      for (int64_t d = 0; d < 3; ++d) {
        const auto n = static_cast<double>(d + 2), at = static_cast<double>(i[1 + d]);
        sum += reference::get(theta, Index{i[0], i[4], 2 - d}) * (align ? 2 * at / (n - 1) - 1 : (2 * at + 1) / n - 1);
      }
      return sum;
    });
    EXPECT_LE(relative_error(affine_grid(theta, {2, 3, 4}, align), want), 1e-14);
  }
  expect_slopes([](const Tensors& in) { return affine_grid(in[0], {2, 3, 4}); }, {theta});
}

TEST(DeformConv, WithoutOffsetsIsAConvolution) {
  Generator g(3);
  const Tensor x = normal64({2, 4, 7, 6}, g), weight = normal64({6, 2, 3, 2}, g), bias = normal64({6}, g);
  const ConvOptions o{.stride = {2, 1}, .low = {1, 0}, .high = {1, 1}, .dilation = {1, 2}, .groups = 2};
  const Tensor want = conv(x, weight, bias, o);
  const Tensor offset = zeros({2, 2 * 2 * 6, want.size(2), want.size(3)}, Float64);
  EXPECT_LE(relative_error(deform_conv(x, weight, offset, {}, bias, o), want), 1e-14);
}

TEST(DeformConv, ShiftsTaps) {
  Generator g(4);
  const Tensor x = normal64({2, 4, 5, 6}, g), weight = normal64({4, 2, 2, 3}, g), bias = normal64({4}, g);
  const ConvOptions o{.stride = {1, 2}, .low = {1, 1}, .high = {0, 1}, .groups = 2};
  const Tensor offset = uniform64({2, 24, 5, 3}, g, -2, 2), mask = uniform64({2, 12, 5, 3}, g);
  const auto element = [&](const Index& i, int64_t c, int64_t tap) {
    const int64_t part = c / 2, at = part * 6 + tap;
    const double row =
        static_cast<double>(i[2] - 1 + tap / 3) + reference::get(offset, Index{i[0], 2 * at, i[2], i[3]});
    const double column =
        static_cast<double>(2 * i[3] - 1 + tap % 3) + reference::get(offset, Index{i[0], 2 * at + 1, i[2], i[3]});
    double sum = 0;
    for (const auto& [r, a] : taps_about(row, 5, {}))
      for (const auto& [s, b] : taps_about(column, 6, {})) sum += a * b * reference::get(x, Index{i[0], c, r, s});
    return sum * reference::get(mask, Index{i[0], at, i[2], i[3]});
  };
  const Tensor want = reference::generate({2, 4, 5, 3}, Float64, [&](const Index& i) {
    double sum = reference::get(bias, Index{i[1]});
    for (int64_t c = 0; c < 2; ++c)
      for (int64_t tap = 0; tap < 6; ++tap)
        sum += element(i, i[1] / 2 * 2 + c, tap) * reference::get(weight, Index{i[1], c, tap / 3, tap % 3});
    return sum;
  });
  const auto run = [&](const Tensors& in) { return deform_conv(in[0], in[1], in[2], in[3], in[4], o); };
  EXPECT_LE(relative_error(run({x, weight, offset, mask, bias}), want), 1e-13);
  expect_slopes(run, {x, weight, offset, mask, bias}, 1e-5);
}

TEST(GridSample, NamesTheRuleThatIsBroken) {
  const Tensor x = zeros({1, 2, 3, 4});
  EXPECT_EQ(error_of([&] {
              grid_sample(zeros({1, 2, 3}), zeros({1, 2, 1}));
            }),
            "grid_sample: x must have 4 or 5 dims, not shape [1, 2, 3]");
  EXPECT_EQ(error_of([&] {
              grid_sample(x, zeros({1, 2, 3, 3}));
            }),
            "grid_sample: grid [1, 2, 3, 3] does not fit x [1, 2, 3, 4]");
  EXPECT_EQ(error_of([&] {
              grid_sample(x, zeros({1, 2, 3, 2}, Int64));
            }),
            "grid_sample: grid must be floating, not i64[1, 2, 3, 2] on cpu");
  EXPECT_EQ(error_of([&] {
              affine_grid(zeros({1, 2, 2}), {3, 3});
            }),
            "affine_grid: theta must have shape [n, 2, 3], not [1, 2, 2]");
  EXPECT_EQ(error_of([&] { affine_grid(zeros({1, 2, 3}), {3}); }), "affine_grid: takes two or three sizes, not 1");
  const Tensor w = zeros({1, 2, 2, 2});
  EXPECT_EQ(error_of([&] {
              deform_conv(x, w, zeros({1, 7, 2, 3}));
            }),
            "deform_conv: offset [1, 7, 2, 3] does not fit 4 taps and 2 channels");
  EXPECT_EQ(error_of([&] {
              deform_conv(x, w, zeros({1, 8, 3, 3}));
            }),
            "deform_conv: offset has shape [1, 8, 3, 3], not [1, 8, 2, 3]");
  EXPECT_EQ(error_of([&] {
              deform_conv(x, w, zeros({1, 8, 2, 3}), zeros({1, 3, 2, 3}));
            }),
            "deform_conv: mask has shape [1, 3, 2, 3], not [1, 4, 2, 3]");
}

}  // namespace
}  // namespace tessera
