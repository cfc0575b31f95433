#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>

#include "io/io_check.h"
#include "tessera/autograd.h"
#include "tessera/io.h"
#include "train_check.h"

namespace tessera {
namespace {

using namespace models;

TEST(TrainGPT, LearnsAndReports) {
  TrainOptions o = tiny();
  o.steps = 60;
  o.eval_interval = 20;
  int steps = 0;
  std::vector<int64_t> evals;
  TrainCallbacks callbacks;
  int64_t parameters = 0, tokens = 0;
  callbacks.on_start = [&](int64_t p, int64_t t, int64_t first) {
    parameters = p;
    tokens = t;
    EXPECT_EQ(first, 0);
  };
  callbacks.on_step = [&](const StepInfo& s) { EXPECT_EQ(s.step, ++steps); };
  callbacks.on_eval = [&](const EvalInfo& e) { evals.push_back(e.step); };
  const TrainResult r = train_gpt(o, callbacks);
  EXPECT_EQ(steps, 60);
  EXPECT_EQ(tokens, 24);
  EXPECT_GT(parameters, 12 * 16 * 16);
  EXPECT_EQ(evals, (std::vector<int64_t>{20, 40, 60}));
  EXPECT_LT(*r.val_loss, r.steps[0].loss - 0.5);
  EXPECT_EQ(*r.val_loss, r.evals.back().loss);
  EXPECT_FALSE(r.stopped);
  EXPECT_GT(r.peak_memory_bytes, 4 * 3 * parameters);
  EXPECT_NEAR(r.steps[1].lr, 1e-2 * 2 / 4, 1e-7);
  EXPECT_NEAR(r.steps[59].lr, 1e-3, 1e-4);
}

TEST(TrainGPT, IsDecidedByItsSeed) {
  TrainOptions o = tiny();
  const TrainResult a = train_gpt(o), b = train_gpt(o);
  EXPECT_EQ(losses(a), losses(b));
  EXPECT_EQ(*a.val_loss, *b.val_loss);
  o.seed = 5;
  EXPECT_NE(losses(train_gpt(o)), losses(a));
}

TEST(TrainGPT, AResumedRunIsTheSameBitForBit) {
  TemporaryFolder folder;
  TrainOptions o = tiny();
  o.accumulate = 2;
  const TrainResult whole = train_gpt(o);
  o.checkpoint = folder / "c";
  for (const int64_t stop_at : {1, 5, 11}) {
    std::atomic<bool> stop = false;
    TrainCallbacks callbacks;
    callbacks.stop = &stop;
    callbacks.on_step = [&](const StepInfo& s) { stop = s.step == stop_at; };
    o.resume = false;
    const TrainResult first = train_gpt(o, callbacks);
    EXPECT_TRUE(first.stopped);
    EXPECT_FALSE(first.val_loss.has_value());
    EXPECT_EQ(first.steps.size(), static_cast<size_t>(stop_at));
    o.resume = true;
    const TrainResult second = train_gpt(o);
    EXPECT_EQ(losses(second), losses(whole)) << stop_at;
    EXPECT_EQ(*second.val_loss, *whole.val_loss);
  }
  const TrainResult again = train_gpt(o);  // nothing is left to do
  EXPECT_EQ(losses(again), losses(whole));
  EXPECT_EQ(*again.val_loss, *whole.val_loss);
  o.steps = 14;  // a finished run can be made longer
  EXPECT_EQ(train_gpt(o).steps.size(), 14u);
}

TEST(TrainGPT, StopsWithinAStepAndTakesItAnew) {
  TemporaryFolder folder;
  TrainOptions o = tiny();
  o.steps = 4;
  o.accumulate = 600;
  o.eval_interval = 0;
  const TrainResult whole = train_gpt(o);
  o.checkpoint = folder / "c";
  std::atomic<bool> stop = false;
  std::thread stopper;
  TrainCallbacks callbacks;
  callbacks.stop = &stop;
  callbacks.on_step = [&](const StepInfo& s) {
    if (s.step == 2)
      stopper = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        stop = true;
      });
  };
  const TrainResult first = train_gpt(o, callbacks);
  stopper.join();
  EXPECT_TRUE(first.stopped);
  EXPECT_EQ(first.steps.size(), 2u);  // a step of 600 batches takes far longer than 20 ms
  o.resume = true;
  EXPECT_EQ(losses(train_gpt(o)), losses(whole));
}

TEST(TrainGPT, KeepsTheCheckpointOfAnotherRun) {
  TemporaryFolder folder;
  TrainOptions o = tiny();
  o.checkpoint = folder / "c";
  train_gpt(o);
  const std::string before = read_file(o.checkpoint);
  o.seed = 2;
  train_gpt(o);
  EXPECT_NE(read_file(o.checkpoint), before);
  EXPECT_EQ(read_file(o.checkpoint + ".old"), before);
}

