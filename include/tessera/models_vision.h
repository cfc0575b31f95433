// Models of images: ResNets, MobileNetV2, a vision transformer, U-Nets, and a network of 1x1 convolutions.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/nn.h"

namespace tessera::models {

/// ResNet-20 for CIFAR-10 with parameter-free shortcuts (option A), He et al. 2016. x [n, 3, 32, 32] -> logits [n, 10].
struct ResNet20 : nn::Module {
  explicit ResNet20(Generator& generator = default_generator());
  Tensors forward(const Tensors& in) const override;

  struct Block : nn::Module {
    Block(int64_t in, int64_t out, int64_t stride, Generator& generator);
    Tensors forward(const Tensors& in) const override;
    int64_t in, out, stride;
    nn::Child<nn::Conv2d> conv1;
    nn::Child<nn::BatchNorm2d> bn1;
    nn::Child<nn::Conv2d> conv2;
    nn::Child<nn::BatchNorm2d> bn2;
  };
  nn::Child<nn::Conv2d> conv1;
  nn::Child<nn::BatchNorm2d> bn1;
  nn::Child<nn::Sequential> layer1, layer2, layer3;
  nn::Child<nn::Linear> linear;
};

struct ResNetConfig {
  std::vector<int64_t> blocks = {2, 2, 2, 2};  ///< of each of the four stages
  bool bottleneck = false;                     ///< blocks are Bottlenecks
  int64_t width = 64;                          ///< of the first stage's blocks; each stage doubles it
  int64_t channels = 3;                        ///< of the images
  int64_t classes = 1000;
};

/// The convolutions of a ResNet for ImageNet, He et al. 2016, with torchvision's names.
struct ResNetTrunk : nn::Module {
  /// Throws Error on sizes that make no model.
  explicit ResNetTrunk(const ResNetConfig& config, Generator& generator = default_generator());
  /// x [n, channels, h, w] -> what the stem gives, of half the size, and what each stage gives: a quarter of the size,
  /// an eighth and so on.
  Tensors forward(const Tensors& in) const override;

  /// Two 3x3 convolutions from `in` channels to `out`.
  struct BasicBlock : nn::Module {
    BasicBlock(int64_t in, int64_t out, int64_t stride, Generator& generator);
    Tensors forward(const Tensors& in) const override;
    nn::Child<nn::Conv2d> conv1;
    nn::Child<nn::BatchNorm2d> bn1;
    nn::Child<nn::Conv2d> conv2;
    nn::Child<nn::BatchNorm2d> bn2;
    std::optional<nn::Child<nn::Sequential>> downsample;  ///< of the shortcut, where shapes change
  };
  /// From `in` channels to `width`, and by a last convolution to four times as many. The 3x3 convolution has the stride
  /// ("v1.5").
  struct Bottleneck : nn::Module {
    Bottleneck(int64_t in, int64_t width, int64_t stride, Generator& generator);
    Tensors forward(const Tensors& in) const override;
    nn::Child<nn::Conv2d> conv1;
    nn::Child<nn::BatchNorm2d> bn1;
    nn::Child<nn::Conv2d> conv2;
    nn::Child<nn::BatchNorm2d> bn2;
    nn::Child<nn::Conv2d> conv3;
    nn::Child<nn::BatchNorm2d> bn3;
    std::optional<nn::Child<nn::Sequential>> downsample;  ///< of the shortcut, where shapes change
  };
  ResNetConfig config;
  nn::Child<nn::Conv2d> conv1;
  nn::Child<nn::BatchNorm2d> bn1;
  nn::Child<nn::Sequential> layer1, layer2, layer3, layer4;
};

/// x [n, channels, h, w] -> logits [n, classes]; published with 224 x 224 pixels.
struct ResNet : ResNetTrunk {
  explicit ResNet(const ResNetConfig& config, Generator& generator = default_generator());
  Tensors forward(const Tensors& in) const override;
  nn::Child<nn::Linear> fc;
};
struct ResNet18 : ResNet {
  explicit ResNet18(int64_t classes = 1000, Generator& generator = default_generator())
      : ResNet({.classes = classes}, generator) {}
};
struct ResNet34 : ResNet {
  explicit ResNet34(int64_t classes = 1000, Generator& generator = default_generator())
      : ResNet({.blocks = {3, 4, 6, 3}, .classes = classes}, generator) {}
};
struct ResNet50 : ResNet {
  explicit ResNet50(int64_t classes = 1000, Generator& generator = default_generator())
      : ResNet({.blocks = {3, 4, 6, 3}, .bottleneck = true, .classes = classes}, generator) {}
  using Block = Bottleneck;
};

/// Blocks one after another, of which the first has the stride.
struct MobileNetV2Stage {
  int64_t widening, channels, blocks, stride;
};
struct MobileNetV2Config {
  double width = 1;  ///< times the channels, rounded to multiples of 8 and at most 10 % down
  std::vector<MobileNetV2Stage> stages = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                                          {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
  int64_t first = 32, last = 1280;  ///< channels before and after the stages; `last` does not shrink with the width
  int64_t classes = 1000;
};

/// MobileNetV2, Sandler et al. 2018, with torchvision's names. x [n, 3, h, w] -> logits [n, classes].
struct MobileNetV2 : nn::Module {
  explicit MobileNetV2(int64_t classes = 1000, Generator& generator = default_generator());
  /// Throws Error on sizes that make no model.
  explicit MobileNetV2(const MobileNetV2Config& config, Generator& generator = default_generator());
  Tensors forward(const Tensors& in) const override;

