#include "models/train_convmodel.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>
#include <span>
#include <utility>

#include "core/util/median.h"
#include "models/train_config.h"
#include "tessera/autograd.h"
#include "tessera/models.h"
#include "tessera/ops.h"
#include "tessera/profiler.h"

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
  return {{"steps", o.steps}, {"size", o.size}, {"lr", o.lr}, {"seed", o.seed}, {"amp", name(o.amp)}};
}

ConvModel make_model(const ConvModelOptions& o) {
  Generator generator(o.seed);
  ConvModel model(3, 256, generator);
  model.to(o.device);  // made on the CPU: the same weights everywhere
  return model;
}

class ConvModelRun {
 public:
  ConvModelRun(const ConvModelOptions& options, const ConvModelCallbacks& callbacks)
      : options_(options),
        callbacks_(callbacks),
        model_(make_model(options)),
        optimizer_(model_.parameters(), {.lr = options.lr}),
        scaler_({.enabled = options.amp == Amp::Float16}),
        x_(pixel_coordinates(options.size).to(options.device)),
        target_(target_picture(options.size).to(options.device)),
        file_(options.checkpoint, options.resume) {
    if (options.resume) restore();
  }

  ConvModelResult run() {
    reset_peak_memory(options_.device);
    if (callbacks_.on_start) callbacks_.on_start(model_.parameter_count(), step_);
    while (step_ < options_.steps && !stopped()) {
      step();
      profiler::step();
      if (static_cast<int64_t>(pending_.size()) >= options_.report_interval) report();
    }
    report();
    optimizer_.zero_grad();
    result_.training_bytes = std::max(result_.training_bytes, memory_stats(options_.device).peak_allocated);
    save();
    result_.step_ms = typical_step();
    result_.stopped = step_ < options_.steps;
    if (!result_.stopped) infer();
    return std::move(result_);
  }

 private:
  // A step whose numbers may still be on their way.
  struct Pending {
    Tensor loss, skipped;
  };

  bool stopped() const { return callbacks_.stop && *callbacks_.stop; }

  void step() {
    if (pending_.empty()) first_pending_ = Clock::now();
    optimizer_.zero_grad();
    Tensor loss;
    {
      const amp::Autocast region = autocast(options_.amp);
      loss = mse_loss(model_(x_), target_);
    }
    scaler_.scale(loss).backward();
    const Tensor skipped = scaler_.step(optimizer_);
    scaler_.update();
    pending_.push_back({loss.detach(), skipped});
    ++step_;
  }

  // Reads what the steps since the last time came to.
  void report() {
    const std::vector<Pending> all = std::exchange(pending_, {});
    for (const Pending& p : all) {
      const auto step = static_cast<int64_t>(result_.steps.size()) + 1;
      const double loss = without_nan_sign(p.loss.item());
      if (!std::isfinite(loss)) throw Error(fmt::format("train: loss {} at step {}", loss, step));
      result_.steps.push_back({step, loss, 0, p.skipped.item<bool>()});
    }
    const double ms = milliseconds_since(first_pending_) / static_cast<double>(all.size());
    for (ConvModelStep& s : std::span(result_.steps).last(all.size())) {
      s.ms = ms;
      if (callbacks_.on_step) callbacks_.on_step(s);
    }
  }

  // The first steps load kernels and find memory.
  double typical_step() const {
    const auto count = static_cast<int64_t>(result_.steps.size());
    const int64_t first = std::max(options_.report_interval, count / 16);
    std::vector<double> ms;
    for (int64_t i = first < count ? first : 0; i < count; ++i) ms.push_back(result_.steps[i].ms);
    return median(std::move(ms));
  }

  Tensor forward() const {
    const amp::Autocast region = autocast(options_.amp);
    return model_(x_);
  }