TEST(TrainGPT, BlamesTheFileOfInitialWeights) {
  TemporaryFolder folder;
  TrainOptions o = tiny();
  o.init = folder / "init";
  save_safetensors(o.init, {});
  EXPECT_EQ(file_error([&] { train_gpt(o); }),
            o.init + ": no GPT-2 weights in Hugging Face's names (wte.weight, wpe.weight, h.0...)");
}

TEST(TrainGPT, EvaluatesTheWholeValidationSplit) {
  TemporaryFolder folder;
  TrainOptions o = tiny();
  o.checkpoint = folder / "c";
  const TrainResult r = train_gpt(o);
  const TrainedGPT trained = load_trained_gpt(o.checkpoint);
  const std::vector<int32_t> all = trained.tokenizer.encode(o.text);
  const std::vector<int64_t> v(all.begin() + static_cast<int64_t>(0.9 * static_cast<double>(all.size())), all.end());
  NoGrad guard;
  double sum = 0;
  for (size_t at = 0; at + 1 < v.size(); at += 8) {
    const size_t n = std::min<size_t>(8, v.size() - 1 - at);
    const Shape shape{1, static_cast<int64_t>(n)};
    const auto from = v.begin() + static_cast<int64_t>(at), to = from + static_cast<int64_t>(n);
    sum +=
        trained.model
            .loss(tensor(std::vector<int64_t>(from, to), shape), tensor(std::vector<int64_t>(from + 1, to + 1), shape))
            .item() *
        static_cast<double>(n);
  }
  EXPECT_NEAR(*r.val_loss, sum / static_cast<double>(v.size() - 1), 1e-5);
  EXPECT_EQ(trained.tokenizer.decode(trained.tokenizer.encode("to be")), "to be");
  EXPECT_FALSE(trained.model.training());
}

TEST(TrainGPT, RefusesToResumeWhatDoesNotFit) {
  TemporaryFolder folder;
  TrainOptions o = tiny();
  o.keep = 1;  // or the checkpoint before a damaged one would do
  const std::string path = o.checkpoint = folder / "c";
  o.resume = true;
  EXPECT_EQ(file_error([&] { train_gpt(o); }), "cannot open \"" + path + "\": No such file or directory");
  o.resume = false;
  train_gpt(o);
  o.resume = true;
  const std::string good = read_file(path);

  TrainOptions other = o;
  other.model.layers = 2;
  EXPECT_EQ(file_error([&] { train_gpt(other); }), path + ": of another configuration: layers is 1 there and 2 here");
  other = o;
  other.lr = 0.02;
  EXPECT_EQ(file_error([&] { train_gpt(other); }), path + ": of another configuration: lr is 0.01 there and 0.02 here");
  other = o;
  other.text += "to be";
  EXPECT_EQ(file_error([&] { train_gpt(other); }), path + ": of another configuration: it was trained on another text");
  other.text += " with $ and %";  // more characters than the model knows
  EXPECT_EQ(file_error([&] { train_gpt(other); }), path + ": of another configuration: it was trained on another text");
  other = o;
  other.checkpoint.clear();
  EXPECT_EQ(error_of([&] { train_gpt(other); }), "train: resume needs a checkpoint to go on from");

  const TrainOptions there = train_options_of(path);
  EXPECT_EQ(there.model.vocab, 14);
  EXPECT_EQ(there.lr, o.lr);
  EXPECT_EQ(there.seed, o.seed);
  EXPECT_EQ(there.model.dropout, 0.1);

  write_file(path, good.substr(0, good.size() / 2));
  EXPECT_NE(file_error([&] { train_gpt(o); }), "no error");
  EXPECT_NE(file_error([&] { load_trained_gpt(path); }), "no error");
  save_checkpoint(path, {{}, {{"kind", "resnet"}}});
  EXPECT_EQ(file_error([&] { load_trained_gpt(path); }), path + ": not a checkpoint of a GPT");
}

