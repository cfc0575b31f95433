#include <gtest/gtest.h>

#include <cmath>

#include "io/io_check.h"
#include "nn/nn_check.h"
#include "tessera/amp.h"
#include "tessera/autograd.h"
#include "tessera/nn.h"
#include "tessera/observer.h"

namespace tessera {
namespace {

using namespace nn;

struct Moments {
  double mean = 0, std = 0, low = 1e9, high = -1e9;
};
Moments moments(const Tensor& t) {
  Moments m;
  const auto x = t.to_vector<double>();
  for (double v : x) {
    m.mean += v / static_cast<double>(x.size());
    m.low = std::min(m.low, v);
    m.high = std::max(m.high, v);
  }
  for (double v : x) m.std += (v - m.mean) * (v - m.mean) / static_cast<double>(x.size());
  m.std = std::sqrt(m.std);
  return m;
}

TEST(Init, HasTheRightMoments) {
  Generator g(1);
  Tensor t = empty({101, 7, 3, 5});
  const double fan_in = 7 * 15, fan_out = 101 * 15;
  init::normal_(t, 2, 0.5, g);
  EXPECT_NEAR(moments(t).mean, 2, 0.02);
  EXPECT_NEAR(moments(t).std, 0.5, 0.02);
  init::uniform_(t, -3, 1, g);
  EXPECT_NEAR(moments(t).mean, -1, 0.05);
  EXPECT_GE(moments(t).low, -3);
  EXPECT_LE(moments(t).high, 1);
  init::trunc_normal_(t, 1, 2, 1.5, g);
  EXPECT_GE(moments(t).low, -2);
  EXPECT_LE(moments(t).high, 4);
  EXPECT_NEAR(moments(t).mean, 1, 0.1);
  EXPECT_NEAR(moments(t).std, 2 * 0.7426, 0.05);  // of a normal cut at 1.5
  init::xavier_uniform_(t, 1, g);
  EXPECT_NEAR(moments(t).std, std::sqrt(2 / (fan_in + fan_out)), 1e-3);
  EXPECT_LE(moments(t).high, std::sqrt(6 / (fan_in + fan_out)));
  init::xavier_normal_(t, 2, g);
  EXPECT_NEAR(moments(t).std, 2 * std::sqrt(2 / (fan_in + fan_out)), 2e-3);
  init::kaiming_uniform_(t, 1, g);
  EXPECT_NEAR(moments(t).std, 1 / std::sqrt(fan_in), 2e-3);
  init::kaiming_normal_(t, std::sqrt(2.0), g);
  EXPECT_NEAR(moments(t).std, std::sqrt(2 / fan_in), 3e-3);
  init::constant_(t, 7);
  EXPECT_EQ(moments(t).low, 7);
  EXPECT_THROW(init::xavier_normal_(empty({3})), Error);
  EXPECT_THROW(init::trunc_normal_(empty({3}), 0, 1, 0), Error);
}

TEST(Init, DependsOnTheGeneratorOnly) {
  Generator a(5), b(5);
  const Linear first(13, 5, true, a);
  rand({3});  // the default generator has no say
  EXPECT_EQ(first.weight.to_vector<float>(), Linear(13, 5, true, b).weight.to_vector<float>());
  EXPECT_NE(first.weight.to_vector<float>(), Linear(13, 5, true, a).weight.to_vector<float>());
}

TEST(Layers, ComputeWhatTheirOperatorsDo) {
  Generator g(2);
  const Tensor x = randn({5, 11}, g);
  const Linear fc(11, 7, true, g);
  EXPECT_LT(distance(fc(x), matmul(x, fc.weight.transpose(0, 1)) + fc.bias), 1e-6);
  const Tensor r = randn({5, 7}, g);
  EXPECT_LT(distance(fc(x, Activation::Relu, r), relu(fc(x)) + r), 1e-6);
  EXPECT_FALSE(Linear(11, 7, false, g).bias.defined());
  EXPECT_LT(distance(LayerNorm(11)(x), layer_norm(x)), 1e-6);
  EXPECT_LT(distance(LayerNorm(Shape{11}, false)(x), layer_norm(x)), 1e-6);
  const LayerNorm plane(x.shape(), false);
  EXPECT_TRUE(plane.parameters().empty());
  EXPECT_LT(distance(plane(x), reshape(layer_norm(flatten(x)), x.shape())), 1e-6);
  EXPECT_LT(distance(LayerNorm(x.shape())(x), plane(x)), 1e-6);
  EXPECT_THROW(LayerNorm(Shape{}), Error);
  EXPECT_THROW(LayerNorm(Shape{2, 3, 11}, false)(ones({11})), Error);
  EXPECT_LT(distance(RMSNorm(11)(x), rms_norm(x)), 1e-6);

  const Tensor image = randn({2, 6, 5, 7}, g);
  const Conv2d conv(6, 4, 3, {.stride = {2, 1}, .padding = {1, 0}, .groups = 2}, true, g);
  EXPECT_EQ(to_string(conv(image).shape()), "[2, 4, 3, 5]");
  EXPECT_EQ(to_string(conv.weight.shape()), "[4, 3, 3, 3]");
  EXPECT_LT(distance(GroupNorm(3, 6)(image), group_norm(image, 3)), 1e-6);
  const Embedding table(9, 4, g);
  EXPECT_EQ(to_string(table(tensor<int64_t>({1, 8, 0, 1, 2, 3}, {2, 3})).shape()), "[2, 3, 4]");
}

TEST(Layers, BatchNormKeepsRunningStatistics) {
  Generator g(3);
  BatchNorm2d bn(3);
  const Tensor x = randn({4, 3, 5, 5}, g) * 2 + 1;
  for (int i = 0; i < 60; ++i) bn(x);
  EXPECT_LT(distance(bn.running_mean, mean(x, {0, 2, 3})), 0.01);
  EXPECT_LT(distance(bn.running_var, var(x, {0, 2, 3})), 0.01);
  const Tensor trained = bn(x);
  bn.eval();
  const std::vector<float> before = bn.running_mean.to_vector<float>();
  EXPECT_LT(distance(bn(x), trained), 0.02);
  EXPECT_EQ(bn.running_mean.to_vector<float>(), before);
}

TEST(Layers, DropoutOnlyInTraining) {
  manual_seed(4);
  Dropout drop(0.25);
  const Tensor x = ones({100, 101});
  const Tensor y = drop(x);
  EXPECT_NEAR(moments(y).mean, 1, 0.03);
  EXPECT_NEAR(moments(y).high, 1 / 0.75, 1e-6);
  drop.eval();
  EXPECT_EQ(moments(drop(x)).low, 1);
  EXPECT_THROW(Dropout(1.0), Error);
}

// Each pair is one operator, and gives what the two give one by one.
TEST(Layers, SequentialJoinsLayersWithTheirActivations) {
  struct Names final : Observer {
    void called(const CallSeen& call) override { ops.push_back(std::string(call.op)); }
    std::vector<std::string> ops;
  };
  Generator g(3);
  const Linear linear(7, 5, true, g);
  BatchNorm2d norm(3);
  const Tensor rows = randn({4, 7}, g), images = randn({2, 3, 4, 5}, g);
  const auto ops_of = [](const Module& model, const Tensor& x) {
    const NoGrad no_grad;
    Names names;
    const Observing guard(names);
    model(x);
    return names.ops;
  };
  const auto joined = [&](auto layer, auto activation, const Tensor& x) {
    const Sequential model(layer, activation);
    const Tensor apart = activation(layer(x)), y = model(x);
    EXPECT_LT(distance(y, apart), 1e-6);
    return ops_of(model, x);
  };
  EXPECT_EQ(joined(linear, ReLU(), rows), std::vector<std::string>{"linear"});
  EXPECT_EQ(joined(linear, GELU(), rows), std::vector<std::string>{"linear"});
  EXPECT_EQ(joined(linear, SiLU(), rows), std::vector<std::string>{"linear"});
  EXPECT_EQ(joined(linear, Tanh(), rows), std::vector<std::string>{"linear"});
  EXPECT_EQ(joined(linear, Sigmoid(), rows), (std::vector<std::string>{"linear", "sigmoid"}));
  norm.eval();
  EXPECT_EQ(joined(norm, ReLU(), images), std::vector<std::string>{"batch_norm_inference"});
  EXPECT_EQ(joined(norm, Tanh(), images), (std::vector<std::string>{"batch_norm_inference", "tanh"}));
}

TEST(Layers, SequentialTakesModulesAndFunctions) {
  Generator g(5);
  Sequential net(Linear(4, 8, true, g), relu, Dropout(0.5), Linear(8, 2, true, g));
  EXPECT_EQ(net.named_parameters()[2].first, "3.weight");
  EXPECT_EQ(net.parameter_count(), 4 * 8 + 8 + 8 * 2 + 2);
  net.eval();
  const Tensor x = randn({3, 4}, g);
  EXPECT_EQ(net(x).to_vector<float>(), net(x).to_vector<float>());
  const Sequential chain{Flatten(), GELU(), SiLU(), Tanh(), Sigmoid(), ReLU()};
  EXPECT_EQ(to_string(chain(randn({2, 3, 4}, g)).shape()), "[2, 12]");
}

TEST(Layers, RefuseSizesThatMakeNone) {
  EXPECT_EQ(error_of([] { Linear(0, 3); }), "Linear: 0 to 3 features");
  EXPECT_EQ(error_of([] { Conv2d(3, 4, 3, {.groups = 2}); }), "Conv2d: 3 to 4 channels in 2 groups, kernel 3x3");
  EXPECT_EQ(error_of([] { GroupNorm(3, 4); }), "GroupNorm: 4 channels in 3 groups");
  EXPECT_EQ(error_of([] { MultiheadAttention({.width = 10, .heads = 3}); }),
            "MultiheadAttention: width 10 does not divide into 3 heads");
  EXPECT_EQ(error_of([] { MultiheadAttention({.width = 9, .heads = 3, .alibi = -1}); }),
            "MultiheadAttention: alibi = -1 is not in [0, 64]");
  EXPECT_EQ(error_of([] { TransformerBlock({.width = 9, .heads = 3, .alibi = 65}); }),
            "MultiheadAttention: alibi = 65 is not in [0, 64]");
}

// Attention from its definition, one head after the other.
Tensor plain_attention(const MultiheadAttention& a, const Tensor& x, const Tensor& memory, bool causal) {
  const int64_t c = a.config.width, d = c / a.config.heads;
  auto project = [&](const Tensor& t, int64_t part) {
    const Tensor y = matmul(t, a.qkv->weight.slice(0, part * c, (part + 1) * c).transpose(0, 1));
    return a.qkv->bias.defined() ? y + a.qkv->bias.slice(0, part * c, (part + 1) * c) : y;
  };
  const Tensor q = project(x, 0), k = project(memory, 1), v = project(memory, 2);
  Tensors heads;
  for (int64_t h = 0; h < a.config.heads; ++h) {
    auto cut = [&](const Tensor& t) { return t.slice(2, h * d, (h + 1) * d); };
    Tensor scores = matmul(cut(q), cut(k).transpose(1, 2)) * (1 / std::sqrt(static_cast<double>(d)));
    if (const double slope = a.config.alibi > 0 ? alibi_slope(h, a.config.heads, a.config.alibi) : 0; slope > 0) {
      const Tensor keys = arange(0, memory.size(1), 1, scores.dtype()),
                   queries = arange(0, x.size(1), 1, scores.dtype());
      scores = scores + (keys - queries.reshape({x.size(1), 1})) * slope;
    }
    if (causal) scores = scores + triu(full({x.size(1), x.size(1)}, -1e9, scores.dtype()), 1);
    heads.push_back(matmul(softmax(scores, -1), cut(v)));
  }
  const Tensor y = matmul(concat(heads, 2), a.out->weight.transpose(0, 1));
  return a.out->bias.defined() ? y + a.out->bias : y;
}

TEST(MultiheadAttention, MatchesItsDefinition) {
  Generator g(6);
  for (const bool causal : {false, true})
    for (const bool bias : {false, true}) {
      MultiheadAttention a({.width = 20, .heads = 4, .bias = bias, .causal = causal}, g);
      a.to(Float64);
      const Tensor x = randn({3, 7, 20}, g, Float64), residual = randn({3, 7, 20}, g, Float64);
      EXPECT_LT(distance(a(x), plain_attention(a, x, x, causal)), 1e-9);
      EXPECT_LT(distance(a(x, {}, residual), plain_attention(a, x, x, causal) + residual), 1e-9);
      if (causal) continue;
      const Tensor memory = randn({3, 11, 20}, g, Float64);
      EXPECT_LT(distance(a.cross(x, memory), plain_attention(a, x, memory, false)), 1e-9);
    }
}

// Three heads take their slopes from those of two and of four.
TEST(MultiheadAttention, AddsSlopes) {
  Generator g(16);
  for (const int64_t heads : {2, 3})
    for (const bool causal : {false, true}) {
      MultiheadAttention a({.width = 12, .heads = heads, .causal = causal, .alibi = 8}, g);
      a.to(Float64);
      const Tensor x = randn({2, 7, 12}, g, Float64), memory = randn({2, 11, 12}, g, Float64);
      EXPECT_LT(distance(a(x), plain_attention(a, x, x, causal)), 1e-9);
      if (!causal) {
        EXPECT_LT(distance(a.cross(x, memory), plain_attention(a, x, memory, false)), 1e-9);
      }
      TransformerBlock block({.width = 12, .heads = heads, .causal = causal, .alibi = 8}, g);
      block.to(Float64);
      const Tensor y = x + plain_attention(*block.attention.exact(), block.norm1(x), block.norm1(x), causal);
      EXPECT_LT(distance(block(x), y + block.down(gelu(block.up(block.norm2(y))))), 1e-9);
    }
}

TEST(MultiheadAttention, MaskedKeysHaveNoInfluence) {
  Generator g(7);
  const MultiheadAttention a({.width = 12, .heads = 2}, g);
  const Tensor x = randn({2, 5, 12}, g);
  const Tensor mask = tensor<bool>({true, true, true, false, false}, {5});
  EXPECT_LT(distance(a(x, mask).slice(1, 0, 3), a(x.slice(1, 0, 3))), 1e-5);
}

TEST(MultiheadAttention, DropoutKeepsTheMean) {
  Generator g(8);
  manual_seed(8);
  MultiheadAttention a({.width = 8, .heads = 2, .causal = true, .dropout = 0.2}, g);
  const Tensor x = randn({1, 5, 8}, g);
  Tensor sum = zeros({1, 5, 8});
  NoGrad guard;
  for (int i = 0; i < 2000; ++i) sum = sum + a(x);
  a.eval();
  EXPECT_LT(distance(sum * (1.0 / 2000), a(x)), 0.06);
}

TEST(TransformerBlock, IsTwoResidualBranches) {
  Generator g(9);
  for (const bool bias : {false, true}) {
    TransformerBlock block(
        {.width = 12, .heads = 3, .hidden = 20, .bias = bias, .causal = true, .activation = Activation::GeluTanh}, g);
    block.to(Float64);
    const Tensor x = randn({2, 5, 12}, g, Float64);
    const Tensor y = x + block.attention(block.norm1(x));
    EXPECT_LT(distance(block(x), y + block.down(gelu_tanh(block.up(block.norm2(y))))), 1e-9);
    EXPECT_EQ(block.parameter_count(), 12 * 36 + 12 * 12 + 2 * 12 * 20 + 24 + (bias ? 36 + 12 + 20 + 12 + 24 : 0));
  }
}

TEST(TransformerBlock, GradientsMatchFiniteDifferences) {
  Generator g(10);
  TransformerBlock block({.width = 6, .heads = 2, .causal = true}, g);
  block.to(Float64);
  const Tensor x = randn({1, 4, 6}, g, Float64), weights = randn({1, 4, 6}, g, Float64);
  auto loss = [&] { return sum(block(x) * weights); };
  loss().backward();
  NoGrad guard;
  for (const auto& [name, p] : block.named_parameters()) {
    const Tensor direction = randn(p.shape(), g, Float64);
    const double expected = sum(p.grad() * direction).item(), h = 1e-5;
    p.detach().add_(direction, h);
    const double above = loss().item();
    p.detach().add_(direction, -2 * h);
    const double below = loss().item();
    p.detach().add_(direction, h);
    EXPECT_NEAR((above - below) / (2 * h), expected, 1e-6 * std::max(1.0, std::abs(expected))) << name;
  }
}

// Parameters that are halves themselves, on a stream of f32.
TEST(TransformerBlock, OfHalvesTakesAWideStreamUnderAutocast) {
  Generator g(9);
  TransformerBlock block({.width = 16, .heads = 2, .causal = true}, g);
  const Tensor x = randn({2, 5, 16}, g);
  const Tensor want = block(x).detach();
  block.to(BFloat16);
  const amp::Autocast guard(BFloat16);
  const Tensor got = block(x);
  EXPECT_EQ(got.dtype(), Float32);
  const auto near = got.detach().to_vector<float>(), exact = want.to_vector<float>();
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(near[i], exact[i], 0.05) << i;
}

}  // namespace
}  // namespace tessera
