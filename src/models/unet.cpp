#include "tessera/models.h"

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

}  // namespace tessera::models
