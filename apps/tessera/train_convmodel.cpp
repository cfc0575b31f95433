// tessera train convmodel: the published experiment on mixed precision, as a table and a picture.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/train_convmodel.h"
#include "picture.h"
#include "plot.h"
#include "profiling.h"
#include "tessera/dist.h"
#include "tessera/io.h"
#include "training.h"

namespace tessera::app {
namespace {

using models::ConvModelResult;

struct ConvModelCommand : TrainingOptions {
  models::ConvModelOptions options;
  RecordingOptions profile;
  // The folder's file of a run in that precision.
  std::string checkpoint(train::Amp amp) const {
    return fmt::format("{}/{}.safetensors", out, amp == train::Amp::Off ? "standard" : train::name(amp));
  }
};

struct Finished {
  train::Amp amp;
  ConvModelResult result;
  std::string key() const { return amp == train::Amp::Off ? "standard" : train::name(amp); }
  std::string title() const { return amp == train::Amp::Off ? "standard" : "AMP " + train::name(amp); }
  double final_loss() const { return result.steps.empty() ? 0 : result.steps.back().loss; }
};

// Throws UsageError.
void settle(ConvModelCommand& c) {
  c.apply();
  c.options.seed = c.seed;
  c.options.keep = c.keep;
  c.options.device = c.target();
  c.options.microbatch = c.microbatch_size();
  c.options.gradient_dtype = c.gradients_travel_in();
  c.options.report_interval = c.options.device.is_gpu() && !c.stop_after ? 32 : 1;
  try {
    models::validate(c.options);
  } catch (const Error& e) {
    throw UsageError(e.what());
  }
  if (c.precision() == train::Amp::Off) c.prepare({c.checkpoint(train::Amp::Off)});
  else c.prepare({c.checkpoint(train::Amp::Off), c.checkpoint(c.precision())});
}

Finished train(const ConvModelCommand& c, train::Amp amp, const dist::World& world) {
  Finished f{amp, {}};
  models::ConvModelOptions o = c.options;
  o.amp = amp;
  o.checkpoint = c.checkpoint(amp);
  o.resume = train::resumes(c.resume ? train::Resume::IfThere : train::Resume::AfterRestart, o.checkpoint);
  Progress progress(o.steps);
  models::ConvModelCallbacks callbacks;
  callbacks.stop = &train::stop_requested();
  callbacks.on_start = [&](int64_t parameters, int64_t first_step) {
    catch_signals();  // from the first step on: before that there is nothing to save
    if (world.rank() > 0) return;
    progress.note(fmt::format("{}: {} parameters, {} x {} pixels, {}{}{}", f.title(), parameters, o.size, o.size,
                              world.size() > 1 ? fmt::format("{} ranks with ", world.size()) : "", c.place(),
                              first_step > 0 ? fmt::format(", from step {}", first_step) : ""));
  };
  if (world.rank() == 0) {
    callbacks.on_note = [&](const std::string& line) { progress.note("note: " + line); };
    callbacks.on_microbatch = [&](int64_t strips, int64_t too_many) {
      progress.note(c.found_microbatch(strips, too_many, "strip"));
    };
    callbacks.on_step = [&](const models::ConvModelStep& s) {
      progress.update(s.step, fmt::format("loss {:.4f}  {:.2f} ms", s.loss, s.ms));
      if (c.stop_after && s.step >= c.stop_after && s.step < o.steps) train::stop_requested() = true;
    };
  }
  try {
    f.result = models::train_convmodel(o, callbacks, &world);
  } catch (...) {
    progress.finish();
    throw;
  }
  progress.finish();
  return f;
}

struct Row {
  std::string name, key, unit;
  double (*value)(const Finished&);
  int digits;
};
const Row kRows[] = {
    {"training, ms per step", "step", "ms", [](const Finished& f) { return f.result.step_ms; }, 2},
    {"training, peak memory, MiB", "peak memory", "MiB",
     [](const Finished& f) { return static_cast<double>(f.result.training_bytes) / (1 << 20); }, 1},
    {"final training loss", "final loss", "", [](const Finished& f) { return f.final_loss(); }, 4},
    {"inference, ms", "inference", "ms", [](const Finished& f) { return f.result.inference_ms; }, 2},
    {"inference, peak memory, MiB", "inference memory", "MiB",
     [](const Finished& f) { return static_cast<double>(f.result.inference_bytes) / (1 << 20); }, 1},
    {"inference loss", "inference loss", "", [](const Finished& f) { return f.result.inference_loss; }, 4},
};

void print_table(const std::vector<Finished>& runs) {
  fmt::print("\n{:<28}", "");
  for (const Finished& f : runs) fmt::print("{:>12}", f.title());
  fmt::print("{}\n", runs.size() > 1 ? fmt::format("{:>12}", "AMP / std.") : "");
  for (const Row& row : kRows) {
    fmt::print("{:<28}", row.name);
    for (const Finished& f : runs) fmt::print("{:>12.{}f}", row.value(f), row.digits);
    if (runs.size() > 1) fmt::print("{:>12.2f}", row.value(runs[1]) / row.value(runs[0]));
    fmt::print("\n");
  }
}

std::string loss_curves(const std::vector<Finished>& runs) {
  Plot plot{fmt::format("loss over {} steps", runs[0].result.steps.size()), "step", "mean squared error", {}};
  plot.log_y = true;
  for (const Finished& f : runs) {
    Series series{f.title(), {}};
    for (const auto& s : f.result.steps) series.points.emplace_back(s.step, s.loss);
    plot.series.push_back(std::move(series));
  }
  return to_svg(plot);
}

std::string pictures(const std::vector<Finished>& runs, int64_t size) {
  std::vector<Picture> all;
  const auto add = [&](const std::string& title, const Tensor& t) {
    const float* data = t.data<float>();
    all.push_back({title, static_cast<int>(size), static_cast<int>(size), {data, data + t.numel()}});
  };
  add("target", models::target_picture(size));
  for (const Finished& f : runs)
    if (f.result.picture.defined()) add(f.title(), f.result.picture);
  return side_by_side(all);
}

nlohmann::json steps_of(const ConvModelResult& r) {
  auto steps = nlohmann::json::array();
  for (const auto& s : r.steps) steps.push_back({{"step", s.step}, {"loss", s.loss}, {"ms", s.ms}});
  return steps;
}

void write_results(const std::vector<Finished>& runs, const ConvModelCommand& c) {
  Results results("train convmodel", c);
  for (const Finished& f : runs) {
    for (const Row& row : kRows)
      if (!f.result.stopped || !row.key.starts_with("inference"))
        results.add(f.key() + " " + row.key, row.value(f), row.unit, false);
    results.extra()["runs"][f.key()] = {{"steps", steps_of(f.result)}};
  }
  const ConvModelResult& last = runs.back().result;
  results.extra()["steps"] = steps_of(last);
  results.extra()["val_loss"] = last.stopped ? nlohmann::json() : nlohmann::json(last.inference_loss);
  results.extra()["peak_memory_bytes"] = last.training_bytes;
  results.extra()["amp"] = c.amp;
  results.extra()["size"] = c.options.size;
  if (!last.own_ms.empty()) results.extra()["own_ms"] = last.own_ms;  // [rank][step]: without waiting for others
  results.write();
}

void run(ConvModelCommand& c) {
  settle(c);
  const dist::World world({.even_alone = c.even_alone});
  c.check_ranks(world.size(), c.options.accumulate);
  c.options.local_sgd = c.averaging_of(world.size());
  c.options.device = world.device(c.options.device);
  std::vector<Finished> runs;
  for (train::Amp amp : {train::Amp::Off, c.precision()}) {
    if (!runs.empty() && (amp == train::Amp::Off || runs[0].result.stopped)) break;
    const bool profiled = amp == c.precision();  // the run that --amp names
    with_profile(profiled ? c.profile : RecordingOptions(), c.options.device, false,
                 [&] { runs.push_back(train(c, amp, world)); });
  }
  if (world.rank() > 0) return exit_if_signalled();
  write_file(c.out + "/loss.svg", loss_curves(runs));
  write_results(runs, c);
  if (const Finished& last = runs.back(); last.result.stopped) {
    fmt::print("stopped at step {} of the {} run; go on with the same command and --resume\n", last.result.steps.size(),
               last.key());
  } else {
    write_file(c.out + "/pictures.svg", pictures(runs, c.options.size));
    print_table(runs);
    int64_t skipped = 0;
    for (const auto& s : last.result.steps) skipped += s.skipped;
    if (skipped) fmt::print("skipped {} steps whose gradients overflowed\n", skipped);
    fmt::print("wrote {0}/pictures.svg, {0}/loss.svg and checkpoints\n", c.out);
  }
  exit_if_signalled();
}

}  // namespace

void add_train_convmodel(Command train) {
  const Command app = train.command(
      "convmodel", "Train 1x1 convolutions on a picture, in f32 and in mixed precision, and compare the two.");
  auto c = std::make_shared<ConvModelCommand>();
  app.option("--steps", c->options.steps, "optimizer steps").with_default();
  app.option("--size", c->options.size, "height and width of the picture, in pixels").with_default();
  app.option("--accumulation", c->options.accumulate,
             "strips of the picture that make a step, which ranks share; a norm is over a strip")
      .with_default();
  app.option("--lr", c->options.lr, "learning rate").with_default();
  app.option("--checkpoint-interval", c->options.checkpoint_interval,
             "steps between checkpoints of a run; 0: only at its end")
      .with_default();
  c->profile.add_to(app, "wait=1,warmup=1,active=3");
  c->add_to(app, "checkpoints, the pictures and the loss curves");
  app.run([c] { run(*c); });
}

}  // namespace tessera::app
