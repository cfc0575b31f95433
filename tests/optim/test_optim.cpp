#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "io/io_check.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"
#include "tessera/optim.h"

namespace tessera {
namespace {

using namespace optim;

// One scalar of an optimizer, in double precision, from the published formulas.
using Rule = std::function<double(double p, double g, int step, double* state)>;

Rule sgd_rule(const SGDOptions& o) {
  return [=](double p, double g, int step, double* state) {
    g += o.weight_decay * p;
    if (o.momentum == 0) return p - o.lr * g;
    state[0] = step == 1 ? g : o.momentum * state[0] + (1 - o.dampening) * g;
    return p - o.lr * (o.nesterov ? g + o.momentum * state[0] : state[0]);
  };
}
template <class Options>
Rule adam_rule(const Options& o, bool decoupled) {
  return [=](double p, double g, int step, double* state) {
    if (decoupled) p *= 1 - o.lr * o.weight_decay;
    else g += o.weight_decay * p;
    state[0] = o.beta1 * state[0] + (1 - o.beta1) * g;
    state[1] = o.beta2 * state[1] + (1 - o.beta2) * g * g;
    const double m = state[0] / (1 - std::pow(o.beta1, step)), v = state[1] / (1 - std::pow(o.beta2, step));
    return p - o.lr * m / (std::sqrt(v) + o.eps);
  };
}

std::vector<Tensor> make_parameters(Generator& g) {
  std::vector<Tensor> out;
  for (const Shape& shape : {Shape{3, 5}, Shape{7}, Shape{1}, Shape{2, 3, 11}}) {
    out.push_back(randn(shape, g));
    out.back().set_requires_grad();
  }
  return out;
}
std::vector<Tensor> copies(const std::vector<Tensor>& list) {
  std::vector<Tensor> out;
  for (const Tensor& t : list) {
    out.push_back(t.detach().clone());
    out.back().set_requires_grad();
  }
  return out;
}

void check_against(Optimizer& optimizer, const std::vector<Tensor>& parameters, const Rule& rule) {
  Generator g(77);
  std::vector<std::vector<double>> values, states;
  for (const Tensor& p : parameters) {
    values.push_back(p.to_vector<double>());
    states.emplace_back(2 * values.back().size());
  }
  for (int step = 1; step <= 6; ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Tensor grad = randn(parameters[i].shape(), g);
      parameters[i].set_grad(grad);
      const auto gradient = grad.to_vector<double>();
      for (size_t j = 0; j < gradient.size(); ++j)
        values[i][j] = rule(values[i][j], gradient[j], step, &states[i][2 * j]);
    }
    optimizer.step();
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto got = parameters[i].to_vector<double>();
    for (size_t j = 0; j < got.size(); ++j)
      ASSERT_NEAR(got[j], values[i][j], 1e-5 * std::max(1.0, std::abs(values[i][j])));
  }
}

TEST(Optimizers, FollowTheirFormulas) {
  Generator g(1);
  for (const SGDOptions& o : {SGDOptions{.lr = 0.1}, SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01},
                              SGDOptions{.lr = 0.1, .momentum = 0.8, .dampening = 0.3},
                              SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}}) {
    const std::vector<Tensor> p = make_parameters(g);
    SGD optimizer(p, o);
    check_against(optimizer, p, sgd_rule(o));
  }
  for (const double decay : {0.0, 0.1}) {
    const std::vector<Tensor> p = make_parameters(g), q = make_parameters(g);
    const AdamOptions a{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.99, .weight_decay = decay};
    Adam adam(p, a);
    check_against(adam, p, adam_rule(a, false));
    const AdamWOptions w{.lr = 0.01, .weight_decay = decay};
    AdamW adamw(q, w);
    check_against(adamw, q, adam_rule(w, true));
  }
}

// Gradients of another width than their parameter's, which somebody has set.
TEST(Optimizers, ReadGradientsOfAnyDtype) {
  for (const DType dtype : {Float64, Float32, BFloat16}) {
    std::vector<std::vector<double>> got;
    for (const DType of_gradient : {dtype, Float64, Float32, BFloat16}) {
      std::vector<Tensor> p;
      for (int i = 0; i < 3; ++i) p.push_back(ones({5}, dtype).set_requires_grad());
      SGD sgd({p[0]}, {.lr = 0.125});
      AdamW adam({p[1]}, {.lr = 0.125});
      RMSprop rms({p[2]}, {.lr = 0.125});
      for (const Tensor& t : p) t.set_grad(full({5}, 0.5, of_gradient));
      sgd.step(), adam.step(), rms.step();
      got.emplace_back();
      for (const Tensor& t : p)
        for (const double value : t.to_vector<double>()) got.back().push_back(value);
    }
    for (const std::vector<double>& values : got) EXPECT_EQ(values, got[0]) << name(dtype);
  }
}

