#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/attrs.h"
#include "ops/loss.h"
#include "tessera/autograd.h"
#include "tessera/models.h"
#include "tessera/observer.h"

namespace tessera::models {
namespace {

const GPTConfig& checked(const GPTConfig& c) {
  if (c.layers < 1 || c.heads < 1 || c.width < 1 || c.block < 1 || c.vocab < 1 || c.width % c.heads != 0)
    throw Error(fmt::format("GPT: {} layers, {} heads, width {}, block {}, vocabulary {} make no model", c.layers,
                            c.heads, c.width, c.block, c.vocab));
  if (!(c.alibi >= 0 && c.alibi <= 64)) throw Error(fmt::format("GPT: alibi = {} is not in [0, 64]", c.alibi));
  if (!(c.init_std >= 0 && std::isfinite(c.init_std)))
    throw Error(fmt::format("GPT: a standard deviation of {} makes no initial weights", c.init_std));
  return c;
}

// The weights must fit into the machine: an error before the first is made, not after hours of making layers.
const GPTConfig& fitting(const GPTConfig& c) {
  if (default_device().meta) return c;
  const auto width = static_cast<double>(c.width);
  const double parameters =
      width * (12 * width * static_cast<double>(c.layers) + static_cast<double>(c.vocab + c.block));
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (4 * parameters > memory)
    throw OutOfMemoryError(fmt::format("GPT: out of memory: {:.3g} parameters take {:.3g} GiB, this machine has {:.3g}",
                                       parameters, 4 * parameters / 0x1p30, memory / 0x1p30));
  return c;
}

}  // namespace

GPT::GPT(const GPTConfig& c, Generator& generator)
    : config(fitting(checked(c))),
      wte(add("wte", nn::Embedding(c.vocab, c.width, generator))),
      wpe(c.alibi > 0 ? nn::Child<nn::Embedding>() : add("wpe", nn::Embedding(c.block, c.width, generator))),
      drop(add("drop", nn::Dropout(c.dropout))),
      norm(std::make_shared<nn::LayerNorm>(c.width, c.bias)) {
  const nn::TransformerConfig block{c.width, c.heads, 0, c.bias, /*causal=*/true, c.dropout, c.activation, c.alibi};
  for (int64_t i = 0; i < c.layers; ++i)
    blocks.push_back(add(fmt::format("h.{}", i), nn::TransformerBlock(block, generator)));
  norm = add("norm", norm);
  head = add_parameter("head.weight", c.tied_head ? wte->weight : empty({c.vocab, c.width}));

  const double std = c.init_std > 0 ? c.init_std : 0.02 * std::sqrt(768 / static_cast<double>(c.width));
  for (auto& [name, t] : named_parameters()) {
    const bool residual = name.ends_with("attention.out.weight") || name.ends_with("down.weight");
    if (t.dim() > 1)
      nn::init::normal_(t, 0, residual ? std / std::sqrt(2.0 * static_cast<double>(c.layers)) : std, generator);
    else if (name.ends_with("bias")) nn::init::constant_(t, 0);
  }
}

namespace {

Tensor places_of(const nn::Child<nn::Embedding>& wpe, Dim n, int64_t block, Device device) {
  const nn::Embedding* table = wpe.exact();
  if (!table) return wpe(arange(0, double(n.value()), 1, Int64, device));
  return n == block ? table->weight : slice(table->weight, 0, Dim(0), n);  // which costs backward a copy
}

}  // namespace

Tensor GPT::hidden(const Tensor& tokens) const {
  const Dim n = tokens.dim() == 2 ? tokens.shape()[1] : Dim(0);
  if (tokens.dim() != 2 || n.high() > config.block)
    throw Error(fmt::format("GPT: takes [batch, at most {}] tokens, not {}", config.block, to_string(tokens.shape())));
  Tensor vectors = wte(tokens);
  if (config.alibi == 0) vectors = vectors + places_of(wpe, n, config.block, tokens.device());
  nn::Residual x{drop(vectors)};
  for (const auto& block : blocks)
    if (const nn::TransformerBlock* known = block.exact()) x = known->extend(std::move(x));
    else x = {block(x.value())};
  return x.normalized(norm);
}

namespace {

Tensor logits_of(const Tensor& x, const Tensor& head) {
  return in_scope("head", [&] { return linear(x, head); });
}

}  // namespace

Tensors GPT::forward(const Tensors& in) const { return {logits_of(hidden(one_input(in)), packed(head))}; }

Tensor GPT::loss(const Tensor& tokens, const Tensor& targets) const {
  return cross_entropy_overwriting((*this)(tokens), targets);
}

Tensor GPT::loss_and_backward(const Tensor& tokens, const Tensor& targets, double weight) const {
  return loss_and_backward(tokens, targets, full({}, weight, Float64, tokens.device()));
}

namespace {

// The graph's end of logits without their memory, which becomes the gradient's.
Tensor without_memory(Tensor& logits) {
  Tensor end = expand(empty({}, logits.dtype(), logits.device()), logits.shape());
  end.impl().autograd = std::move(logits.impl().autograd);
  return end;
}

// loss_and_backward from hidden states on, by so many parts of the rows one after the other.
Tensor backward_in_parts(Tensor x, const Tensor& head, const Tensor& targets, const Tensor& weight, int64_t parts) {
  const int64_t rows = targets.numel(), length = (rows + parts - 1) / parts;
  const Tensor goals = targets.reshape({rows});
  Tensor states = x.detach().reshape({rows, x.size(-1)});
  const Tensor counted =
      cast(ne(goals, full({}, double(LossAttrs{}.ignore_index), goals.dtype(), goals.device())), weight.dtype());
  const Tensor count = sum(counted), none = zeros({}, weight.dtype(), weight.device());
  Tensor loss = none, dhead;
  Tensor dx = empty(states.shape(), states.dtype(), states.device());
  for (int64_t at = 0; at < rows; at += length) {
    const auto part = [&](const Tensor& t) { return t.slice(0, at, std::min(at + length, rows)); };
    Tensors leaves{part(states).detach().set_requires_grad()};
    if (head.requires_grad()) leaves.push_back(head);
    const Tensor share = sum(part(counted)) / count;
    Tensor logits = logits_of(leaves[0], head);
    const Tensor end = without_memory(logits);
    const Tensor mean = cross_entropy_and_gradient_(logits, part(goals), weight * share);
    loss = loss + where(gt(share, none), mean * share, none);
    Tensors gradients = grad({end}, leaves, {std::move(logits)});
    part(dx).copy_(gradients[0]);
    if (dhead.defined()) dhead.add_(gradients[1]);
    else if (leaves.size() > 1) dhead = std::move(gradients[1]);
  }
  Tensors ends{std::move(x)}, gradients{dx.reshape(ends[0].shape())};
  if (dhead.defined()) {
    ends.push_back(head);
    gradients.push_back(std::move(dhead));
  }
  states = dx = Tensor();
  backward(std::exchange(ends, {}), std::move(gradients));
  return loss;
}

}  // namespace

Tensor GPT::loss_and_backward(const Tensor& tokens, const Tensor& targets, const Tensor& weight,
                              int64_t most_bytes) const {
  Tensor x = hidden(tokens);
  const Tensor wide = cast(weight, x.dtype() == Float64 ? Float64 : Float32);
  const int64_t row = config.vocab * static_cast<int64_t>(size_of(x.dtype()));
  const int64_t at_once = std::max<int64_t>(1, most_bytes / row), parts = (tokens.numel() + at_once - 1) / at_once;
  if (parts > 1) return backward_in_parts(std::move(x), head, targets, wide, parts);
  Tensor logits = logits_of(std::exchange(x, Tensor()), head);
  const Tensor end = without_memory(logits);
  const Tensor loss = cross_entropy_and_gradient_(logits, targets, wide);
  end.backward(std::move(logits));
  return loss;
}

double GPT::training_flops(int64_t tokens) const {
  double weights = 0;
  for (const auto& [name, t] : named_parameters())
    if (t.dim() > 1 && name != "wpe.weight" && (config.tied_head || name != "wte.weight"))
      weights += static_cast<double>(t.numel());
  const auto attended = static_cast<double>(config.layers * config.width * config.block);
  return 6 * static_cast<double>(tokens) * (weights + attended);
}

namespace {

int32_t draw(const Tensor& logits, const SampleOptions& options, Generator& generator) {
  if (options.temperature < 1e-6) return static_cast<int32_t>(argmax(logits, -1).item<int64_t>());
  const Tensor scaled = logits * (1 / options.temperature);
  if (options.top_k == 0 || options.top_k >= logits.numel())
    return static_cast<int32_t>(multinomial(softmax(scaled, -1), 1, false, generator).item<int64_t>());
  const auto [values, indices] = topk(scaled, options.top_k);
  const int64_t chosen = multinomial(softmax(values, -1), 1, false, generator).item<int64_t>();
  return static_cast<int32_t>(indices.select(0, chosen).item<int64_t>());
}

}  // namespace

std::vector<int32_t> generate(const GPT& model, const std::vector<int32_t>& prompt, int64_t count,
                              const SampleOptions& options, const std::function<bool(int32_t)>& on_token) {
  if (!(options.temperature >= 0 && std::isfinite(options.temperature)) || options.top_k < 0 || count < 0)
    throw Error(fmt::format("generate: temperature {}, top_k {} and count {} must not be negative", options.temperature,
                            options.top_k, count));
  if (options.vocab < 0 || options.vocab > model.config.vocab)
    throw Error(fmt::format("generate: {} tokens are not in a vocabulary of {}", options.vocab, model.config.vocab));
  NoGrad no_grad;
  nn::EvalMode eval(model);
  Generator generator(options.seed);
  std::vector<int64_t> all(prompt.begin(), prompt.end());
  if (all.empty()) all.push_back(0);
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i) {
    const auto n = std::min(static_cast<int64_t>(all.size()), model.config.block);
    const Tensor context = tensor(std::vector<int64_t>(all.end() - n, all.end()), {1, n});
    const Tensor last = model.hidden(context.to(model.head.device())).select(0, 0).select(0, n - 1);
    const Tensor logits = linear(last, model.packed(model.head));
    const int32_t token = draw(options.vocab ? logits.slice(0, 0, options.vocab) : logits, options, generator);
    all.push_back(token);
    out.push_back(token);
    if (on_token && !on_token(token)) break;
  }
  return out;
}

}  // namespace tessera::models
