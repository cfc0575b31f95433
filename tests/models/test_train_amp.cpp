// Training in mixed precision.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/io_check.h"
#include "tessera/io.h"
#include "train_check.h"

namespace tessera {
namespace {

using namespace models;

struct Mode {
  Amp amp;
  bool lower_residual;
};
constexpr Mode kMixed[] = {{Amp::BFloat16, false}, {Amp::BFloat16, true}, {Amp::Float16, false}, {Amp::Float16, true}};

TrainOptions mixed(const Mode& mode) {
  TrainOptions o = tiny();
  o.amp = mode.amp;
  o.lower_residual = mode.lower_residual;
  return o;
}

// So large weights that gradients overflow at the first scales of the loss.
TrainOptions overflowing() {
  TrainOptions o = mixed({Amp::Float16, false});
  o.model.init_std = 12;
  o.clip = 0;
  return o;
}

TEST(TrainMixed, LearnsAsInF32) {
  TrainOptions o = tiny();
  o.steps = 80;
  const double exact = *train_gpt(o).val_loss;
  for (const Mode& mode : kMixed) {
    TrainOptions m = mixed(mode);
    m.steps = o.steps;
    const TrainResult r = train_gpt(m);
    EXPECT_NEAR(*r.val_loss, exact, 0.03) << name(mode.amp) << mode.lower_residual;
    EXPECT_NE(*r.val_loss, exact);
    EXPECT_EQ(r.steps.back().loss_scale, mode.amp == Amp::Float16 ? 65536 : 1);
    EXPECT_EQ(r.skipped, 0);
  }
}

TEST(TrainMixed, SkipsStepsThatOverflow) {
  const TrainResult r = train_gpt(overflowing());
  ASSERT_GT(r.skipped, 0);
  ASSERT_LT(r.skipped, 12);
  EXPECT_EQ(r.steps.back().loss_scale, std::ldexp(65536, -static_cast<int>(r.skipped)));
  for (const StepInfo& s : r.steps) {
    EXPECT_TRUE(std::isfinite(s.loss));
    EXPECT_EQ(s.skipped, !std::isfinite(s.grad_norm));
  }
}

TEST(TrainMixed, AResumedRunIsTheSameBitForBit) {
  std::vector<TrainOptions> runs = {overflowing()};
  for (const Mode& mode : kMixed) runs.push_back(mixed(mode));
  for (TrainOptions& o : runs) {
    TemporaryFolder folder;
    o.accumulate = 2;
    const TrainResult whole = train_gpt(o);
    o.checkpoint = folder / "c";
    for (const int64_t stop_at : {1, 5}) {
      std::atomic<bool> stop = false;
      TrainCallbacks callbacks;
      callbacks.stop = &stop;
      callbacks.on_step = [&](const StepInfo& s) { stop = s.step == stop_at; };
      o.resume = false;
      train_gpt(o, callbacks);
      o.resume = true;
      const TrainResult second = train_gpt(o);
      EXPECT_EQ(losses(second), losses(whole)) << stop_at;
      EXPECT_EQ(second.skipped, whole.skipped);
      EXPECT_EQ(*second.val_loss, *whole.val_loss);
      EXPECT_EQ(second.steps.back().loss_scale, whole.steps.back().loss_scale);
    }
  }
}

TEST(TrainMixed, ACheckpointKeepsItsPrecision) {
  TemporaryFolder folder;
  TrainOptions o = mixed({Amp::Float16, false});
  o.checkpoint = folder / "c";
  train_gpt(o);
  EXPECT_EQ(train_options_of(o.checkpoint).amp, Amp::Float16);
  o.resume = true;
  o.steps = 14;
  o.amp = Amp::Off;
  EXPECT_EQ(error_of([&] { train_gpt(o); }),
            o.checkpoint + ": of another configuration: amp is \"fp16\" there and \"off\" here");
  o.amp = Amp::Float16;
  Checkpoint damaged = load_checkpoint(o.checkpoint);
  damaged.tensors.erase("scaler.scale");
  o.checkpoint = folder / "damaged";
  save_checkpoint(o.checkpoint, damaged);
  EXPECT_EQ(error_of([&] { train_gpt(o); }),
            o.checkpoint + ": GradScaler::load_state_dict: 1 tensors for a scaler that has 2");
}

TEST(TrainMixed, CheckpointsFromBeforeItAreInF32) {
  TemporaryFolder folder;
  TrainOptions o = tiny();
  o.checkpoint = folder / "c";
  train_gpt(o);
  Checkpoint old = load_checkpoint(o.checkpoint);
  nlohmann::json config = nlohmann::json::parse(old.metadata["config"]);
  EXPECT_EQ(config.erase("amp") + config.erase("lower_residual"), 2u);
  old.metadata["config"] = config.dump();
  o.checkpoint = folder / "old";
  save_checkpoint(o.checkpoint, old);
  EXPECT_EQ(train_options_of(o.checkpoint).amp, Amp::Off);
  o.resume = true;
  o.steps = 14;
  EXPECT_EQ(train_gpt(o).steps.size(), 14u);
  o.amp = Amp::BFloat16;
  EXPECT_NE(error_of([&] { train_gpt(o); }).find("amp is \"off\" there and \"bf16\" here"), std::string::npos);
}

TEST(TrainMixed, NotANumber) {
  for (const Mode& mode : kMixed) {
    TrainOptions o = mixed(mode);
    o.lr = 1e38;
    o.min_lr = 0;
    o.warmup = 0;
    o.clip = 0;
    o.weight_decay = 0;
    EXPECT_NE(error_of([&] { train_gpt(o); }).find("train: loss "), std::string::npos);
    o.on_nan = OnNan::Skip;
    EXPECT_GT(train_gpt(o).skipped, 0);
  }
}

TEST(TrainMixed, GradientsThatAlwaysOverflowAreAnError) {
  TrainOptions o = overflowing();
  o.model.init_std = 300;
  o.steps = 100;
  EXPECT_NE(error_of([&] { train_gpt(o); }).find("train: loss "), std::string::npos);
}

TEST(TrainMixed, RefusesALowerResidualAlone) {
  TrainOptions o = tiny();
  o.lower_residual = true;
  EXPECT_EQ(error_of([&] { validate(o); }), "train: a lower residual stream needs amp");
}

}  // namespace
}  // namespace tessera
