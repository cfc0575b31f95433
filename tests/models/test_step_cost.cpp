// Training on tensors without memory, and what it tells about training with memory.
#include "models/step_cost.h"

#include <gtest/gtest.h>

#include <cmath>

#include <fmt/format.h>

#include "io/io_check.h"
#include "models/train_check.h"
#include "tessera/models.h"
#include "tessera/ops.h"
#include "tessera/optim.h"

namespace tessera {
namespace {

using namespace models;

const char* const kPlaces[] = {"meta(cpu)", "meta(cuda:0)", "cuda:sm90", "hip:gfx90a"};

StepShare module_of(const StepCost& cost, const std::string& name) {
  for (const auto& [known, share] : cost.modules)
    if (known == name) return share;
  return {};
}

template <class Optimizer, class Options>
void step_without_memory(const Options& options, Device device, Amp amp) {
  Generator generator(1);
  GPT model({.layers = 2, .heads = 2, .width = 32, .block = 16, .vocab = 67, .dropout = 0.1}, generator);
  model.to(device);
  Optimizer optimizer(model.parameters(), options);
  amp::GradScaler scaler({.enabled = amp == Amp::Float16});
  const Tensor tokens = zeros({3, 16}, Int64, device), targets = zeros({3, 16}, Int64, device);
  Tensor loss;
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    {
      const amp::Autocast region = autocast(amp);
      loss = model.loss_and_backward(tokens, targets, scaler.scale(full({}, 1, Float32, device)));
    }
    scaler.unscale_(optimizer);
    const Tensor norm = optim::clip_grad_norm_(model.parameters(), 1.0);
    EXPECT_EQ(describe(norm), "f32[] on " + to_string(device));
    scaler.step(optimizer);
    scaler.update();
  }
  EXPECT_TRUE(loss.device() == device && loss.dim() == 0);
  for (const Tensor& p : model.parameters()) {
    ASSERT_TRUE(p.grad().defined());
    EXPECT_TRUE(p.grad().shape() == p.shape() && p.grad().dtype() == Float32 && p.grad().device() == device);
    EXPECT_EQ(p.grad().storage()->data, nullptr);
  }
  for (const auto& [name, t] : optimizer.state_dict()) EXPECT_TRUE(t.device() == device) << name;
  EXPECT_NE(error_of<Error>([&] { loss.item(); }).find("has no memory"), std::string::npos);
}

TEST(WithoutMemory, EveryOptimizerSteps) {
  for (const char* text : kPlaces)
    for (const Amp amp : {Amp::Off, Amp::BFloat16, Amp::Float16}) {
      SCOPED_TRACE(fmt::format("{} {}", text, name(amp)));
      const Device device = parse_device(text);
      step_without_memory<optim::AdamW>(optim::AdamWOptions{}, device, amp);
      step_without_memory<optim::Adam>(optim::AdamOptions{}, device, amp);
      step_without_memory<optim::SGD>(optim::SGDOptions{.momentum = 0.9}, device, amp);
      step_without_memory<optim::SGD>(optim::SGDOptions{}, device, amp);
    }
}

TEST(WithoutMemory, EveryModelSteps) {
  for (const std::string& model : step_models())
    for (const char* text : kPlaces)
      for (const Amp amp : {Amp::Off, Amp::BFloat16}) {
        SCOPED_TRACE(fmt::format("{} on {} {}", model, text, name(amp)));
        const StepCost cost = cost_of_step({model, 2, parse_device(text), amp});
        EXPECT_GT(cost.forward.flops, 0);
        EXPECT_GT(cost.backward.flops, 1.5 * cost.forward.flops);
        EXPECT_GT(cost.optimizer.flops, static_cast<double>(cost.parameters));
        EXPECT_GT(cost.peak_bytes, 4 * cost.parameter_bytes);
        EXPECT_EQ(cost.state_bytes / cost.parameter_bytes, 2);
        StepShare all;
        for (const auto& [name, share] : cost.modules) all.flops += share.flops;
        for (const auto& [name, share] : cost.modules) {
          if (name == "other") {
            EXPECT_LT(share.flops, 0.2 * all.flops) << "outside of modules";
          }
        }
        EXPECT_NEAR(all.flops, cost.forward.flops + cost.backward.flops + cost.optimizer.flops, 1e-9 * all.flops);
      }
}

TEST(StepCost, KnowsItsModels) {
  EXPECT_EQ(error_of<Error>([] { TrainingStep({"gpt3"}); }),
            "unknown model \"gpt3\": there are shakespeare-char-cpu, gpt2-124m, mpt-125m, mpt-350m, mpt-760m, mpt-1b, "
            "mpt-3b, convmodel, resnet20, resnet50, "
            "mobilenetv2, unet, resnet18, resnet34, vit-b16, bert, minilm, gpt2, keyword-lstm, unet-resnet34");
  EXPECT_EQ(error_of<Error>([] { TrainingStep({"resnet20", -1}); }), "a batch of -1 is none");
}

// 6 for each token and weight of a product, and attention's two products forward and five backward, which makes the
// scores again. Norms, activations and sums of elements are the rest.
TEST(StepCost, OfGpt2IsWhatIsKnown) {
  const StepCost cost = cost_of_step({"gpt2-124m", 12, parse_device("cuda:sm90"), Amp::BFloat16});
  EXPECT_EQ(cost.parameters, 124439808);
  const double tokens = 12 * 1024, weights = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
  const double pairs = 12 * 12 * 12 * (1024.0 * 1025 / 2), product = 2 * pairs * 64;
  const double forward = 2 * weights * tokens + 2 * product, backward = 4 * weights * tokens + 5 * product;
  EXPECT_NEAR(cost.forward.flops / forward, 1, 0.005);
  EXPECT_NEAR(cost.backward.flops / backward, 1, 0.005);
  EXPECT_NEAR(module_of(cost, "h.0").flops, module_of(cost, "h.11").flops, 0.001 * module_of(cost, "h.0").flops);
  EXPECT_GT(module_of(cost, "h.0").flops, 6 * tokens * 12 * 768 * 768);
  EXPECT_NEAR(module_of(cost, "head").flops, 6 * tokens * 50257 * 768, 0.001 * 6 * tokens * 50257 * 768);
  EXPECT_EQ(cost.parameter_bytes / 1024, 4 * 124439808LL / 1024);  // f32, and a few spare rows
  ASSERT_EQ(cost.vendors.size(), 2u);
  EXPECT_EQ(cost.vendors[0].bytes, 32 << 20);
}

TEST(StepCost, OfResNet50IsWhatIsKnown) {
  const StepCost cost = cost_of_step({"resnet50", 64});
  EXPECT_EQ(cost.parameters, 25557032);
  const double forward = 2 * 64 * 4.0895e9;  // multiplications of convolutions and the last product
  EXPECT_NEAR(cost.forward.flops / forward, 1, 0.01);
  EXPECT_NEAR(cost.backward.flops / (2 * forward), 1, 0.04);  // images need no gradient
  EXPECT_GT(module_of(cost, "layer3.0").flops, 0);
}

// Parameters as torchvision's MobileNetV2 has them, and as the sum over U-Net's convolutions.
TEST(StepCost, OfMobileNetAndUNetIsWhatIsKnown) {
  const StepCost mobile = cost_of_step({"mobilenetv2", 128});
  EXPECT_EQ(mobile.parameters, 3504872);
  EXPECT_NEAR(mobile.forward.flops / (2 * 128 * 300.8e6), 1, 0.1);  // of multiplications, and norms beside them
  int64_t of_unet = 64 + 1;
  for (int64_t level = 0, in = 3, out = 64; level <= 4; ++level, in = out, out *= 2) {
    of_unet += 9 * (in + out) * out + 4 * out;
    if (level < 4) of_unet += 4 * 2 * out * out + out + 9 * (2 * out + out) * out + 4 * out;
  }
  EXPECT_EQ(cost_of_step({"unet", 4}).parameters, of_unet);
}

// memory_stats() has the workspace of kernels, too, for which plans are asked: then both count the same blocks.
TEST(StepCost, PeakIsThatOfARunWithMemory) {
  for (const char* model : {"shakespeare-char-cpu", "resnet20"}) {
    SCOPED_TRACE(model);
    StepOptions options{model, model[0] == 'r' ? 4 : 0};
    const StepCost cost = cost_of_step(options);
    const int64_t before = memory_stats().allocated;
    options.device = cpu();
    TrainingStep step(options);
    reset_peak_memory();
    step.run();
    const auto measured = static_cast<double>(memory_stats().peak_allocated - before);
    EXPECT_NEAR(static_cast<double>(cost.peak_with_workspace) / measured, 1, 0.001);
    EXPECT_NEAR(static_cast<double>(cost.peak_bytes) / measured, 1, 0.02);
  }
}

// A run holds the next batches and the numbers of its steps, too.
TEST(StepCost, PeakIsThatOfTraining) {
  TrainOptions options = train_preset("shakespeare-char-cpu");
  options.model.vocab = 65;
  options.steps = 3;
  options.eval_interval = options.checkpoint_interval = 0;
  options.text = some_text(20000);
  const int64_t before = memory_stats().allocated;
  const auto measured = static_cast<double>(train_gpt(options).peak_memory_bytes - before);
  const StepCost cost = cost_of_step({"shakespeare-char-cpu"});
  EXPECT_NEAR(static_cast<double>(cost.peak_with_workspace) / measured, 1, 0.05);
}

}  // namespace
}  // namespace tessera
