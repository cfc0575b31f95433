#include <fmt/format.h>

#include "ops/autocast.h"
#include "tessera/nn.h"

namespace tessera::nn {

MultiheadAttention::MultiheadAttention(const AttentionConfig& config, Generator& generator)
    : config(config),
      qkv(add("qkv", Linear(config.width, 3 * config.width, config.bias, generator))),
      out(add("out", Linear(config.width, config.width, config.bias, generator))) {
  if (config.heads < 1 || config.width % config.heads != 0)
    throw Error(fmt::format("MultiheadAttention: width {} does not divide into {} heads", config.width, config.heads));
  if (!(config.dropout >= 0 && config.dropout < 1))
    throw Error(fmt::format("MultiheadAttention: dropout = {} is not in [0, 1)", config.dropout));
}

Tensor MultiheadAttention::operator()(const Tensor& x, const Tensor& mask, const Tensor& residual) const {
  if (!drops()) return out(heads(x, mask), Activation::None, residual);
  const Tensor y = dropout(out(heads(x, mask)), config.dropout);
  return residual.defined() ? residual + y : y;
}

Tensor MultiheadAttention::heads(const Tensor& x, const Tensor& mask) const {
  return attention_qkv(qkv(x), config.heads, options(mask));
}

Tensor MultiheadAttention::cross(const Tensor& x, const Tensor& memory, const Tensor& mask) const {
  const int64_t c = config.width;
  auto part = [&](const Tensor& source, int64_t first, int64_t last) {
    const Tensor bias = qkv.bias.defined() ? qkv.bias.slice(0, first * c, last * c) : Tensor();
    return linear(source, qkv.weight.slice(0, first * c, last * c), bias);
  };
  const Tensor kv = part(memory, 1, 3);
  const Tensor y = out(attend(part(x, 0, 1), kv.slice(2, 0, c), kv.slice(2, c, 2 * c), mask));
  return drops() ? dropout(y, config.dropout) : y;
}

// q, k, v [batch, tokens, width] -> [batch, queries, width].
Tensor MultiheadAttention::attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) const {
  const int64_t batch = q.size(0), d = config.width / config.heads;
  auto heads = [&](const Tensor& t) { return t.reshape({batch, t.size(1), config.heads, d}).transpose(1, 2); };
  const Tensor y = scaled_dot_product_attention(heads(q), heads(k), heads(v), options(mask));
  return y.transpose(1, 2).reshape({batch, q.size(1), config.width});
}

AttentionOptions MultiheadAttention::options(const Tensor& mask) const {
  return {.mask = mask, .causal = config.causal, .dropout = drops() ? config.dropout : 0};
}

TransformerBlock::TransformerBlock(const TransformerConfig& c, Generator& generator)
    : config(c),
      norm1(add("norm1", LayerNorm(c.width, c.bias))),
      attention(add("attention", MultiheadAttention({c.width, c.heads, c.bias, c.causal, c.dropout}, generator))),
      norm2(add("norm2", LayerNorm(c.width, c.bias))),
      up(add("up", Linear(c.width, c.hidden ? c.hidden : 4 * c.width, c.bias, generator))),
      down(add("down", Linear(c.hidden ? c.hidden : 4 * c.width, c.width, c.bias, generator))) {}

Tensor Residual::value() const {
  if (!branch.defined()) return sum;
  return bias.defined() ? sum + branch + bias : sum + branch;
}

Tensor Residual::normalized(const LayerNorm& norm) {
  if (!branch.defined()) return norm(sum);
  // What is not f32 throughout follows autocast's table, each operator by itself.
  if (sum.dtype() != Float32 || (norm.weight.defined() && norm.weight.dtype() != Float32)) {
    *this = {value()};
    return norm(sum);
  }
  auto [all, y] = add_layer_norm(sum, branch, bias, norm.weight, norm.bias, norm.eps);
  *this = {std::move(all)};
  return y;
}

Residual TransformerBlock::extend(Residual x, const Tensor& mask) const {
  const bool drops = config.dropout > 0 && training();
  // A stream that is wider than the products has no place in their epilogues: the next norm adds them.
  const bool waits = !drops && amp::is_wide_residual(x.sum);
  Tensor y = x.normalized(norm1);
  if (waits) x = {x.sum, linear(attention.heads(y, mask), attention.out.weight), attention.out.bias};
  else x = {attention(y, mask, x.sum)};
  y = x.normalized(norm2);
  const auto feed_forward = [&](const Tensor& bias, const Tensor& residual) {
    return mlp(y, up.weight, up.bias, config.activation, down.weight, bias, residual);
  };
  if (waits) return {x.sum, feed_forward({}, {}), down.bias};
  if (drops) return {x.sum + dropout(feed_forward(down.bias, {}), config.dropout)};
  return {feed_forward(down.bias, x.sum)};
}

}  // namespace tessera::nn
