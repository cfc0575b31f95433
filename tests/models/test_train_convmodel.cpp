// The experiment on mixed precision.
#include <gtest/gtest.h>

#include <cmath>

#include "io/io_check.h"
#include "models/train_convmodel.h"
#include "tessera/models.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

using namespace models;

ConvModelOptions small(Amp amp) {
  ConvModelOptions o;
  o.steps = 25;
  o.size = 19;
  o.lr = 1e-3;
  o.amp = amp;
  return o;
}

std::vector<double> losses(const ConvModelResult& r) {
  std::vector<double> out;
  for (const auto& s : r.steps) out.push_back(s.loss);
  return out;
}

Device card() {
  for (DeviceType type : {DeviceType::CUDA, DeviceType::HIP})
    if (device_count(type) > 0) return {type, 0};
  return cpu();
}

TEST(TrainConvModel, TheTargetHasFourLevels) {
  const Tensor target = target_picture(129);
  int seen[4] = {};
  for (int64_t i = 0; i < target.numel(); ++i) {
    const float level = 3 * target.data<float>()[i];
    ASSERT_EQ(level, std::round(level));
    ++seen[static_cast<int>(level)];
  }
  for (int count : seen) EXPECT_GT(count, 129 * 129 / 20);
  EXPECT_EQ(target.data<float>()[0], 1);              // cos 0 + cos 0 = 2
  EXPECT_EQ(target.data<float>()[32 * 129 + 16], 0);  // x = 1/8, y = 1/4: cos pi + cos pi = -2
  const Tensor x = pixel_coordinates(3);
  EXPECT_EQ(std::vector<float>(x.data<float>(), x.data<float>() + 18),
            (std::vector<float>{0, 0.5, 1, 0, 0.5, 1, 0, 0.5, 1, 0, 0, 0, 0.5, 0.5, 0.5, 1, 1, 1}));
}

TEST(TrainConvModel, LearnsInEveryPrecision) {
  for (Amp amp : {Amp::Off, Amp::BFloat16, Amp::Float16}) {
    const ConvModelResult r = train_convmodel(small(amp));
    ASSERT_EQ(r.steps.size(), 25u);
    EXPECT_LT(r.steps.back().loss, 0.7 * r.steps.front().loss) << name(amp);
    EXPECT_EQ(to_string(r.picture.shape()), "[19, 19]");
    EXPECT_GT(r.inference_ms, 0);
    EXPECT_GT(r.training_bytes, r.inference_bytes);
  }
}

TEST(TrainConvModel, AResumedRunIsTheSameBitForBit) {
  for (Device device : {cpu(), card()})
    for (Amp amp : {Amp::Off, Amp::BFloat16, Amp::Float16}) {
      TemporaryFolder folder;
      ConvModelOptions o = small(amp);
      o.device = device;
      const ConvModelResult whole = train_convmodel(o);
      o.checkpoint = folder / "c";
      std::atomic<bool> stop = false;
      ConvModelCallbacks callbacks;
      callbacks.stop = &stop;
      callbacks.on_step = [&](const ConvModelStep& s) { stop = s.step == 5; };
      EXPECT_TRUE(train_convmodel(o, callbacks).stopped);
      o.resume = true;
      const ConvModelResult rest = train_convmodel(o);
      EXPECT_EQ(losses(rest), losses(whole));
      EXPECT_EQ(rest.inference_loss, whole.inference_loss);
    }
}

TEST(TrainConvModel, AHistoryThatDoesNotFitAdamsStepIsRefused) {
  TemporaryFolder folder;
  ConvModelOptions o = small(Amp::Off);
  o.steps = 3;
  o.checkpoint = folder / "c";
  train_convmodel(o);
  Checkpoint changed = load_checkpoint(o.checkpoint);
  changed.tensors.at("history.steps") = changed.tensors.at("history.steps").slice(0, 0, 2).clone();
  save_checkpoint(o.checkpoint, changed);
  o.resume = true;
  try {
    train_convmodel(o);
    ADD_FAILURE() << "no error";
  } catch (const FileError& e) {
    EXPECT_EQ(std::string(e.what()),
              o.checkpoint + ": damaged checkpoint: a history of 2 steps that were not skipped, and 3 of Adam's");
  }
}

TEST(TrainConvModel, AGpuTrainsAsTheCpu) {
  if (!card().is_gpu()) GTEST_SKIP() << "no GPU: " << why_unavailable(cuda());
  for (Amp amp : {Amp::Off, Amp::BFloat16, Amp::Float16})
    for (int64_t size : {19, 64}) {
      ConvModelOptions o = small(amp);
      o.size = size;
      o.steps = 10;  // further on, Adam has made whole steps of what is rounding in small gradients
      const auto want = losses(train_convmodel(o));
      o.device = card();
      o.report_interval = 5;
      const auto got = losses(train_convmodel(o));
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(got[i], want[i], (amp == Amp::Off ? 5e-3 : 5e-2) * want[i]) << name(amp) << " step " << i;
    }
}

}  // namespace
}  // namespace tessera
