#include "models/train_convmodel.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/util/median.h"
#include "models/train_config.h"
#include "tessera/autograd.h"
#include "tessera/models.h"
#include "tessera/ops.h"
#include "train/ranks.h"

namespace tessera::models {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// f32 [size, size] of fn(x, y).
template <class Fn>
std::vector<float> each_pixel(int64_t size, const Fn& fn) {
  std::vector<float> out;
  out.reserve(size * size);
  const auto last = static_cast<double>(size - 1);
  for (int64_t i = 0; i < size; ++i)
    for (int64_t j = 0; j < size; ++j)
      out.push_back(static_cast<float>(fn(static_cast<double>(j) / last, static_cast<double>(i) / last)));
  return out;
}

Json config_of(const ConvModelOptions& o) {
  return {{"steps", o.steps}, {"size", o.size},     {"lr", o.lr},
          {"seed", o.seed},   {"amp", name(o.amp)}, {"accumulation", o.accumulate}};
}

ConvModel make_model(const ConvModelOptions& o) {
  Generator generator(o.seed);
  ConvModel model(3, 256, generator);
  model.to(o.device);  // made on the CPU: the same weights everywhere
  return model;
}

// What is learned, on the device: the whole picture, or strips of it.
train::Work make_work(const ConvModel& model, const ConvModelOptions& o) {
  const Tensor x = pixel_coordinates(o.size).to(o.device), target = target_picture(o.size).to(o.device);
  const auto strip = [=, n = o.accumulate](int64_t i) {
    const int64_t at = i % n, from = at * o.size / n, to = (at + 1) * o.size / n;
    return n == 1 ? Tensors{x, target} : Tensors{x.slice(2, from, to), target.slice(2, from, to)};
  };
  return {.batches = strip,
          .loss = [&model](const Tensors& batch) { return mse_loss(model(batch[0]), batch[1]); },
          .count = [](const Tensors& batch) { return batch[1].numel(); },
          .items = o.size % o.accumulate == 0 ? o.size / o.accumulate * o.size : 0,
          .resident = true};
}

// Throws FileError where the run that the checkpoint is of was another one. Old ones have fewer columns of history.
void check_loaded(Checkpoint& from, const ConvModelOptions& o) {
  if (metadata(from, o.checkpoint, "kind") != "convmodel")
    throw FileError(o.checkpoint + ": not a checkpoint of a ConvModel");
  Json there = parse_object(metadata(from, o.checkpoint, "config"), o.checkpoint), here = config_of(o);
  there.emplace("accumulation", 1);
  here["steps"] = there.value("steps", here["steps"]);  // a run may be made longer or shorter
  if (const std::string difference = first_difference(there, here); !difference.empty())
    throw FileError(fmt::format("{}: of another configuration: {}", o.checkpoint, difference));
  const auto old = from.tensors.find("history.steps");
  if (old == from.tensors.end() || old->second.dim() != 2) return;
  if (old->second.size(1) == 3) {
    const Tensor rows = train::read_table(from, o.checkpoint, "history.steps", 3);
    const Tensor lr = full({rows.size(0), 1}, o.lr, Float64);
    old->second = concat({rows.slice(1, 0, 2), lr, zeros(lr.shape(), Float64), rows.slice(1, 2, 3)}, 1);
    Json state = parse_object(metadata(from, o.checkpoint, "state"), o.checkpoint);
    state["step"] = rows.size(0);
    from.metadata["state"] = state.dump();
    from.tensors.emplace("history.evals", zeros({0, 2}, Float64));
  }
  const Tensor rows = train::read_table(from, o.checkpoint, "history.steps", 5);
  int64_t made = 0;
  for (int64_t i = 0; i < rows.size(0); ++i) made += rows.data<double>()[5 * i + 4] == 0;
  const auto adams = from.tensors.find("optimizer.group.0.step");
  if (adams != from.tensors.end() && adams->second.item() != static_cast<double>(made))
    throw FileError(fmt::format("{}: damaged checkpoint: a history of {} steps that were not skipped, and {} of Adam's",
                                o.checkpoint, made, adams->second.item()));
}

train::Options make_options(const ConvModelOptions& o) {
  return {.until = train::steps(o.steps),
          .accumulate = o.accumulate,
          .microbatch = o.microbatch,
          .amp = o.amp,
          .seed = o.seed,
          .device = o.device,
          .report_interval = o.report_interval,
          .local_sgd = o.local_sgd,
          .gradient_dtype = o.gradient_dtype,
          .save = train::steps(o.checkpoint_interval),
          .checkpoint = o.checkpoint,
          .keep = o.keep,
          .resume = o.resume ? train::Resume::Always : train::Resume::Never,
          .metadata = {{"kind", "convmodel"}, {"config", config_of(o).dump()}},
          .on_load = [o](Checkpoint& from) { check_loaded(from, o); },
          .catch_signals = false};
}

// The first steps load kernels and find memory.
double typical_step(const std::vector<train::StepInfo>& steps, int64_t report_interval) {
  const auto count = static_cast<int64_t>(steps.size());
  const int64_t first = std::max(report_interval, count / 16);
  std::vector<double> ms;
  for (int64_t i = first < count ? first : 0; i < count; ++i) ms.push_back(steps[static_cast<size_t>(i)].ms);
  return median(std::move(ms));
}

void infer(const ConvModel& model, const ConvModelOptions& o, const ConvModelCallbacks& callbacks,
           ConvModelResult& result) {
  NoGrad no_grad;
  nn::EvalMode eval(model);
  const Tensor x = pixel_coordinates(o.size).to(o.device), target = target_picture(o.size).to(o.device);
  const auto stopped = [&] { return callbacks.stop && *callbacks.stop; };
  const auto forward = [&] {
    const amp::Autocast region = train::autocast(o.amp);
    return model(x);
  };
  const bool gpu = o.device.is_gpu();
  const auto wait = [&] {
    if (gpu) synchronize(o.device);
  };
  reset_peak_memory(o.device);
  Tensor y = forward();
  result.inference_bytes = memory_stats(o.device).peak_allocated;
  const int calls = gpu ? 20 : 1;  // of a sample, which waits once
  std::vector<double> samples;
  for (int i = 0; i <= 10 && !stopped(); ++i) {
    wait();
    const auto start = Clock::now();
    for (int call = 0; call < calls; ++call) y = forward();
    wait();
    if (i > 0) samples.push_back(milliseconds_since(start) / calls);
  }
  if ((result.stopped = stopped())) return;
  result.inference_ms = median(std::move(samples));
  result.inference_loss = mse_loss(y, target).item();
  result.picture = reshape(cast(y, Float32), {o.size, o.size}).to(cpu());
}

}  // namespace

