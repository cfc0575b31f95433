#include <gtest/gtest.h>

#include <cmath>

#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

Tensor leaf(std::vector<double> values, Shape shape) { return tensor(values, shape).set_requires_grad(); }

std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Backward, AccumulatesOverUsesAndCalls) {
  Tensor x = leaf({2, 3}, {2});
  Tensor y = (x * x + x).sum();
  y.backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{5, 7}));
  (x * x).sum().backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{9, 13}));
}

// Layer norm adds its gradient to what a residual connection has brought, unless others see that.
TEST(Backward, AddsUpBehindANorm) {
  Generator generator(5);
  const Tensor start = randn({7, 13}, generator, Float64), weight = randn({13}, generator, Float64);
  auto gradients = [&](bool fused, bool watched) {
    Tensor leaf = start.clone().set_requires_grad(), x = leaf * 2.0, seen;
    if (watched) x.register_hook([&](const Tensor& g) { return seen = g; });
    const Tensor y = x + tanh(layer_norm(x, weight)), z = y + layer_norm(y * 3.0, weight) + layer_norm(y, weight);
    const Tensor g = grad({(z * z).sum()}, {leaf}, {}, false, !fused)[0];
    if (watched) {
      EXPECT_EQ((seen * 2.0).to_vector<double>(), g.to_vector<double>());
    }
    return g.to_vector<double>();
  };
  const auto expected = gradients(false, false);
  for (bool watched : {false, true}) {
    const auto got = gradients(true, watched);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-10 * (1 + std::fabs(expected[i])));
  }
}

// Rows of a table that a product reads, too, add to what the product has given to its gradient.
TEST(Backward, AddsUpInATiedTable) {
  Generator generator(6);
  const Tensor start = randn({11, 5}, generator, Float64), index = tensor<int64_t>({3, 0, 3, 10}, {2, 2});
  Tensor table = start.clone().set_requires_grad();
  const Tensor out = matmul(tanh(embedding(index, table)), transpose(table, 0, 1)), loss = (out * out).sum();
  const auto expected = grad({loss}, {table}, {}, true, true)[0].to_vector<double>();
  for (double times : {1, 2}) {
    loss.backward({}, true);
    const auto got = table.grad().to_vector<double>();
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], times * expected[i], 1e-10);
  }
}

TEST(Backward, SumsOverBroadcastDims) {
  Tensor x = leaf({1, 2, 3, 4, 5, 6}, {2, 3}), b = leaf({1, 1, 1}, {3}), s = leaf({2}, {});
  ((x + b) * s).sum().backward();
  EXPECT_EQ(b.grad().to_vector<double>(), (std::vector<double>{4, 4, 4}));
  EXPECT_EQ(s.grad().item(), 27);
  EXPECT_EQ(s.grad().dim(), 0);
}

TEST(Backward, NeedsAScalarOrAGradient) {
  Tensor x = leaf({1, 2}, {2});
  EXPECT_NE(message_of([&] { (x * x).backward(); }).find("more than one element"), std::string::npos);
  (x * x).backward(tensor<double>({1, 10}, {2}));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{2, 40}));
  EXPECT_THROW((x * x).backward(tensor<double>({1}, {1})), Error);
  EXPECT_THROW(tensor<double>({1}, {1}).backward(), Error);
}

TEST(Backward, FreesTheGraphUnlessTold) {
  Tensor x = leaf({3}, {1});
  Tensor y = (x * x).sum();
  y.backward({}, true);
  y.backward();
  EXPECT_EQ(x.grad().item(), 12);
  EXPECT_NE(message_of([&] { y.backward(); }).find("second time"), std::string::npos);
}

TEST(Backward, DifferentiatesTwice) {
  Tensor x = leaf({2}, {1});
  Tensor y = (x * x * x).sum();
  Tensor first = grad({y}, {x}, {}, false, true)[0];
  EXPECT_EQ(first.item(), 12);
  Tensor second = grad({first.sum()}, {x}, {}, false, true)[0];
  EXPECT_EQ(second.item(), 12);
  EXPECT_EQ(grad({second.sum()}, {x})[0].item(), 6);
  EXPECT_FALSE(x.grad().defined());
}

TEST(Backward, GivesGradientsOfInnerTensors) {
  Tensor x = leaf({2}, {1}), z = leaf({5}, {1});
  Tensor h = x * 3;
  Tensor y = (h * h).sum();
  Tensors g = grad({y}, {h, x}, {}, true);
  EXPECT_EQ(g[0].item(), 12);
  EXPECT_EQ(g[1].item(), 36);
  EXPECT_THROW(grad({y}, {z}, {}, true), Error);
  EXPECT_FALSE(grad({y}, {z}, {}, true, false, true)[0].defined());
}

TEST(Backward, NoGradRecordsNothing) {
  Tensor x = leaf({2}, {1});
  {
    NoGrad guard;
    EXPECT_FALSE((x * x).requires_grad());
    EXPECT_FALSE(grad_enabled());
  }
  EXPECT_TRUE((x * x).requires_grad());
  EXPECT_FALSE((x.detach() * 2).requires_grad());
  EXPECT_THROW((x * 2).set_requires_grad(false), Error);
  EXPECT_THROW(zeros({2}, Int64).set_requires_grad(), Error);
}

