// Training steps in every precision, on the CPU and on a GPU if there is one: bad numbers, captured steps, checkpoints
// and tensors of other devices.
#include <cmath>
#include <map>
#include <optional>

#include "core/gpu_check.h"
#include "io/io_check.h"
#include "models/train_gpt.h"
#include "train_check.h"

namespace tessera {
namespace {

using namespace models;

constexpr Amp kModes[] = {Amp::Off, Amp::BFloat16, Amp::Float16};

std::vector<Device> devices() {
  std::vector<Device> out{cpu()};
  if (card().is_gpu()) out.push_back(card());
  return out;
}

/// Everything that a step reads and changes.
class Training {
 public:
  virtual ~Training() = default;
  /// The data of the next step; one element of the inputs is `odd`, unless that is 0.
  void feed(int64_t seed, double odd = 0) {
    Generator generator(static_cast<uint64_t>(seed));
    draw(generator, odd);
  }

  // Reads nothing back.
  void step() {
    optimizer_->zero_grad();
    loss_ = add_gradients();
    scaler_.unscale_(*optimizer_);
    NoGrad guard;
    const Tensor norm = optim::grad_norm(net_->parameters());
    skipped_ = scaler_.step(*optimizer_, {optim::clip_coefficient(norm, 1.0), logical_not(isfinite(norm))});
    scaler_.update();
  }

  double loss() const { return loss_.item(); }
  bool skipped() const { return skipped_.item<bool>(); }
  double scale() const { return scaler_.current_scale(); }
  /// Weights and moments.
  std::map<std::string, std::vector<float>> state() const {
    std::map<std::string, std::vector<float>> out;
    for (const StateDict& dict : {net_->state_dict(), optimizer_->state_dict()})
      for (const auto& [name, t] : dict) out[name] = t.detach().to(cpu()).to_vector<float>();
    return out;
  }

 protected:
  Training(Device device, Amp amp) : device_(device), amp_(amp), scaler_({.enabled = amp == Amp::Float16}) {}
  void train(nn::Module& net) {
    net.to(device_);
    net_ = &net;
    optimizer_.emplace(net.parameters(), optim::AdamWOptions{.lr = 1e-2});
  }
  virtual void draw(Generator& generator, double odd) = 0;
  /// Returns the loss.
  virtual Tensor add_gradients() = 0;
  /// Of what fn gives under autocast, scaled.
  template <class Fn>
  Tensor add_gradients_of(const Fn& fn) {
    const Tensor loss = [&] {
      const amp::Autocast region = autocast(amp_);
      return fn();
    }();
    scaler_.scale(loss).backward();
    return loss;
  }

  const Device device_;
  const Amp amp_;
  amp::GradScaler scaler_;

 private:
  nn::Module* net_ = nullptr;
  std::optional<optim::AdamW> optimizer_;
  Tensor loss_, skipped_;
};

struct Net : nn::Module {
  nn::Child<nn::Linear> hidden = add("hidden", nn::Linear(5, 33)), out = add("out", nn::Linear(33, 3));
};

class NetTraining : public Training {
 public:
  NetTraining(Device device, Amp amp) : Training(device, amp), net_((manual_seed(3), Net())) { train(net_); }

 private:
  void draw(Generator& generator, double odd) override {
    Tensor x = randn({37, 5}, generator);
    if (odd != 0) x.select(0, 36).select(0, 3).fill_(odd);
    x_.copy_(x);
    target_.copy_(randn({37, 3}, generator));
  }
  Tensor add_gradients() override {
    return add_gradients_of([&] {
      const Tensor hidden = net_.hidden(x_, Activation::GeluTanh);
      return mse_loss(net_.out(dropout(hidden, 0.2, true, noise_)), target_);
    });
  }

  Net net_;
  Generator noise_{5};
  Tensor x_ = empty({37, 5}, Float32, device_), target_ = empty({37, 3}, Float32, device_);
};

class GptTraining : public Training {
 public:
  GptTraining(Device device, Amp amp) : Training(device, amp) { train(net_); }