TEST(TrainGPT, RefusesCheckpointsWhosePartsDoNotFitTogether) {
  TemporaryFolder folder;
  TrainOptions o = tiny();
  const std::string path = o.checkpoint = folder / "c";
  train_gpt(o);
  o.resume = true;
  const Checkpoint good = load_checkpoint(path);
  auto with = [&](const std::function<void(Checkpoint&)>& damage) {
    Checkpoint bad = good;
    damage(bad);
    save_checkpoint(folder / "d", bad);
    TrainOptions options = o;
    options.checkpoint = folder / "d";
    return file_error([&] { train_gpt(options); });
  };
  const std::string prefix = (folder / "d") + ": ";
  EXPECT_EQ(with([](Checkpoint& c) { c.tensors.erase("model.norm.weight"); }),
            prefix + "load_state_dict: missing: norm.weight");
  EXPECT_EQ(with([](Checkpoint& c) { c.tensors.erase("optimizer.group.0.step"); }),
            prefix + "AdamW::load_state_dict: missing group.0.step");
  EXPECT_EQ(with([](Checkpoint& c) { c.metadata.erase("state"); }), prefix + "damaged checkpoint: no state");
  EXPECT_EQ(with([](Checkpoint& c) { c.metadata["state"] = "[" + std::string(1000, '['); }),
            prefix + "damaged checkpoint: JSON nested too deeply");
  for (const char* state :
       {"{}", R"({"step":-1})", R"({"step":"1"})", R"({"step":1.5})", R"({"step":18446744073709551615})"})
    EXPECT_EQ(with([&](Checkpoint& c) { c.metadata["state"] = state; }), prefix + "damaged checkpoint: bad state")
        << state;
  EXPECT_EQ(with([](Checkpoint& c) { c.metadata["config"] = R"({"layers":"1"})"; }),
            prefix + "damaged checkpoint: no value of layers");
  EXPECT_EQ(with([](Checkpoint& c) {
              c.tensors["history.steps"] = zeros({3, 5}, Float64);
            }),
            prefix + "damaged checkpoint: bad history.steps");
  EXPECT_EQ(with([](Checkpoint& c) { c.tensors["history.evals"] = zeros({3}, Float64); }),
            prefix + "damaged checkpoint: bad history.evals");
}

TEST(TrainGPT, NotANumber) {
  TemporaryFolder folder;
  TrainOptions o = tiny();
  o.lr = 1e38;
  o.min_lr = 0;
  o.warmup = 0;
  o.clip = 0;
  o.weight_decay = 0;
  o.checkpoint = folder / "c";
  const std::string message = error_of([&] { train_gpt(o); });
  EXPECT_NE(message.find("train: loss "), std::string::npos);
  EXPECT_EQ(message.find("-nan"), std::string::npos) << message;
  o.on_nan = OnNan::Skip;
  const TrainResult r = train_gpt(o);
  EXPECT_GT(r.skipped, 0);
  EXPECT_EQ(r.steps.size(), 12u);
  int64_t skipped = 0;
  for (const StepInfo& s : r.steps) skipped += s.skipped;
  EXPECT_EQ(skipped, r.skipped);
}

TEST(TrainGPT, ReportsLaterWhatIsTheSame) {
  TemporaryFolder folder;
  TrainOptions o = tiny();
  o.accumulate = 3;
  const TrainResult want = train_gpt(o);
  o.report_interval = 3;  // neither divides the intervals of evaluations nor of checkpoints
  o.checkpoint = folder / "c";
  std::vector<int64_t> steps;
  TrainCallbacks callbacks;
  callbacks.on_step = [&](const StepInfo& s) { steps.push_back(s.step); };
  callbacks.on_eval = [&](const EvalInfo& e) { EXPECT_EQ(steps.size(), static_cast<size_t>(e.step)); };
  callbacks.on_checkpoint = [&](int64_t step) { EXPECT_EQ(steps.size(), static_cast<size_t>(step)); };
  const TrainResult r = train_gpt(o, callbacks);
  EXPECT_EQ(losses(r), losses(want));
  EXPECT_EQ(r.steps[7].grad_norm, want.steps[7].grad_norm);
  EXPECT_EQ(*r.val_loss, *want.val_loss);
  EXPECT_EQ(steps.size(), 12u);
  o.lr = 1e38;
  o.min_lr = o.clip = o.weight_decay = 0;
  o.warmup = 0;
  o.checkpoint = folder / "d";
  EXPECT_NE(error_of([&] { train_gpt(o); }).find("train: loss "), std::string::npos);
}

