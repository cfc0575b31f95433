#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/models_vision.h"

namespace tessera::models {
namespace {

nn::Conv2d conv3x3(int64_t in, int64_t out, int64_t stride, Generator& generator) {
  return nn::Conv2d(in, out, 3, {.stride = {stride, stride}, .padding = {1, 1}}, /*bias=*/false, generator);
}

nn::Conv2d conv1x1(int64_t in, int64_t out, int64_t stride, Generator& generator) {
  return nn::Conv2d(in, out, 1, {.stride = {stride, stride}}, /*bias=*/false, generator);
}

// What brings the shortcut to the shape of a block's result; nothing where it has it.
std::optional<nn::Sequential> shortcut_of(int64_t in, int64_t out, int64_t stride, Generator& generator) {
  if (stride == 1 && in == out) return {};
  return nn::Sequential(conv1x1(in, out, stride, generator), nn::BatchNorm2d(out));
}

const ResNetConfig& checked_resnet(const ResNetConfig& c) {
  const auto none = [](int64_t n) { return n < 1; };
  if (c.blocks.size() != 4 || std::any_of(c.blocks.begin(), c.blocks.end(), none) || none(c.width) ||
      none(c.channels) || none(c.classes))
    throw Error(fmt::format("ResNet: stages of [{}] blocks, width {}, {} channels, {} classes make no model",
                            fmt::join(c.blocks, ", "), c.width, c.channels, c.classes));
  return c;
}

// Channels behind stage i.
int64_t channels_of(const ResNetConfig& c, size_t i) { return (c.width << i) * (c.bottleneck ? 4 : 1); }

nn::Sequential resnet_stage(const ResNetConfig& c, size_t stage, Generator& generator) {
  const int64_t width = c.width << stage, out = channels_of(c, stage);
  nn::Sequential blocks;
  for (int64_t i = 0; i < c.blocks[stage]; ++i) {
    const int64_t in = i ? out : stage ? channels_of(c, stage - 1) : c.width, stride = i || stage == 0 ? 1 : 2;
    if (c.bottleneck) blocks.append(ResNet::Bottleneck(in, width, stride, generator));
    else blocks.append(ResNet::BasicBlock(in, width, stride, generator));
  }
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

ResNetTrunk::BasicBlock::BasicBlock(int64_t in, int64_t out, int64_t stride, Generator& generator)
    : conv1(add("conv1", conv3x3(in, out, stride, generator))),
      bn1(add("bn1", nn::BatchNorm2d(out))),
      conv2(add("conv2", conv3x3(out, out, 1, generator))),
      bn2(add("bn2", nn::BatchNorm2d(out))) {
  if (auto parts = shortcut_of(in, out, stride, generator)) downsample = add("downsample", *parts);
}

Tensors ResNetTrunk::BasicBlock::forward(const Tensors& in) const {
  const Tensor& x = one_input(in);
  const Tensor y = bn2(conv2(relu(bn1(conv1(x)))));
  return {relu(y + (downsample ? (*downsample)(x) : x))};
}

ResNetTrunk::Bottleneck::Bottleneck(int64_t in, int64_t width, int64_t stride, Generator& generator)
    : conv1(add("conv1", conv1x1(in, width, 1, generator))),
      bn1(add("bn1", nn::BatchNorm2d(width))),
      conv2(add("conv2", conv3x3(width, width, stride, generator))),
      bn2(add("bn2", nn::BatchNorm2d(width))),
      conv3(add("conv3", conv1x1(width, 4 * width, 1, generator))),
      bn3(add("bn3", nn::BatchNorm2d(4 * width))) {
  if (auto parts = shortcut_of(in, 4 * width, stride, generator)) downsample = add("downsample", *parts);
}

Tensors ResNetTrunk::Bottleneck::forward(const Tensors& in) const {
  const Tensor& x = one_input(in);
  Tensor y = relu(bn1(conv1(x)));
  y = relu(bn2(conv2(y)));
  return {relu(bn3(conv3(y)) + (downsample ? (*downsample)(x) : x))};
}

ResNetTrunk::ResNetTrunk(const ResNetConfig& c, Generator& generator)
    : config(checked_resnet(c)),
      conv1(add("conv1",
                nn::Conv2d(c.channels, c.width, 7, {.stride = {2, 2}, .padding = {3, 3}}, /*bias=*/false, generator))),
      bn1(add("bn1", nn::BatchNorm2d(c.width))),
      layer1(add("layer1", resnet_stage(c, 0, generator))),
      layer2(add("layer2", resnet_stage(c, 1, generator))),
      layer3(add("layer3", resnet_stage(c, 2, generator))),
      layer4(add("layer4", resnet_stage(c, 3, generator))) {}

Tensors ResNetTrunk::forward(const Tensors& in) const {
  Tensors out{relu(bn1(conv1(one_input(in))))};
  out.push_back(layer1(max_pool2d(out[0], {.window = {3, 3}, .stride = {2, 2}, .padding = {1, 1}})));
  for (const auto* layer : {&layer2, &layer3, &layer4}) out.push_back((*layer)(out.back()));
  return out;
}

ResNet::ResNet(const ResNetConfig& c, Generator& generator)
    : ResNetTrunk(c, generator), fc(add("fc", nn::Linear(channels_of(c, 3), c.classes, true, generator))) {}

Tensors ResNet::forward(const Tensors& in) const { return {fc(mean(ResNetTrunk::forward(in).back(), {2, 3}))}; }

}  // namespace tessera::models
