// Training as ranks, which are threads here: the losses are those of one rank, bit for bit.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>

#include "io/io_check.h"
#include "train_check.h"

namespace tessera {
namespace {

using namespace models;

// What rank 0 saw; all ranks have seen the same losses.
TrainResult train_as(int ranks, const TrainOptions& o, int64_t stop_at = 0, const dist::WorldOptions& options = {}) {
  TrainResult result;
  std::vector<std::vector<double>> all(static_cast<size_t>(ranks));
  dist::run_ranks(
      ranks,
      [&](const dist::World& world) {
        std::atomic<bool> stop = false;
        TrainCallbacks callbacks;
        callbacks.stop = &stop;
        callbacks.on_step = [&](const StepInfo& s) { stop = world.rank() == ranks - 1 && s.step == stop_at; };
        TrainResult mine = train_gpt(o, callbacks, &world);
        all[static_cast<size_t>(world.rank())] = losses(mine);
        if (world.rank() == 0) result = std::move(mine);
      },
      options);
  for (const std::vector<double>& one : all) EXPECT_EQ(one, losses(result));
  return result;
}

TEST(TrainRanks, LossesAreThoseOfOneRank) {
  for (const auto& [batches, counts] :
       {std::pair{8, std::vector<int>{2, 4, 8}}, {6, std::vector<int>{3}}, {12, std::vector<int>{3, 6}}}) {
    TrainOptions o = tiny();
    o.accumulate = batches;
    o.steps = 6;
    const TrainResult one = train_gpt(o);
    for (const int ranks : counts) {
      const TrainResult many = train_as(ranks, o);
      EXPECT_EQ(losses(many), losses(one)) << ranks << " ranks of " << batches;
      EXPECT_EQ(*many.val_loss, *one.val_loss) << ranks << " ranks of " << batches;
      EXPECT_EQ(many.steps.back().grad_norm, one.steps.back().grad_norm);
    }
  }
}

TEST(TrainRanks, ShareNoMemory) {
  TrainOptions o = tiny();
  o.accumulate = 4;
  o.steps = 6;
  const TrainResult one = train_gpt(o), many = train_as(4, o, 0, {.engine = "tcp"});
  EXPECT_EQ(losses(many), losses(one));
  EXPECT_EQ(*many.val_loss, *one.val_loss);
}

TEST(TrainRanks, GoOnAsOtherNumbersOfRanks) {
  TemporaryFolder folder;
  TrainOptions o = tiny();
  o.accumulate = 4;
  const TrainResult whole = train_gpt(o);
  o.checkpoint = folder / "c";
  EXPECT_EQ(train_as(4, o, 3).steps.size(), 3);
  o.resume = true;
  EXPECT_TRUE(train_as(2, o, 7).stopped);
  const TrainResult last = train_as(1, o);
  EXPECT_EQ(losses(last), losses(whole));
  EXPECT_EQ(*last.val_loss, *whole.val_loss);
}

TEST(TrainRanks, InHalvesToo) {
  TrainOptions o = tiny();
  o.accumulate = 4;
  for (const Amp amp : {Amp::BFloat16, Amp::Float16}) {
    o.amp = amp;
    const TrainResult one = train_gpt(o), many = train_as(2, o);
    EXPECT_EQ(losses(many), losses(one)) << name(amp);
    for (size_t i = 0; i < one.steps.size(); ++i)
      EXPECT_EQ(many.steps[i].grad_norm, one.steps[i].grad_norm) << name(amp) << ", step " << i + 1;
  }
}

// Ranks stall by chance, in the same steps whatever they do: TESSERA_TEST_STALL says for how many seconds.
// TESSERA_TEST_TEXT names a text to learn in place of the small one.
TEST(TrainRanks, StragglersDelayAveragesLess) {
  const char* const given = std::getenv("TESSERA_TEST_STALL");
  const char* const text = std::getenv("TESSERA_TEST_TEXT");
  const std::chrono::duration<double> stall(given ? std::atof(given) : 0.05);
  TrainOptions o = tiny();
  o.text = text ? read_text(text) : some_text(20000);
  o.batch = 8;
  o.steps = 300;
  dist::LocalSGDOptions averages{.hierarchy = dist::parse_hierarchy("16:2,64:8"), .warmup = 20, .outer_momentum = 0.5};
  if (text) {
    o.model = train_preset("shakespeare-char-cpu").model;
    o.model.layers = 2, o.model.width = 64, o.model.block = 32;
    o.lr = 1e-3,
    o.min_lr = 1e-4;  // as the preset, since Adam by eight times as noisy gradients learns less from a step
    o.steps = 2000;
    averages = {.hierarchy = dist::parse_hierarchy("16:8"), .warmup = 100, .outer_momentum = 0.8};
  }
  o.model.dropout = 0;
  o.accumulate = 8;
  o.eval_interval = o.checkpoint_interval = 0;
  const auto train = [&](double& loss) {
    const auto began = std::chrono::steady_clock::now();
    dist::run_ranks(8, [&](const dist::World& world) {
      TrainCallbacks callbacks;
      callbacks.on_step = [&](const StepInfo& s) {
        std::mt19937 random(static_cast<unsigned>(s.step * 8 + world.rank()));
        if (random() % 100 < 5) std::this_thread::sleep_for(stall);
      };
      const TrainResult mine = train_gpt(o, callbacks, &world);
      if (world.rank() == 0) loss = *mine.val_loss;
    });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  double plain = 0, apart = 0, plain_seconds = INFINITY, seconds = INFINITY;
  for (int i = 0; i == 0 || (i < 3 && plain_seconds < 2 * seconds); ++i) {  // a busy machine only adds to it
    o.local_sgd.reset();
    plain_seconds = std::min(plain_seconds, train(plain));
    o.local_sgd = averages;
    seconds = std::min(seconds, train(apart));
    printf("hierarchy %.1f s, loss %.4f; all in each step %.1f s, loss %.4f\n", seconds, apart, plain_seconds, plain);
  }
  EXPECT_GE(plain_seconds, 2 * seconds);
  EXPECT_LE(apart, 1.01 * plain);
}

TEST(TrainRanks, DivideTheBatchesOfAStep) {
  TrainOptions o = tiny();
  o.accumulate = 4;
  try {
    train_as(3, o);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "train: 3 ranks do not divide the 4 batches of a step: give an accumulation that they do");
  }
}

TEST(TrainRanks, AnErrorOfOneEndsAll) {
  TrainOptions o = tiny();
  o.accumulate = 2;
  o.checkpoint = "/nowhere/c";
  EXPECT_THROW(train_as(2, o), Error);
}

}  // namespace
}  // namespace tessera
