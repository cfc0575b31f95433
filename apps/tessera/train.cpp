// tessera train gpt: trains a GPT on a text, with a checkpoint and a picture of the loss to show for it.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "attention.h"
#include "core/util/median.h"
#include "kernels/cpu/peak.h"
#include "mixture.h"
#include "models/train_gpt.h"
#include "plot.h"
#include "profiling.h"
#include "remote_choice.h"
#include "tessera/data.h"
#include "tessera/io.h"
#include "tessera/parallel.h"
#include "training.h"

namespace tessera::app {
namespace {

using models::TrainOptions;

struct TrainCommand : TrainingOptions {
  std::string preset = "shakespeare-char-cpu", on_nan = "stop", residual = "f32", text, init;
  std::vector<std::string> data;
  Mixture mixture;
  bool fma_peak = false;
  RemoteChoice remote;
  AttentionChoice attention;
  RecordingOptions profile;
  TrainOptions options;
  std::vector<cpu_kernels::FmaPeak> peaks;  // before each step of this process, and after the last
  // Hyperparameters that were given on the command line, to be laid over the preset.
  std::vector<std::function<void(TrainOptions&)>> given;

  template <class T, class Member>
  void hyperparameter(Command app, const std::string& flag, const std::string& text, Member member) {
    app.option<T>(
        flag, [this, member](const T& value) { given.push_back([=](TrainOptions& o) { member(o) = value; }); }, text);
  }
};

void add_hyperparameters(Command app, TrainCommand& c) {
  using O = TrainOptions;
  auto integer = [&](const char* flag, const char* text, auto member) {
    c.hyperparameter<int64_t>(app, flag, text, member);
  };
  auto real = [&](const char* flag, const char* text, auto member) {
    c.hyperparameter<double>(app, flag, text, member);
  };
  integer(
      "--steps", "optimizer steps", [](O & o) -> auto& { return o.steps; });
  integer(
      "--layers", "transformer blocks", [](O & o) -> auto& { return o.model.layers; });
  integer(
      "--heads", "attention heads", [](O & o) -> auto& { return o.model.heads; });
  integer(
      "--width", "width of the residual stream", [](O & o) -> auto& { return o.model.width; });
  integer(
      "--block", "longest context, in tokens", [](O & o) -> auto& { return o.model.block; });
  integer(
      "--vocab", "rows of the vocabulary; 0: the characters of the text", [](O & o) -> auto& { return o.model.vocab; });
  integer(
      "--batch", "sequences per batch", [](O & o) -> auto& { return o.batch; });
  integer(
      "--accumulation", "batches per step", [](O & o) -> auto& { return o.accumulate; });
  real(
      "--dropout", "probability of dropout", [](O & o) -> auto& { return o.model.dropout; });
  real(
      "--alibi", "largest exponent of ALiBi's slopes, in place of learned positions: 8 as MPT; 0: those",
      [](O & o) -> auto& { return o.model.alibi; });
  real(
      "--init-std", "standard deviation of initial matrices; 0: 0.02 sqrt(768 / width)",
      [](O & o) -> auto& { return o.model.init_std; });
  c.hyperparameter<bool>(
      app, "--bias", "true: biases in linear layers and norms", [](O & o) -> auto& { return o.model.bias; });
  real(
      "--lr", "highest learning rate", [](O & o) -> auto& { return o.lr; });
  real(
      "--min-lr", "learning rate at the end of the cosine", [](O & o) -> auto& { return o.min_lr; });
  integer(
      "--warmup", "steps of linear warm-up", [](O & o) -> auto& { return o.warmup; });
  real(
      "--beta1", "AdamW's first decay", [](O & o) -> auto& { return o.beta1; });
  real(
      "--beta2", "AdamW's second decay", [](O & o) -> auto& { return o.beta2; });
  real(
      "--weight-decay", "decay of matrices", [](O & o) -> auto& { return o.weight_decay; });
  real(
      "--clip", "largest gradient norm; 0 does not clip", [](O & o) -> auto& { return o.clip; });
  integer(
      "--eval-interval", "steps between evaluations on the whole validation split; 0: only at the end",
      [](O & o) -> auto& { return o.eval_interval; });
  integer(
      "--checkpoint-interval", "steps between checkpoints; 0: only at the end",
      [](O & o) -> auto& { return o.checkpoint_interval; });
}

std::string loss_curve(const models::TrainResult& result) {
  Series raw{"training", {}, true}, smooth{"training, smoothed", {}}, validation{"validation", {}};
  double mean = 0, weight = 0;
  for (const auto& s : result.steps) {
    raw.points.emplace_back(s.step, s.loss);
    if (!std::isfinite(s.loss)) continue;
    mean = 0.98 * mean + 0.02 * s.loss;
    weight = 0.98 * weight + 0.02;
    smooth.points.emplace_back(s.step, mean / weight);
  }
  for (const auto& e : result.evals) validation.points.emplace_back(e.step, e.loss);
  return to_svg({fmt::format("loss over {} steps", result.steps.size()),
                 "step",
                 "cross-entropy per token",
                 {raw, smooth, validation}});
}

void write_results(const models::TrainResult& result, const TrainCommand& c, int64_t tokens_per_step) {
  Results results("train gpt", c);
  std::vector<double> ms;
  auto& steps = results.extra()["steps"] = nlohmann::json::array();
  for (const auto& s : result.steps) {
    steps.push_back({{"step", s.step}, {"loss", s.loss}, {"ms", s.ms}});
    ms.push_back(s.ms);
  }
  for (size_t i = 1; i < c.peaks.size(); ++i) {
    const cpu_kernels::FmaPeak peak = between(c.peaks[i - 1], c.peaks[i]);
    auto& step = steps[steps.size() - c.peaks.size() + i];
    step["fma_gflops"] = peak.gflops;
    step["clock_ghz"] = peak.clock_ghz;
  }
  // Ranks that step by themselves wait in few steps, but long.
  const double step_ms = c.options.local_sgd
                             ? std::accumulate(ms.begin(), ms.end(), 0.0) / static_cast<double>(ms.size())
                             : median(std::move(ms));
  results.add("step", step_ms, "ms", false);
  results.add("flops_per_step", result.flops_per_step, "FLOP", false);
  results.add("tokens_per_second", static_cast<double>(tokens_per_step) / step_ms * 1e3, "tokens/s", true);
  if (result.val_loss) {
    results.add("val_loss", *result.val_loss, "nats/token", false);
  }
  results.extra()["val_loss"] = result.val_loss ? nlohmann::json(*result.val_loss) : nlohmann::json();  // null: stopped
  results.extra()["peak_memory_bytes"] = result.peak_memory_bytes;
  results.extra()["skipped_steps"] = result.skipped;
  results.extra()["microbatch"] = result.microbatch;
  results.extra()["amp"] = c.amp;
  results.extra()["residual"] = c.residual;
  if (!result.own_ms.empty()) results.extra()["own_ms"] = result.own_ms;  // [rank][step]: without waiting for others
  results.extra()["attention"] = c.attention.name();
  results.write();
}

void summarize(const models::TrainResult& result, const TrainCommand& c, bool saved) {
  if (result.skipped) fmt::print("skipped {} steps whose loss or gradient was not finite\n", result.skipped);
  if (result.val_loss) fmt::print("validation loss {:.4f}\n", *result.val_loss);
  fmt::print("peak memory of tensors {:.1f} MiB\n", static_cast<double>(result.peak_memory_bytes) / (1 << 20));
  fmt::print("wrote {1}{0}/loss.svg\n", c.out, saved ? c.out + "/checkpoint.safetensors and " : "");
  if (result.stopped) fmt::print("stopped at step {}; go on with the same command and --resume\n", result.steps.size());
}

// Lays the command line over the preset. Throws UsageError.
void settle(TrainCommand& c) {
  c.apply();
  try {
    c.options = models::train_preset(c.preset);
    for (auto& set : c.given) set(c.options);
    if (c.data.empty() && c.mixture.given())
      throw UsageError("--proportions, --repeats, --choose and --epoch-size are of --data");
    c.options.data = c.mixture.streams(c.data);
    c.options.epoch_size = c.mixture.epoch_size;
    models::validate(c.options);
  } catch (const Error& e) {  // already one of usage, or to be one
    throw UsageError(e.what());
  }
  if (c.amp.empty()) c.amp = train::name(c.options.amp);
  c.options.amp = c.precision();
  c.options.lower_residual = c.residual != "f32";
  if (c.options.lower_residual && c.residual != c.amp)
    throw UsageError(fmt::format("--residual {0} needs --amp {0}", c.residual));
  c.options.microbatch = c.microbatch_size();
  c.options.gradient_dtype = c.gradients_travel_in();
  c.options.device = c.target();
  c.attention.apply(c.options.device);
  if (c.fma_peak && c.options.device.is_gpu()) throw UsageError("--fma-peak is of the CPU");
  c.options.report_interval = c.options.device.is_gpu() && !c.stop_after ? 10 : 1;
  c.options.seed = c.seed;
  c.options.on_nan = c.on_nan == "skip" ? train::OnNan::Skip : train::OnNan::Stop;
  c.options.init = c.init;
  if (c.text.empty() == c.data.empty()) throw UsageError("train gpt learns a --text or --data: give one of them");
  if (c.data.empty()) c.options.text = read_text(c.text);
  c.options.remote = c.remote.settle();
  c.options.checkpoint = c.out + "/checkpoint.safetensors";
  c.options.keep = c.keep;
  c.resume_after_restart(c.options.checkpoint);
  c.options.resume = c.resume;
  c.prepare({c.options.checkpoint});
}

std::string precision(const TrainCommand& c) {
  const bool tf32 = c.tf32 && c.options.device.type == DeviceType::CUDA;
  if (c.options.amp == train::Amp::Off) return tf32 ? ", products in tf32" : "";
  return fmt::format(", products in {}{}, residual stream and norms in {}", c.amp,
                     c.options.amp == train::Amp::Float16 ? " with scaled losses" : "", c.residual);
}

std::string scaling(const TrainCommand& c, const models::StepInfo& s, int64_t skipped) {
  std::string text = c.options.amp == train::Amp::Float16 ? fmt::format("  loss scale {:g}", s.loss_scale) : "";
  return skipped ? fmt::format("{}  {} steps skipped", text, skipped) : text;
}

models::TrainResult train(TrainCommand& c, const dist::World& world, Progress& progress, int64_t& tokens_per_step,
                          bool& saved) {
  double ms = 0;  // of a step, smoothed
  int64_t skipped = 0;
  const auto probe = [&] {
    if (c.fma_peak) c.peaks.push_back(cpu_kernels::measure_fma_peak(num_threads(), cpu_kernels::brief_probe));
  };
  models::TrainCallbacks callbacks;
  callbacks.stop = &train::stop_requested();
  callbacks.on_start = [&](int64_t parameters, int64_t tokens, int64_t first_step) {
    catch_signals();  // from the first step on: before that there is nothing to save
    tokens_per_step = tokens;
    if (world.rank() > 0) return;
    progress.note(fmt::format("{} parameters, {} tokens per step, {}{}{}{}", parameters, tokens,
                              world.size() > 1 ? fmt::format("{} ranks with ", world.size()) : "", c.place(),
                              precision(c), first_step > 1 ? fmt::format(", from step {}", first_step) : ""));
    probe();
  };
  if (world.rank() > 0) return models::train_gpt(c.options, callbacks, &world);
  callbacks.on_microbatch = [&](int64_t sequences, int64_t too_many) {
    progress.note(c.found_microbatch(sequences, too_many, "sequence"));
  };
  callbacks.on_step = [&](const models::StepInfo& s) {
    ms = ms == 0 ? s.ms : 0.95 * ms + 0.05 * s.ms;
    skipped += s.skipped;
    progress.update(s.step, fmt::format("loss {:.4f}  {:.1f}k tokens/s{}", s.loss,
                                        static_cast<double>(tokens_per_step) / ms, scaling(c, s, skipped)));
    if (c.stop_after && s.step >= c.stop_after) train::stop_requested() = true;
    probe();
  };
  callbacks.on_checkpoint = [&](int64_t) { saved = true; };
  callbacks.on_note = [&](const std::string& line) { progress.note("note: " + line); };
  callbacks.on_eval = [&](const models::EvalInfo& e) {
    progress.note(fmt::format("step {}: validation loss {:.4f}", e.step, e.loss));
  };
  return models::train_gpt(c.options, callbacks, &world);
}

void run(TrainCommand& c) {
  settle(c);
  const dist::World world({.even_alone = c.even_alone});
  c.check_ranks(world.size(), c.options.accumulate);
  c.options.local_sgd = c.averaging_of(world.size());
  c.options.device = world.device(c.options.device);
  Progress progress(c.options.steps);
  int64_t tokens_per_step = 0;
  bool saved = false;
  models::TrainResult result;
  try {
    with_profile(c.profile, c.options.device, false,
                 [&] { result = train(c, world, progress, tokens_per_step, saved); });
  } catch (...) {
    progress.finish();
    throw;
  }
  progress.finish();
  if (world.rank() > 0) return exit_if_signalled();
  write_file(c.out + "/loss.svg", loss_curve(result));
  summarize(result, c, saved);
  write_results(result, c, tokens_per_step);
  exit_if_signalled();
}

}  // namespace

void add_train(Command app) {
  const Command command = app.command("train", "Train a model.");
  command.require_command();
  const Command gpt = command.command("gpt", "Train a GPT on a text.");
  auto c = std::make_shared<TrainCommand>();
  gpt.option("--preset", c->preset,
             "shakespeare-char-cpu, gpt2-124m, mpt-125m, mpt-350m, mpt-760m, mpt-1b or mpt-3b; options change it")
      .with_default();
  gpt.option("--text", c->text, "the text to learn, in UTF-8; the last tenth validates");
  gpt.option("--data", c->data, "or folders that data pack --block made, or their addresses: their tokens are streamed")
      .take_all();
  c->mixture.add_to(gpt);
  c->remote.add_to(gpt, "--data-");
  gpt.option("--init", c->init, "weights to start from: those of a GPT-2 or an MPT in Hugging Face's names");
  gpt.option("--on-nan", c->on_nan, "when the loss is not finite: stop, or skip the step and count it")
      .one_of({"stop", "skip"})
      .with_default();
  gpt.option("--residual", c->residual,
             "with --amp: residual stream and norms in f32, or in the dtype of the products (less memory, less exact)")
      .one_of({"f32", "bf16", "fp16"})
      .with_default();
  gpt.flag("--fma-peak", c->fma_peak,
           "for --json: measure before and after each step what multiply-adds reach at the clock of the moment");
  c->attention.add_to(gpt);
  c->profile.add_to(gpt, "wait=1,warmup=1,active=3");
  add_hyperparameters(gpt, *c);
  c->amp.clear();  // as the preset says
  c->add_to(gpt, "the checkpoint and the loss curve");
  gpt.run([c] { run(*c); });
  add_train_convmodel(command);
}

}  // namespace tessera::app