TEST(Optimizers, GroupsHaveTheirOwnOptions) {
  Generator g(2);
  const std::vector<Tensor> p = make_parameters(g);
  AdamW optimizer(std::vector<ParamGroup<AdamWOptions>>{{{p[0], p[0], p[1]}, {.lr = 0.1}}, {{p[2]}, {.lr = 0.2}}});
  EXPECT_EQ(optimizer.groups(), 2);
  optimizer.scale_lr(0.5);
  EXPECT_NEAR(optimizer.lr(0), 0.05, 1e-7);
  EXPECT_NEAR(optimizer.lr(1), 0.1, 1e-7);
  EXPECT_EQ(optimizer.state_dict().size(), 2u + 3u * 2u);  // p[0] counts once
  const std::vector<float> before = p[0].to_vector<float>();
  p[2].set_grad(ones({1}));
  optimizer.step();  // without a gradient nothing moves
  EXPECT_EQ(p[0].to_vector<float>(), before);
  optimizer.zero_grad();
  EXPECT_FALSE(p[2].grad().defined());
}

TEST(Optimizers, StateGoesOnExactly) {
  Generator g(3);
  const std::vector<Tensor> p = make_parameters(g), q = copies(p);
  AdamW a(p), b(q);
  auto advance = [&](Optimizer& optimizer, const std::vector<Tensor>& list, uint64_t seed) {
    Generator gradients(seed);
    for (const Tensor& t : list) t.set_grad(randn(t.shape(), gradients));
    optimizer.step();
  };
  for (uint64_t i = 0; i < 5; ++i) advance(a, p, i);
  for (size_t i = 0; i < p.size(); ++i) q[i].detach().copy_(p[i].detach());
  b.load_state_dict(a.state_dict());
  for (uint64_t i = 5; i < 8; ++i) advance(a, p, i), advance(b, q, i);
  for (size_t i = 0; i < p.size(); ++i) EXPECT_EQ(p[i].to_vector<float>(), q[i].to_vector<float>());
  EXPECT_EQ(a.state_dict().at("group.0.step").item(), 8);
}

TEST(Optimizers, RefuseStatesOfOthers) {
  Generator g(4);
  const std::vector<Tensor> p = make_parameters(g);
  AdamW a(p);
  StateDict dict = a.state_dict();
  dict.erase("param.0.exp_avg");
  dict["param.1.exp_avg"] = zeros({8});
  dict["more"] = zeros({1});
  EXPECT_EQ(error_of([&] { a.load_state_dict(dict); }),
            "AdamW::load_state_dict: missing param.0.exp_avg; param.1.exp_avg is f32[7] on cpu here and f32[8] on cpu "
            "there; 1 "
            "unexpected names");
  EXPECT_EQ(SGD(p).state_dict().size(), 1u);
  EXPECT_EQ(SGD(p, {.momentum = 0.9}).state_dict().size(), 5u);
}

TEST(Optimizers, RefuseBadOptions) {
  Generator g(5);
  const std::vector<Tensor> p = make_parameters(g);
  EXPECT_THROW(SGD(std::vector<Tensor>{}), Error);
  EXPECT_THROW(SGD(std::vector<Tensor>{zeros({2})}), Error);  // needs no gradient
  EXPECT_THROW(SGD(p, {.lr = -1}), Error);
  EXPECT_THROW(SGD(p, {.nesterov = true}), Error);
  EXPECT_THROW(Adam(p, {.beta1 = 1}), Error);
  EXPECT_THROW(AdamW(p, {.weight_decay = std::nan("")}), Error);
  using Groups = std::vector<ParamGroup<AdamOptions>>;
  EXPECT_EQ(error_of([&] { Adam(Groups{{{p[1]}, {}}, {{p[1]}, {}}}); }), "Adam: f32[7] on cpu is in two groups");
}

