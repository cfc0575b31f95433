// Training on a GPU, if there is one: the same numbers as on the CPU, and nothing read back within a step.
#include <cmath>
#include <numeric>

#include "core/gpu_check.h"
#include "io/io_check.h"
#include "ops/op_table.h"
#include "ops/optim.h"
#include "train_check.h"

namespace tessera {
namespace {

using namespace models;

class GpuTraining : public GpuTest {
 protected:
  Generator generator{23};
};

double largest_difference(const Tensor& a, const Tensor& b) {
  return amax(abs(a.to(cpu()).to(Float64) - b.to(cpu()).to(Float64))).item();
}

TEST_F(GpuTraining, LossesAreThoseOfTheCpu) {
  TemporaryFolder folder;
  TrainOptions o = tiny();
  const std::vector<double> want = losses(train_gpt(o));
  o.device = card();
  const Stream own = current_stream(card());
  TrainCallbacks callbacks;
  callbacks.on_step = [&](const StepInfo&) { EXPECT_EQ(current_stream(card()).state(), own.state()); };
  for (int64_t interval : {1, 5}) {
    o.report_interval = interval;
    o.checkpoint = folder / "c";
    const TrainResult r = train_gpt(o, callbacks);
    ASSERT_EQ(r.steps.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(r.steps[i].loss, want[i], 1e-3 * want[i]) << "step " << i;
    EXPECT_GT(r.peak_memory_bytes, 0);
  }
  EXPECT_EQ(load_trained_gpt(folder / "c").model.head.device(), cpu());  // a checkpoint belongs to no device
}

TEST_F(GpuTraining, AResumedRunIsTheSameBitForBit) {
  TemporaryFolder folder;
  TrainOptions o = tiny();
  o.device = card();
  const std::vector<double> want = losses(train_gpt(o));
  o.checkpoint = folder / "c";
  std::atomic<bool> stop{false};
  TrainCallbacks callbacks;
  callbacks.stop = &stop;
  callbacks.on_step = [&](const StepInfo& s) { stop = s.step >= 7; };
  EXPECT_TRUE(train_gpt(o, callbacks).stopped);
  o.resume = true;
  EXPECT_EQ(losses(train_gpt(o)), want);
}

TEST_F(GpuTraining, StepsThatAreNotFiniteAreSkippedOnTheDevice) {
  TrainOptions o = tiny();
  o.lr = 1e38;
  o.min_lr = o.clip = o.weight_decay = 0;
  o.warmup = 0;
  o.device = card();
  o.report_interval = 4;
  EXPECT_THROW(train_gpt(o), Error);
  o.on_nan = OnNan::Skip;
  EXPECT_GT(train_gpt(o).skipped, 0);
}

// A capture throws where the host reads anything.
TEST_F(GpuTraining, AStepWithClippingIsCaptured) {
  for (DType dtype : {Float32, BFloat16}) {
    std::vector<Tensor> parameters[2];
    for (int i = 0; i < 70; ++i) {  // more than the arguments of one launch hold
      const Tensor p = randn({i % 7 + 1, 4097 * (i % 3) + 1}, generator).to(dtype), g = randn(p.shape(), generator);
      for (int k = 0; k < 2; ++k) {
        parameters[k].push_back((k ? p.to(card()) : p.clone()).set_requires_grad());
        parameters[k].back().set_grad(g.to(dtype).to(parameters[k].back().device()));
      }
    }
    optim::AdamW here(parameters[0]), there(parameters[1]);
    auto step = [](optim::AdamW& optimizer, const std::vector<Tensor>& list) {
      NoGrad guard;
      const Tensor norm = optim::grad_norm(list);
      optimizer.step({optim::clip_coefficient(norm, 1.0), logical_not(isfinite(norm))});
    };
    DeviceGraph graph;
    step(there, parameters[1]);
    graph.capture(card(), [&] { step(there, parameters[1]); });
    graph.replay();
    graph.replay();
    for (int i = 0; i < 3; ++i) step(here, parameters[0]);
    EXPECT_EQ(there.state_dict().at("group.0.step").item(), 3);
    for (size_t i = 0; i < parameters[0].size(); ++i)
      EXPECT_LE(largest_difference(parameters[0][i].detach(), parameters[1][i].detach()),
                dtype == Float32 ? 1e-6 : 0.02)
          << i;
  }
}

TEST_F(GpuTraining, RandomNumbersAreThoseOfTheCpu) {
  for (DType dtype : {Float32, Float64, BFloat16}) {
    Generator a(7), b(7);
    EXPECT_EQ(largest_difference(rand({3, 4099}, a, dtype), rand({3, 4099}, b, dtype, card())), 0);
    EXPECT_LE(largest_difference(randn({3, 4099}, a, dtype), randn({3, 4099}, b, dtype, card())),
              dtype == BFloat16 ? 0.04 : 1e-5);
    const Tensor x = randn({3, 4099}, a, dtype);
    (void)randn({3, 4099}, b, dtype, card());
    EXPECT_EQ(largest_difference(dropout(x, 0.3, true, a), dropout(x.to(card()), 0.3, true, b)), 0);
  }
  Generator a(9), b(9);
  EXPECT_EQ(
      largest_difference(randint(-5, int64_t{1} << 40, {4099}, a), randint(-5, int64_t{1} << 40, {4099}, b, card())),
      0);
  const Tensor weights = rand({5, 1031}, a);
  (void)rand({5, 1031}, b, Float32, card());
  for (bool replacement : {true, false})
    EXPECT_EQ(largest_difference(multinomial(weights, 37, replacement, a),
                                 multinomial(weights.to(card()), 37, replacement, b)),
              0);
}

TEST_F(GpuTraining, GradientsOfEmbeddingsAreSummedInOrder) {
  const Op& op = find_op("embedding_backward");
  for (int64_t rows : {1, 65, 300, 50257})
    for (int64_t width : {1, 64, 770}) {
      const Tensor index = minimum(randint(0, rows, {7, 401}, generator), randint(0, rows, {7, 401}, generator)),
                   grad = randn({7, 401, width}, generator);
      const Attrs attrs = ScatterAttrs{0, rows, 0, 1};
      const Tensor want = dispatch_one(op, {index, grad}, attrs);
      const Tensor got = dispatch_one(op, {index.to(card()), grad.to(card())}, attrs);
      EXPECT_LE(largest_difference(got, want), 1e-3) << rows << " x " << width;
      EXPECT_EQ(largest_difference(got, dispatch_one(op, {index.to(card()), grad.to(card())}, attrs)), 0);
    }
}

TEST_F(GpuTraining, FaultsInTheDataAreThrownOnce) {
  auto message = [](const std::function<void()>& fn) -> std::string {
    try {
      fn();
      synchronize(card());
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const Tensor table = randn({5, 8}, generator).to(card());
  for (int64_t bad : {-1, 5})
    EXPECT_EQ(message([&] {
                embedding(tensor<int64_t>({0, bad}, {2}).to(card()), table);
              }),
              "embedding: index " + std::to_string(bad) + " is out of range for size 5");
  EXPECT_EQ(message([&] { embedding(tensor<int64_t>({0, 4}, {2}).to(card()), table); }), "");
  auto draw = [&](std::vector<float> weights, int64_t samples, bool replacement) {
    const auto n = static_cast<int64_t>(weights.size());
    return message([&] { multinomial(tensor(weights, {n}).to(card()), samples, replacement, generator); });
  };
  EXPECT_EQ(draw({1, -1}, 1, true), "multinomial: the weights of row 0 are not all numbers of at least 0");
  EXPECT_EQ(draw({1, std::nanf("")}, 1, true), "multinomial: the weights of row 0 are not all numbers of at least 0");
  EXPECT_EQ(draw({0, 0}, 1, true), "multinomial: the weights of row 0 do not have a positive finite sum");
  EXPECT_EQ(draw({1, 0}, 2, false),
            "multinomial: the weights of row 0 are positive in too few places to draw from without replacement");
}

TEST_F(GpuTraining, BatchesArriveOnTheDevice) {
  auto source = [](int64_t index) { return Tensors{full({1000 + index % 2}, static_cast<double>(index), Int64)}; };
  DataLoader loader(source, 2, card());
  for (int64_t i = 0; i < 50; ++i) {
    if (i == 20) loader.seek(30);
    const int64_t want = i < 20 ? i : i + 10;
    const Tensor batch = loader.next()[0];
    EXPECT_EQ(batch.device(), card());
    EXPECT_EQ(batch.to(cpu()).to_vector<int64_t>(), std::vector<int64_t>(1000 + want % 2, want));
  }
}

// The process goes on without the device, and so does the training, from the checkpoint before the fault.
void lose_the_device_while_training(const std::string& folder) {
  TrainOptions o = tiny();
  o.device = card();
  o.checkpoint = folder + "/c";
  TrainCallbacks callbacks;
  callbacks.on_step = [](const StepInfo& s) {
    if (s.step == 6) elements_of_nowhere() + 1;
  };
  std::string error;
  try {
    train_gpt(o, callbacks);
  } catch (const DeviceError& e) {
    error = e.what();
  }
  std::fprintf(stderr, "%s\n", error.c_str());
  o.device = cpu();
  o.resume = true;
  const TrainResult resumed = train_gpt(o);
  std::_Exit(!error.empty() && losses(resumed).size() == 12 && resumed.val_loss < resumed.steps.front().loss ? 0 : 1);
}

TEST(GpuTrainingDeathTest, AFaultLosesNothingButTheDevice) {
  if (!card().is_gpu()) GTEST_SKIP() << "no GPU";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  TemporaryFolder folder;
  EXPECT_EXIT(lose_the_device_while_training(folder / ""), testing::ExitedWithCode(0), "failed: |lost: ");
}

}  // namespace
}  // namespace tessera
