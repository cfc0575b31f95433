// Microbatches: what a size changes, and how ranks find one that fits.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "io/io_check.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"
#include "tessera/trainer.h"

namespace tessera::train {
namespace {

struct Dropping : nn::Module {
  explicit Dropping(Generator& g)
      : first(add("first", nn::Linear(3, 8, true, g))), out(add("out", nn::Linear(8, 1, true, g))) {}
  Tensors forward(const Tensors& in) const override { return {out(drop(relu(first(one_input(in)))))}; }
  nn::Child<nn::Linear> first;
  nn::Child<nn::Dropout> drop = add("drop", nn::Dropout(0.1));
  nn::Child<nn::Linear> out;
};

Tensors eight_rows(int64_t i) {
  Generator g(static_cast<uint64_t>(i));
  const Tensor x = randn({8, 3}, g);
  return {x, sum(x, {1}, true)};
}

// Where a rank runs out of memory: at more rows than `most`, from that step on.
struct Shortage {
  int rank = 0;
  int64_t most = INT64_MAX, from_batch = 0;
  bool in_backward = false;
};

Tensor failing_backward(const Tensor& x) {
  const auto same = [](const Tensors& in) { return Tensors{in[0].clone()}; };
  const auto fails = [](const Tensors&, const Tensors&, const Tensors&) -> Tensors {
    throw OutOfMemoryError("planted in backward");
  };
  return custom_function("fails", {x}, same, fails)[0];
}

struct MicrobatchRun {
  Result result;
  std::vector<std::pair<int64_t, int64_t>> found;
  std::vector<double> losses() const {
    std::vector<double> out;
    for (const StepInfo& s : result.steps) out.push_back(s.loss);
    return out;
  }
};

Options options_of(int64_t microbatch) {
  return {.until = steps(6), .accumulate = 4, .microbatch = microbatch, .clip = 1, .seed = 3, .resume = Resume::Never};
}

MicrobatchRun train_in_microbatches(const Options& o, const Shortage& shortage = {}, const dist::Group* group = nullptr,
                                    int64_t stop_at = 0) {
  Generator g(1);
  Dropping model(g);
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  std::atomic<int64_t> at{0};  // the last batch that was read
  const auto batches = [&](int64_t i) {
    at = std::max<int64_t>(at, i);
    return eight_rows(i);
  };
  const int rank = group ? group->rank() : 0;
  const Work work{.batches = batches,
                  .loss =
                      [&](const Tensors& b) {
                        const bool fails =
                            rank == shortage.rank && b[0].size(0) > shortage.most && at >= shortage.from_batch;
                        if (fails && !shortage.in_backward) throw OutOfMemoryError("planted");
                        const Tensor y = model(b[0]);
                        return mse_loss(fails ? failing_backward(y) : y, b[1]);
                      },
                  .epoch = 8,
                  .validation = eight_rows,
                  .validation_batches = 3};
  MicrobatchRun run;
  std::atomic<bool> stop = false;
  Callbacks callbacks;
  callbacks.stop = &stop;
  callbacks.on_step = [&](const StepInfo& s) { stop = s.step == stop_at; };
  callbacks.on_microbatch = [&](int64_t samples, int64_t too_many) { run.found.emplace_back(samples, too_many); };
  run.result = Trainer(model, optimizer, work, o, group).run(callbacks);
  return run;
}

using Found = std::vector<std::pair<int64_t, int64_t>>;

TEST(Microbatch, IsTheSameStepInParts) {
  const auto first_step = [](int64_t microbatch) {
    Generator g(1);
    Dropping model(g);
    model.drop->p = 0;
    optim::SGD optimizer(model.parameters(), {.lr = 0});
    // Of eight rows some count, in another number in each part; two neighbours do not.
    const auto batches = [](int64_t i) {
      Tensors batch = eight_rows(i);
      batch.push_back(tensor<float>({1, 1, 0, 0, 1, 0, 1, 1}, {8, 1}));
      return batch;
    };
    const auto loss = [&](const Tensors& b) { return sum(square(model(b[0]) - b[1]) * b[2]) / sum(b[2]); };
    const auto counted = [](const Tensors& b) { return static_cast<int64_t>(sum(b[2]).item()); };
    Options o = options_of(microbatch);
    o.until = steps(1);
    return Trainer(model, optimizer, {.batches = batches, .loss = loss, .count = counted}, o).run().steps[0];
  };
  const StepInfo whole = first_step(0);
  for (const int64_t size : {1, 2, 3, 5, 7, 8, 100}) {
    const StepInfo parts = first_step(size);
    EXPECT_NEAR(parts.loss, whole.loss, 2e-6 * whole.loss) << size;
    EXPECT_NEAR(parts.grad_norm, whole.grad_norm, 2e-6 * whole.grad_norm) << size;
  }
  EXPECT_EQ(first_step(8).loss, whole.loss);
  EXPECT_EQ(first_step(kAutoMicrobatch).grad_norm, whole.grad_norm);
}

TEST(Microbatch, IsFoundOnAllRanksAlike) {
  const MicrobatchRun whole = train_in_microbatches(options_of(0)), two = train_in_microbatches(options_of(2));
  EXPECT_NE(two.losses(), whole.losses());  // dropout draws by the size
  EXPECT_EQ(train_in_microbatches(options_of(kAutoMicrobatch)).losses(), whole.losses());
  EXPECT_EQ(train_in_microbatches(options_of(kAutoMicrobatch)).found, (Found{{8, 0}}));
  for (const bool in_backward : {false, true}) {
    const MicrobatchRun one =
        train_in_microbatches(options_of(kAutoMicrobatch), {.rank = 0, .most = 2, .in_backward = in_backward});
    EXPECT_EQ(one.losses(), two.losses());
    EXPECT_EQ(*one.result.val_loss, *two.result.val_loss);
    EXPECT_EQ(one.found, (Found{{2, 4}}));
    EXPECT_EQ(one.result.microbatch, 2);
    for (const int ranks : {2, 4}) {
      std::mutex mutex;
      dist::run_ranks(ranks, [&](const dist::World& world) {
        const Shortage shortage{.rank = ranks - 1, .most = 2, .in_backward = in_backward};
        const MicrobatchRun many = train_in_microbatches(options_of(kAutoMicrobatch), shortage, &world);
        const std::lock_guard lock(mutex);
        EXPECT_EQ(many.losses(), two.losses()) << ranks << in_backward;
        EXPECT_EQ(many.found, (Found{{2, 4}}));
      });
    }
  }
}

// In the middle of a run, after other micro-batches of the step: all of it is tried again with the same numbers.
TEST(Microbatch, IsHalvedAtAnyStep) {
  const MicrobatchRun one =
      train_in_microbatches(options_of(kAutoMicrobatch), {.rank = 0, .most = 4, .from_batch = 14});
  EXPECT_EQ(one.found, (Found{{8, 0}, {4, 8}}));
  const MicrobatchRun whole = train_in_microbatches(options_of(0)), halves = train_in_microbatches(options_of(4));
  EXPECT_EQ(one.losses()[0], whole.losses()[0]);
  EXPECT_NE(one.losses()[5], whole.losses()[5]);
  EXPECT_EQ(one.result.steps.size(), 6u);
  EXPECT_EQ(one.result.items, whole.result.items);
}

TEST(Microbatch, GoesOnWithWhatWasFound) {
  TemporaryFolder folder;
  Options o = options_of(kAutoMicrobatch);
  o.checkpoint = folder / "c";
  o.resume = Resume::IfThere;
  EXPECT_TRUE(train_in_microbatches(o, {.rank = 0, .most = 2}, nullptr, 3).result.stopped);
  const MicrobatchRun rest = train_in_microbatches(o);
  EXPECT_EQ(rest.found, (Found{{2, 0}}));
  EXPECT_EQ(rest.losses(), train_in_microbatches(options_of(2)).losses());
}

TEST(Microbatch, OfOneSampleThatIsTooLargeIsOneLine) {
  const Shortage shortage{.rank = 0, .most = 0};
  EXPECT_EQ(error_of([&] { train_in_microbatches(options_of(kAutoMicrobatch), shortage); }),
            "train: microbatches of one sample are too large: planted");
  for (const int ranks : {2, 4}) {
    std::mutex mutex;
    std::vector<std::string> said;
    EXPECT_THROW(dist::run_ranks(ranks,
                                 [&](const dist::World& world) {
                                   try {
                                     train_in_microbatches(options_of(kAutoMicrobatch), {.rank = 1, .most = 0}, &world);
                                   } catch (const OutOfMemoryError& e) {
                                     const std::lock_guard lock(mutex);
                                     said.push_back(e.what());
                                     throw;
                                   }
                                 }),
                 OutOfMemoryError);
    const std::string line = "train: microbatches of one sample are too large on rank 1: planted";
    EXPECT_EQ(said, std::vector<std::string>(static_cast<size_t>(ranks), line));
  }
}

// Whoever waits for the vote of a rank that is gone ends, too.
TEST(Microbatch, OfALostRankEndsTheOthers) {
  std::atomic<int> aborted{0};
  const auto body = [&](const dist::World& world) {
    Generator g(1);
    Dropping model(g);
    optim::SGD optimizer(model.parameters());
    const auto loss = [&](const Tensors& b) -> Tensor {
      if (world.rank() == 0) throw OutOfMemoryError("planted");
      if (world.rank() == 1) throw Error("rank 1 is gone");
      return mse_loss(model(b[0]), b[1]);
    };
    try {
      Trainer(model, optimizer, {.batches = eight_rows, .loss = loss}, options_of(kAutoMicrobatch), &world).run();
    } catch (const dist::Aborted&) {
      ++aborted;
      throw;
    }
  };
  EXPECT_EQ(error_of([&] { dist::run_ranks(4, body); }), "rank 1 is gone");
  EXPECT_EQ(aborted, 3);
}

TEST(Microbatch, FitsIntoALimitOfMemory) {
  const auto wide_run = [](int64_t microbatch, int64_t limit) {
    Generator g(1);
    nn::Sequential model(nn::Linear(64, 4096, true, g), nn::Linear(4096, 8, true, g));
    optim::SGD optimizer(model.parameters(), {.lr = 1e-3});
    const auto batch = [](int64_t i) {
      Generator mine(static_cast<uint64_t>(i));
      return Tensors{randn({256, 64}, mine)};
    };
    const auto loss = [&](const Tensors& b) { return mean(square(model(b[0]))); };
    Trainer trainer(model, optimizer, {.batches = batch, .loss = loss},
                    {.until = steps(3), .microbatch = microbatch, .resume = Resume::Never});
    set_memory_limit(limit);
    struct Unlimited {
      ~Unlimited() { set_memory_limit(0); }
    } after;
    const Result r = trainer.run();
    EXPECT_LE(r.peak_memory_bytes, limit ? limit : INT64_MAX);
    return r;
  };
  const int64_t limit = wide_run(0, 0).peak_memory_bytes * 3 / 4;
  const Result found = wide_run(kAutoMicrobatch, limit);
  EXPECT_GT(found.microbatch, 0);
  EXPECT_LT(found.microbatch, 256);
  EXPECT_EQ(found.steps.back().loss, wide_run(found.microbatch, 0).steps.back().loss);
  EXPECT_THROW(wide_run(2 * found.microbatch, limit), OutOfMemoryError);
  const std::string none = error_of([&] { wide_run(kAutoMicrobatch, 1'300'000); });
  EXPECT_TRUE(none.starts_with("train: microbatches of one sample are too large: out of memory on cpu: ")) << none;
}

TEST(Microbatch, BuffersAreTheMeanOverItsParts) {
  struct OneNorm : nn::Module {
    nn::Child<nn::BatchNorm2d> norm = add("norm", nn::BatchNorm2d(1));
    Tensors forward(const Tensors& in) const override { return {norm(one_input(in))}; }
  } model;
  optim::SGD optimizer(model.parameters(), {.lr = 0});
  const auto batch = [](int64_t) { return Tensors{tensor<float>({1, 3, 5, 9}, {4, 1, 1, 1})}; };
  const auto loss = [&](const Tensors& b) { return mean(square(model(b[0]))); };
  Trainer(model, optimizer, {.batches = batch, .loss = loss}, {.until = steps(1), .microbatch = 2}).run();
  EXPECT_FLOAT_EQ(model.norm->running_mean.to_vector<float>()[0], 0.45f);
  EXPECT_FLOAT_EQ(model.norm->running_var.to_vector<float>()[0], 0.9f + 0.1f * (2 + 8) / 2);  // 2 of 1, 3; 8 of 5, 9
}

TEST(Microbatch, RefusesWhatHasNone) {
  EXPECT_EQ(error_of([] { train_in_microbatches(options_of(-2)); }), "train: microbatch is out of range");
  Generator g(1);
  Dropping model(g);
  optim::SGD optimizer(model.parameters());
  const auto loss = [&](const Tensors& b) { return mse_loss(model(b[0]), b[0]); };
  const auto error = [&](const Tensors& batch) {
    const auto batches = [&](int64_t) { return batch; };
    return error_of([&] { Trainer(model, optimizer, {.batches = batches, .loss = loss}, options_of(2)).run(); });
  };
  const std::string rule = " has no samples along dim 0 that a microbatch could take";
  EXPECT_EQ(error({ones({})}), "train: a batch with f32[] on cpu" + rule);
  EXPECT_EQ(error({ones({4, 3}), ones({5, 3})}), "train: a batch with f32[5, 3] on cpu" + rule);
  dist::run_ranks(2, [](const dist::World& world) {
    struct Synced : nn::Module {
      nn::Child<nn::BatchNorm2d> norm = add("norm", nn::BatchNorm2d(1));
      Tensors forward(const Tensors& in) const override { return {norm(one_input(in))}; }
    } model;
    dist::sync_batch_norms(model, world);
    optim::SGD optimizer(model.parameters());
    const Work work{.batches = eight_rows, .loss = [](const Tensors& b) { return sum(b[0]); }};
    EXPECT_EQ(error_of([&] { Trainer(model, optimizer, work, options_of(kAutoMicrobatch), &world); }),
              "train: no microbatch can be found for norm, whose ranks wait for each other");
  });
}

}  // namespace
}  // namespace tessera::train
