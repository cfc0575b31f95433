// Copies of parameters in halves, which the optimizer's kernel writes: always what a cast would give.
#include "core/gpu_check.h"
#include "ops/lower_copy.h"
#include "ops/ops_check.h"
#include "tessera/observer.h"

namespace tessera {
namespace {

class GpuLowerCopies : public GpuTest {};

// What autocast would find; undefined: it would cast.
Tensor lower_copy(const Tensor& parameter, DType dtype) {
  const auto owner = find_lower_copy(parameter);
  const Tensor copy = owner ? owner->fresh(parameter) : Tensor();
  return copy.defined() && copy.dtype() == dtype ? copy : Tensor();
}

// A matrix and a vector that are trained under autocast, with copies or with a cast for each use.
struct Trained {
  bool copies;
  Tensor weight, bias;
  optim::AdamW optimizer;

  Trained(const Tensor& w, const Tensor& b, bool copies)
      : copies(copies),
        weight(w.to(card()).set_requires_grad()),
        bias(b.to(card()).set_requires_grad()),
        optimizer({weight, bias}, {.lr = 1e-2}) {}

  void step(const Tensor& x, DType dtype, bool skipped = false) {
    optimizer.zero_grad();
    {
      const amp::Autocast region(dtype, {.cache_weights = copies});
      const Tensor y = linear(x.to(card()), weight, bias);
      sum(square(cast(y, Float32))).backward();
    }
    optimizer.step({.found_inf = full({}, skipped, Bool, card())});
  }
  bool has_copy(DType dtype) const {
    const Tensor copy = lower_copy(weight, dtype);
    if (copy.defined()) {
      EXPECT_EQ(relative_error(copy.to(cpu()), weight.detach().to(dtype).to(cpu())), 0);
    }
    return copy.defined();
  }
};

TEST_F(GpuLowerCopies, AreWhatACastWouldGive) {
  Generator g(3);
  for (const Shape& shape : {Shape{33, 17}, Shape{64, 128}, Shape{1, 1}, Shape{4099, 3}, Shape{300, 131}}) {
    const Tensor w = randn(shape, g), b = randn({shape[0]}, g), x = randn({5, shape[1].value()}, g);
    Trained with(w, b, true), without(w, b, false);
    const auto both = [&](const auto& fn) {
      for (Trained* t : {&with, &without}) fn(*t);
      EXPECT_EQ(relative_error(with.weight.detach().to(cpu()), without.weight.detach().to(cpu())), 0);
      EXPECT_EQ(relative_error(with.bias.detach().to(cpu()), without.bias.detach().to(cpu())), 0);
    };
    const auto step = [&](DType dtype, bool skipped = false) {
      both([&](Trained& t) { t.step(x, dtype, skipped); });
      EXPECT_FALSE(without.has_copy(dtype));
      return with.has_copy(dtype);
    };
    const auto change = [&](const auto& fn) {
      NoGrad guard;
      both([&](Trained& t) { fn(t.weight); });
      EXPECT_FALSE(with.has_copy(BFloat16));
    };
    EXPECT_FALSE(with.has_copy(BFloat16));
    EXPECT_TRUE(step(BFloat16));
    EXPECT_TRUE(step(BFloat16));
    change([](Tensor& t) { t.mul_(0.5); });
    EXPECT_TRUE(step(BFloat16));
    change([&](Tensor& t) { t.copy_(w); });
    EXPECT_TRUE(step(BFloat16, true));  // a step that the device skips
    EXPECT_TRUE(step(BFloat16));
    EXPECT_TRUE(step(Float16));
    EXPECT_FALSE(with.has_copy(BFloat16));
    EXPECT_TRUE(step(BFloat16));
    change([](Tensor& t) {  // what a graph writes has no version
      DeviceGraph graph;
      graph.capture(card(), [&] { t.mul_(1.0); });
      t.mul_(1.5);
      graph.replay();
    });
    EXPECT_TRUE(step(BFloat16));
  }
}

// What they are for: a step of the optimizer is one call, and no cast of the parameters follows it.
TEST_F(GpuLowerCopies, SpareTheCasts) {
  struct Casts : Observer {
    int of_weights = 0, steps = 0;
    void returned(const CallSeen& call) override {
      of_weights += call.op == "cast" && call.inputs[0].size(0) == 40 && call.outputs[0].dtype() == BFloat16;
      steps += call.op == "adam_";
    }
  };
  Generator g(8);
  const Tensor w = randn({40, 24}, g), b = randn({40}, g), x = randn({5, 24}, g);
  for (const bool copies : {true, false}) {
    Trained t(w, b, copies);
    t.step(x, BFloat16);
    Casts seen;
    const Observing guard(seen);
    for (int i = 0; i < 3; ++i) t.step(x, BFloat16);
    EXPECT_EQ(seen.of_weights, copies ? 0 : 6);
    EXPECT_EQ(seen.steps, 3);
  }
}

TEST_F(GpuLowerCopies, GraphsMakeTheirOwn) {
  Generator g(4);
  const Tensor w = randn({40, 24}, g), b = randn({40}, g), x = randn({5, 24}, g), there = x.to(card());
  Trained captured(w, b, true), by_hand(w, b, false);
  for (Trained* t : {&captured, &by_hand}) t->step(there, BFloat16);
  const Tensor never = full({}, false, Bool, card());
  const auto step = [&](Trained& t) {
    t.optimizer.zero_grad();
    const amp::Autocast region(BFloat16, {.cache_weights = t.copies});
    sum(square(cast(linear(there, t.weight, t.bias), Float32))).backward();
    t.optimizer.step({.found_inf = never});
  };
  DeviceGraph graph;
  graph.capture(card(), [&] { step(captured); });
  for (int i = 0; i < 3; ++i) {
    graph.replay();
    step(by_hand);
    EXPECT_FALSE(captured.has_copy(BFloat16));
  }
  for (int i = 0; i < 2; ++i)
    for (Trained* t : {&captured, &by_hand}) step(*t);  // eager again
  EXPECT_EQ(relative_error(captured.weight.detach().to(cpu()), by_hand.weight.detach().to(cpu())), 0);
}

// Also within a region that is open: what was cast before is none of the graph's, and what it casts is its own.
TEST_F(GpuLowerCopies, GraphsOfAnOpenRegionCastAnew) {
  Generator g(6);
  const Tensor x = randn({5, 24}, g).to(card());
  Tensor weight = randn({40, 24}, g).to(card()).set_requires_grad(), captured;
  const amp::Autocast region(BFloat16);
  const auto eager = [&] { return linear(x, weight).detach().to(cpu()).to(Float32); };
  const Tensor before = eager();
  DeviceGraph graph;
  graph.capture(card(), [&] { captured = linear(x, weight).detach(); });
  EXPECT_EQ(relative_error(eager(), before), 0);
  {
    NoGrad guard;
    weight.mul_(2.0);
  }
  graph.replay();
  EXPECT_EQ(relative_error(captured.to(cpu()).to(Float32), before * 2.0), 0);
  EXPECT_EQ(relative_error(eager(), before * 2.0), 0);
}

// A step in between does not write what the second backward needs: as on the CPU, it sees the weights of the forward.
TEST_F(GpuLowerCopies, LossesOverOneForwardMayHaveAStepBetween) {
  Generator g(7);
  const Tensor w = randn({40, 24}, g), b = randn({40}, g), x = randn({5, 24}, g);
  const auto second_gradient = [&](bool copies) {
    Trained t(w, b, copies);
    t.step(x, BFloat16);
    const Tensor in = x.to(card()).set_requires_grad();
    Tensor y;
    {
      const amp::Autocast region(BFloat16, {.cache_weights = copies});
      y = linear(in, t.weight, t.bias);
    }
    sum(cast(y, Float32)).backward({}, true);
    t.optimizer.step();
    t.optimizer.zero_grad();
    in.set_grad({});
    sum(square(cast(y, Float32))).backward();
    return in.grad().to(cpu());
  };
  EXPECT_EQ(relative_error(second_gradient(true), second_gradient(false)), 0);
}

TEST_F(GpuLowerCopies, LiveAsLongAsTheOptimizer) {
  Generator g(5);
  const Tensor w = randn({40, 24}, g), b = randn({40}, g), x = randn({5, 24}, g);
  Tensor weight;
  {
    Trained t(w, b, true);
    t.step(x, BFloat16);
    weight = t.weight;
    EXPECT_TRUE(lower_copy(weight, BFloat16).defined());
    const optim::SGD other({weight}, {.lr = 0.1});
    EXPECT_TRUE(lower_copy(weight, BFloat16).defined());
  }
  EXPECT_FALSE(lower_copy(weight, BFloat16).defined());
}

}  // namespace
}  // namespace tessera
