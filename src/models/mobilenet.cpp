#include "tessera/models.h"

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

nn::Sequential all_features(Generator& generator) {
  struct Stage {
    int64_t widening, channels, blocks, stride;
  };
  constexpr Stage stages[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                              {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
  nn::Sequential features(convolution(3, 32, 3, 2, 1, generator));
  int64_t in = 32;
  for (const Stage& s : stages)
    for (int64_t i = 0; i < s.blocks; ++i) {
      features.append(MobileNetV2::Block(in, s.channels, i ? 1 : s.stride, s.widening, generator));
      in = s.channels;
    }
  features.append(convolution(in, 1280, 1, 1, 1, generator));
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
    : features(add("features", all_features(generator))),
      classifier(add("classifier", nn::Sequential(nn::Dropout(0.2), nn::Linear(1280, classes, true, generator)))) {}

Tensors MobileNetV2::forward(const Tensors& in) const { return {classifier(mean(features(one_input(in)), {2, 3}))}; }

}  // namespace tessera::models
