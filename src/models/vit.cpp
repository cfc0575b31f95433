#include <fmt/format.h>

#include <algorithm>

#include "tessera/models_vision.h"

namespace tessera::models {
namespace {

const ViTConfig& checked_vit(const ViTConfig& c) {
  const int64_t least = std::min({c.image, c.patch, c.layers, c.heads, c.width, c.hidden, c.channels, c.classes});
  if (least < 1 || c.image % c.patch != 0 || c.width % c.heads != 0)
    throw Error(
        fmt::format("ViT: images of {}, patches of {}, {} layers, {} heads, width {}, {} hidden, {} channels, "
                    "{} classes make no model",
                    c.image, c.patch, c.layers, c.heads, c.width, c.hidden, c.channels, c.classes));
  return c;
}

}  // namespace

ViT::Block::Block(const ViTConfig& c, Generator& generator)
    : heads(c.heads),
      ln_1(add("ln_1", nn::LayerNorm(c.width, true, 1e-6))),
      in_proj_weight(add_parameter("self_attention.in_proj_weight", empty({3 * c.width, c.width}))),
      in_proj_bias(add_parameter("self_attention.in_proj_bias", zeros({3 * c.width}))),
      out_proj(add("self_attention.out_proj", nn::Linear(c.width, c.width, true, generator))),
      ln_2(add("ln_2", nn::LayerNorm(c.width, true, 1e-6))),
      up(add("mlp.0", nn::Linear(c.width, c.hidden, true, generator))),
      down(add("mlp.3", nn::Linear(c.hidden, c.width, true, generator))) {
  nn::init::xavier_uniform_(in_proj_weight, 1, generator);
}

Tensors ViT::Block::forward(const Tensors& in) const {
  const Tensor& x = one_input(in);
  const Tensor attended = attention_qkv(linear(ln_1(x), packed(in_proj_weight), in_proj_bias), heads);
  const Tensor y = out_proj(attended, Activation::None, x);
  return {down(up(ln_2(y), Activation::GeluErf), Activation::None, y)};
}

ViT::ViT(const ViTConfig& c, Generator& generator)
    : config(checked_vit(c)),
      class_token(add_parameter("class_token", zeros({1, 1, c.width}))),
      conv_proj(
          add("conv_proj", nn::Conv2d(c.channels, c.width, c.patch, {.stride = {c.patch, c.patch}}, true, generator))) {
  const int64_t side = c.image / c.patch;
  pos_embedding = add_parameter("encoder.pos_embedding", empty({1, side * side + 1, c.width}));
  nn::init::normal_(pos_embedding, 0, 0.02, generator);
  for (int64_t i = 0; i < c.layers; ++i)
    blocks.push_back(add(fmt::format("encoder.layers.encoder_layer_{}", i), Block(c, generator)));
  ln = add("encoder.ln", nn::LayerNorm(c.width, true, 1e-6));
  head = add("heads.head", nn::Linear(c.width, c.classes, true, generator));
}

Tensors ViT::forward(const Tensors& in) const {
  const Tensor& image = one_input(in);
  if (image.dim() != 4 || image.shape()[2] != Dim(config.image) || image.shape()[3] != Dim(config.image))
    throw Error(fmt::format("ViT: takes [n, {}, {}, {}], not {}", config.channels, config.image, config.image,
                            to_string(image.shape())));
  const Tensor patches = transpose(flatten(conv_proj(image), 2), 1, 2);
  const Tensor first = expand(class_token, {image.shape()[0], Dim(1), Dim(config.width)});
  Tensor x = concat({first, patches}, 1) + pos_embedding;
  for (const auto& block : blocks) x = block(x);
  return {head(ln(select(x, 1, 0)))};
}

}  // namespace tessera::models