 private:
  void draw(Generator& generator, double) override {
    for (Tensor* t : {&tokens_, &targets_}) t->copy_(randint(0, net_.config.vocab, {3, 65}, generator));
  }
  Tensor add_gradients() override {
    const amp::Autocast region = autocast(amp_);
    return net_.loss_and_backward(tokens_, targets_, scaler_.scale(ones({}, Float32, device_)));
  }

  Generator generator_{3};
  GPT net_{{.layers = 2, .heads = 2, .width = 128, .block = 65, .vocab = 257}, generator_};
  Tensor tokens_ = empty({3, 65}, Int64, device_), targets_ = empty({3, 65}, Int64, device_);
};

class ConvModelTraining : public Training {
 public:
  ConvModelTraining(Device device, Amp amp) : Training(device, amp) { train(net_); }

 private:
  void draw(Generator& generator, double) override {
    x_.copy_(randn({2, 2, 24, 24}, generator));
    target_.copy_(rand({2, 1, 24, 24}, generator));
  }
  Tensor add_gradients() override {
    return add_gradients_of([&] { return mse_loss(net_(x_), target_); });
  }

  Generator generator_{3};
  ConvModel net_{2, 64, generator_};
  Tensor x_ = empty({2, 2, 24, 24}, Float32, device_), target_ = empty({2, 1, 24, 24}, Float32, device_);
};

TEST(Steps, BadNumbersSkipOneStepInEveryPrecision) {
  for (const Device device : devices())
    for (const Amp amp : kModes)
      for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
        SCOPED_TRACE(to_string(device) + ' ' + name(amp) + ' ' + std::to_string(bad));
        NetTraining run(device, amp);
        run.feed(1);
        run.step();
        EXPECT_FALSE(run.skipped());
        const auto before = run.state();
        run.feed(2, bad);
        run.step();
        EXPECT_FALSE(std::isfinite(run.loss()));
        EXPECT_TRUE(run.skipped());
        EXPECT_EQ(run.state(), before);
        EXPECT_EQ(run.scale(), amp == Amp::Float16 ? 32768 : 1);
        run.feed(3);
        run.step();
        EXPECT_TRUE(std::isfinite(run.loss()));
        EXPECT_FALSE(run.skipped());
        EXPECT_EQ(run.state().at("group.0.step"), std::vector<float>{2});
        for (const auto& [name, values] : run.state())
          for (float value : values) ASSERT_TRUE(std::isfinite(value)) << name;
      }
}

TEST(Steps, WhatIsTooLargeForHalvesIsSkippedThereAlone) {
  for (const Device device : devices())
    for (const Amp amp : kModes) {
      SCOPED_TRACE(to_string(device) + ' ' + name(amp));
      NetTraining run(device, amp);
      run.feed(1, 1e6);  // f16 ends at 65504
      run.step();
      EXPECT_EQ(run.skipped(), amp == Amp::Float16);
    }
}

template <class Run>
void expect_repeatable(Device device) {
  for (const Amp amp : kModes) {
    SCOPED_TRACE(to_string(device) + ' ' + name(amp));
    Run first(device, amp), again(device, amp);
    for (int i = 1; i < 4; ++i)
      for (Run* run : {&first, &again}) {
        run->feed(i);
        run->step();
      }
    EXPECT_EQ(first.loss(), again.loss());
    EXPECT_EQ(first.state(), again.state());
  }
}

TEST(Steps, OfModelsRepeatBitForBit) {
  for (const Device device : devices()) {
    expect_repeatable<NetTraining>(device);
    expect_repeatable<GptTraining>(device);
    expect_repeatable<ConvModelTraining>(device);
  }
}

class GpuSteps : public GpuTest {};

// A capture throws where the host reads anything or waits. At step `bad`, where that is not 0, inputs are infinite.
template <class Run>
void expect_the_same_when_captured(Amp amp, int bad) {
  SCOPED_TRACE(name(amp));
  Run by_hand(card(), amp), captured(card(), amp);
  for (Run* run : {&by_hand, &captured}) {  // the first step of a run finds memory and makes plans
    run->feed(1);
    run->step();
  }
  DeviceGraph graph;
  graph.capture(card(), [&] { captured.step(); });
  for (int i = 2; i < 8; ++i) {
    const double odd = i == bad ? HUGE_VAL : 0;
    by_hand.feed(i, odd);
    captured.feed(i, odd);
    by_hand.step();
    graph.replay();
    EXPECT_EQ(captured.skipped(), by_hand.skipped()) << i;
    if (bad) {
      EXPECT_EQ(by_hand.skipped(), i == bad);
    }
    if (i != bad) {
      EXPECT_EQ(captured.loss(), by_hand.loss()) << i;
    }
    EXPECT_EQ(captured.state(), by_hand.state()) << i;
  }
  EXPECT_EQ(captured.scale(), by_hand.scale());
  if (!bad) return;
  EXPECT_EQ(captured.scale(), amp == Amp::Float16 ? 32768 : 1);
  EXPECT_EQ(captured.state().at("group.0.step"), std::vector<float>{6});
}

TEST_F(GpuSteps, CapturedOnesAreTheSameBitForBit) {
  for (const Amp amp : kModes) expect_the_same_when_captured<NetTraining>(amp, 4);
}
TEST_F(GpuSteps, CapturedOnesOfAGptAreTheSameBitForBit) {
  for (const Amp amp : kModes) expect_the_same_when_captured<GptTraining>(amp, 0);
}
TEST_F(GpuSteps, CapturedOnesOfTheConvModelAreTheSameBitForBit) {
  for (const Amp amp : kModes) expect_the_same_when_captured<ConvModelTraining>(amp, 0);
}

TEST_F(GpuSteps, NotANumberInEveryPrecision) {
  for (const Amp amp : kModes) {
    TrainOptions o = tiny();
    o.amp = amp;
    o.lr = 1e38;
    o.min_lr = o.clip = o.weight_decay = 0;
    o.warmup = 0;
    o.device = card();
    o.report_interval = 4;
    try {
      train_gpt(o);
      ADD_FAILURE() << name(amp) << ": no error";
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).find("train: loss "), 0u) << e.what();
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    }
    o.on_nan = OnNan::Skip;
    EXPECT_GT(train_gpt(o).skipped, 0) << name(amp);
  }
}

