#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "tessera/models_text.h"

namespace tessera::models {
namespace {

const BertConfig& checked_bert(const BertConfig& c) {
  const int64_t least = std::min({c.layers, c.heads, c.width, c.hidden, c.positions, c.vocab, c.types});
  if (least < 1 || c.width % c.heads != 0)
    throw Error(
        fmt::format("Bert: {} layers, {} heads, width {}, {} hidden, {} positions, vocabulary {}, {} types of "
                    "tokens make no model",
                    c.layers, c.heads, c.width, c.hidden, c.positions, c.vocab, c.types));
  return c;
}

Tensor input_at(const Tensors& in, size_t i) { return i < in.size() ? in[i] : Tensor(); }

}  // namespace

Bert::Layer::Layer(const BertConfig& c, Generator& generator)
    : config(c),
      query(add("attention.self.query", nn::Linear(c.width, c.width, true, generator))),
      key(add("attention.self.key", nn::Linear(c.width, c.width, true, generator))),
      value(add("attention.self.value", nn::Linear(c.width, c.width, true, generator))),
      attended(add("attention.output.dense", nn::Linear(c.width, c.width, true, generator))),
      attention_norm(add("attention.output.LayerNorm", nn::LayerNorm(c.width, true, c.eps))),
      up(add("intermediate.dense", nn::Linear(c.width, c.hidden, true, generator))),
      down(add("output.dense", nn::Linear(c.hidden, c.width, true, generator))),
      norm(add("output.LayerNorm", nn::LayerNorm(c.width, true, c.eps))) {}

// dropout(part(x)) + residual.
Tensor Bert::Layer::joined(const nn::Child<nn::Linear>& part, const Tensor& x, const Tensor& residual) const {
  if (config.dropout > 0 && training()) return dropout(part(x), config.dropout) + residual;
  return part(x, Activation::None, residual);
}

Tensors Bert::Layer::forward(const Tensors& in) const {
  check_inputs(in, 2, 2);
  const Tensor &x = in[0], &mask = in[1];
  const Dim batch = x.shape()[0], tokens = x.shape()[1], width(config.width / config.heads);
  const auto heads = [&](const Tensor& t) {
    return transpose(reshape(t, {batch, tokens, Dim(config.heads), width}), 1, 2);
  };
  const double drops = training() ? config.dropout : 0;
  const Tensor y =
      scaled_dot_product_attention(heads(query(x)), heads(key(x)), heads(value(x)), {.mask = mask, .dropout = drops});
  const Tensor h = attention_norm(joined(attended, flatten(transpose(y, 1, 2), 2), x));
  return {norm(joined(down, up(h, Activation::GeluErf), h))};
}

Bert::Bert(const BertConfig& c, Generator& generator)
    : config(checked_bert(c)),
      words(add("embeddings.word_embeddings", nn::Embedding(c.vocab, c.width, generator))),
      places(add("embeddings.position_embeddings", nn::Embedding(c.positions, c.width, generator))),
      types(add("embeddings.token_type_embeddings", nn::Embedding(c.types, c.width, generator))),
      norm(add("embeddings.LayerNorm", nn::LayerNorm(c.width, true, c.eps))),
      drop(add("embeddings.dropout", nn::Dropout(c.dropout))) {
  for (int64_t i = 0; i < c.layers; ++i) layers.push_back(add(fmt::format("encoder.layer.{}", i), Layer(c, generator)));
  pooler = add("pooler.dense", nn::Linear(c.width, c.width, true, generator));
  for (auto& [name, t] : named_parameters())
    if (t.dim() > 1) nn::init::normal_(t, 0, 0.02, generator);
    else if (name.ends_with("bias")) nn::init::constant_(t, 0);
}

Tensor Bert::vectors_of(const Tensor& tokens) const {
  const Tensor x = words(tokens);
  if (!x.requires_grad() || config.padding < 0) return x;
  const Tensor padding = full({}, static_cast<double>(config.padding), tokens.dtype(), tokens.device());
  return where(unsqueeze(eq(tokens, padding), -1), x.detach(), x);
}

Tensor Bert::hidden(const Tensor& tokens, const Tensor& mask, const Tensor& kinds) const {
  if (tokens.dim() != 2 || tokens.shape()[1].high() > config.positions || tokens.shape()[1].low() < 1)
    throw Error(
        fmt::format("Bert: takes [batch, 1 to {}] tokens, not {}", config.positions, to_string(tokens.shape())));
  for (const Tensor& t : {mask, kinds})
    if (t.defined() && !(t.shape() == tokens.shape()))
      throw Error(fmt::format("Bert: mask and types are as the tokens, {}, and not {}", to_string(tokens.shape()),
                              to_string(t.shape())));
  const Tensor of_type = types(kinds.defined() ? kinds : zeros(tokens.shape(), Int64, tokens.device()));
  Tensor x = drop(norm(vectors_of(tokens) + of_type + slice(places->weight, 0, Dim(0), tokens.shape()[1])));
  Tensor attends;
  if (mask.defined()) attends = unsqueeze(unsqueeze(cast(mask, Bool), 1), 1);
  for (const auto& layer : layers) x = layer(x, attends);
  return x;
}

Tensors Bert::forward(const Tensors& in) const {
  check_inputs(in, 1, 3);
  const Tensor x = hidden(in[0], input_at(in, 1), input_at(in, 2));
  return {x, pooler(select(x, 1, 0), Activation::Tanh)};
}

MiniLM::MiniLM(const BertConfig& config, Generator& generator) : Bert(config, generator) {}

Tensors MiniLM::forward(const Tensors& in) const {
  check_inputs(in, 1, 3);
  const Tensor mask = input_at(in, 1), x = hidden(in[0], mask, input_at(in, 2));
  constexpr double most = std::numeric_limits<double>::max();
  Tensor y;
  if (mask.defined()) {
    const Tensor counts = cast(unsqueeze(mask, -1), x.dtype());
    y = sum(x * counts, {1}) / clamp(sum(counts, {1}), 1e-9, most);
  } else {
    y = mean(x, {1});
  }
  return {y / clamp(tessera::norm(y, {1}, true), 1e-12, most)};
}

StateDict convert_bert(const StateDict& file) {
  StateDict out;
  for (const auto& [full, t] : file) {
    std::string name = full.starts_with("bert.") ? full.substr(5) : full;
    if (name == "embeddings.position_ids" || name.starts_with("cls.")) continue;
    for (const auto& [old, now] :
         {std::pair("LayerNorm.gamma", "LayerNorm.weight"), {"LayerNorm.beta", "LayerNorm.bias"}})
      if (name.ends_with(old)) name = name.substr(0, name.size() - std::string_view(old).size()) + now;
    out.emplace(std::move(name), t);
  }
  return out;
}

}  // namespace tessera::models
