#include "tessera/models.h"

namespace tessera::models {
namespace {

nn::Conv2d conv3x3(int64_t in, int64_t out, int64_t stride, Generator& generator) {
  return nn::Conv2d(in, out, 3, {.stride = {stride, stride}, .padding = {1, 1}}, /*bias=*/false, generator);
}

nn::Sequential stage(int64_t in, int64_t out, int64_t stride, Generator& generator) {
  nn::Sequential blocks;
  for (int i = 0; i < 3; ++i) blocks.append(ResNet20::Block(i ? out : in, out, i ? 1 : stride, generator));
  return blocks;
}

}  // namespace

ResNet20::Block::Block(int64_t in, int64_t out, int64_t stride, Generator& generator)
    : in(in),
      out(out),
      stride(stride),
      conv1(add("conv1", conv3x3(in, out, stride, generator))),
      bn1(add("bn1", nn::BatchNorm2d(out))),
      conv2(add("conv2", conv3x3(out, out, 1, generator))),
      bn2(add("bn2", nn::BatchNorm2d(out))) {}

Tensors ResNet20::Block::forward(const Tensors& inputs) const {
  const Tensor& x = one_input(inputs);
  Tensor shortcut = x;
  if (stride != 1) shortcut = shortcut.slice(2, 0, x.size(2), stride).slice(3, 0, x.size(3), stride);
  if (in != out) shortcut = pad(shortcut, {(out - in) / 2, 0, 0}, {out - in - (out - in) / 2, 0, 0});
  return {relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut)};
}

ResNet20::ResNet20(Generator& generator)
    : conv1(add("conv1", conv3x3(3, 16, 1, generator))),
      bn1(add("bn1", nn::BatchNorm2d(16))),
      layer1(add("layer1", stage(16, 16, 1, generator))),
      layer2(add("layer2", stage(16, 32, 2, generator))),
      layer3(add("layer3", stage(32, 64, 2, generator))),
      linear(add("linear", nn::Linear(64, 10, true, generator))) {}

Tensors ResNet20::forward(const Tensors& in) const {
  const Tensor& x = one_input(in);
  return {linear(mean(layer3(layer2(layer1(relu(bn1(conv1(x)))))), {2, 3}))};
}

}  // namespace tessera::models
