#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>

#include "ops/ops_check.h"
#include "tessera/amp.h"
#include "tessera/io.h"

namespace tessera {
namespace {

using amp::GradScaler;
using amp::GradScalerOptions;
using Values = std::vector<float>;

// One parameter with plain gradient descent: the loss is <w, g>, so the gradient is g.
struct Descent {
  Tensor w = ones({3}).set_requires_grad();
  optim::SGD optimizer{{w}, {.lr = 1}};
  void backward(GradScaler& scaler, const Tensor& g) {
    optimizer.zero_grad();
    scaler.scale(sum(w * g)).backward();
  }
  Values values() const { return w.to_vector<float>(); }
};

TEST(GradScaler, ScalesUnscalesAndSteps) {
  GradScaler scaler;
  Descent d;
  EXPECT_EQ(scaler.current_scale(), 65536);
  d.backward(scaler, tensor<float>({0.25f, 0.5f, -1}, {3}));
  EXPECT_EQ(d.w.grad().to_vector<float>(), (Values{16384, 32768, -65536}));
  EXPECT_FALSE(scaler.step(d.optimizer).item<bool>());
  scaler.update();
  EXPECT_EQ(d.values(), (Values{0.75f, 0.5f, 2}));
  EXPECT_EQ(d.w.grad().to_vector<float>(), (Values{0.25f, 0.5f, -1}));
  EXPECT_EQ(scaler.current_scale(), 65536);
}

TEST(GradScaler, KeepsSmallGradientsOfF16) {
  // the gradient of the product, 1e-5 · 1e-3, is zero in f16 unless it is scaled
  for (bool enabled : {false, true}) {
    GradScaler scaler({.enabled = enabled});
    Tensor w = full({1, 1}, 1e-6).set_requires_grad();
    optim::SGD optimizer({w}, {.lr = 1});
    Tensor loss;
    {
      amp::Autocast guard(Float16);
      loss = sum(matmul(full({1, 1}, 1e-3), w)) * 1e-5;
    }
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    if (enabled) EXPECT_NEAR(w.grad().item(), 1e-8, 1e-10);
    else EXPECT_EQ(w.grad().item(), 0);
  }
}

TEST(GradScaler, SkipsStepsWithoutLosingState) {
  for (double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY), -static_cast<double>(INFINITY)}) {
    GradScaler scaler;
    Tensor w = ones({70000}).set_requires_grad(), v = ones({2}).set_requires_grad();
    optim::AdamW optimizer({w, v}, {.lr = 0.1});
    auto step = [&](double g) {
      optimizer.zero_grad();
      w.set_grad(full({70000}, 65536 * 0.5));
      v.set_grad(full({2}, 1));
      w.grad().select(0, 69999).fill_(g);
      scaler.scale(sum(v));
      const bool skipped = scaler.step(optimizer).item<bool>();
      scaler.update();
      return skipped;
    };
    EXPECT_FALSE(step(1));
    const StateDict saved = optimizer.state_dict();
    std::map<std::string, std::vector<float>> before;
    for (const auto& [name, t] : saved) before[name] = t.to_vector<float>();
    const Values weights = w.to_vector<float>();
    EXPECT_TRUE(step(bad));
    EXPECT_EQ(w.to_vector<float>(), weights);
    for (const auto& [name, t] : optimizer.state_dict()) EXPECT_EQ(t.to_vector<float>(), before[name]) << name;
    EXPECT_EQ(scaler.current_scale(), 32768);
    EXPECT_FALSE(step(1));
    EXPECT_EQ(optimizer.state_dict().at("group.0.step").item(), 2);
  }
}

TEST(GradScaler, GrowsAndBacksOff) {
  GradScaler scaler({.init_scale = 8, .growth_factor = 4, .growth_interval = 3, .backoff_factor = 0.25});
  Descent d;
  auto step = [&](double g) {
    d.backward(scaler, full({3}, g));
    scaler.step(d.optimizer);
    scaler.update();
    return scaler.current_scale();
  };
  std::vector<double> scales;
  for (double g : {1.0, 1.0, 1.0, 1.0, 1.0, static_cast<double>(NAN), 1.0, 1.0, 1.0, static_cast<double>(INFINITY)})
    scales.push_back(step(g));
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 32, 32, 32, 8, 8, 8, 32, 8}));
}

