// Modules whose weights are packed for evaluation.
#include <thread>

#include "io/io_check.h"
#include "nn/nn_check.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

using namespace nn;

/// The weights that linear() and mlp() are given while it lives.
class Weights : public Observer {
 public:
  void called(const CallSeen& seen) override {
    const std::string_view op = seen.op;
    for (size_t i = 1; (op == "linear" || op == "mlp") && i < seen.inputs.size(); i += 2)
      if (seen.inputs[i].defined() && seen.inputs[i].dim() == 2) ++(seen.inputs[i].is_packed() ? packed : plain);
    packs += op == "pack";
  }
  int packed = 0, plain = 0, packs = 0;
};

bool packing_pays() {
  NoGrad guard;
  return pack_linear(zeros({64, 64})).is_packed();
}
#define SKIP_WITHOUT_PACKING \
  if (!packing_pays()) GTEST_SKIP() << "weights are read as they lie"

TEST(ModulePack, IsForEvaluation) {
  Generator g(1);
  Sequential model(Linear(40, 64, true, g), ReLU(), Linear(64, 33, true, g));
  EXPECT_EQ(error_of([&] { model.pack(); }),
            "Sequential: pack() in training, which changes the weights; call eval() first");
  EXPECT_FALSE(model.packs());
  model.eval();
  model.pack();
  EXPECT_TRUE(model.packs() && model[0]->packs());
  model.eval();
  EXPECT_TRUE(model.packs());
  model.train();
  EXPECT_FALSE(model.packs() || model[0]->packs());
}

TEST(ModulePack, PacksOnceUntilAParameterChanges) {
  SKIP_WITHOUT_PACKING;
  Generator g(2);
  Sequential model(Linear(40, 64, true, g), ReLU(), Linear(64, 33, true, g));
  const Tensor x = randn({16, 40}, g);
  model.eval();
  NoGrad guard;
  const Tensor before = model(x);
  model.pack();
  const auto check = [&](const char* what, int packed, int packs) {
    Weights seen;
    const Tensor want = linear(relu(linear(x, model.parameters()[0], model.parameters()[1])), model.parameters()[2],
                               model.parameters()[3]);
    {
      const Observing watch(seen);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(distance(model(x), want), 0) << what;
    }
    EXPECT_EQ(seen.packed, packed) << what;
    EXPECT_EQ(seen.plain, 6 - packed) << what;
    EXPECT_EQ(seen.packs, packs) << what;
  };
  check("at first", 6, 2);
  check("again", 6, 0);
  model.parameters()[0].mul_(0.5);
  check("one was written", 6, 1);
  StateDict dict;
  for (const auto& [name, t] : model.state_dict()) {
    EXPECT_FALSE(t.is_packed());
    dict.emplace(name, t.clone() * 2.0);
  }
  model.load_state_dict(dict);
  check("a checkpoint was read", 6, 2);
  model.replace("0", Linear(40, 64, true, g));
  check("a part was replaced", 6, 1);
  model.to(Float64);
  model.to(Float32);
  check("converted and back", 6, 2);
  model.train();
  model.eval();
  check("after training", 0, 0);
  EXPECT_EQ(model.parameter_count(), 40 * 64 + 64 + 64 * 33 + 33);
}

TEST(ModulePack, OptimizerStepsAreSeen) {
  SKIP_WITHOUT_PACKING;
  Generator g(3);
  Linear model(40, 64, true, g);
  const Tensor x = randn({16, 40}, g);
  optim::SGD step(model.parameters(), {.lr = 0.1});
  for (int i = 0; i < 2; ++i) {
    model.eval();
    model.pack();
    {
      NoGrad guard;
      EXPECT_EQ(distance(model(x), linear(x, model.weight, model.bias)), 0);
    }
    mean(model(x)).backward();  // in evaluation, too, gradients want the parameters
    step.step();
    NoGrad guard;
    EXPECT_EQ(distance(model(x), linear(x, model.weight, model.bias)), 0);
  }
}

TEST(ModulePack, OtherUsesTakeTheParameters) {
  SKIP_WITHOUT_PACKING;
  Generator g(4);
  Linear model(40, 64, true, g);
  const Tensor x = randn({16, 40}, g);
  model.eval();
  model.pack();
  Weights seen;
  const Observing watch(seen);
  (void)model(x);  // gradients are on
  NoGrad guard;
  {
    const amp::Autocast halves(BFloat16);
    (void)model(x);
  }
  model.to(BFloat16);
  (void)model(x.to(BFloat16));
  EXPECT_EQ(seen.packed, 0);
  EXPECT_EQ(seen.plain, 3);
}

TEST(ModulePack, GptUsesAllOfItsWeightsPacked) {
  SKIP_WITHOUT_PACKING;
  Generator g(5);
  models::GPTConfig config;
  config.layers = 2, config.heads = 2, config.width = 64, config.block = 24, config.vocab = 96;
  models::GPT model(config, g);
  const Tensor tokens = arange(0, 24).reshape({1, 24});
  model.eval();
  NoGrad guard;
  const Tensor want = model(tokens);
  model.pack();
  Weights seen;
  {
    const Observing watch(seen);
    EXPECT_EQ(distance(model(tokens), want), 0);
  }
  EXPECT_EQ(seen.plain, 0);
  EXPECT_EQ(seen.packed, 2 * 4 + 1);
  models::SampleOptions greedy;
  greedy.temperature = 0;
  const auto fast = generate(model, {1, 2, 3}, 8, greedy);
  model.train();
  model.eval();
  EXPECT_EQ(fast, generate(model, {1, 2, 3}, 8, greedy));
}

TEST(ModulePack, SeveralThreadsMayEvaluate) {
  Generator g(6);
  Sequential model(Linear(40, 64, true, g), GELU(), Linear(64, 33, true, g));
  const Tensor x = randn({16, 40}, g);
  model.eval();
  Tensor want;
  {
    NoGrad guard;
    want = model(x);
  }
  model.pack();
  std::vector<std::thread> threads;
  std::vector<double> errors(4, 1);
  for (size_t t = 0; t < errors.size(); ++t)
    threads.emplace_back([&, t] {
      NoGrad guard;
      errors[t] = distance(model(x), want);
    });
  for (std::thread& t : threads) t.join();
  for (double e : errors) EXPECT_EQ(e, 0);
}

}  // namespace
}  // namespace tessera