TEST(Optimizers, SayTheRateThatStepsTake) {
  Tensor p = ones({3}).set_requires_grad();
  optim::SGD optimizer({p}, {.lr = 0.1});
  EXPECT_EQ(optimizer.lr(), 0.1f);
  optimizer.scale_lr(0.3);
  EXPECT_EQ(optimizer.lr(), static_cast<float>(0.1 * 0.3));
  p.set_grad(ones({3}));
  optimizer.step();
  EXPECT_FLOAT_EQ(p.detach().select(0, 0).item(), 0.97f);
}

TEST(Optimizers, FoundInfSkipsTheStepOnTheDevice) {
  Generator g(6);
  const std::vector<Tensor> p = make_parameters(g);
  AdamW a(p);
  for (const Tensor& t : p) t.set_grad(randn(t.shape(), g));
  const std::vector<float> before = p[0].to_vector<float>();
  a.step({.found_inf = full({}, 1, Bool)});
  EXPECT_EQ(p[0].to_vector<float>(), before);
  EXPECT_EQ(a.state_dict().at("group.0.step").item(), 0);
  a.step({.found_inf = full({}, 0, Bool)});
  EXPECT_NE(p[0].to_vector<float>(), before);
}

TEST(Clipping, BoundsTheCommonNorm) {
  Generator g(7);
  const std::vector<Tensor> p = make_parameters(g);
  double squares = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (i == 1) continue;  // no gradient here
    p[i].set_grad(randn(p[i].shape(), g) * 3);
    for (double v : p[i].grad().to_vector<double>()) squares += v * v;
  }
  const double before = std::sqrt(squares);
  EXPECT_NEAR(grad_norm(p).item(), before, 1e-5 * before);
  EXPECT_NEAR(clip_coefficient(grad_norm(p), 2).item(), 2 / before, 1e-5);
  EXPECT_EQ(clip_coefficient(grad_norm(p), 1e6).item(), 1);
  EXPECT_NEAR(clip_grad_norm_(p, 2).item(), before, 1e-5 * before);
  EXPECT_NEAR(grad_norm(p).item(), 2, 1e-4);
  clip_grad_norm_(p, 5);
  EXPECT_NEAR(grad_norm(p).item(), 2, 1e-4);
  EXPECT_THROW(clip_grad_norm_(p, 0), Error);
  EXPECT_EQ(grad_norm({}).item(), 0);
}

TEST(Clipping, ScalingInTheStepIsTheSame) {
  Generator g(8);
  const std::vector<Tensor> p = make_parameters(g), q = copies(p);
  for (size_t i = 0; i < p.size(); ++i) {
    p[i].set_grad(randn(p[i].shape(), g));
    q[i].set_grad(p[i].grad().clone());
  }
  SGD a(p, {.lr = 1}), b(q, {.lr = 1});
  a.step({.grad_scale = clip_coefficient(grad_norm(p), 0.5)});
  clip_grad_norm_(q, 0.5);
  b.step();
  for (size_t i = 0; i < p.size(); ++i) {
    const auto x = p[i].to_vector<double>(), y = q[i].to_vector<double>();
    for (size_t j = 0; j < x.size(); ++j) EXPECT_NEAR(x[j], y[j], 1e-6);
  }
}

TEST(Schedules, HaveTheirShapes) {
  EXPECT_EQ(constant()(123), 1);
  const Schedule s = warmup_cosine(10, 110, 0.1);
  EXPECT_NEAR(s(0), 1.0 / 11, 1e-12);
  EXPECT_NEAR(s(9), 10.0 / 11, 1e-12);
  EXPECT_NEAR(s(10), 1, 1e-12);
  EXPECT_NEAR(s(60), 0.55, 1e-12);
  EXPECT_NEAR(s(110), 0.1, 1e-12);
  EXPECT_NEAR(s(5000), 0.1, 1e-12);
  EXPECT_EQ(warmup_cosine(0, 10)(0), 1);
  EXPECT_EQ(step_decay(30, 0.1)(29), 1);
  EXPECT_NEAR(step_decay(30, 0.1)(60), 0.01, 1e-15);
  EXPECT_THROW(warmup_cosine(5, 4), Error);
  EXPECT_THROW(step_decay(0), Error);
}

}  // namespace
}  // namespace tessera