TEST(GradScaler, DefaultsArePyTorchs) {
  GradScaler scaler;
  Descent d;
  for (int i = 1; i <= 2000; ++i) {
    EXPECT_EQ(scaler.current_scale(), 65536);
    d.backward(scaler, zeros({3}));
    scaler.step(d.optimizer);
    scaler.update();
  }
  EXPECT_EQ(scaler.current_scale(), 131072);
}

TEST(GradScaler, UnscaledGradientsCanBeClipped) {
  GradScaler scaler;
  Descent d;
  d.backward(scaler, tensor<float>({3, 0, 4}, {3}));
  scaler.unscale_(d.optimizer);
  EXPECT_NEAR(optim::clip_grad_norm_({d.w}, 1).item(), 5, 1e-5);
  scaler.step(d.optimizer);
  EXPECT_NEAR(d.values()[0], 1 - 0.6, 1e-5);
  scaler.update();
  d.w.set_grad({});
  d.backward(scaler, tensor<float>({3, 0, 4}, {3}));  // the same without a pass over the gradients
  scaler.unscale_(d.optimizer);
  scaler.step(d.optimizer, {.grad_scale = optim::clip_coefficient(optim::grad_norm({d.w}), 1)});
  EXPECT_NEAR(d.values()[0], 1 - 1.2, 1e-5);
}

TEST(GradScaler, SharesTheScaleAmongOptimizers) {
  GradScaler scaler;
  Descent a, b;
  a.backward(scaler, ones({3}));
  b.backward(scaler, full({3}, NAN));
  EXPECT_FALSE(scaler.step(a.optimizer).item<bool>());
  EXPECT_TRUE(scaler.step(b.optimizer).item<bool>());
  scaler.update();
  EXPECT_EQ(a.values(), (Values{0, 0, 0}));
  EXPECT_EQ(b.values(), (Values{1, 1, 1}));
  EXPECT_EQ(scaler.current_scale(), 32768);
}

TEST(GradScaler, HonoursAFoundInfOfTheCaller) {
  GradScaler scaler;
  Descent d;
  d.backward(scaler, ones({3}));
  EXPECT_TRUE(scaler.step(d.optimizer, {.found_inf = full({}, 1, Bool)}).item<bool>());
  EXPECT_EQ(d.values(), (Values{1, 1, 1}));
}

TEST(GradScaler, DisabledDoesNothing) {
  GradScaler scaler({.enabled = false});
  Descent d;
  const Tensor loss = sum(d.w);
  EXPECT_TRUE(same(scaler.scale(loss), loss));
  loss.backward();
  scaler.unscale_(d.optimizer);
  scaler.unscale_(d.optimizer);
  EXPECT_FALSE(scaler.step(d.optimizer).item<bool>());
  scaler.update();
  EXPECT_EQ(d.values(), (Values{0, 0, 0}));
  EXPECT_EQ(scaler.current_scale(), 1);
  EXPECT_TRUE(scaler.state_dict().empty());
  scaler.load_state_dict({});
}

TEST(GradScaler, WrongUseIsOneError) {
  GradScaler scaler;
  Descent d;
  auto unscale = [&] { return error_of([&] { scaler.unscale_(d.optimizer); }); };
  auto step = [&] { return error_of([&] { scaler.step(d.optimizer); }); };
  auto update = [&] { return error_of([&] { scaler.update(); }); };
  EXPECT_EQ(update(), "GradScaler::update: there was no step since the last update()");
  EXPECT_EQ(step(), "GradScaler::unscale_: no loss was scaled since update()");
  const Tensor loss = scaler.scale(sum(d.w));
  EXPECT_EQ(step(), "GradScaler::unscale_: no parameter of the optimizer has a gradient");
  loss.backward();
  EXPECT_EQ(unscale(), "no error");
  EXPECT_EQ(unscale(), "GradScaler::unscale_: called a second time for this optimizer since update()");
  EXPECT_EQ(step(), "no error");
  EXPECT_EQ(step(), "GradScaler::step: called a second time for this optimizer since update()");
  EXPECT_EQ(unscale(), "GradScaler::unscale_: called after step() and before update()");
  EXPECT_EQ(update(), "no error");
  EXPECT_EQ(error_of([&] { scaler.scale(zeros({}, Int64)); }), "GradScaler::scale: the loss is i64[] on cpu");

  Tensor half = ones({2}, Float16).set_requires_grad();
  optim::SGD optimizer({half});
  scaler.scale(sum(half)).backward();
  EXPECT_NE(error_of([&] { scaler.step(optimizer); }).find("f16[2] on cpu would lose its small values"),
            std::string::npos);

  for (const GradScalerOptions& o : {GradScalerOptions{.init_scale = 0}, GradScalerOptions{.growth_factor = 1},
                                     GradScalerOptions{.growth_interval = 0}, GradScalerOptions{.backoff_factor = 1},
                                     GradScalerOptions{.init_scale = NAN}})
    EXPECT_THROW(GradScaler{o}, Error);
}

