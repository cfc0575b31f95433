// The training loop: what a step weighs, when things are due, how a run goes on, on how many ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <filesystem>

#include "io/io_check.h"
#include "tessera/ops.h"
#include "tessera/trainer.h"

namespace tessera::train {
namespace {

// Lines of three numbers, some of which count nothing: y = x w, learned with a norm between.
struct Line : nn::Module {
  explicit Line(Generator& g)
      : first(add("first", nn::Linear(3, 8, true, g))), out(add("out", nn::Linear(8, 1, true, g))) {}
  Tensors forward(const Tensors& in) const override { return {out(drop(relu(first(one_input(in)))))}; }
  nn::Child<nn::Linear> first;
  nn::Child<nn::Dropout> drop = add("drop", nn::Dropout(0.1));
  nn::Child<nn::Linear> out;
};

// Batch i has 1 to 5 rows.
Tensors rows_of(int64_t i) {
  Generator g(static_cast<uint64_t>(i));
  const int64_t rows = 1 + i % 5;
  const Tensor x = randn({rows, 3}, g);
  return {x, sum(x, {1}, true)};
}

Work work_of(const Line& model) {
  return {.batches = rows_of,
          .loss = [&model](const Tensors& b) { return mse_loss(model(b[0]), b[1]); },
          .count = [](const Tensors& b) { return b[0].size(0); },
          .epoch = 8,
          .validation = [](int64_t i) { return rows_of(1000 + i); },
          .validation_batches = 3};
}

Options options_of() {
  return {.until = steps(12), .accumulate = 4, .clip = 1, .seed = 3, .evaluate = steps(5), .resume = Resume::Never};
}

Result train_line(const Options& o, const Callbacks& callbacks = {}, const dist::Group* group = nullptr) {
  Generator g(1);
  Line model(g);
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  return Trainer(model, optimizer, work_of(model), o, group).run(callbacks);
}

std::vector<double> losses(const Result& r) {
  std::vector<double> out;
  for (const StepInfo& s : r.steps) out.push_back(s.loss);
  return out;
}

TEST(Trainer, MicroBatchesWeighWhatTheyCount) {
  Generator g(1), same(1);
  Line model(g), reference(same);
  model.drop->p = reference.drop->p = 0;
  optim::SGD optimizer(model.parameters(), {.lr = 0});
  const Result r = Trainer(model, optimizer, work_of(model), {.until = steps(1), .accumulate = 7}).run();
  Tensors x, y;
  for (int64_t i = 0; i < 7; ++i) {
    x.push_back(rows_of(i)[0]);
    y.push_back(rows_of(i)[1]);
  }
  const Tensor loss = mse_loss(reference(concat(x, 0)), concat(y, 0));
  loss.backward();
  EXPECT_NEAR(r.steps[0].loss, loss.item(), 1e-5 * loss.item());
  const double norm = optim::grad_norm(reference.parameters()).item();
  EXPECT_NEAR(r.steps[0].grad_norm, norm, 1e-5 * norm);
  EXPECT_EQ(r.items, 1 + 2 + 3 + 4 + 5 + 1 + 2);
}

TEST(Trainer, ThingsAreDueAfterStepsItemsAndEpochs) {
  const auto evals = [](const Every& until, const Every& evaluate) {
    Options o = options_of();
    o.until = until;
    o.evaluate = evaluate;
    std::vector<int64_t> out;
    Callbacks callbacks;
    callbacks.on_eval = [&](const EvalInfo& e) { out.push_back(e.step); };
    const Result r = train_line(o, callbacks);
    EXPECT_EQ(*r.val_loss, r.evals.back().loss);
    return out;
  };
  using Steps = std::vector<int64_t>;
  EXPECT_EQ(evals(steps(7), steps(3)), (Steps{3, 6, 7}));
  EXPECT_EQ(evals(steps(3), {}), Steps{3});
  EXPECT_EQ(evals(epochs(3), epochs(1)), (Steps{2, 4, 6}));  // of 8 batches, 4 a step
  // Steps count 10, 11, 12, 13, 14 items: 10, 21, 33, 46, 60.
  EXPECT_EQ(evals(items(60), items(20)), (Steps{2, 4, 5}));
}

TEST(Trainer, GoesOnBitForBit) {
  const Result whole = train_line(options_of());
  for (const int64_t stop_at : {1, 5, 11}) {
    TemporaryFolder folder;
    Options o = options_of();
    o.checkpoint = folder / "c";
    o.resume = Resume::IfThere;
    std::atomic<bool> stop = false;
    Callbacks callbacks;
    callbacks.stop = &stop;
    callbacks.on_step = [&](const StepInfo& s) { stop = s.step == stop_at; };
    EXPECT_TRUE(train_line(o, callbacks).stopped);
    int64_t first = 0;
    const Result rest = train_line(o, {.on_start = [&](int64_t step) { first = step; }});
    EXPECT_EQ(first, stop_at);
    EXPECT_EQ(losses(rest), losses(whole));
    EXPECT_EQ(*rest.val_loss, *whole.val_loss);
    EXPECT_EQ(rest.items, whole.items);
  }
}

TEST(Trainer, OfARankAloneGoesThroughTheEngineWhereAsked) {
  const Result one = train_line(options_of());
  dist::run_ranks(1,
                  [&](const dist::World& world) {
                    EXPECT_EQ(world.engine(), "neighbours");
                    const Result through = train_line(options_of(), {}, &world);
                    EXPECT_EQ(losses(through), losses(one));
                    EXPECT_EQ(through.val_loss, one.val_loss);
                  },
                  {.even_alone = true});
}

TEST(Trainer, LossesAreThoseOfOneRank) {
  const Result one = train_line(options_of());
  for (const int ranks : {2, 4}) {
    TemporaryFolder folder;
    Options o = options_of();
    o.checkpoint = folder / "c";
    o.resume = Resume::IfThere;
    for (const int64_t stop_at : {5, 0}) {
      std::mutex mutex;
      dist::run_ranks(ranks, [&](const dist::World& world) {
        std::atomic<bool> stop = false;
        Callbacks callbacks;
        callbacks.stop = &stop;
        callbacks.on_step = [&](const StepInfo& s) { stop = s.step == stop_at; };
        const Result many = train_line(o, callbacks, &world);
        if (stop_at) return;
        const std::lock_guard lock(mutex);
        EXPECT_EQ(losses(many), losses(one));
        EXPECT_EQ(many.items, one.items);
        EXPECT_NEAR(*many.val_loss, *one.val_loss, 1e-12);
      });
    }
  }
}

// Saved after steps 3, 6 and 8, of which the last is damaged; the run then goes on from 6, and has whole ones again.
TEST(Trainer, GoesOnFromTheCheckpointBeforeADamagedOne) {
  const Result whole = train_line(options_of());
  for (const int ranks : {1, 2}) {
    TemporaryFolder folder;
    Options o = options_of();
    o.checkpoint = folder / "c";
    o.save = steps(3);
    o.resume = Resume::IfThere;
    const auto train = [&](int64_t stop_at, const std::function<void(const Result&, int64_t, std::string)>& look) {
      std::mutex mutex;
      dist::run_ranks(ranks, [&](const dist::World& world) {
        std::atomic<bool> stop = false;
        int64_t first = 0;
        std::string note;
        const Result r = train_line(o,
                                    {.on_start = [&](int64_t step) { first = step; },
                                     .on_step = [&](const StepInfo& s) { stop = s.step == stop_at; },
                                     .on_note = [&](const std::string& line) { note = line; },
                                     .stop = &stop},
                                    &world);
        const std::lock_guard lock(mutex);
        look(r, first, note);
      });
    };
    train(8, [&](const Result& r, int64_t, const std::string& note) {
      EXPECT_TRUE(r.stopped);
      EXPECT_EQ(note, "");
    });
    std::string damaged = o.checkpoint;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      if (entry.path().string().ends_with(".3-1.part")) damaged = entry.path().string();
    EXPECT_EQ(damaged != o.checkpoint, ranks > 1);
    std::filesystem::resize_file(damaged, std::filesystem::file_size(damaged) / 2);
    train(0, [&](const Result& r, int64_t first, const std::string& note) {
      EXPECT_EQ(first, 6);
      EXPECT_EQ(losses(r), losses(whole));
      EXPECT_TRUE(note.ends_with(": the run goes on from " + o.checkpoint + ".1, which was saved before it")) << note;
      EXPECT_TRUE(note.starts_with(damaged)) << note;
    });
    for (const char* file : {"c", "c.1"}) EXPECT_NO_THROW(load_checkpoint(folder / file));
    for (const char* file : {"c", "c.1"}) std::filesystem::resize_file(folder / file, 9);
    EXPECT_NE(file_error([&] { train_line(o); }), "no error");
    o.resume = Resume::Never;
    train_line(o);
    EXPECT_TRUE(std::filesystem::exists(folder / "c.old"));
    EXPECT_NO_THROW(load_checkpoint(folder / "c.1"));  // of this run, not of the one before
  }
}

TEST(Trainer, ParametersBeginAsThoseOfRankZero) {
  dist::run_ranks(2, [](const dist::World& world) {
    Generator g(static_cast<uint64_t>(world.rank()));
    Line model(g);
    optim::SGD optimizer(model.parameters(), {.lr = 0});
    Options o = options_of();
    o.until = steps(1);
    Trainer(model, optimizer, work_of(model), o, &world).run();
    Generator first(0);
    EXPECT_TRUE(same_bytes(model.out->weight.detach(), Line(first).out->weight.detach()));
  });
}

TEST(Trainer, BuffersAreTheMeanOverMicroBatches) {
  struct Normed : nn::Module {
    nn::Child<nn::BatchNorm2d> norm = add("norm", nn::BatchNorm2d(2));
    Tensors forward(const Tensors& in) const override { return {norm(one_input(in))}; }
  };
  const auto batch = [](int64_t i) {
    Generator g(static_cast<uint64_t>(i));
    return Tensors{randn({2, 2, 3, 3}, g)};
  };
  const auto running_mean = [&](const dist::Group* group) {
    Normed model;
    optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    const Work work{.batches = batch, .loss = [&](const Tensors& b) { return mean(square(model(b[0]))); }};
    Trainer(model, optimizer, work, {.until = steps(2), .accumulate = 4}, group).run();
    return model.norm->running_mean.to_vector<float>();
  };
  const std::vector<float> one = running_mean(nullptr);
  std::vector<double> want(2, 0);
  for (int64_t step = 0; step < 2; ++step)
    for (size_t c = 0; c < 2; ++c) {
      double all = 0;
      for (int64_t i = 0; i < 4; ++i)
        all += mean(batch(4 * step + i)[0].slice(1, static_cast<int64_t>(c), static_cast<int64_t>(c) + 1)).item() / 4;
      want[c] = 0.9 * want[c] + 0.1 * all;
    }
  for (size_t c = 0; c < 2; ++c) EXPECT_NEAR(one[c], want[c], 1e-6);
  for (const int ranks : {2, 4})
    dist::run_ranks(ranks, [&](const dist::World& world) { EXPECT_EQ(running_mean(&world), one); });
}

TEST(Trainer, ASignalSavesAndReturns) {
  TemporaryFolder folder;
  Options o = options_of();
  o.checkpoint = folder / "c";
  const Result r = train_line(o, {.on_step = [](const StepInfo& s) {
                                if (s.step == 3) raise(SIGINT);
                              }});
  EXPECT_TRUE(r.stopped);
  EXPECT_EQ(caught_signal(), SIGINT);
  stop_requested() = false;
  o.resume = Resume::Always;
  EXPECT_EQ(losses(train_line(o)), losses(train_line(options_of())));
}

TEST(Trainer, GoesOnByItselfWhereALauncherBeganItAnew) {
  TemporaryFolder folder;
  const std::string file = folder / "c";
  EXPECT_FALSE(resumes(Resume::IfThere, file));
  EXPECT_TRUE(resumes(Resume::Always, file));
  write_file(file, "x");
  EXPECT_TRUE(resumes(Resume::IfThere, file));
  EXPECT_FALSE(resumes(Resume::AfterRestart, file));
  setenv("TESSERA_RESTART", "1", 1);
  setenv("TESSERA_LAUNCHED", "1", 1);
  EXPECT_TRUE(resumes(Resume::AfterRestart, file));
  setenv("TESSERA_LAUNCHED", "99999999999", 1);  // the file is of an earlier launch
  EXPECT_FALSE(resumes(Resume::AfterRestart, file));
  unsetenv("TESSERA_RESTART");
  unsetenv("TESSERA_LAUNCHED");
}

TEST(Trainer, RefusesWhatCannotBe) {
  const auto error = [](const std::function<void(Options&)>& change) {
    Options o = options_of();
    change(o);
    return error_of([&] { train_line(o); });
  };
  EXPECT_EQ(error([](Options& o) { o.accumulate = 0; }), "train: accumulation is out of range");
  EXPECT_EQ(error([](Options& o) { o.report_interval = 0; }), "train: report_interval is out of range");
  EXPECT_EQ(error([](Options& o) { o.save = steps(-1); }), "train: an interval is out of range");
  EXPECT_EQ(error([](Options& o) { o.clip = NAN; }), "train: clip is out of range");
  EXPECT_EQ(error([](Options& o) { o.keep = 0; }), "train: keep is out of range");
  EXPECT_EQ(error([](Options& o) { o.resume = Resume::Always; }), "train: resume needs a checkpoint to go on from");
  EXPECT_EQ(error([](Options& o) { o.checkpoint = "/none/c"; }), "cannot write \"/none/c\": No such file or directory");
  EXPECT_EQ(error([](Options& o) {
              o.checkpoint = "/none/c";
              o.resume = Resume::Always;
            }),
            "cannot open \"/none/c\": No such file or directory");
  Generator g(1);
  Line model(g);
  optim::SGD optimizer(model.parameters());
  Work work = work_of(model);
  work.epoch = 0;
  EXPECT_EQ(error_of([&] { Trainer(model, optimizer, work, {.until = epochs(1)}); }),
            "train: an interval in epochs needs to know how many batches an epoch has");
  work.count = [](const Tensors&) { return 0; };
  EXPECT_EQ(error_of([&] { Trainer(model, optimizer, work).run(); }), "train: the batches of step 1 count 0 items");
  work.loss = {};
  EXPECT_EQ(error_of([&] { Trainer(model, optimizer, work); }), "train: needs batches and a loss");
  TemporaryFolder folder;
  Options o = options_of();
  o.checkpoint = folder / "c";
  train_line(o);
  Checkpoint c = load_checkpoint(o.checkpoint);
  c.tensors.erase("model.out.weight");
  save_checkpoint(o.checkpoint, c);
  o.resume = Resume::Always;
  EXPECT_EQ(file_error([&] { train_line(o); }), o.checkpoint + ": load_state_dict: missing: out.weight");
}

}  // namespace
}  // namespace tessera::train
