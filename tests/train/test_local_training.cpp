// Local SGD in the training loop: what it comes to, how a run goes on, and that stragglers then delay it less.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>

#include "dist/stragglers.h"
#include "io/io_check.h"
#include "tessera/io.h"
#include "tessera/ops.h"
#include "tessera/trainer.h"

namespace tessera::train {
namespace {

using dist::parse_hierarchy;

// Rows of six numbers, of which one is learned that is not quite certain; a norm has buffers.
struct RoughSums : nn::Module {
  explicit RoughSums(Generator& g)
      : first(add("first", nn::Linear(6, 16, true, g))), out(add("out", nn::Linear(16, 1, true, g))) {}
  Tensors forward(const Tensors& in) const override {
    return {out(reshape(norm(reshape(tanh(first(one_input(in))), {-1, 16, 1, 1})), {-1, 16}))};
  }
  nn::Child<nn::Linear> first;
  nn::Child<nn::BatchNorm2d> norm = add("norm", nn::BatchNorm2d(16));
  nn::Child<nn::Linear> out;
};

Tensors rough_sums(int64_t i) {
  Generator g(static_cast<uint64_t>(i));
  const Tensor x = randn({48, 6}, g);
  return {x, tanh(sum(x, {1}, true)) + randn({48, 1}, g) * 0.5};
}

struct Trained {
  Result result;
  std::vector<std::vector<float>> parameters;  // of each rank
  std::vector<std::vector<double>> losses;
};

struct Optimizers {
  bool adam = true;
  double lr = 5e-3;
};

Trained train_as_ranks(int ranks, const Options& o, const Optimizers& optimizers = {},
                       const std::function<void(int rank, int64_t step)>& on_step = {}, int64_t stop_at = 0,
                       const dist::WorldOptions& world_options = {}) {
  Trained out;
  out.parameters.resize(static_cast<size_t>(ranks));
  out.losses.resize(static_cast<size_t>(ranks));
  dist::run_ranks(
      ranks,
      [&](const dist::World& world) {
        Generator g(1);
        RoughSums model(g);
        std::unique_ptr<optim::Optimizer> optimizer;
        if (optimizers.adam)
          optimizer = std::make_unique<optim::Adam>(model.parameters(), optim::AdamOptions{optimizers.lr});
        else optimizer = std::make_unique<optim::SGD>(model.parameters(), optim::SGDOptions{optimizers.lr});
        const Work work{.batches = rough_sums,
                        .loss = [&](const Tensors& b) { return mse_loss(model(b[0]), b[1]); },
                        .validation = [](int64_t i) { return rough_sums(1000000 + i); },
                        .validation_batches = 64};
        std::atomic<bool> stop = false;
        Callbacks callbacks;
        callbacks.stop = &stop;
        callbacks.on_step = [&](const StepInfo& s) {
          if (on_step) on_step(world.rank(), s.step);
          if (world.rank() == ranks - 1 && s.step == stop_at) stop = true;
        };
        Result mine = Trainer(model, *optimizer, work, o, &world).run(callbacks);
        const auto at = static_cast<size_t>(world.rank());
        for (const auto& [name, t] : model.state_dict())
          for (const float x : cast(t, Float32).to_vector<float>()) out.parameters[at].push_back(x);
        for (const StepInfo& s : mine.steps) out.losses[at].push_back(s.loss);
        if (world.rank() == 0) out.result = std::move(mine);
      },
      world_options);
  for (const std::vector<float>& one : out.parameters) EXPECT_EQ(one, out.parameters[0]);
  return out;
}

Options local_options(int ranks, const dist::LocalSGDOptions& local) {
  return {.until = steps(12), .accumulate = ranks, .seed = 3, .local_sgd = local, .resume = Resume::Never};
}

TEST(LocalTraining, AveragesOfEachStepAreDataParallelism) {
  Options o = local_options(4, {.hierarchy = {{1, 0}}});
  o.accumulate = 8;
  const Trained local = train_as_ranks(4, o, {false, 0.1});
  o.local_sgd = {};
  const Trained plain = train_as_ranks(4, o, {false, 0.1});
  ASSERT_EQ(local.parameters[0].size(), plain.parameters[0].size());
  for (size_t i = 0; i < local.parameters[0].size(); ++i)
    EXPECT_NEAR(local.parameters[0][i], plain.parameters[0][i], 2e-4 * (1 + std::abs(plain.parameters[0][i])));
  EXPECT_NEAR(*local.result.val_loss, *plain.result.val_loss, 1e-4 * *plain.result.val_loss);
  double mean = 0;
  for (const auto& one : local.losses) mean += one[0] / 4;
  EXPECT_NEAR(mean, plain.losses[0][0], 1e-5 * mean);
  EXPECT_NE(local.losses[0], local.losses[1]);  // each rank's own
}

TEST(LocalTraining, WarmUpIsDataParallelism) {
  Options o = local_options(4, {.hierarchy = {{4, 0}}, .warmup = 12});
  const Trained warm = train_as_ranks(4, o);
  o.local_sgd = {};
  const Trained plain = train_as_ranks(4, o);
  EXPECT_EQ(warm.parameters, plain.parameters);
  o.local_sgd = dist::LocalSGDOptions{.hierarchy = {{4, 0}}, .warmup = 6};
  EXPECT_NE(train_as_ranks(4, o).parameters, plain.parameters);
}

TEST(LocalTraining, GoesOnAsIfItHadNotStopped) {
  TemporaryFolder folder;
  for (dist::LocalSGDOptions local :
       {dist::LocalSGDOptions{.hierarchy = {{3, 0}}},
        {.hierarchy = parse_hierarchy("2:2,4:4"), .warmup = 2},
        {.hierarchy = parse_hierarchy("2:2,4:4"), .warmup = 2, .gradients_within = 2, .outer_momentum = 0.7}}) {
    Options o = local_options(4, local);
    o.save = steps(5);
    if (local.outer_momentum > 0) o.amp = Amp::Float16;
    o.checkpoint = folder / "whole";
    const Trained whole = train_as_ranks(4, o);
    o.checkpoint = folder / "parts";
    o.until = steps(5);
    train_as_ranks(4, o);
    o.until = steps(12);
    o.resume = Resume::Always;
    const Trained parts = train_as_ranks(4, o);
    EXPECT_EQ(parts.parameters, whole.parameters) << local.outer_momentum;
    EXPECT_EQ(parts.result.val_loss, whole.result.val_loss);
    for (size_t r = 0; r < 4; ++r)
      EXPECT_EQ(std::vector(parts.losses[r].end() - 7, parts.losses[r].end()),
                std::vector(whole.losses[r].end() - 7, whole.losses[r].end()));
    // And as another number of ranks, or without averages.
    o.until = steps(14);
    o.local_sgd = dist::LocalSGDOptions{.hierarchy = {{2, 0}}, .outer_momentum = local.outer_momentum};
    EXPECT_EQ(train_as_ranks(2, o).result.steps.size(), 14u);
    o.local_sgd = {};
    o.until = steps(15);
    EXPECT_EQ(train_as_ranks(1, o).result.steps.size(), 15u);
  }
}

// Batch i has 1 to 5 rows.
Result train_rows(const Options& o, std::vector<float>* parameters = nullptr) {
  Result out;
  dist::run_ranks(2, [&](const dist::World& world) {
    Generator g(1);
    nn::Linear model(6, 1, true, g);
    optim::Adam optimizer(model.parameters(), {.lr = 1e-2});
    const Work work{.batches =
                        [](int64_t i) {
                          const Tensors all = rough_sums(i);
                          return Tensors{all[0].slice(0, 0, 1 + i % 5), all[1].slice(0, 0, 1 + i % 5)};
                        },
                    .loss = [&](const Tensors& b) { return mse_loss(model(b[0]), b[1]); },
                    .count = [](const Tensors& b) { return b[0].size(0); },
                    .epoch = 8};
    Result mine = Trainer(model, optimizer, work, o, &world).run();
    if (world.rank() > 0) return;
    if (parameters) *parameters = model.weight.detach().to_vector<float>();
    out = std::move(mine);
  });
  return out;
}

TEST(LocalTraining, CountsTheItemsOfAllRanks) {
  Options o = local_options(2, {.hierarchy = {{4, 0}}});
  o.accumulate = 4;
  o.until = steps(6);
  int64_t items = 0;
  for (int i = 0; i < 24; ++i) items += 1 + i % 5;
  EXPECT_EQ(train_rows(o).items, items);
  o.until = epochs(3);
  EXPECT_EQ(train_rows(o).items, items);
  std::vector<float> warm, plain;
  o.local_sgd->warmup = 6;
  EXPECT_EQ(train_rows(o, &warm).items, items);
  o.local_sgd = {};
  EXPECT_EQ(train_rows(o, &plain).items, items);
  EXPECT_EQ(warm, plain);
  o.local_sgd = dist::LocalSGDOptions{};
  o.until = Every{100, Every::Unit::Items};
  try {
    train_rows(o);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "train: with local SGD an interval in items needs batches that all have as many");
  }
}

TEST(LocalTraining, StopsWhereAllRanksMeet) {
  TemporaryFolder folder;
  Options o = local_options(2, {.hierarchy = {{4, 0}}});
  o.checkpoint = folder / "c";
  const Trained stopped = train_as_ranks(2, o, {}, {}, 3);
  EXPECT_TRUE(stopped.result.stopped);
  EXPECT_EQ(stopped.result.steps.size(), 5u);  // averages are after steps 1 and 5
  o.resume = Resume::Always;
  EXPECT_EQ(train_as_ranks(2, o).result.steps.size(), 12u);
}

TEST(LocalTraining, NotesWhatEachRankTook) {
  Options o = local_options(2, {.hierarchy = {{4, 0}}});
  for (const char* engine : {"neighbours", "tcp", ""}) {
    if (!*engine) o.local_sgd = {};
    const Result r = train_as_ranks(2, o, {},
                                    [](int rank, int64_t step) {
                                      if (rank == 1 && step == 6)
                                        std::this_thread::sleep_for(std::chrono::milliseconds(300));
                                    },
                                    0, {.engine = engine})
                         .result;
    ASSERT_EQ(r.own_ms.size(), 2u);
    ASSERT_EQ(r.own_ms[0].size(), 12u);
    EXPECT_GT(r.own_ms[1][5], 290);
    double waited = 0;
    for (const double ms : r.own_ms[0]) waited = std::max(waited, ms);
    EXPECT_LT(waited, 250) << "rank 0 only waits for rank 1";
  }
  EXPECT_TRUE(train_as_ranks(1, local_options(1, {})).result.own_ms.empty());
}

TEST(LocalTraining, SaysWhatCannotBe) {
  const auto refusal = [](int ranks, const Options& o) {
    try {
      train_as_ranks(ranks, o);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(4, local_options(4, {.hierarchy = parse_hierarchy("2:3,4:4")})),
            "LocalSGD: blocks of 4 ranks are not made of several of 3");
  EXPECT_EQ(refusal(1, local_options(1, {.hierarchy = parse_hierarchy("2:2")})),
            "LocalSGD: the last level has 2 ranks, not all 1");
  EXPECT_EQ(refusal(2, local_options(2, {.hierarchy = {{-4, 0}}})), "LocalSGD: averages after every -4 steps");
  EXPECT_EQ(refusal(2, local_options(2, {.warmup = -1})), "LocalSGD: a number of steps is negative");
}

/// The same stalls however long steps take: of about one step in twenty.
bool stalls(int rank, int64_t step) {
  std::mt19937_64 random(static_cast<uint64_t>(rank) * 1000 + static_cast<uint64_t>(step));
  random.discard(10);
  return random() % 100 < 6;
}

// TESSERA_TEST_STALL says how many seconds a straggler is late, TESSERA_TEST_STEPS how long the runs are.
TEST(LocalTraining, StragglersDelayItLess) {
  const auto number = [](const char* name, double otherwise) {
    const char* const given = std::getenv(name);
    return given ? std::atof(given) : otherwise;
  };
  const std::chrono::duration<double> stall(number("TESSERA_TEST_STALL", 0.06));
  Options o = local_options(8, {});
  o.until = steps(static_cast<int64_t>(number("TESSERA_TEST_STEPS", 256)));
  o.schedule = optim::warmup_cosine(0, o.until.count, 0.02);
  std::vector<std::vector<double>> own_ms;  // of the last run
  double last_seconds = 0;
  // The best of a few: a busy machine only adds to it.
  const auto run = [&](const std::optional<dist::LocalSGDOptions>& local, double& seconds) {
    o.local_sgd = local;
    const auto began = std::chrono::steady_clock::now();
    const Trained out = train_as_ranks(8, o, {true, 0.04}, [&](int rank, int64_t step) {
      if (stalls(rank, step)) std::this_thread::sleep_for(stall);
    });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    last_seconds = took.count();
    seconds = std::min(seconds, last_seconds);
    own_ms = out.result.own_ms;
    return *out.result.val_loss;
  };
  const dist::LocalSGDOptions averages{.hierarchy = parse_hierarchy("16:2,64:8"), .warmup = 8};
  double local_seconds = INFINITY, plain_seconds = INFINITY, local = 0, plain = 0;
  for (int i = 0; i == 0 || (i < 3 && plain_seconds < 2 * local_seconds); ++i) {
    local = run(averages, local_seconds);
    plain = run({}, plain_seconds);
  }
  printf("hierarchy %.1f s, loss %.5f; all in each step %.1f s, loss %.5f\n", local_seconds, local, plain_seconds,
         plain);
  const auto foretold = [&](const std::vector<dist::AveragingLevel>& levels) {
    dist::RankTimes times{.ranks = 8};
    for (size_t step = 0; step < own_ms[0].size(); ++step)
      for (const std::vector<double>& one : own_ms) times.stall.push_back(static_cast<float>(one[step]));
    return dist::simulate(times, {levels}).back() / 1e3;
  };
  // What each rank took without waiting says how long all take, but for exchanges, and what a hierarchy would bring.
  EXPECT_LE(foretold({{1, 0}}), last_seconds);
  EXPECT_GE(foretold({{1, 0}}),
            static_cast<double>(o.until.count) * stall.count() * 0.3);  // in about 39 % of steps somebody stalls
  EXPECT_GE(foretold({{1, 0}}), 2 * foretold(averages.hierarchy));
  EXPECT_GE(plain_seconds, 2 * local_seconds);
  EXPECT_LE(local, 1.01 * plain);
}

}  // namespace
}  // namespace tessera::train