  /// A depthwise convolution between two 1x1 ones, the first of which widens; added to x where shapes allow.
  struct Block : nn::Module {
    Block(int64_t in, int64_t out, int64_t stride, int64_t widening, Generator& generator);
    Tensors forward(const Tensors& in) const override;
    bool adds;
    nn::Child<nn::Sequential> conv;
  };
  nn::Child<nn::Sequential> features, classifier;
};

struct ViTConfig {
  int64_t image = 224, patch = 16;  ///< pixels of their edges
  int64_t layers = 12, heads = 12, width = 768;
  int64_t hidden = 3072;  ///< of the perceptrons
  int64_t channels = 3, classes = 1000;
};

/// Vision transformer, Dosovitskiy et al. 2020; ViT-B/16 by default, with torchvision's names. x [n, channels, image,
/// image] -> logits [n, classes].
struct ViT : nn::Module {
  /// Throws Error on sizes that make no model.
  explicit ViT(const ViTConfig& config = {}, Generator& generator = default_generator());
  Tensors forward(const Tensors& in) const override;

  /// x += attention(ln_1(x)); x += mlp(ln_2(x)). x [n, tokens, width].
  struct Block : nn::Module {
    Block(const ViTConfig& config, Generator& generator);
    Tensors forward(const Tensors& in) const override;
    int64_t heads;
    nn::Child<nn::LayerNorm> ln_1;
    Tensor in_proj_weight, in_proj_bias;  ///< of queries, keys and values, one after another
    nn::Child<nn::Linear> out_proj;
    nn::Child<nn::LayerNorm> ln_2;
    nn::Child<nn::Linear> up, down;
  };
  ViTConfig config;
  Tensor class_token, pos_embedding;
  nn::Child<nn::Conv2d> conv_proj;
  std::vector<nn::Child<Block>> blocks;
  nn::Child<nn::LayerNorm> ln;
  nn::Child<nn::Linear> head;
};

/// U-Net, Ronneberger et al. 2015, with padded convolutions and batch norm: `levels` times half the size and twice
/// the channels, from `width` on, and back. x [n, 3, h, w] -> [n, classes, h, w]; h and w are multiples of 2^levels.
struct UNet : nn::Module {
  explicit UNet(int64_t classes = 2, int64_t width = 64, int64_t levels = 4,
                Generator& generator = default_generator());
  Tensors forward(const Tensors& in) const override;

  std::vector<nn::Child<nn::Sequential>> down, join;
  std::vector<nn::Child<nn::ConvTranspose2d>> up;
  nn::Child<nn::Conv2d> out;
};

struct ResNetUNetConfig {
  ResNetConfig encoder = {.blocks = {3, 4, 6, 3}};        ///< ResNet-34's; its classes do not count
  std::vector<int64_t> decoder = {256, 128, 64, 32, 16};  ///< channels after each of five times twice the size
  int64_t classes = 1;
};

/// U-Net whose way down is a ResNet, with the names of segmentation_models_pytorch. Any number of bands is
/// `encoder.channels`. x [n, bands, h, w] -> [n, classes, h, w]; h and w are multiples of 32.
struct ResNetUNet : nn::Module {
  /// Throws Error on sizes that make no model.
  explicit ResNetUNet(const ResNetUNetConfig& config = {}, Generator& generator = default_generator());
  Tensors forward(const Tensors& in) const override;

  nn::Child<ResNetTrunk> encoder;
  std::vector<nn::Child<nn::Sequential>> conv1, conv2;  ///< of each block of the decoder
  nn::Child<nn::Conv2d> head;
};

/// Weights in torchvision's or segmentation_models_pytorch's names for load_state_dict: without the counters
/// "num_batches_tracked" of batch norms, which nothing here uses; "mlp.linear_1" and "mlp.linear_2" of old vision
/// transformers become "mlp.0" and "mlp.3".
StateDict convert_torchvision(const StateDict& file);

/// A function of position: `layers` times a 1x1 convolution to `width` channels, batch norm and ReLU, then a
/// convolution to one channel. x [n, 2, h, w] -> [n, 1, h, w].
struct ConvModel : nn::Module {
  explicit ConvModel(int64_t layers = 3, int64_t width = 256, Generator& generator = default_generator());
  Tensors forward(const Tensors& in) const override;

  std::vector<nn::Child<nn::Conv2d>> convs;
  std::vector<nn::Child<nn::BatchNorm2d>> norms;
  nn::Child<nn::Conv2d> out;
};

}  // namespace tessera::models