TEST(Backward, RunsHooks) {
  Tensor x = leaf({2}, {1});
  Tensor h = x * 3;
  int calls = 0;
  h.register_hook([&](const Tensor& g) {
    ++calls;
    return g * 10;
  });
  x.register_hook([&](const Tensor&) {
    ++calls;
    return Tensor();
  });
  h.sum().backward();
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(x.grad().item(), 30);
}

TEST(Backward, SaysWhenAGradientIsComplete) {
  Tensor x = leaf({2}, {1}), w = leaf({4}, {1});
  std::vector<double> seen;
  on_gradient_ready(x, [&](const Tensor& t) { seen.push_back(t.grad().item()); });
  ((x * w) + x * x + x).sum().backward();
  EXPECT_EQ(seen, (std::vector<double>{9}));  // once, with all three contributions
}

TEST(Backward, RefusesTensorsChangedSinceTheyWereSaved) {
  Tensor x = leaf({2, 3}, {2});
  Tensor h = x * 2;
  Tensor y = (h * h).sum();
  h.detach().add_(ones({2}, Float64));
  EXPECT_NE(message_of([&] { y.backward(); }).find("changed in place"), std::string::npos);
}

TEST(InPlace, FollowsNonLeavesAndRefusesTheRest) {
  Tensor x = leaf({2, 3}, {2});
  Tensor h = x * 2;
  h.add_(x);
  h.sum().backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{3, 3}));
  EXPECT_NE(message_of([&] { x.add_(x); }).find("leaf"), std::string::npos);
  Tensor view = (x * 2).slice(0, 0, 1);
  EXPECT_NE(message_of([&] { view.add_(ones({1}, Float64)); }).find("view"), std::string::npos);
  Tensor product = x * 2;
  product.mul_(x);  // its gradient needs what it overwrote
  product.sum().backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{3 + 8, 3 + 12}));
  NoGrad guard;
  x.add_(ones({2}, Float64));
  EXPECT_EQ(x.to_vector<double>(), (std::vector<double>{3, 4}));
}

TEST(Backward, DeepGraphsDoNotOverflowTheStack) {
  Tensor x = leaf({1}, {1});
  Tensor y = x;
  for (int i = 0; i < 100000; ++i) y = y + 1;
  y.sum().backward();
  EXPECT_EQ(x.grad().item(), 1);
  Tensor unused = x;
  for (int i = 0; i < 100000; ++i) unused = unused * unused.detach();
}

TEST(Backward, GradientsAreTheLeafsOwn) {
  Tensor a = leaf({1, 2}, {2}), b = leaf({3, 4}, {2});
  (a + b).sum().backward();
  NoGrad guard;
  a.grad().add_(ones({2}, Float64));
  EXPECT_EQ(b.grad().to_vector<double>(), (std::vector<double>{1, 1}));
  EXPECT_TRUE(a.grad().is_contiguous());
}

// A backward that writes over gradients, wherever it may: linear multiplies slopes into what comes.
struct Overwriting {
  Tensor x, w;
  explicit Overwriting(int seed) {
    Generator generator(static_cast<uint64_t>(seed));
    x = randn({4, 3}, generator, Float64).set_requires_grad();
    w = randn({3, 3}, generator, Float64).set_requires_grad();
  }
  Tensor layer(const Tensor& in) const { return linear_act(in, w, {}, Activation::Tanh); }
};

TEST(Ownership, WhatOthersGaveOrSawIsNotOverwritten) {
  const Overwriting m(1);
  const Tensor given = ones({4, 3}, Float64), ones_still = ones({4, 3}, Float64);
  m.layer(m.x).backward(given);
  EXPECT_EQ(given.to_vector<double>(), ones_still.to_vector<double>());

  Tensor seen;  // by a hook that keeps it
  Tensor h = m.layer(m.x);
  h.register_hook([&](const Tensor& g) { return seen = g, Tensor(); });
  const Tensor y = m.layer(h);
  y.sum().backward();
  const Tensor want = grad({m.layer(m.layer(m.x)).sum()}, {m.x})[0];
  const Tensor again = m.layer(m.x), end = m.layer(again);
  const Tensors both = grad({end.sum()}, {again, m.x});  // the first is a result, and goes on
  EXPECT_EQ(seen.to_vector<double>(), both[0].to_vector<double>());
  const Tensor apart = again.detach().set_requires_grad();
  EXPECT_EQ(both[0].to_vector<double>(), grad({m.layer(apart).sum()}, {apart})[0].to_vector<double>());
  EXPECT_EQ(both[1].to_vector<double>(), want.to_vector<double>());
}