TEST(TrainGPT, AFullDiskLeavesTheLastCheckpoint) {
  TemporaryFolder folder;
  TrainOptions o = tiny();
  const std::string path = o.checkpoint = folder / "c";
  TrainCallbacks callbacks;
  rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  callbacks.on_checkpoint = [&](int64_t) {  // from now on the disk is full
    rlimit small = old;
    small.rlim_cur = 1000;
    setrlimit(RLIMIT_FSIZE, &small);
  };
  const std::string error = error_of([&] { train_gpt(o, callbacks); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error, "cannot write \"" + path + "\": File too large");
  o.resume = true;
  o.steps = 4;
  EXPECT_EQ(train_gpt(o).steps.size(), 4u);
}

TEST(TrainGPT, StartsFromGPT2Weights) {
  TemporaryFolder folder;
  TrainOptions o = tiny();
  Generator g(1);
  GPTConfig c = o.model;
  c.vocab = 30;
  c.bias = true;
  const GPT from(c, g);
  StateDict file;
  for (const auto& [name, t] : from.state_dict()) {
    std::string to = name;
    for (auto [ours, theirs] : {std::pair{"attention.qkv", "attn.c_attn"},
                                {"attention.out", "attn.c_proj"},
                                {"norm1", "ln_1"},
                                {"norm2", "ln_2"},
                                {"up", "mlp.c_fc"},
                                {"down", "mlp.c_proj"}})
      if (size_t at = to.find(ours); at != std::string::npos) to.replace(at, std::strlen(ours), theirs);
    if (to.starts_with("norm.")) to = "ln_f." + to.substr(5);
    if (to == "head.weight") to = "wte.weight";
    file[to] = to.starts_with("h.") && t.dim() == 2 ? t.transpose(0, 1).clone() : t;
  }
  o.init = folder / "gpt2";
  save_safetensors(o.init, file);
  EXPECT_NE(error_of([&] { train_gpt(o); }).find("load_state_dict: unexpected:"), std::string::npos);  // no biases here
  o.model.bias = true;
  o.checkpoint = folder / "c";
  o.steps = 1;
  o.lr = o.min_lr = 0;
  train_gpt(o);
  const TrainedGPT trained = load_trained_gpt(o.checkpoint);
  EXPECT_EQ(trained.model.config.vocab, 30);
  EXPECT_EQ(trained.model.blocks[0]->up->weight.to_vector<float>(), from.blocks[0]->up->weight.to_vector<float>());
  o.resume = true;
  o.steps = 2;
  EXPECT_EQ(train_gpt(o).steps.size(), 2u);
}

TEST(TrainGPT, RefusesBadOptions) {
  auto error = [](const std::function<void(TrainOptions&)>& change) {
    TrainOptions o = tiny();
    change(o);
    return error_of([&] { train_gpt(o); });
  };
  EXPECT_EQ(error([](TrainOptions& o) { o.steps = 0; }), "train: steps = 0 is out of range");
  EXPECT_EQ(error([](TrainOptions& o) { o.model.width = INT64_MAX - 1; }),
            "train: width = 9223372036854775806 is out of range");
  EXPECT_EQ(error([](TrainOptions& o) { o.lr = 1e-5; }), "train: min_lr = 0.001 exceeds lr = 1e-05");
  EXPECT_EQ(error([](TrainOptions& o) { o.batch = -1; }), "train: batch = -1 is out of range");
  EXPECT_EQ(error([](TrainOptions& o) { o.lr = std::nan(""); }), "train: lr = nan is out of range");
  EXPECT_EQ(error([](TrainOptions& o) { o.model.heads = 3; }), "train: 3 heads do not divide the width 16");
  EXPECT_EQ(error([](TrainOptions& o) { o.model.vocab = 5; }),
            "train: the text has 14 characters, the model's vocabulary 5");
  EXPECT_EQ(error([](TrainOptions& o) { o.text = "to be"; }),
            "the text is too short: its training split has 4 characters, a block needs 9");
  EXPECT_EQ(error([](TrainOptions& o) { o.init = "/none"; }), "cannot open \"/none\": No such file or directory");
  EXPECT_EQ(error([](TrainOptions& o) { o.checkpoint = "/none/c"; }),
            "cannot write \"/none/c\": No such file or directory");
  EXPECT_EQ(error_of([] { train_preset("gpt3"); }),
            "unknown preset \"gpt3\": there are shakespeare-char-cpu, gpt2-124m, mpt-125m, mpt-350m, mpt-760m, mpt-1b, "
            "mpt-3b");
}

TEST(TrainGPT, PresetsAreThePublishedOnes) {
  const TrainOptions s = train_preset("shakespeare-char-cpu");
  EXPECT_EQ(s.model.layers, 4);
  EXPECT_EQ(s.model.heads, 4);
  EXPECT_EQ(s.model.width, 128);
  EXPECT_EQ(s.model.block, 64);
  EXPECT_FALSE(s.model.bias);
  EXPECT_EQ(s.batch, 12);
  EXPECT_EQ(s.steps, 2000);
  const TrainOptions g = train_preset("gpt2-124m");
  EXPECT_EQ(g.model, GPTConfig());
  const TrainOptions m = train_preset("mpt-1b");
  EXPECT_EQ(m.model.width, 2048);
  EXPECT_EQ(m.model.block, 2048);
  EXPECT_EQ(m.model.vocab, 50368);
  EXPECT_EQ(m.model.alibi, 8);
  EXPECT_FALSE(m.model.bias);
  EXPECT_EQ(m.batch * m.accumulate, 512);
  EXPECT_EQ(m.amp, Amp::BFloat16);
  for (const std::string& name : train_presets()) validate(train_preset(name));
}

}  // namespace
}  // namespace tessera