void validate(const ConvModelOptions& o) {
  auto require = [](bool ok, const char* what, auto value) {
    if (!ok) throw Error(fmt::format("train: {} = {} is out of range", what, value));
  };
  require(o.steps >= 1, "steps", o.steps);
  require(o.size >= 2 && o.size <= 16384, "size", o.size);
  require(o.accumulate >= 1 && o.accumulate <= o.size, "accumulation", o.accumulate);
  require(o.microbatch >= train::kAutoMicrobatch, "microbatch", o.microbatch);
  require(o.lr >= 0 && std::isfinite(o.lr), "lr", o.lr);
  require(o.report_interval >= 1, "report_interval", o.report_interval);
  require(o.checkpoint_interval >= 0, "checkpoint_interval", o.checkpoint_interval);
  if (o.resume && o.checkpoint.empty()) throw Error("train: resume needs a checkpoint to go on from");
}

Tensor pixel_coordinates(int64_t size) {
  std::vector<float> all = each_pixel(size, [](double x, double) { return x; });
  const std::vector<float> down = each_pixel(size, [](double, double y) { return y; });
  all.insert(all.end(), down.begin(), down.end());
  return tensor(all, {1, 2, size, size});
}

Tensor target_picture(int64_t size) {
  const auto level = [](double x, double y) {
    const double wave = std::cos(2 * std::numbers::pi * 4 * x) + std::cos(2 * std::numbers::pi * 2 * y);
    return std::clamp(std::floor(wave + 2), 0.0, 3.0) / 3;  // [-2, 2] in four bins
  };
  return tensor(each_pixel(size, level), {1, 1, size, size});
}

ConvModelResult train_convmodel(const ConvModelOptions& options, const ConvModelCallbacks& callbacks,
                                const dist::Group* group) {
  validate(options);
  ConvModel model = make_model(options);
  optim::Adam optimizer(model.parameters(), {.lr = options.lr});
  train::Callbacks called{.on_step = callbacks.on_step,
                          .on_note = callbacks.on_note,
                          .on_microbatch = callbacks.on_microbatch,
                          .stop = callbacks.stop};
  if (callbacks.on_start) called.on_start = [&](int64_t step) { callbacks.on_start(model.parameter_count(), step); };
  train::Result trained =
      train::Trainer(model, optimizer, make_work(model, options), make_options(options), group).run(called);
  ConvModelResult result;
  result.step_ms = typical_step(trained.steps, options.report_interval);
  result.steps = std::move(trained.steps);
  result.training_bytes = trained.peak_memory_bytes;
  result.own_ms = std::move(trained.own_ms);
  result.stopped = trained.stopped;
  const train::Ranks ranks{group};
  if (!result.stopped && ranks.rank() == 0) infer(model, options, callbacks, result);
  result.stopped = ranks.any(result.stopped);
  return result;
}

}  // namespace tessera::models