TEST(GradScaler, LossesOfAnyFloatingDtypeAreScaledWide) {
  GradScaler scaler;
  for (DType dtype : {Float16, BFloat16, Float32, Float64}) {
    const Tensor scaled = scaler.scale(full({2}, 8, dtype));
    EXPECT_EQ(scaled.dtype(), dtype == Float64 ? Float64 : Float32);
    EXPECT_EQ(scaled.to_vector<double>(), (std::vector<double>{8 * 65536, 8 * 65536}));
  }
}

TEST(GradScaler, StateGoesThroughACheckpoint) {
  const GradScalerOptions options{.growth_interval = 5};
  GradScaler a(options), b(options);
  Descent d;
  auto step = [&](GradScaler& scaler, double g) {
    d.backward(scaler, full({3}, g));
    scaler.step(d.optimizer);
    scaler.update();
  };
  for (double g : {1.0, static_cast<double>(NAN), 1.0, 1.0, 1.0}) step(a, g);
  const std::string file = testing::TempDir() + "grad_scaler.safetensors";
  save_checkpoint(file, {a.state_dict(), {}});
  b.load_state_dict(load_checkpoint(file).tensors);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(a.current_scale(), b.current_scale());
    step(a, 1);
    step(b, 1);
  }
  EXPECT_EQ(b.current_scale(), 65536);

  StateDict bad = a.state_dict();
  bad["scale"] = full({}, NAN);
  EXPECT_EQ(error_of([&] { b.load_state_dict(bad); }), "GradScaler::load_state_dict: nan is no scale");
  bad["scale"] = ones({1});
  EXPECT_EQ(error_of([&] { b.load_state_dict(bad); }),
            "GradScaler::load_state_dict: scale is f32[] on cpu here and f32[1] on cpu there");
  EXPECT_EQ(error_of([&] { b.load_state_dict({}); }), "GradScaler::load_state_dict: 0 tensors for a scaler that has 2");
  bad.erase("scale");
  bad["other"] = zeros({});
  EXPECT_EQ(error_of([&] { b.load_state_dict(bad); }), "GradScaler::load_state_dict: missing scale");
  EXPECT_EQ(b.current_scale(), 65536);
}

// Two layers in each mode from the same start.
std::vector<double> train_net(std::optional<DType> low, int steps) {
  Generator g(1);
  auto leaf = [&](const Shape& s) { return (normal64(s, g) * 0.3).to(Float32).set_requires_grad(); };
  Tensor w1 = leaf({32, 8}), b1 = zeros({32}).set_requires_grad(), w2 = leaf({4, 32});
  const Tensor x = normal64({64, 8}, g).to(Float32), y = indices({64}, 4, g);
  optim::AdamW optimizer({w1, b1, w2}, {.lr = 1e-2});
  GradScaler scaler({.enabled = low == Float16});
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    Tensor loss;
    {
      amp::Autocast guard(low.value_or(BFloat16), {.enabled = low.has_value()});
      loss = cross_entropy(linear(linear_act(x, w1, b1, Activation::GeluTanh), w2), y);
    }
    optimizer.zero_grad();
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    losses.push_back(loss.item());
  }
  return losses;
}

TEST(MixedPrecision, TrainsAsF32Does) {
  const auto exact = train_net({}, 60), half = train_net(Float16, 60), brain = train_net(BFloat16, 60);
  EXPECT_LT(exact.back(), 0.6 * exact.front());
  EXPECT_NEAR(half.back(), exact.back(), 0.01);
  EXPECT_NEAR(brain.back(), exact.back(), 0.03);
}

}  // namespace
}  // namespace tessera
