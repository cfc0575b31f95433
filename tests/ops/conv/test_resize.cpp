#include "ops/reference.h"
#include "ops/slope_check.h"
#include "tessera/ops_image.h"

namespace tessera {
namespace {

using reference::Index;

// The weight of an element at that distance from a point.
double kernel(double distance, const ResizeOptions& o) {
  const double x = std::abs(distance), a = o.cubic;
  if (o.interpolation == Interpolation::Linear) return x < 1 ? 1 - x : 0;
  if (x <= 1) return (a + 2) * x * x * x - (a + 3) * x * x + 1;
  return x < 2 ? a * x * x * x - 5 * a * x * x + 8 * a * x - 4 * a : 0;
}

// One line of n elements resized to m by all elements within the kernel's reach, and far beyond the edges.
std::vector<double> resized_line(const std::vector<double>& line, int64_t m, double scale, const ResizeOptions& o) {
  const auto n = static_cast<int64_t>(line.size());
  std::vector<double> out;
  for (int64_t i = 0; i < m; ++i) {
    const auto at = static_cast<double>(i), size = static_cast<double>(n);
    double x = (at + 0.5) / scale - 0.5;
    if (o.coordinates == Coordinates::AlignCorners) x = m == 1 ? 0 : at * (size - 1) / (scale * size - 1);
    if (o.coordinates == Coordinates::Asymmetric) x = at / scale;
    if (o.coordinates == Coordinates::HalfPixelSymmetric) x += size / 2 * (1 - static_cast<double>(m) / (scale * size));
    const auto element = [&](int64_t k) { return line[static_cast<size_t>(std::clamp<int64_t>(k, 0, n - 1))]; };
    if (o.interpolation == Interpolation::Nearest) {
      const double down = std::floor(x), part = x - down;
      const bool up = o.nearest == NearestRule::Ceil               ? part > 0
                      : o.nearest == NearestRule::RoundPreferFloor ? part > 0.5
                      : o.nearest == NearestRule::RoundPreferCeil  ? part >= 0.5
                                                                   : false;
      out.push_back(element(static_cast<int64_t>(down) + up));
      continue;
    }
    const double stretch = o.antialias && scale < 1 ? scale : 1;
    double sum = 0, total = 0;
    for (int64_t k = -50; k < n + 50; ++k) {
      if (o.exclude_outside && (k < 0 || k >= n)) continue;
      const double weight = kernel((static_cast<double>(k) - x) * stretch, o);
      sum += weight * element(k);
      total += weight;
    }
    out.push_back(sum / total);
  }
  return out;
}

Tensor resized_dim(const Tensor& x, int64_t dim, int64_t m, double scale, const ResizeOptions& o) {
  Shape shape = x.shape();
  shape[dim] = m;
  return reference::generate(shape, Float64, [&](const Index& i) {
    std::vector<double> line;
    for (Index at = i; (at[dim] = static_cast<int64_t>(line.size())) < x.size(dim);)
      line.push_back(reference::get(x, at));
    return resized_line(line, m, scale, o)[static_cast<size_t>(i[dim])];
  });
}

std::vector<ResizeOptions> resizings() {
  std::vector<ResizeOptions> all;
  for (const Coordinates c : {Coordinates::HalfPixel, Coordinates::HalfPixelSymmetric, Coordinates::PytorchHalfPixel,
                              Coordinates::AlignCorners, Coordinates::Asymmetric}) {
    for (const NearestRule rule :
         {NearestRule::RoundPreferFloor, NearestRule::RoundPreferCeil, NearestRule::Floor, NearestRule::Ceil})
      all.push_back({.interpolation = Interpolation::Nearest, .coordinates = c, .nearest = rule});
    for (const Interpolation mode : {Interpolation::Linear, Interpolation::Cubic})
      for (const bool exclude : {false, true})
        for (const bool antialias : {false, true})
          all.push_back({.interpolation = mode,
                         .coordinates = c,
                         .cubic = -0.5,
                         .exclude_outside = exclude,
                         .antialias = antialias});
  }
  return all;
}

TEST(Resize, ToSizes) {
  Generator g(1);
  const Tensor x = normal64({2, 7, 3, 8}, g);
  for (const ResizeOptions& o : resizings())
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{11, 5}, {3, 17}, {7, 4}, {2, 13}}) {
      const Tensor want = resized_dim(resized_dim(x, 1, rows, static_cast<double>(rows) / 7, o), 3, columns,
                                      static_cast<double>(columns) / 8, o);
      EXPECT_LE(relative_error(resize(x, {1, -1}, {rows, columns}, o), want), 1e-13)
          << int(o.interpolation) << int(o.coordinates) << int(o.nearest) << o.exclude_outside << o.antialias << " "
          << rows << " " << columns;
    }
}