TEST(Backward, StartsFromSeveralTensorsAtOnce) {
  Tensor x = leaf({1, 2}, {2}), w = leaf({3}, {});
  const Tensor y = x * w;
  backward({y, w}, {tensor<double>({1, 10}, {2}), Tensor()});  // w is met again, below y
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{3, 30}));
  EXPECT_EQ(w.grad().item(), 1 + 20 + 1);
  EXPECT_EQ(message_of([&] { backward({x * w}, {}); }), "backward: 0 gradients for 1 outputs");
  EXPECT_EQ(message_of([&] { backward({x * w}, {ones({3}, Float64)}); }),
            "backward: gradient f64[3] on cpu for output f64[2] on cpu");
  EXPECT_EQ(message_of([&] { backward({x.detach()}, {ones({2}, Float64)}); }),
            "backward: f64[2] on cpu does not require a gradient");
}

TEST(Ownership, OneGradientForTwoInputsIsNotOverwritten) {
  const Overwriting m(2);
  const auto run = [&](bool create_graph) {
    const Tensor a = m.layer(m.x), b = m.layer(m.x * 2);
    const Tensor sum = a + b, view = (a + b).transpose(0, 1);  // the same gradient for both, also as a view
    return grad({(sum * sum).sum() + (view * view).sum() + a.sum()}, {m.x, m.w}, {}, false, create_graph);
  };
  const Tensors got = run(false), want = run(true);
  for (size_t i = 0; i < got.size(); ++i) {
    const auto g = got[i].to_vector<double>(), w = want[i].to_vector<double>();
    for (size_t j = 0; j < g.size(); ++j) EXPECT_NEAR(g[j], w[j], 1e-12 * (1 + std::fabs(w[j])));
  }
}

TEST(Ownership, AResidualGetsTheGradientAsItCame) {
  const Overwriting m(3);
  const auto run = [&](bool create_graph) {
    const Tensor h = m.layer(m.x);
    const Tensor y = linear_act(h, m.w, {}, Activation::Tanh, h), z = linear_act(y, m.w, {}, Activation::None, y);
    return grad({(z * z).sum()}, {m.x, m.w}, {}, false, create_graph);
  };
  const Tensors got = run(false), want = run(true);
  for (size_t i = 0; i < got.size(); ++i) {
    const auto g = got[i].to_vector<double>(), w = want[i].to_vector<double>();
    for (size_t j = 0; j < g.size(); ++j) EXPECT_NEAR(g[j], w[j], 1e-12 * (1 + std::fabs(w[j])));
  }
}

TEST(Ownership, WhatACustomBackwardHoldsIsNotOverwritten) {
  const Overwriting m(4);
  Tensors held;
  const auto pass = [&](const Tensor& t) {
    return custom_function(
        "pass", {t}, [](const Tensors& in) { return in; },
        [&](const Tensors&, const Tensors&, const Tensors& grads) {
          held.push_back(grads[0]);
          return grads;
        })[0];
  };
  Tensor y = m.layer(pass(m.layer(m.x)));
  y.sum().backward();
  const Tensor h = m.layer(m.x).detach().set_requires_grad();
  m.layer(h).sum().backward();
  EXPECT_EQ(held[0].to_vector<double>(), h.grad().to_vector<double>());
}

TEST(Ownership, ALeafsGradientIsAddedToInPlaceWhoeverHoldsIt) {
  Tensor x = leaf({1, 2}, {2});
  (x * 2).sum().backward();
  const Tensor held = x.grad();
  (x * 3).sum().backward();
  EXPECT_TRUE(same(held, x.grad()));
  EXPECT_EQ(held.to_vector<double>(), (std::vector<double>{5, 5}));
  const Tensor mine = ones({2}, Float64);
  x.set_grad(mine);
  (x * 3).sum().backward();
  EXPECT_EQ(mine.to_vector<double>(), (std::vector<double>{1, 1}));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{4, 4}));
  Tensor a = leaf({1}, {1}), b = leaf({2}, {1});
  (a + b).sum().backward({}, false, true);  // differentiable, so both may be one tensor
  (a * 5).sum().backward();
  EXPECT_EQ(b.grad().item(), 1);
  EXPECT_EQ(a.grad().item(), 6);
}

TEST(CustomFunction, UsesItsOwnBackward) {
  Tensor x = leaf({2}, {1});
  auto straight_through = [](const Tensor& t) {
    return custom_function(
        "straight_through", {t}, [](const Tensors& in) { return Tensors{round(in[0])}; },
        [](const Tensors&, const Tensors&, const Tensors& grads) { return grads; })[0];
  };
  Tensor y = straight_through(x * 1.3);
  EXPECT_EQ(y.item(), 3);
  y.sum().backward();
  EXPECT_NEAR(x.grad().item(), 1.3, 1e-12);
}

TEST(Backward, ReleasesMemory) {
  auto before = memory_stats().allocated;
  {
    Tensor x = zeros({1000}, Float64).set_requires_grad();
    Tensor y = exp(x);  // saves its own output
    y = y * y;
    (void)y;
  }
  EXPECT_EQ(memory_stats().allocated, before);
}

}  // namespace
}  // namespace tessera
