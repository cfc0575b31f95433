// Modules made of modules: calls, walks, replacement.
#include <gtest/gtest.h>

#include "io/io_check.h"
#include "nn/nn_check.h"
#include "tessera/autograd.h"
#include "tessera/models.h"
#include "tessera/nn.h"

namespace tessera {
namespace {

using namespace nn;

struct Mlp : Module {
  Child<Linear> hidden = add("hidden", Linear(3, 5)), out = add("out", Linear(5, 2));
  Tensors forward(const Tensors& in) const override { return {out(hidden(one_input(in), Activation::Relu))}; }
};

struct Net : Module {
  Child<Mlp> first = add("first", Mlp());
  Child<Sequential> rest = add("rest", Sequential(ReLU(), Linear(2, 2), tessera::tanh));
  Tensors forward(const Tensors& in) const override { return {rest(first(one_input(in)))}; }
};

// Not a Linear, with the same parameters.
struct Doubled : Module {
  Doubled(int64_t in, int64_t out)
      : weight(add_parameter("weight", ones({out, in}))), bias(add_parameter("bias", zeros({out}))) {}
  Tensors forward(const Tensors& in) const override { return {linear(one_input(in), weight, bias) * 2}; }
  Tensor weight, bias;
};

// A Linear that does more.
struct Scaled : Linear {
  using Linear::Linear;
  Tensors forward(const Tensors& in) const override { return {Linear::forward(in)[0] * 3}; }
};

using Names = std::vector<std::string>;
Names names(const NamedModules& list) {
  Names out;
  for (const auto& [name, m] : list) out.push_back(name);
  return out;
}

TEST(Children, AreWalkedAndFound) {
  const Net net;
  EXPECT_EQ(names(net.children()), (Names{"first", "rest"}));
  EXPECT_EQ(names(net.named_modules()),
            (Names{"first", "first.hidden", "first.out", "rest", "rest.0", "rest.1", "rest.2"}));
  EXPECT_TRUE(same(net.child("first.out").as<Linear>()->weight, net.first->out->weight));
  EXPECT_EQ(net.child("first.out").as<Mlp>(), nullptr);
  EXPECT_EQ(net.child("first.out")->name(), "out");
  EXPECT_EQ(net.name(), "");
  const Tensor x = randn({4, 2});
  EXPECT_EQ(distance(net.child("rest.1")(x), (*net.rest)[1](x)), 0);
  EXPECT_EQ(error_of([&] { net.child("first.in"); }),
            "Net: there is no \"first.in\" below it; its children are \"first\", \"rest\"");
  EXPECT_EQ(error_of([&] { (*net.rest)[3]; }),
            "Sequential \"rest\": there is no \"3\" below it; its children are \"0\", \"1\", \"2\"");
}

TEST(Children, AreCalledByForward) {
  const Mlp m;
  const Tensor x = randn({4, 3});
  EXPECT_EQ(distance(m(x), m.forward({x})[0]), 0);
  EXPECT_EQ(distance(m(x), m(Tensors{x})[0]), 0);
  EXPECT_EQ(error_of([&] { m(x, x); }), "Mlp: takes 1 input, not 2");
  EXPECT_EQ(error_of([&] { m.hidden(Tensors{}); }), "Linear \"hidden\": takes 1 input, not 0");
  EXPECT_EQ(error_of([&] {
              MultiheadAttention({.width = 4, .heads = 2}).forward({x, x, x, x});
            }),
            "MultiheadAttention: takes 1 to 3 inputs, not 4");
  struct Pair : Module {
    Tensors forward(const Tensors& in) const override { return {in[0], in[0]}; }
  };
  EXPECT_EQ(error_of([&] { Pair()(x); }), "Pair: gives 2 tensors, not one; call it with Tensors");
  EXPECT_EQ(Pair()(Tensors{x}).size(), 2u);
  struct Silent : Module {};
  EXPECT_EQ(error_of([&] { Silent()(x); }), "Silent: forward(const Tensors&) is not overridden");
  EXPECT_EQ(error_of([&] { Child<Linear>()(x); }), "Child: there is no module; use what add() returns");
}

TEST(Children, MayHaveCallsOfTheirOwn) {
  struct Counter : Module {
    Tensor operator()(const Tensor& x, int64_t by) {
      ++calls;
      return x + static_cast<double>(by);
    }
    int calls = 0;
  };
  struct Outer : Module {
    Child<Counter> counter = add("counter", Counter());
  } outer;
  EXPECT_EQ(outer.counter(zeros({1}), 3).item<float>(), 3);
  EXPECT_EQ(outer.counter->calls, 1);
  outer.replace("counter", ReLU());
  EXPECT_EQ(error_of([&] { outer.counter(zeros({1}), 3); }),
            "Child: \"counter\" was replaced by a module of another type, which takes tensors alone");
}

TEST(Children, EveryLayerHasAForward) {
  const Tensor x = randn({2, 4, 6});
  const TransformerConfig config{.width = 6, .heads = 2};
  const std::vector<Child<Module>> layers{std::make_shared<Linear>(6, 6),
                                          std::make_shared<LayerNorm>(6),
                                          std::make_shared<RMSNorm>(6),
                                          std::make_shared<GroupNorm>(2, 4),
                                          std::make_shared<Dropout>(0.1),
                                          std::make_shared<ReLU>(),
                                          std::make_shared<GELU>(),
                                          std::make_shared<SiLU>(),
                                          std::make_shared<Tanh>(),
                                          std::make_shared<Sigmoid>(),
                                          std::make_shared<Sequential>(),
                                          std::make_shared<MultiheadAttention>(AttentionConfig{.width = 6, .heads = 2}),
                                          std::make_shared<Function>(tessera::relu),
                                          std::make_shared<TransformerBlock>(config)};
  for (const Child<Module>& layer : layers) EXPECT_EQ(layer(x).shape(), x.shape());
  EXPECT_EQ(Child<Module>(std::make_shared<Flatten>())(x).shape(), (Shape{2, 24}));
  EXPECT_EQ(Child<Module>(std::make_shared<Embedding>(5, 3))(zeros({2}, Int64)).shape(), (Shape{2, 3}));
  const Tensor image = randn({2, 3, 5, 5});
  EXPECT_EQ(Child<Module>(std::make_shared<Conv2d>(3, 4, 3))(image).shape(), (Shape{2, 4, 3, 3}));
  EXPECT_EQ(Child<Module>(std::make_shared<BatchNorm2d>(3))(image).shape(), image.shape());
}

TEST(Replace, IsSeenByForwardAndMember) {
  Net net;
  const Net copy = net;
  const Tensor x = randn({4, 3});
  Mlp other;
  net.replace("first.hidden", other.hidden);
  EXPECT_TRUE(same(net.first->hidden->weight, other.hidden->weight));
  EXPECT_TRUE(same(net.named_parameters()[0].second, other.hidden->weight));
  EXPECT_EQ(distance(net.first(x), net.first->out(relu(other.hidden(x)))), 0);
  EXPECT_EQ(distance(copy(x), net(x)), 0);  // copies share children
  net.replace("first", other);
  EXPECT_EQ(distance(net(x), net.rest(other(x))), 0);
}

TEST(Replace, TakesOtherTypes) {
  Mlp m;
  const Tensor x = randn({4, 3});
  const Linear scaled(3, 5);
  m.replace("hidden", Doubled(3, 5));
  const Tensor doubled = matmul(x, ones({3, 5})) * 2;
  EXPECT_LT(distance(m.hidden(x), doubled), 1e-6);
  EXPECT_LT(distance(m(x), m.out(relu(doubled))), 1e-6);
  EXPECT_LT(distance(m.hidden(x, Activation::Relu, doubled), relu(doubled) + doubled), 1e-6);
  EXPECT_EQ(m.child("hidden")->name(), "hidden");
  EXPECT_EQ(m.named_parameters()[0].second.to_vector<float>(), std::vector<float>(15, 1));
  EXPECT_EQ(error_of([&] { m.hidden->weight.dim(); }),
            "Child: \"hidden\" was replaced by a module of another type, which takes tensors alone");
  m.replace("hidden", Scaled(3, 5));
  EXPECT_LT(distance(m(x), m.out(relu(linear(x, m.hidden->weight, m.hidden->bias) * 3))), 1e-6);
  for (const Tensor& p : m.parameters()) EXPECT_TRUE(p.requires_grad());
  m(x).sum().backward();
  EXPECT_TRUE(m.hidden->weight.grad().defined());
}

TEST(Replace, RefusesOtherShapesUnlessToldTo) {
  Net net;
  const std::string rest = "; replace(name, module, {.any_shapes = true}) takes it all the same";
  EXPECT_EQ(error_of([&] { net.replace("first.hidden", Linear(3, 4)); }),
            "Net: the new \"first.hidden\" has weight [4, 3] where weight [5, 3] was" + rest);
  EXPECT_EQ(error_of([&] { net.replace("first", Linear(3, 5)); }),
            "Net: the new \"first\" has 2 parameters where 4 were" + rest);
  EXPECT_EQ(error_of([&] { net.replace("second", ReLU()); }),
            "Net: there is no \"second\" below it; its children are \"first\", \"rest\"");
  EXPECT_EQ(net.first->hidden->weight.shape(), (Shape{5, 3}));
  net.replace("first", Linear(3, 2), {.any_shapes = true});
  EXPECT_EQ(net(randn({4, 3})).shape(), (Shape{4, 2}));
  const Child<Sequential> outer(std::make_shared<Sequential>(ReLU(), Sequential(ReLU())));
  EXPECT_EQ(error_of([&] { outer->replace("1.0", outer); }), "Sequential: the new \"1.0\" would be a part of itself");
}

TEST(Replace, TakesAwayForAnEmptyChild) {
  Net net;
  const Tensor x = randn({4, 3});
  const Tensor before = net(x);
  const size_t count = net.parameters().size();
  net.replace("first.hidden", Child<Module>());
  EXPECT_EQ(net.child("first")->children().size(), 1);
  EXPECT_EQ(net.parameters().size(), count - 2);
  EXPECT_EQ(distance(net(x), before), 0);  // who holds it calls it
  EXPECT_EQ(error_of([&] { net.replace("first.hidden", Child<Module>()); }),
            "Net: there is no \"first.hidden\" below it; its children are \"first\", \"rest\"");
}

TEST(Replace, KeepsTheMode) {
  Net net;
  net.eval();
  net.replace("rest.0", Dropout(0.5));
  EXPECT_FALSE(net.child("rest.0")->training());
  net.train();
  EXPECT_TRUE(net.child("rest.0")->training());
}

TEST(Replace, ChangesOneOfTwoPlaces) {
  struct Twice : Module {
    Child<Linear> a = add("a", Linear(2, 2)), b = add("b", a);
    Tensors forward(const Tensors& in) const override { return {b(a(one_input(in)))}; }
  } m;
  EXPECT_EQ(m.parameters().size(), 2u);
  EXPECT_EQ(names(m.named_modules()), (Names{"a"}));
  const Tensor x = randn({3, 2});
  EXPECT_EQ(distance(m.a(x), m.b(x)), 0);
  m.replace("b", Doubled(2, 2));
  EXPECT_EQ(m.parameters().size(), 4u);
  EXPECT_LT(distance(m(x), matmul(m.a(x), ones({2, 2})) * 2), 1e-6);
}

// What models do in one pass for layers as they are, they do one by one for others.
TEST(Replace, ReachesIntoModels) {
  struct Plain : Module {
    explicit Plain(Child<Module> inner) : inner(add("inner", inner)) {}
    Tensors forward(const Tensors& in) const override { return {inner(one_input(in))}; }
    Child<Module> inner;
  };
  const auto unchanged = [](auto& model, const Tensor& x, const Names& paths) {
    const Tensor want = model(x);
    for (const std::string& path : paths) {
      model.replace(path, Plain(model.child(path)));
      EXPECT_LT(distance(model(x), want), 2e-6) << path;
    }
    return want;
  };
  Generator g(7);
  models::GPT gpt({.layers = 2, .heads = 2, .width = 8, .block = 6, .vocab = 11}, g);
  const Tensor tokens = randint(0, 11, {2, 5}, g);
  const Tensor logits = unchanged(gpt, tokens,
                                  {"h.0.attention.qkv", "h.0.attention.out", "h.1.attention", "h.0.norm2", "h.1.up",
                                   "h.0.down", "norm", "wpe", "drop", "h.1", "wte"});
  EXPECT_EQ(distance(gpt.forward({tokens})[0], gpt(tokens)), 0);
  gpt.replace("h.0.attention", Function([](const Tensor& x) { return x * 0; }), {.any_shapes = true});
  EXPECT_GT(distance(gpt(tokens), logits), 1e-4);

  models::ResNet20 resnet(g);
  resnet.eval();
  unchanged(resnet, randn({2, 3, 32, 32}, g), {"conv1", "layer1.1.bn2", "layer2", "linear"});
  models::ConvModel net(3, 8, g);
  for (const bool training : {true, false}) {
    net.train(training);
    unchanged(net, randn({1, 2, 9, 7}, g), {training ? "convs.1" : "norms.0", training ? "norms.2" : "out"});
  }
}

}  // namespace
}  // namespace tessera
