// Models: GPT, as in GPT-2 and nanoGPT; ResNet-20 for CIFAR-10, ResNet-50, MobileNetV2, U-Net, and a network of 1x1
// convolutions.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/nn.h"

namespace tessera::models {

struct GPTConfig {
  int64_t layers = 12, heads = 12, width = 768;
  int64_t block = 1024;  ///< the longest context
  int64_t vocab = 50257;
  double dropout = 0;
  double init_std = 0;    ///< of initial matrices; 0: 0.02 sqrt(768 / width), which is GPT-2's 0.02 at GPT-2's width
  bool bias = true;       ///< in linear layers and layer norms
  bool tied_head = true;  ///< the output projection is the token embedding
  Activation activation = Activation::GeluTanh;
  friend bool operator==(const GPTConfig&, const GPTConfig&) = default;
};

/// Decoder-only transformer with learned positions, Radford et al. 2019. Matrices start normal with
/// std `init_std`, those that write to the residual stream with init_std / sqrt(2 * layers).
struct GPT : nn::Module {
  /// Throws Error on sizes that make no model.
  explicit GPT(const GPTConfig& config, Generator& generator = default_generator());
  /// tokens [batch, n], n <= block -> logits [batch, n, vocab].
  Tensors forward(const Tensors& in) const override;
  /// Mean cross entropy of `targets` [batch, n].
  Tensor loss(const Tensor& tokens, const Tensor& targets) const;
  /// The same, after `weight` times its gradients were added to those of the parameters: as (loss * weight).backward(),
  /// but the gradient of the logits is made where they lie while the loss is. Returns the loss outside of the graph.
  Tensor loss_and_backward(const Tensor& tokens, const Tensor& targets, double weight = 1) const;
  /// The same with a weight that lies on the device, 0-d, such as the scale of a loss in f16. Logits of more than
  /// `most_bytes` are made and used up in parts.
  Tensor loss_and_backward(const Tensor& tokens, const Tensor& targets, const Tensor& weight,
                           int64_t most_bytes = int64_t{4} << 30) const;
  /// Hidden states after the last norm, [batch, n, width].
  Tensor hidden(const Tensor& tokens) const;
  /// Floating-point operations of a training step on that many tokens, in full blocks: 6 for each token and weight of a
  /// matrix product, and the two products of causal attention, forward and backward.
  double training_flops(int64_t tokens) const;

  GPTConfig config;
  nn::Child<nn::Embedding> wte, wpe;
  nn::Child<nn::Dropout> drop;
  std::vector<nn::Child<nn::TransformerBlock>> blocks;
  nn::Child<nn::LayerNorm> norm;
  Tensor head;  ///< [vocab, width]
};

struct SampleOptions {
  double temperature = 1;  ///< below 1e-6 takes the most probable token
  int64_t top_k = 0;       ///< draw among the k most probable; 0 means all
  int64_t vocab = 0;       ///< draw among the first so many tokens of the model's vocabulary; 0 means all
  uint64_t seed = 0;
};
/// Appends `count` tokens to `prompt` (which may be empty: then token 0 starts) and returns those appended. `on_token`,
/// if given, sees each as it is drawn and ends the sampling by returning false.
std::vector<int32_t> generate(const GPT& model, const std::vector<int32_t>& prompt, int64_t count,
                              const SampleOptions& options = {}, const std::function<bool(int32_t)>& on_token = {});

/// The configuration of a GPT-2 file in Hugging Face's names; `heads` is width / 64. Throws Error if it is no such
/// file.
GPTConfig gpt2_config(const StateDict& file);
/// Renames and transposes weights in Hugging Face's names ("h.0.attn.c_attn.weight", with or without "transformer.")
/// for GPT::load_state_dict; position embeddings are cut to `block`.
StateDict convert_gpt2(const StateDict& file, int64_t block);

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

/// ResNet-50 for ImageNet, He et al. 2016, with the stride of a block in its 3x3 convolution ("v1.5") and torchvision's
/// names. x [n, 3, h, w] -> logits [n, classes]; published with 224 x 224 pixels.
struct ResNet50 : nn::Module {
  explicit ResNet50(int64_t classes = 1000, Generator& generator = default_generator());
  Tensors forward(const Tensors& in) const override;

  /// From `in` channels to `width`, and by a last convolution to four times as many.
  struct Block : nn::Module {
    Block(int64_t in, int64_t width, int64_t stride, Generator& generator);
    Tensors forward(const Tensors& in) const override;
    nn::Child<nn::Conv2d> conv1;
    nn::Child<nn::BatchNorm2d> bn1;
    nn::Child<nn::Conv2d> conv2;
    nn::Child<nn::BatchNorm2d> bn2;
    nn::Child<nn::Conv2d> conv3;
    nn::Child<nn::BatchNorm2d> bn3;
    std::optional<nn::Child<nn::Sequential>> downsample;  ///< of the shortcut, where shapes change
  };
  nn::Child<nn::Conv2d> conv1;
  nn::Child<nn::BatchNorm2d> bn1;
  nn::Child<nn::Sequential> layer1, layer2, layer3, layer4;
  nn::Child<nn::Linear> fc;
};

/// MobileNetV2, Sandler et al. 2018, of width 1 with torchvision's names. x [n, 3, h, w] -> logits [n, classes].
struct MobileNetV2 : nn::Module {
  explicit MobileNetV2(int64_t classes = 1000, Generator& generator = default_generator());
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