TEST_F(GpuSteps, CheckpointsGoOnOnOtherDevices) {
  for (const Amp amp : kModes)
    for (const bool from_gpu : {true, false}) {
      SCOPED_TRACE(name(amp) + (from_gpu ? " from the GPU" : " from the CPU"));
      TemporaryFolder folder;
      TrainOptions o = tiny();
      o.amp = amp;
      o.model.dropout = 0;
      o.checkpoint = folder / "c";
      o.device = from_gpu ? card() : cpu();
      const std::vector<double> there = losses(train_gpt(o));
      o.resume = true;
      o.steps += 4;
      o.device = from_gpu ? cpu() : card();
      const std::vector<double> on = losses(train_gpt(o));
      ASSERT_EQ(on.size(), there.size() + 4);
      EXPECT_EQ(std::vector<double>(on.begin(), on.end() - 4), there);
      EXPECT_LT(on.back(), there.front());
    }
}

TEST_F(GpuSteps, TensorsOfTwoDevicesInOneOperatorAreAnError) {
  const Tensor here = ones({4, 4}), there = ones({4, 4}, Float32, card());
  const std::string tail = ": inputs on different devices: f32[4, 4] on cpu and f32[4, 4] on " + to_string(card());
  const auto message = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message([&] { add(here, there); }), "add" + tail);
  EXPECT_EQ(message([&] { matmul(here, there); }), "matmul" + tail);
  EXPECT_EQ(message([&] { concat({here, there}, 0); }), "concat" + tail);
  EXPECT_EQ(message([&] { layer_norm(here, ones({4}, Float32, card())); }),
            "layer_norm: inputs on different devices: f32[4, 4] on cpu and f32[4] on " + to_string(card()));
  EXPECT_EQ(sum(matmul(there, there)).item(), 64);  // and the device works
}

}  // namespace
}  // namespace tessera
