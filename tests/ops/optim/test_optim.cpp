#include "ops/ops_check.h"

#include "ops/capture.h"
#include "ops/optim.h"

namespace tessera {
namespace {

Tensor scalar(double v) { return full({}, v); }

TEST(OptimizerStep, NamesTheRuleThatIsBroken) {
  Tensors p = {zeros({3})}, m = {zeros({3})}, v = {zeros({3})};
  auto step = [&](const Tensors& grads, const Tensor& lr) {
    return error_of([&] { adam_(p, m, v, scalar(0), grads, {lr, {}, {}}, {}); });
  };
  EXPECT_EQ(step({zeros({4})}, scalar(1)), "adam_: gradient 0 of parameter f32[3] on cpu: f32[4] on cpu");
  EXPECT_EQ(step({zeros({3})}, zeros({1})), "adam_: lr must be a 0-d f32 or f64 tensor, not f32[1] on cpu");
  EXPECT_EQ(step({}, scalar(1)), "adam_: 0 gradients for 1 tensors");
  m[0] = zeros({3}, Float16);
  EXPECT_EQ(step({zeros({3})}, scalar(1)), "adam_: state 0 of parameter f32[3] on cpu: f16[3] on cpu");
  EXPECT_EQ(error_of([] { global_norm({}); }), "global_norm: no tensors");
}

TEST(OptimizerStep, CountsOnlyStepsThatWereTaken) {
  Tensors p = {ones({5})}, m = {zeros({5})}, v = {zeros({5})}, g = {full({5}, NAN)};
  Tensor step = scalar(0), lr = scalar(0.1), found_inf = full({}, 1, Bool);
  adam_(p, m, v, step, g, {lr, {}, found_inf}, {});
  EXPECT_EQ(step.item(), 0);
  EXPECT_EQ(p[0].to_vector<float>(), std::vector<float>(5, 1));
  found_inf.fill_(0);
  g[0] = ones({5});
  adam_(p, m, v, step, g, {lr, {}, found_inf}, {});
  EXPECT_EQ(step.item(), 1);
  for (float x : p[0].to_vector<float>()) EXPECT_NEAR(x, 0.9f, 1e-6);  // the first step of Adam has length lr
}

TEST(OptimizerStep, KeepsHalfParametersWithExactMoments) {
  Generator gen(1);
  for (DType dtype : {Float16, BFloat16}) {
    Tensor p = normal64({37}, gen).to(dtype), g = normal64({37}, gen).to(dtype), m = zeros({37}), v = zeros({37});
    Tensor p64 = p.to(Float64), m64 = zeros({37}, Float64), v64 = zeros({37}, Float64), step = scalar(0),
           step64 = scalar(0);
    adam_({p}, {m}, {v}, step, {g}, {scalar(0.1), {}, {}}, {.weight_decay = 0.1});
    adam_({p64}, {m64}, {v64}, step64, {g.to(Float64)}, {scalar(0.1), {}, {}}, {.weight_decay = 0.1});
    EXPECT_LE(relative_error(m, m64), 1e-6);
    EXPECT_LE(relative_error(p, p64), dtype == Float16 ? 1e-3 : 8e-3);
  }
}

// Copies in halves get what a cast would give, in the same call, also where they do not lie dense.
TEST(OptimizerStep, WritesTheCopiesThatItsCallNames) {
  Generator gen(5);
  for (const double momentum : {0.0, 0.9})
    for (const bool adam : {true, false}) {
      const Shape shape{37, 501};
      Tensors p, m, v, g, copies = {empty(shape, BFloat16), {}, empty({501, 37}, Float16).transpose(0, 1)};
      for (int i = 0; i < 3; ++i) {
        p.push_back(normal64(shape, gen).to(Float32));
        g.push_back(normal64(shape, gen).to(Float32));
        m.push_back(zeros(shape));
        v.push_back(zeros(shape));
      }
      Tensor found_inf = zeros({}, Bool);
      const Tensor count = scalar(0);
      const auto step = [&] {
        const OptimAttrs attrs{.weight_decay = 0.1, .momentum = adam ? 0 : momentum};
        const StepInputs inputs{scalar(0.1), {}, found_inf};
        if (adam) adam_(p, m, v, count, g, inputs, attrs, copies);
        else sgd_(p, momentum != 0 ? m : Tensors(), count, g, inputs, attrs, copies);
      };
      const auto agree = [&] {
        for (size_t i : {size_t{0}, size_t{2}})
          EXPECT_EQ(relative_error(copies[i].to(Float64), p[i].to(copies[i].dtype()).to(Float64)), 0) << i;
      };
      for (int i = 1; i < 4; ++i) {
        step();
        agree();
        EXPECT_EQ(copies[0].storage()->version.load(), p[0].storage()->version.load());
      }
      found_inf.fill_(1);
      step();
      agree();
      found_inf.fill_(0);
      const Program program = capture([&](const Tensors&) { return step(), Tensors{}; }, {});
      const Tensor before = copies[0].clone();
      EXPECT_EQ(parse_graph(program.graph->text())->text(), program.graph->text());
      agree();
      program({});
      agree();
      EXPECT_GT(relative_error(copies[0].to(Float64), before.to(Float64)), 0);
    }
}

TEST(OptimizerStep, TakesOnlyCopiesInHalvesOfTheirParameters) {
  const auto with = [](const Tensor& p, const Tensors& copies) {
    return error_of([&] { sgd_({p}, {}, scalar(0), {zeros(p.shape(), p.dtype())}, {scalar(1), {}, {}}, {}, copies); });
  };
  EXPECT_EQ(with(zeros({3}), {zeros({4}, BFloat16)}),
            "sgd_: copy in f16 or bf16 of parameter f32[3] on cpu: bf16[4] on cpu");
  EXPECT_EQ(with(zeros({3}), {zeros({3}, Float64)}),
            "sgd_: copy in f16 or bf16 of parameter f32[3] on cpu: f64[3] on cpu");
  EXPECT_EQ(with(zeros({3}, Float16), {zeros({3}, BFloat16)}), "sgd_: only f32 and f64 have copies, not f16[3] on cpu");
  EXPECT_EQ(with(zeros({3}), {Tensor(), zeros({3}, BFloat16)}), "sgd_: 2 copies for 1 gradients");
  EXPECT_EQ(with(zeros({3}), {Tensor()}), "no error");
}

TEST(Unscale, TakesEveryDtypeAndLayoutAndFindsAnyElement) {
  Generator gen(2);
  for (DType dtype : {Float16, BFloat16, Float32, Float64})
    for (double bad : {1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
      Tensor plain = normal64({7, 31}, gen).to(dtype), across = normal64({13, 5}, gen).to(dtype).transpose(0, 1);
      const Tensor first = plain.to(Float64).clone(), second = across.to(Float64).clone();
      plain.select(0, 6).select(0, 30).fill_(bad);
      first.select(0, 6).select(0, 30).fill_(bad);
      const Tensor found_inf = zeros({}, Bool);
      unscale_({plain, across}, found_inf, scalar(3));
      EXPECT_EQ(found_inf.item<bool>(), bad != 1) << name(dtype);
      const double limit = dtype == Float16 ? 1e-3 : dtype == BFloat16 ? 8e-3 : 1e-6;
      EXPECT_TRUE(bad != 1 || relative_error(plain, first / 3) <= limit) << name(dtype);
      EXPECT_LE(relative_error(across, second / 3), limit) << name(dtype);
    }
  EXPECT_EQ(error_of([] { unscale_({zeros({2}, Int64)}, zeros({}, Bool), scalar(1)); }),
            "unscale_: takes floating-point tensors, not i64[2] on cpu");
  EXPECT_EQ(error_of([] { unscale_({zeros({2})}, scalar(0), scalar(1)); }),
            "unscale_: found_inf must be a 0-d bool tensor, not f32[] on cpu");
  EXPECT_EQ(error_of([] { update_scale_(scalar(1), scalar(0), zeros({}, Bool), {}); }),
            "update_scale_: growth_tracker must be a 0-d i32 tensor, not f32[] on cpu");
}

}  // namespace
}  // namespace tessera
