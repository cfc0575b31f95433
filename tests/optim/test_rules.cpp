// Optimizers whose steps are written in operators, against their published formulas in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "io/io_check.h"
#include "ops/capture.h"
#include "tessera/autograd.h"
#include "tessera/nn.h"
#include "tessera/ops.h"
#include "tessera/optim.h"

namespace tessera {
namespace {

using namespace optim;

// One scalar: state[3] is kept from step to step, and begins with zeros.
using Formula = std::function<double(double p, double g, double step, double* state)>;

// Adam's moments, each divided by its correction.
struct Means {
  double mean, square;
};
template <class Options>
Means adam_means(const Options& o, double g, double step, double* state) {
  state[0] = o.beta1 * state[0] + (1 - o.beta1) * g;
  state[1] = o.beta2 * state[1] + (1 - o.beta2) * g * g;
  return {state[0] / (1 - std::pow(o.beta1, step)), state[1] / (1 - std::pow(o.beta2, step))};
}
template <class Options>
void decay_weight(const Options& o, bool decoupled, double& p, double& g) {
  if (decoupled) p *= 1 - o.lr * o.weight_decay;
  else g += o.weight_decay * p;
}

template <class Options>
Formula amsgrad_formula(const Options& o, bool decoupled) {
  return [=](double p, double g, double step, double* state) {
    decay_weight(o, decoupled, p, g);
    const double mean = adam_means(o, g, step, state).mean;
    state[2] = std::max(state[2], state[1]);
    return p - o.lr * mean / (std::sqrt(state[2] / (1 - std::pow(o.beta2, step))) + o.eps);
  };
}
Formula nadam_formula(const NAdamOptions& o) {
  return [=](double p, double g, double step, double* state) {
    decay_weight(o, o.decoupled, p, g);
    const auto mu = [&](double t) { return o.beta1 * (1 - 0.5 * std::pow(0.96, t * o.momentum_decay)); };
    state[2] = (step == 1 ? 1 : state[2]) * mu(step);
    const double root = std::sqrt(adam_means(o, g, step, state).square) + o.eps;
    return p - o.lr * ((1 - mu(step)) / (1 - state[2]) * g + mu(step + 1) / (1 - state[2] * mu(step + 1)) * state[0]) /
                   root;
  };
}
Formula radam_formula(const RAdamOptions& o) {
  return [=](double p, double g, double step, double* state) {
    decay_weight(o, o.decoupled, p, g);
    const Means m = adam_means(o, g, step, state);
    const double longest = 2 / (1 - o.beta2) - 1, power = std::pow(o.beta2, step);
    const double n = longest - 2 * step * power / (1 - power);
    if (n <= 5) return p - o.lr * m.mean;
    const double r = std::sqrt((n - 4) * (n - 2) * longest / ((longest - 4) * (longest - 2) * n));
    return p - o.lr * m.mean * r * std::sqrt(1 - power) / (std::sqrt(state[1]) + o.eps);
  };
}
Formula adamax_formula(const AdamaxOptions& o) {
  return [=](double p, double g, double step, double* state) {
    decay_weight(o, false, p, g);
    state[0] = o.beta1 * state[0] + (1 - o.beta1) * g;
    state[1] = std::max(o.beta2 * state[1], std::abs(g) + o.eps);
    return p - o.lr / (1 - std::pow(o.beta1, step)) * state[0] / state[1];
  };
}
Formula rmsprop_formula(const RMSpropOptions& o) {
  return [=](double p, double g, double, double* state) {
    decay_weight(o, false, p, g);
    state[0] = o.alpha * state[0] + (1 - o.alpha) * g * g;
    state[1] = o.alpha * state[1] + (1 - o.alpha) * g;
    const double spread = o.centered ? state[0] - state[1] * state[1] : state[0];
    state[2] = o.momentum * state[2] + g / (std::sqrt(spread) + o.eps);
    return p - o.lr * state[2];
  };
}
Formula adagrad_formula(const AdagradOptions& o) {
  return [=](double p, double g, double step, double* state) {
    decay_weight(o, false, p, g);
    state[0] = (step == 1 ? o.initial_sum : state[0]) + g * g;
    return p - o.lr / (1 + (step - 1) * o.lr_decay) * g / (std::sqrt(state[0]) + o.eps);
  };
}
Formula adadelta_formula(const AdadeltaOptions& o) {
  return [=](double p, double g, double, double* state) {
    decay_weight(o, false, p, g);
    state[0] = o.rho * state[0] + (1 - o.rho) * g * g;
    const double delta = std::sqrt(state[1] + o.eps) / std::sqrt(state[0] + o.eps) * g;
    state[1] = o.rho * state[1] + (1 - o.rho) * delta * delta;
    return p - o.lr * delta;
  };
}

std::vector<Tensor> make_parameters(Generator& g, DType dtype) {
  std::vector<Tensor> out;
  for (const Shape& shape : {Shape{3, 5}, Shape{7}, Shape{1}}) {
    out.push_back(randn(shape, g).to(dtype));
    out.back().set_requires_grad();
  }
  return out;
}

// Several steps, one of which finds an inf and is to change nothing.
template <class O, class Options>
void check(const Options& options, const Formula& formula) {
  for (const DType dtype : {Float64, Float32, BFloat16}) {
    Generator g(11);
    const std::vector<Tensor> parameters = make_parameters(g, dtype);
    O optimizer(parameters, options);
    std::vector<std::vector<double>> values;
    for (const Tensor& p : parameters) values.push_back(p.to_vector<double>());
    std::vector<std::vector<double>> states(3, std::vector<double>(3 * 15));
    for (int step = 0, done = 0; step < 9; ++step) {
      const bool skipped = step == 4;
      done += !skipped;
      for (size_t i = 0; i < parameters.size(); ++i) {
        const Tensor grad = randn(parameters[i].shape(), g).to(dtype);
        parameters[i].set_grad(grad);
        const std::vector<double> gradient = grad.to_vector<double>();
        for (size_t j = 0; j < gradient.size() && !skipped; ++j)
          values[i][j] = formula(values[i][j], 0.5 * gradient[j], done, &states[i][3 * j]);
      }
      optimizer.step({.grad_scale = full({}, 0.5), .found_inf = full({}, skipped, Bool)});
    }
    const double most = dtype == Float64 ? 1e-7 : dtype == Float32 ? 1e-5 : 3e-2;  // lr is f32
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::vector<double> got = parameters[i].to_vector<double>();
      for (size_t j = 0; j < got.size(); ++j)
        ASSERT_NEAR(got[j], values[i][j], most * std::max(1.0, std::abs(values[i][j]))) << name(dtype);
    }
    EXPECT_EQ(optimizer.state_dict().at("group.0.step").item(), 8);
  }
}

TEST(Rules, FollowTheirFormulas) {
  for (const double decay : {0.0, 0.1}) {
    const AdamOptions a{.lr = 0.01, .beta1 = 0.7, .beta2 = 0.8, .weight_decay = decay, .amsgrad = true};
    check<Adam>(a, amsgrad_formula(a, false));
    const AdamWOptions w{.lr = 0.01, .weight_decay = decay, .amsgrad = true};
    check<AdamW>(w, amsgrad_formula(w, true));
    for (const bool decoupled : {false, true}) {
      const NAdamOptions n{.lr = 0.01, .weight_decay = decay, .decoupled = decoupled};
      check<NAdam>(n, nadam_formula(n));
      const RAdamOptions r{.lr = 0.01, .weight_decay = decay, .decoupled = decoupled};
      check<RAdam>(r, radam_formula(r));
    }
    const AdamaxOptions x{.lr = 0.01, .weight_decay = decay};
    check<Adamax>(x, adamax_formula(x));
    for (const double momentum : {0.0, 0.9})
      for (const bool centered : {false, true}) {
        const RMSpropOptions r{
            .lr = 0.01, .alpha = 0.9, .weight_decay = decay, .momentum = momentum, .centered = centered};
        check<RMSprop>(r, rmsprop_formula(r));
      }
    const AdagradOptions g{.lr = 0.05, .lr_decay = 0.1, .weight_decay = decay, .initial_sum = 0.2};
    check<Adagrad>(g, adagrad_formula(g));
    const AdadeltaOptions d{.lr = 0.5, .weight_decay = decay};
    check<Adadelta>(d, adadelta_formula(d));
  }
}

TEST(Rules, KeepWhatTheyNeed) {
  Generator g(3);
  const std::vector<Tensor> p = make_parameters(g, Float32);
  EXPECT_EQ(RMSprop(p).state_dict().size(), 4u);
  EXPECT_EQ(RMSprop(p, {.momentum = 0.9, .centered = true}).state_dict().size(), 10u);
  EXPECT_EQ(NAdam(p).state_dict().at("param.1.mu_product").item(), 1);
  EXPECT_EQ(Adagrad(p, {.initial_sum = 0.25}).state_dict().at("param.0.sum").select(0, 0).select(0, 0).item(), 0.25);
  Adagrad moves(p, {.lr = 0});
  const std::vector<float> before = p[0].to_vector<float>();
  for (const Tensor& t : p) t.set_grad(randn(t.shape(), g));
  moves.step();
  EXPECT_EQ(p[0].to_vector<float>(), before);
  moves.set_lr(0.1);
  moves.set_weight_decay(0.5);
  moves.step();
  EXPECT_NE(p[0].to_vector<float>(), before);
}

// The momentum of the steps to come is another one.
TEST(Rules, FollowAMomentumThatChanges) {
  const auto steps = [&](Optimizer& optimizer, Tensor p, double momentum) {
    for (int i = 0; i < 3; ++i) {
      p.set_grad(full({2}, i + 1.0));
      if (i == 2) optimizer.set_momentum(momentum);
      optimizer.step();
    }
    return p.to_vector<double>()[0];
  };
  const auto fresh = [] { return ones({2}, Float64).set_requires_grad(); };
  Tensor p = fresh(), q = fresh(), r = fresh(), s = fresh(), t = fresh();
  SGD sgd({p}, {.lr = 0.1, .momentum = 0.9});
  EXPECT_NEAR(steps(sgd, p, 0.5), 1 - 0.1 * (1 + 2.9 + 0.5 * 2.9 + 3), 1e-7);
  RMSprop rms({q}, {.lr = 0.1, .alpha = 0, .eps = 0, .momentum = 0.9});
  EXPECT_NEAR(steps(rms, q, 0.5), 1 - 0.1 * (1 + 1.9 + 0.5 * 1.9 + 1), 1e-7);
  Adam adam({r}, {.lr = 0.1, .beta1 = 0.9}), same({s}, {.lr = 0.1, .beta1 = 0.9});
  EXPECT_NE(steps(adam, r, 0.5), steps(same, s, 0.9));
  Adam largest({t}, {.lr = 0.1, .beta1 = 0.9, .amsgrad = true});
  EXPECT_NEAR(steps(largest, t, 0.5), r.to_vector<double>()[0], 1e-7);  // gradients that rise
  EXPECT_EQ(adam.momentum(), 0.5);
  Tensor u = fresh();
  SGD without({u}, {.lr = 0.1});
  EXPECT_EQ(without.momentum(), 0);
  EXPECT_NEAR(steps(without, u, 0.5), 1 - 0.1 * (1 + 2 + 3), 1e-7);  // its velocity begins with the third gradient
  EXPECT_EQ(without.state_dict().size(), 2u);
  EXPECT_EQ(error_of([&] { RMSprop({u}).set_momentum(0.5); }), "RMSprop: was made without a momentum");
  EXPECT_EQ(error_of([&] { Adagrad({p}).set_momentum(0.5); }), "Adagrad: was made without a momentum");
  EXPECT_THROW(adam.set_momentum(1), Error);
}

// A captured step, with its backward, is the eager one.
TEST(Rules, AreCaptured) {
  const auto train = [](bool captured, bool again) {
    Generator g(7);
    const nn::Linear fc(6, 4, true, g);
    NAdam optimizer(fc.parameters());
    const auto layer = [&](const Tensors& in) { return Tensors{tanh(fc(in[0]))}; };
    const auto step = [&](const Tensors& in) {
      optimizer.zero_grad();
      const Tensor loss = sum(square((again ? checkpoint(layer, in) : layer(in))[0]));
      loss.backward();
      optimizer.step();
      return Tensors{loss.detach()};
    };
    const Tensor x = randn({3, 6}, g);
    std::function<Tensors(const Tensors&)> run = step;
    if (captured) run = capture(step, {x});
    std::vector<double> losses;
    for (int i = 0; i < 4; ++i) losses.push_back(run({x})[0].item());
    return losses;
  };
  const std::vector<double> wanted = train(false, false);
  EXPECT_LT(wanted[3], wanted[0]);
  EXPECT_EQ(train(true, false), wanted);
  EXPECT_EQ(train(false, true), wanted);
  EXPECT_EQ(train(true, true), wanted);
}

TEST(Rules, RefuseBadOptions) {
  Generator g(4);
  const std::vector<Tensor> p = make_parameters(g, Float32);
  EXPECT_EQ(error_of([&] { RMSprop(p, {.alpha = 1}); }), "RMSprop: alpha = 1 is not in [0, 1)");
  EXPECT_THROW(RMSprop(p, {.momentum = -1}), Error);
  EXPECT_THROW(NAdam(p, {.beta2 = 1}), Error);
  EXPECT_THROW(NAdam(p, {.momentum_decay = -1}), Error);
  EXPECT_THROW(Adagrad(p, {.initial_sum = -1}), Error);
  EXPECT_THROW(Adadelta(p, {.rho = std::nan("")}), Error);
  EXPECT_THROW(RAdam(p, {.lr = -1}), Error);
}

}  // namespace
}  // namespace tessera
