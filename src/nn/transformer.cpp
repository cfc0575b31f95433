#include <fmt/format.h>

#include "ops/autocast.h"
#include "tessera/nn.h"
#include "tessera/observer.h"

namespace tessera::nn {

MultiheadAttention::MultiheadAttention(const AttentionConfig& config, Generator& generator)
    : config(config),
      qkv(add("qkv", Linear(config.width, 3 * config.width, config.bias, generator))),
      out(add("out", Linear(config.width, config.width, config.bias, generator))) {
  if (config.heads < 1 || config.width % config.heads != 0)
    throw Error(fmt::format("MultiheadAttention: width {} does not divide into {} heads", config.width, config.heads));
  if (!(config.dropout >= 0 && config.dropout < 1))
    throw Error(fmt::format("MultiheadAttention: dropout = {} is not in [0, 1)", config.dropout));
  if (!(config.alibi >= 0 && config.alibi <= 64))
    throw Error(fmt::format("MultiheadAttention: alibi = {} is not in [0, 64]", config.alibi));
}

Tensors MultiheadAttention::forward(const Tensors& in) const {
  check_inputs(in, 1, 3);
  const auto given = [&](size_t i) { return i < in.size() ? in[i] : Tensor(); };
  return {attended(in[0], given(1), given(2))};
}

Tensor MultiheadAttention::attended(const Tensor& x, const Tensor& mask, const Tensor& residual) const {
  if (!drops()) return out(heads(x, mask), Activation::None, residual);
  const Tensor y = dropout(out(heads(x, mask)), config.dropout);
  return residual.defined() ? residual + y : y;
}

Tensor MultiheadAttention::heads(const Tensor& x, const Tensor& mask) const {
  const Tensor packed = qkv(x);
  return attention_qkv(packed, config.heads, options(mask));
}

Tensor MultiheadAttention::cross(const Tensor& x, const Tensor& memory, const Tensor& mask) const {
  const int64_t c = config.width;
  const Linear* projection = qkv.exact();
  auto part = [&](const Tensor& source, int64_t first, int64_t last) {
    if (!projection) return qkv(source).slice(2, first * c, last * c);
    const Tensor &weight = projection->weight, &bias = projection->bias;
    return linear(source, weight.slice(0, first * c, last * c),
                  bias.defined() ? bias.slice(0, first * c, last * c) : Tensor());
  };
  const Tensor kv = part(memory, 1, 3);
  const Tensor y = out(attend(part(x, 0, 1), kv.slice(2, 0, c), kv.slice(2, c, 2 * c), mask));
  return drops() ? dropout(y, config.dropout) : y;
}

// q, k, v [batch, tokens, width] -> [batch, queries, width].
Tensor MultiheadAttention::attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) const {
  const Dim batch = q.shape()[0], d = config.width / config.heads;
  auto heads = [&](const Tensor& t) { return t.reshape({batch, t.shape()[1], Dim(config.heads), d}).transpose(1, 2); };
  const Tensor y = scaled_dot_product_attention(heads(q), heads(k), heads(v), options(mask));
  return y.transpose(1, 2).reshape({batch, q.shape()[1], Dim(config.width)});
}

AttentionOptions MultiheadAttention::options(const Tensor& mask) const {
  return {.mask = mask, .causal = config.causal, .dropout = drops() ? config.dropout : 0, .alibi = config.alibi};
}

TransformerBlock::TransformerBlock(const TransformerConfig& c, Generator& generator)
    : config(c),
      norm1(add("norm1", LayerNorm(c.width, c.bias))),
      attention(
          add("attention", MultiheadAttention({c.width, c.heads, c.bias, c.causal, c.dropout, c.alibi}, generator))),
      norm2(add("norm2", LayerNorm(c.width, c.bias))),
      up(add("up", Linear(c.width, c.hidden ? c.hidden : 4 * c.width, c.bias, generator))),
      down(add("down", Linear(c.hidden ? c.hidden : 4 * c.width, c.width, c.bias, generator))) {}

Tensor Residual::value() const {
  if (!branch.defined()) return sum;
  return bias.defined() ? sum + branch + bias : sum + branch;
}

Tensor Residual::normalized(const Child<LayerNorm>& child) {
  const LayerNorm* norm = child.exact();
  // What is not f32 throughout follows autocast's table, each operator by itself.
  const bool one_pass = branch.defined() && norm && sum.dtype() == Float32 &&
                        (!norm->weight.defined() || norm->weight.dtype() == Float32);
  if (!one_pass) {
    *this = {value()};
    return child(sum);
  }
  const NamedScope scope(norm->name());
  auto [all, y] = add_layer_norm(sum, branch, bias, norm->weight, norm->bias, norm->eps);
  *this = {std::move(all)};
  return y;
}

Tensors TransformerBlock::forward(const Tensors& in) const {
  check_inputs(in, 1, 2);
  return {extended({in[0]}, in.size() > 1 ? in[1] : Tensor()).value()};
}

Residual TransformerBlock::extended(Residual x, const Tensor& mask) const {
  const bool drops = config.dropout > 0 && training();
  const MultiheadAttention* heads = attention.exact();
  const Linear *projection = heads ? heads->out.exact() : nullptr, *widens = up.exact(), *narrows = down.exact();
  const bool fused = projection && widens && narrows;
  // A stream that is wider than the products has no place in their epilogues: the next norm adds them.
  const bool waits = fused && !drops && amp::is_wide_residual(x.sum);
  Tensor y = x.normalized(norm1);
  if (waits)
    x = in_scope("attention", [&]() -> Residual {
      const Tensor all = heads->heads(y, mask);
      return {x.sum, in_scope("out", [&] { return linear(all, projection->packed(projection->weight)); }),
              projection->bias};
    });
  else if (heads) x = {attention(y, mask, x.sum)};
  else x = {x.sum + (mask.defined() ? attention(y, mask) : attention(y))};
  y = x.normalized(norm2);
  const auto feed_forward = [&](const Tensor& bias, const Tensor& residual) {
    const NamedScope scope("mlp");
    return mlp(y, widens->packed(widens->weight), widens->bias, config.activation, narrows->packed(narrows->weight),
               bias, residual);
  };
  if (waits) return {x.sum, feed_forward({}, {}), narrows->bias};
  if (widens && narrows) y = feed_forward(narrows->bias, drops ? Tensor() : x.sum);
  else y = down(up(y, config.activation), Activation::None, drops ? Tensor() : x.sum);
  return {drops ? x.sum + dropout(y, config.dropout) : y};
}

}  // namespace tessera::nn
