#include <numeric>

#include "ops/reference.h"
#include "ops/slope_check.h"
#include "tessera/ops_image.h"

namespace tessera {
namespace {

using reference::Index;

TEST(Image, ShufflesPixels) {
  Generator g(1);
  const Tensor x = normal64({2, 12, 3, 5}, g);
  const auto want = [&](bool outer) {
    return reference::generate({2, 3, 6, 10}, Float64, [&](const Index& i) {
      const int64_t square = i[2] % 2 * 2 + i[3] % 2;
      return reference::get(x, Index{i[0], outer ? square * 3 + i[1] : i[1] * 4 + square, i[2] / 2, i[3] / 2});
    });
  };
  EXPECT_EQ(pixel_shuffle(x, 2).to_vector<double>(), want(false).to_vector<double>());
  EXPECT_EQ(depth_to_space(x, 2).to_vector<double>(), want(true).to_vector<double>());
  EXPECT_EQ(pixel_unshuffle(pixel_shuffle(x, 2), 2).to_vector<double>(), x.to_vector<double>());
  EXPECT_EQ(space_to_depth(depth_to_space(x, 2), 2).to_vector<double>(), x.to_vector<double>());
  const Tensor mixed = channel_shuffle(x, 3);
  for (int64_t c = 0; c < 12; ++c)
    EXPECT_EQ(mixed.select(1, c).to_vector<double>(), x.select(1, c % 3 * 4 + c / 3).to_vector<double>()) << c;
  expect_slopes(
      [](const Tensors& in) { return square(pixel_unshuffle(channel_shuffle(pixel_shuffle(in[0], 2), 3), 2)); }, {x});
}

// The place among `size` elements that a mode puts `i` places from the first.
int64_t place_of(int64_t i, int64_t size, Padding padding) {
  while (i < 0 || i >= size) {
    if (padding == Padding::Edge) i = i < 0 ? 0 : size - 1;
    if (padding == Padding::Wrap) i += i < 0 ? size : -size;
    if (padding == Padding::Reflect) i = size == 1 ? 0 : i < 0 ? -i : 2 * (size - 1) - i;
  }
  return i;
}

TEST(Image, PadsByWhatIsThere) {
  Generator g(2);
  const Tensor x = normal64({2, 3, 5}, g);
  for (const Padding padding : {Padding::Constant, Padding::Reflect, Padding::Edge, Padding::Wrap})
    for (const auto& [low, high] : {std::pair<Dims, Dims>{{1, 2}, {2, 0}}, {{-1, 7}, {5, -2}}, {{0, 13}, {0, 11}}}) {
      if (padding == Padding::Reflect && low[1] > 4) continue;  // refused
      const Tensor want =
          reference::generate({2, 3 + low[0] + high[0], 5 + low[1] + high[1]}, Float64, [&](const Index& i) {
            Index at{i[0]};
            for (int64_t d = 0; d < 2; ++d) {
              const int64_t first = std::max<int64_t>(0, -low[d]),
                            size = x.size(1 + d) - first + std::min<int64_t>(0, high[d]);
              const int64_t place = i[1 + d] - std::max<int64_t>(0, low[d]);
              if (padding == Padding::Constant && (place < 0 || place >= size)) return 0.5;
              at.push_back(first + place_of(place, size, padding));
            }
            return reference::get(x, at);
          });
      EXPECT_EQ(pad(x, low, high, padding, 0.5).to_vector<double>(), want.to_vector<double>()) << int(padding);
      expect_slopes([&](const Tensors& in) { return pad(in[0], low, high, padding); }, {x});
    }
  EXPECT_EQ(error_of([&] {
              pad(x, {0, 1}, {3, 0}, Padding::Reflect);
            }),
            "pad: reflections of 0 and 3 elements do not fit dim 1 of [2, 3, 5], which has 2 beside its end");
  // What no memory holds is said at once.
  for (const Padding padding : {Padding::Edge, Padding::Wrap})
    EXPECT_NE(error_of([&] { pad(x, {int64_t(1) << 47}, {0}, padding); }).find("bytes"), std::string::npos);
}

TEST(Image, ShufflesPixelsOfAnyBatch) {
  Generator g(4);
  const Tensor x = normal64({2, 3, 8, 2, 2}, g), y = pixel_shuffle(x, 2),
               one = pixel_shuffle(x.select(0, 1).select(0, 2), 2);
  EXPECT_EQ(y.shape(), (Shape{2, 3, 2, 4, 4}));
  EXPECT_EQ(one.to_vector<double>(), y.select(0, 1).select(0, 2).to_vector<double>());
  EXPECT_EQ(pixel_unshuffle(one, 2).to_vector<double>(), x.select(0, 1).select(0, 2).to_vector<double>());
  EXPECT_EQ(error_of([&] {
              pixel_shuffle(ones({4, 2}), 2);
            }),
            "pixel_shuffle: x must have at least 3 dims, not shape [4, 2]");
}

TEST(Image, KeepsTheMiddle) {
  const Tensor x = arange(0, 12).reshape({3, 4});
  EXPECT_EQ(center_crop_pad(x, {1, 0}, {7, 2}).to_vector<int64_t>(),
            (std::vector<int64_t>{0, 0, 1, 2, 3, 0, 0, 0, 4, 5, 6, 7, 0, 0}));
  EXPECT_EQ(center_crop_pad(x, {-1}, {1}).to_vector<int64_t>(), (std::vector<int64_t>{1, 5, 9}));
}

TEST(Image, NormsOverChannels) {
  Generator g(3);
  const Tensor x = normal64({2, 7, 3, 4}, g);
  for (const int64_t size : {1, 4, 5, 20}) {
    const Tensor want = reference::generate(x.shape(), Float64, [&](const Index& i) {
      double sum = 0;
      for (int64_t c = i[1] - (size - 1) / 2; c <= i[1] + size / 2; ++c)
        if (c >= 0 && c < 7) sum += std::pow(reference::get(x, Index{i[0], c, i[2], i[3]}), 2);
      return reference::get(x, i) / std::pow(2 + 0.3 / static_cast<double>(size) * sum, 0.6);
    });
    const auto run = [&](const Tensors& in) { return local_response_norm(in[0], size, 0.3, 0.6, 2); };
    EXPECT_LE(relative_error(run({x}), want), 1e-14) << size;
    expect_slopes(run, {x});
  }
}

// Mean and variance of a plane, or of anything.
std::pair<double, double> moments(const std::vector<double>& v) {
  const double n = static_cast<double>(v.size()), mean = std::accumulate(v.begin(), v.end(), 0.0) / n;
  double square = 0;
  for (const double e : v) square += (e - mean) * (e - mean);
  return {mean, square / n};
}

TEST(Image, NormsOfPlanesAndLines) {
  Generator g(4);
  const Tensor x = normal64({2, 3, 4, 5}, g), weight = normal64({3}, g), bias = normal64({3}, g);
  const Tensor planes = reference::generate(x.shape(), Float64, [&](const Index& i) {
    const auto [mean, var] = moments(x.select(0, i[0]).select(0, i[1]).to_vector<double>());
    return (reference::get(x, i) - mean) / std::sqrt(var + 1e-5) * reference::get(weight, Index{i[1]}) +
           reference::get(bias, Index{i[1]});
  });
  EXPECT_LE(relative_error(instance_norm(x, weight, bias), planes), 1e-14);
  const Tensor whole = reference::generate(x.shape(), Float64, [&](const Index& i) {
    const auto [mean, var] = moments(x.select(1, i[1]).to_vector<double>());
    return (reference::get(x, i) - mean) / (std::sqrt(var) + 1e-9);
  });
  EXPECT_LE(relative_error(mean_variance_norm(x, {0, 2, 3}), whole), 1e-14);
  expect_slopes([](const Tensors& in) { return mean_variance_norm(in[0], {0, 2, 3}); }, {x});
  for (const double p : {1.0, 2.0, 3.0}) {
    const Tensor lines = reference::generate(x.shape(), Float64, [&](const Index& i) {
      double sum = 0;
      for (int64_t c = 0; c < 3; ++c) sum += std::pow(std::abs(reference::get(x, Index{i[0], c, i[2], i[3]})), p);
      return reference::get(x, i) / std::pow(sum, 1 / p);
    });
    EXPECT_LE(relative_error(lp_normalize(x, p, 1), lines), 1e-14) << p;
    expect_slopes([&](const Tensors& in) { return lp_normalize(in[0], p, 1); }, {x}, 1e-5);
  }
  EXPECT_EQ(lp_normalize(zeros({2})).to_vector<float>(), (std::vector<float>{0, 0}));
}

TEST(Image, NamesTheRuleThatIsBroken) {
  const Tensor x = zeros({1, 6, 3, 4});
  EXPECT_EQ(error_of([&] { pixel_shuffle(x, 2); }), "pixel_shuffle: 6 channels do not split into squares of 4");
  EXPECT_EQ(error_of([&] { space_to_depth(x, 2); }),
            "space_to_depth: [1, 6, 3, 4] does not split into squares of 2 x 2");
  EXPECT_EQ(error_of([&] { depth_to_space(x, 0); }), "depth_to_space: a factor of 0");
  EXPECT_EQ(error_of([&] { channel_shuffle(x, 4); }), "channel_shuffle: 6 channels do not split into 4 groups");
  EXPECT_EQ(error_of([&] { pad(x, {-2}, {-3}, Padding::Edge); }),
            "pad: padding -2 and -3 cuts more than dim 3 of [1, 6, 3, 4] has");
  EXPECT_EQ(error_of([&] { pad(x, {-2}, {2}, Padding::Edge); }), "no error");
  EXPECT_EQ(error_of([&] { pad(x, {-4}, {2}, Padding::Wrap); }),
            "pad: dim 3 of [1, 6, 3, 4] has no elements to repeat");
  EXPECT_EQ(error_of([&] { pad(x, {1, 1}, {2}, Padding::Edge); }), "pad: 2 low and 1 high paddings for [1, 6, 3, 4]");
  EXPECT_EQ(error_of([&] { center_crop_pad(x, {1}, {2, 3}); }), "center_crop_pad: 2 sizes for 1 dims");
  EXPECT_EQ(error_of([&] { local_response_norm(x, 0); }), "local_response_norm: a size of 0");
  EXPECT_EQ(error_of([&] { lp_normalize(x, -1); }), "lp_normalize: p must be positive, not -1");
  EXPECT_EQ(error_of([&] { instance_norm(zeros({2, 3})); }), "instance_norm: [2, 3] has no spatial dims");
}

}  // namespace
}  // namespace tessera
