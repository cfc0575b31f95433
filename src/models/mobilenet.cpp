#include <fmt/format.h>

#include <algorithm>

#include "tessera/models_vision.h"

namespace tessera::models {
namespace {

// A convolution that keeps the size up to its stride, batch norm and ReLU6.
nn::Sequential convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t groups,
                           Generator& generator) {
  const Conv2dOptions options{
      .stride = {stride, stride}, .padding = {kernel / 2, kernel / 2}, .dilation = {1, 1}, .groups = groups};
  return nn::Sequential(nn::Conv2d(in, out, kernel, options, /*bias=*/false, generator), nn::BatchNorm2d(out),
                        nn::ReLU6());
}

nn::Sequential widened(int64_t in, int64_t out, int64_t stride, int64_t widening, Generator& generator) {
  const int64_t hidden = in * widening;
  nn::Sequential conv;
  if (widening != 1) conv.append(convolution(in, hidden, 1, 1, 1, generator));
  conv.append(convolution(hidden, hidden, 3, stride, hidden, generator));
  conv.append(nn::Conv2d(hidden, out, 1, {}, /*bias=*/false, generator));
  conv.append(nn::BatchNorm2d(out));
  return conv;
}

const MobileNetV2Config& checked_mobilenet(const MobileNetV2Config& c) {
  const bool stages_fit = std::all_of(c.stages.begin(), c.stages.end(), [](const MobileNetV2Stage& s) {
    return s.widening > 0 && s.channels > 0 && s.blocks > 0 && s.stride > 0;
  });
  if (!(c.width > 0 && c.width < 1e3) || !stages_fit || c.first < 1 || c.last < 1 || c.classes < 1)
    throw Error(
        fmt::format("MobileNetV2: width {}, {} stages, {} channels before and {} after them, {} classes make "
                    "no model",
                    c.width, c.stages.size(), c.first, c.last, c.classes));
  return c;
}

// The nearest multiple of 8, or the next where that is more than a tenth less.
int64_t scaled(int64_t channels, double width) {
  const double wanted = static_cast<double>(channels) * width;
  const int64_t nearest = std::max<int64_t>(8, static_cast<int64_t>(wanted + 4) / 8 * 8);
  return static_cast<double>(nearest) < 0.9 * wanted ? nearest + 8 : nearest;
}

int64_t last_channels(const MobileNetV2Config& c) { return scaled(c.last, std::max(1.0, c.width)); }

nn::Sequential all_features(const MobileNetV2Config& c, Generator& generator) {
  int64_t in = scaled(c.first, c.width);
  nn::Sequential features;
  features.append(convolution(3, in, 3, 2, 1, generator));
  for (const MobileNetV2Stage& s : c.stages)
    for (int64_t i = 0; i < s.blocks; ++i) {
      const int64_t out = scaled(s.channels, c.width);
      features.append(MobileNetV2::Block(in, out, i ? 1 : s.stride, s.widening, generator));
      in = out;
    }
  features.append(convolution(in, last_channels(c), 1, 1, 1, generator));
  return features;
}

}  // namespace

MobileNetV2::Block::Block(int64_t in, int64_t out, int64_t stride, int64_t widening, Generator& generator)
    : adds(stride == 1 && in == out), conv(add("conv", widened(in, out, stride, widening, generator))) {}

Tensors MobileNetV2::Block::forward(const Tensors& in) const {
  const Tensor& x = one_input(in);
  return {adds ? x + conv(x) : conv(x)};
}

MobileNetV2::MobileNetV2(int64_t classes, Generator& generator)
    : MobileNetV2(MobileNetV2Config{.classes = classes}, generator) {}

MobileNetV2::MobileNetV2(const MobileNetV2Config& c, Generator& generator)
    : features(add("features", all_features(checked_mobilenet(c), generator))),
      classifier(add("classifier",
                     nn::Sequential(nn::Dropout(0.2), nn::Linear(last_channels(c), c.classes, true, generator)))) {}

Tensors MobileNetV2::forward(const Tensors& in) const { return {classifier(mean(features(one_input(in)), {2, 3}))}; }

}  // namespace tessera::models
