// Local SGD against the same ranks' models trained one after another in one process.
#include <gtest/gtest.h>

#include "tessera/autograd.h"
#include "tessera/dist.h"
#include "tessera/ops.h"
#include "tessera/optim.h"

namespace tessera::dist {
namespace {

struct LocalModel : nn::Module {
  explicit LocalModel(uint64_t seed) {
    Generator g(seed);
    first = add("first", nn::Linear(5, 8, true, g));
    second = add("second", nn::Linear(8, 3, true, g));
    spare = add("spare", nn::Linear(5, 3, true, g));
  }
  Tensors forward(const Tensors& in) const override { return {second(tanh(first(in[0])))}; }
  nn::Child<nn::Linear> first, second, spare;
};

Tensor local_batch(int width, int rank, int step) {
  Generator g(static_cast<uint64_t>(1000 * width + 100 * rank + step));
  return randn({6, width}, g);
}

constexpr double kRate = 0.2;
constexpr int kSteps = 14, kRanks = 4;

/// All ranks' models, as options have them after kSteps.
std::vector<std::vector<Tensor>> expected(const LocalSGDOptions& options) {
  std::vector<LocalModel> models;
  for (int r = 0; r < kRanks; ++r) models.emplace_back(3);
  const auto parameters = [&](int r, size_t i) { return models[static_cast<size_t>(r)].parameters()[i]; };
  const size_t count = models[0].parameters().size();
  // fn(first, ranks) for each block of so many.
  const auto of_blocks = [&](int ranks, const auto& fn) {
    for (int first = 0; first < kRanks; first += ranks) fn(first, ranks);
  };
  std::vector<Tensor> before(count), momentum(count);
  const auto keep = [&] {
    for (size_t i = 0; i < count; ++i) before[i] = parameters(0, i).detach().clone();
  };
  keep();
  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::vector<Tensor>> grads;
    for (int r = 0; r < kRanks; ++r) {
      LocalModel& m = models[static_cast<size_t>(r)];
      for (const Tensor& p : m.parameters()) Tensor(p).set_grad({});
      mse_loss(m(local_batch(5, r, step)), local_batch(3, r, step)).backward();
      grads.emplace_back();
      for (const Tensor& p : m.parameters()) grads.back().push_back(p.grad());
    }
    of_blocks(step < options.warmup ? kRanks : options.gradients_within, [&](int first, int ranks) {
      for (size_t i = 0; i < count; ++i) {
        if (!grads[static_cast<size_t>(first)][i].defined()) continue;
        Tensor sum = zeros(parameters(first, i).shape());
        for (int r = first; r < first + ranks; ++r) sum = sum + grads[static_cast<size_t>(r)][i];
        for (int r = first; r < first + ranks; ++r) Tensor(parameters(r, i).detach()).add_(sum * (-kRate / ranks));
      }
    });
    const bool single = options.hierarchy.size() == 1;
    const AveragingLevel* taken = nullptr;
    for (const AveragingLevel& level : options.hierarchy)
      if (step >= options.warmup && (single ? step - options.warmup : step) % level.period == 0) taken = &level;
    if (taken)
      of_blocks(taken->ranks, [&](int first, int ranks) {
        for (size_t i = 0; i < count; ++i) {
          if (!grads[0][i].defined()) continue;
          Tensor sum = zeros(parameters(first, i).shape());
          for (int r = first; r < first + ranks; ++r) sum = sum + parameters(r, i).detach();
          Tensor mean = sum / static_cast<double>(ranks);
          if (options.outer_momentum > 0 && ranks == kRanks) {
            const Tensor drift = (before[i] - mean) / kRate;
            momentum[i] = momentum[i].defined() ? momentum[i] * options.outer_momentum + drift : drift;
            mean = before[i] - momentum[i] * kRate;
          }
          for (int r = first; r < first + ranks; ++r) Tensor(parameters(r, i).detach()).copy_(mean);
        }
      });
    if ((taken && taken->ranks == kRanks) || step + 1 == options.warmup) keep();
  }
  std::vector<std::vector<Tensor>> out;
  for (const LocalModel& m : models) out.push_back(m.parameters());
  return out;
}

TEST(LocalSGD, IsThatOfModelsApart) {
  for (LocalSGDOptions options :
       std::vector<LocalSGDOptions>{{.hierarchy = {{3, 4}}},
                                    {.hierarchy = {{3, 4}}, .warmup = 4},
                                    {.hierarchy = {{2, 2}, {4, 4}}, .warmup = 5},
                                    {.hierarchy = {{1, 2}, {6, 4}}, .gradients_within = 2},
                                    {.hierarchy = {{2, 2}, {4, 4}}, .outer_momentum = 0.7},
                                    {.hierarchy = {{3, 4}}, .warmup = 2, .outer_momentum = 0.5}}) {
    const std::vector<std::vector<Tensor>> want = expected(options);
    run_ranks(kRanks, [&](const World& world) {
      LocalModel model(static_cast<uint64_t>(3 + world.rank()));  // made alike
      LocalSGD local(model, world, options);
      optim::SGD optimizer(model.parameters(), {.lr = kRate});
      for (int step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        mse_loss(model(local_batch(5, world.rank(), step)), local_batch(3, world.rank(), step)).backward();
        optimizer.step();
        local.step(kRate);
      }
      EXPECT_EQ(local.steps(), kSteps);
      const std::vector<Tensor> got = model.parameters();
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_LE(amax(abs(got[i].detach() - want[static_cast<size_t>(world.rank())][i].detach())).item(), 2e-6) << i;
      local.average();
      const Tensor all = all_gather(reshape(got[0].detach(), {1, got[0].numel()}), world);
      EXPECT_EQ(amax(abs(all - all.slice(0, 0, 1))).item(), 0);
    });
  }
}

// PyTorch's own example of three levels.
TEST(LocalSGD, TheLargestPeriodThatIsDueCounts) {
  run_ranks(8, [](const World& world) {
    const LocalModel model(1);
    const LocalSGD local(model, world, {.hierarchy = parse_hierarchy("2:2,4:4,8:8"), .warmup = 10});
    std::vector<int> levels;
    for (int step = 0; step < 25; ++step) levels.push_back(static_cast<int>(local.level_at(step).value_or(9)));
    EXPECT_EQ(levels, (std::vector<int>{9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0, 9, 1, 9, 0, 9, 2, 9, 0, 9, 1, 9, 0, 9, 2}));
    const LocalSGD plain(model, world, {.hierarchy = {{3, 0}}, .warmup = 2});
    for (int step = 0; step < 9; ++step) EXPECT_EQ(plain.level_at(step).has_value(), step >= 2 && (step - 2) % 3 == 0);
  });
}

TEST(LocalSGD, SaysWhatCannotBe) {
  const auto refusal = [](const LocalSGDOptions& options,
                          const std::function<void(LocalSGD&, LocalModel&, int)>& body = {}) {
    try {
      run_ranks(4, [&](const World& world) {
        LocalModel model(1);
        LocalSGD local(model, world, options);
        if (body) body(local, model, world.rank());
      });
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal({.hierarchy = {}}), "LocalSGD: there is no level of averaging");
  EXPECT_EQ(refusal({.hierarchy = {{4, 2}, {2, 4}}}), "LocalSGD: periods grow from level to level: 2 comes after 4");
  EXPECT_EQ(refusal({.hierarchy = {{2, 3}, {4, 4}}}), "LocalSGD: blocks of 4 ranks are not made of several of 3");
  EXPECT_EQ(refusal({.hierarchy = {{2, 2}}}), "LocalSGD: the last level has 2 ranks, not all 4");
  EXPECT_EQ(refusal({.hierarchy = {{2, 1}, {4, 4}}}), "LocalSGD: 1 ranks have nothing to average");
  EXPECT_EQ(refusal({.warmup = -1}), "LocalSGD: a number of steps is negative");
  EXPECT_EQ(refusal({.gradients_within = 3}), "LocalSGD: gradients within blocks of 3 ranks: they do not divide 4");
  EXPECT_EQ(refusal({.outer_momentum = 1}), "LocalSGD: outer momentum 1 is not from 0 to below 1");
  EXPECT_EQ(refusal({.hierarchy = {{0, 0}}}), "LocalSGD: averages after every 0 steps");
  EXPECT_EQ(refusal({.outer_momentum = 0.5}, [](LocalSGD& local, LocalModel&, int) { local.step(0); }),
            "LocalSGD: a learning rate of 0");
  EXPECT_NE(refusal({.outer_momentum = 0.5}, [](LocalSGD& local, LocalModel&, int) { local.load_state_dict({}); })
                .find("LocalSGD: no first.bias.before"),
            std::string::npos);
  EXPECT_NE(refusal({},
                    [](LocalSGD& local, LocalModel& model, int rank) {
                      if (rank == 2) sum(model(local_batch(5, 0, 0))).backward();
                      local.step();
                    })
                .find("gradients of different parameters"),
            std::string::npos);
  for (const char* text : {"", "2", "2:", ":2", "2:2,", "2:2;4:4", "a:2", "2:-2", "0:2", "99999999999:2"})
    EXPECT_THROW(parse_hierarchy(text), Error) << text;
}

}  // namespace
}  // namespace tessera::dist
