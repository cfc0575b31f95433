#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/models_vision.h"

namespace tessera::models {
namespace {

nn::Sequential two_convolutions(int64_t in, int64_t out, Generator& generator) {
  const auto convolution = [&](int64_t from) {
    return nn::Conv2d(from, out, 3, {.padding = {1, 1}}, /*bias=*/false, generator);
  };
  return nn::Sequential(convolution(in), nn::BatchNorm2d(out), nn::ReLU(), convolution(out), nn::BatchNorm2d(out),
                        nn::ReLU());
}

}  // namespace

UNet::UNet(int64_t classes, int64_t width, int64_t levels, Generator& generator) {
  const auto name = [](const char* part, int64_t i) { return part + ("." + std::to_string(i)); };
  for (int64_t i = 0; i <= levels; ++i)
    down.push_back(add(name("down", i), two_convolutions(i ? width << (i - 1) : 3, width << i, generator)));
  for (int64_t i = levels; i-- > 0;) {
    up.push_back(add(name("up", levels - 1 - i),
                     nn::ConvTranspose2d(width << (i + 1), width << i, 2, {.stride = {2, 2}}, true, generator)));
    join.push_back(add(name("join", levels - 1 - i), two_convolutions(width << (i + 1), width << i, generator)));
  }
  out = add("out", nn::Conv2d(width, classes, 1, {}, true, generator));
}

Tensors UNet::forward(const Tensors& in) const {
  const Tensor& image = one_input(in);
  Tensors skips;
  for (const auto& block : down) skips.push_back(block(skips.empty() ? image : max_pool2d(skips.back())));
  Tensor x = skips.back();
  for (size_t i = 0; i < up.size(); ++i) x = join[i](concat({skips[up.size() - 1 - i], up[i](x)}, 1));
  return {out(x)};
}

namespace {

const ResNetUNetConfig& checked_unet(const ResNetUNetConfig& c) {
  const bool fits =
      c.decoder.size() == 5 && std::all_of(c.decoder.begin(), c.decoder.end(), [](int64_t n) { return n > 0; });
  if (!fits || c.classes < 1)
    throw Error(fmt::format("ResNetUNet: a decoder of [{}] channels and {} classes make no model",
                            fmt::join(c.decoder, ", "), c.classes));
  return c;
}

nn::Sequential decoder_convolution(int64_t in, int64_t out, Generator& generator) {
  return nn::Sequential(nn::Conv2d(in, out, 3, {.padding = {1, 1}}, /*bias=*/false, generator), nn::BatchNorm2d(out),
                        nn::ReLU());
}

// Each element four times, as two rows of two.
Tensor doubled(const Tensor& x) {
  const Tensor rows = unsqueeze(unsqueeze(x, -1), 3);
  return flatten(flatten(expand(rows, {-1, -1, -1, 2, -1, 2}), 4, 5), 2, 3);
}

}  // namespace

ResNetUNet::ResNetUNet(const ResNetUNetConfig& c, Generator& generator)
    : encoder(add("encoder", ResNetTrunk(checked_unet(c).encoder, generator))) {
  const int64_t width = c.encoder.width, wide = c.encoder.bottleneck ? 4 : 1;
  const int64_t skips[] = {4 * width * wide, 2 * width * wide, width * wide, width, 0};
  int64_t in = 8 * width * wide;
  for (size_t i = 0; i < c.decoder.size(); ++i) {
    const std::string name = fmt::format("decoder.blocks.{}.", i);
    conv1.push_back(add(name + "conv1", decoder_convolution(in + skips[i], c.decoder[i], generator)));
    conv2.push_back(add(name + "conv2", decoder_convolution(c.decoder[i], c.decoder[i], generator)));
    in = c.decoder[i];
  }
  head = add("segmentation_head.0", nn::Conv2d(in, c.classes, 3, {.padding = {1, 1}}, true, generator));
}

Tensors ResNetUNet::forward(const Tensors& in) const {
  const Tensor& image = one_input(in);
  for (const int64_t d : {2, 3})
    if (image.dim() != 4 || (!image.shape()[d].is_symbolic() && image.size(d) % 32 != 0))
      throw Error("ResNetUNet: takes [n, bands, h, w] with h and w multiples of 32, not " + to_string(image.shape()));
  const Tensors steps = encoder(in);
  Tensor x = steps.back();
  for (size_t i = 0; i < conv1.size(); ++i) {
    x = doubled(x);
    if (i + 1 < steps.size()) x = concat({x, steps[steps.size() - 2 - i]}, 1);
    x = conv2[i](conv1[i](x));
  }
  return {head(x)};
}

}  // namespace tessera::models