  void infer() {
    NoGrad no_grad;
    nn::EvalMode eval(model_);
    const bool gpu = options_.device.is_gpu();
    const auto wait = [&] {
      if (gpu) synchronize(options_.device);
    };
    reset_peak_memory(options_.device);
    Tensor y = forward();
    result_.inference_bytes = memory_stats(options_.device).peak_allocated;
    const int calls = gpu ? 20 : 1;  // of a sample, which waits once
    std::vector<double> samples;
    for (int i = 0; i <= 10 && !stopped(); ++i) {
      wait();
      const auto start = Clock::now();
      for (int call = 0; call < calls; ++call) y = forward();
      wait();
      if (i > 0) samples.push_back(milliseconds_since(start) / calls);
    }
    if ((result_.stopped = stopped())) return;
    result_.inference_ms = median(std::move(samples));
    result_.inference_loss = mse_loss(y, target_).item();
    result_.picture = reshape(cast(y, Float32), {options_.size, options_.size}).to(cpu());
  }

  void save() {
    if (!file_.exists()) return;
    Checkpoint out;
    add_part(out, "model.", model_.state_dict());
    add_part(out, "optimizer.", optimizer_.state_dict());
    add_part(out, "scaler.", scaler_.state_dict());
    std::vector<std::vector<double>> steps;
    for (const ConvModelStep& s : result_.steps) steps.push_back({s.loss, s.ms, s.skipped ? 1.0 : 0.0});
    out.tensors.emplace("history.steps", table(steps, 3));
    out.metadata = {{"kind", "convmodel"},
                    {"config", config_of(options_).dump()},
                    {"state", Json{{"bytes", result_.training_bytes}}.dump()}};
    file_.save(out);
  }

  void restore() {
    const std::string& file = options_.checkpoint;
    const Checkpoint from = load_checkpoint_of(file, "convmodel", "a ConvModel");
    const Json there = parse_object(metadata(from, file, "config"), file);
    Json here = config_of(options_);
    here["steps"] = there.value("steps", here["steps"]);  // a run may be made longer or shorter
    if (const std::string difference = first_difference(there, here); !difference.empty())
      throw FileError(fmt::format("{}: of another configuration: {}", file, difference));
    blame(file, [&] {
      model_.load_state_dict(part(from, "model."));
      optimizer_.load_state_dict(part(from, "optimizer."));
      scaler_.load_state_dict(part(from, "scaler."));
    });
    const Json state = parse_object(metadata(from, file, "state"), file);
    if (!state.contains("bytes") || !state["bytes"].is_number_unsigned())
      throw FileError(file + ": damaged checkpoint: bad state");
    result_.training_bytes = state["bytes"].get<int64_t>();
    const Tensor steps = read_table(from, file, "history.steps", 3);
    step_ = steps.size(0);
    for (int64_t i = 0; i < step_; ++i) {
      const double* r = steps.data<double>() + 3 * i;
      result_.steps.push_back({i + 1, r[0], r[1], r[2] != 0});
    }
    const int64_t made =
        step_ - std::count_if(result_.steps.begin(), result_.steps.end(), [](auto& s) { return s.skipped; });
    if (const double adams = from.tensors.at("optimizer.group.0.step").item(); adams != static_cast<double>(made))
      throw FileError(fmt::format(
          "{}: damaged checkpoint: a history of {} steps that were not skipped, and {} of Adam's", file, made, adams));
  }

  ConvModelOptions options_;
  const ConvModelCallbacks& callbacks_;
  ConvModel model_;
  optim::Adam optimizer_;
  amp::GradScaler scaler_;
  Tensor x_, target_;
  CheckpointFile file_;
  int64_t step_ = 0;
  std::vector<Pending> pending_;
  Clock::time_point first_pending_;
  ConvModelResult result_;
};

}  // namespace

void validate(const ConvModelOptions& o) {
  auto require = [](bool ok, const char* what, auto value) {
    if (!ok) throw Error(fmt::format("train: {} = {} is out of range", what, value));
  };
  require(o.steps >= 1, "steps", o.steps);
  require(o.size >= 2 && o.size <= 16384, "size", o.size);
  require(o.lr >= 0 && std::isfinite(o.lr), "lr", o.lr);
  require(o.report_interval >= 1, "report_interval", o.report_interval);
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

ConvModelResult train_convmodel(const ConvModelOptions& options, const ConvModelCallbacks& callbacks) {
  validate(options);
  return ConvModelRun(options, callbacks).run();
}

}  // namespace tessera::models
