#include "tessera/models.h"

namespace tessera::models {
namespace {

nn::Conv2d conv3x3(int64_t in, int64_t out, int64_t stride, Generator& generator) {
  return nn::Conv2d(in, out, 3, {.stride = {stride, stride}, .padding = {1, 1}}, /*bias=*/false, generator);
}

nn::Conv2d conv1x1(int64_t in, int64_t out, int64_t stride, Generator& generator) {
  return nn::Conv2d(in, out, 1, {.stride = {stride, stride}}, /*bias=*/false, generator);
}

nn::Sequential bottlenecks(int64_t count, int64_t in, int64_t width, int64_t stride, Generator& generator) {
  nn::Sequential blocks;
  for (int64_t i = 0; i < count; ++i)
    blocks.append(ResNet50::Block(i ? 4 * width : in, width, i ? 1 : stride, generator));
  return blocks;
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

ResNet50::Block::Block(int64_t in, int64_t width, int64_t stride, Generator& generator)
    : conv1(add("conv1", conv1x1(in, width, 1, generator))),
      bn1(add("bn1", nn::BatchNorm2d(width))),
      conv2(add("conv2", conv3x3(width, width, stride, generator))),
      bn2(add("bn2", nn::BatchNorm2d(width))),
      conv3(add("conv3", conv1x1(width, 4 * width, 1, generator))),
      bn3(add("bn3", nn::BatchNorm2d(4 * width))) {
  if (stride != 1 || in != 4 * width)
    downsample =
        add("downsample", nn::Sequential(conv1x1(in, 4 * width, stride, generator), nn::BatchNorm2d(4 * width)));
}

Tensors ResNet50::Block::forward(const Tensors& in) const {
  const Tensor& x = one_input(in);
  Tensor y = relu(bn1(conv1(x)));
  y = relu(bn2(conv2(y)));
  const Tensor shortcut = downsample ? (*downsample)(x) : x;
  return {relu(bn3(conv3(y)) + shortcut)};
}

ResNet50::ResNet50(int64_t classes, Generator& generator)
    : conv1(add("conv1", nn::Conv2d(3, 64, 7, {.stride = {2, 2}, .padding = {3, 3}}, /*bias=*/false, generator))),
      bn1(add("bn1", nn::BatchNorm2d(64))),
      layer1(add("layer1", bottlenecks(3, 64, 64, 1, generator))),
      layer2(add("layer2", bottlenecks(4, 256, 128, 2, generator))),
      layer3(add("layer3", bottlenecks(6, 512, 256, 2, generator))),
      layer4(add("layer4", bottlenecks(3, 1024, 512, 2, generator))),
      fc(add("fc", nn::Linear(2048, classes, true, generator))) {}

Tensors ResNet50::forward(const Tensors& in) const {
  const Tensor h = relu(bn1(conv1(one_input(in))));
  const Tensor x = max_pool2d(h, {.window = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
  return {fc(mean(layer4(layer3(layer2(layer1(x)))), {2, 3}))};
}

}  // namespace tessera::models