TEST(Resize, ByScales) {
  Generator g(2);
  const Tensor x = normal64({5, 9}, g);
  for (const ResizeOptions& o : resizings()) {
    const Tensor want = resized_dim(resized_dim(x, 0, 3, 0.7, o), 1, 21, 2.4, o);
    EXPECT_LE(relative_error(resize_by(x, {0, 1}, {0.7, 2.4}, o), want), 1e-13)
        << int(o.interpolation) << int(o.coordinates) << int(o.nearest) << o.exclude_outside << o.antialias;
  }
}

TEST(Resize, HasGradients) {
  Generator g(3);
  const Tensor x = normal64({2, 7, 8}, g);
  for (const ResizeOptions& o : resizings())
    if (o.coordinates == Coordinates::HalfPixel)
      expect_slopes([&](const Tensors& in) { return resize(in[0], {1, 2}, {4, 11}, o); }, {x});
}

TEST(Resize, CropsRegions) {
  Generator g(4);
  const Tensor x = normal64({2, 9}, g);
  const ResizeOptions o{.coordinates = Coordinates::TfCropAndResize, .region = {0.25, 1.5}, .extrapolation = 7};
  const Tensor want = reference::generate({2, 6}, Float64, [&](const Index& i) {
    const double at = 8 * (0.25 + 1.25 * static_cast<double>(i[1]) / 5);
    if (at > 8) return 7.0;
    const double down = std::min(std::floor(at), 7.0);
    const auto element = [&](double k) { return reference::get(x, Index{i[0], static_cast<int64_t>(k)}); };
    return (1 - (at - down)) * element(down) + (at - down) * element(down + 1);
  });
  EXPECT_LE(relative_error(resize(x, {1}, {6}, o), want), 1e-14);
}

TEST(Resize, KeepsTheAspectRatio) {
  const Tensor x = zeros({1, 6, 4});
  EXPECT_EQ(resize(x, {1, 2}, {9, 8}, {.aspect = AspectRatio::NotLarger}).shape(), (Shape{1, 9, 6}));
  EXPECT_EQ(resize(x, {1, 2}, {9, 8}, {.aspect = AspectRatio::NotSmaller}).shape(), (Shape{1, 12, 8}));
}

TEST(Resize, TakesNearestOfAnyType) {
  const Tensor x = tensor<int64_t>({1, 2, 3}, {3});
  EXPECT_EQ(resize(x, {0}, {6}, {.interpolation = Interpolation::Nearest}).to_vector<int64_t>(),
            (std::vector<int64_t>{1, 1, 2, 2, 3, 3}));
  expect_half_precision_close([](const Tensors& in) { return resize(in[0], {0}, {7}, {}); },
                              {tensor<double>({0.25, -1, 3, 2}, {4})}, 2e-3);
}

TEST(Resize, NamesTheRuleThatIsBroken) {
  const Tensor x = zeros({2, 3, 4});
  EXPECT_EQ(error_of([&] { resize(x, {1, 2}, {4}); }), "resize: 1 numbers for 2 dims of [2, 3, 4]");
  EXPECT_EQ(error_of([&] { resize(x, {1, 1}, {4, 4}); }), "resize: dim 1 of [2, 3, 4] is named twice");
  EXPECT_EQ(error_of([&] { resize(x, {1}, {0}); }), "resize: a size of 0");
  EXPECT_EQ(error_of([&] { resize(x.to(Int64), {1}, {6}); }),
            "resize: interpolates floating-point tensors, not i64[2, 3, 4] on cpu");
  EXPECT_EQ(error_of([&] { resize(x, {1}, {6}, {.interpolation = Interpolation::Nearest, .antialias = true}); }),
            "resize: antialias takes Linear or Cubic, not Nearest");
  EXPECT_EQ(error_of([&] { resize(x, {1}, {6}, {.coordinates = Coordinates::TfCropAndResize}); }),
            "resize: the region has 0 bounds for 1 dims");
  EXPECT_EQ(error_of([&] { resize_by(x, {1}, {0.2}); }), "resize_by: a scale of 0.2 for dim 1 of [2, 3, 4]");
  EXPECT_EQ(error_of([&] { resize_by(x, {1}, {1e300}); }), "resize_by: a scale of 1e+300 for dim 1 of [2, 3, 4]");
  EXPECT_EQ(error_of([&] { resize(zeros({2, 0}), {1}, {6}); }), "resize: dim 1 of [2, 0] has no elements");
}

}  // namespace
}  // namespace tessera
