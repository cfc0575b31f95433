// tessera explain model NAME: what a training step costs, from a run of it on tensors without memory.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <climits>
#include <nlohmann/json.hpp>

#include "command.h"
#include "models/step_cost.h"

namespace tessera::app {
namespace {

using models::StepCost;
using models::StepShare;

struct ModelOptions : CommonOptions {
  ModelOptions() { without_memory = true; }
  std::string model, amp = "off";
  int64_t batch = 0;

  models::StepOptions step() const {
    models::StepOptions o{.model = model, .batch = batch, .device = target()};
    for (const models::Amp one : {models::Amp::BFloat16, models::Amp::Float16})
      if (amp == models::name(one)) o.amp = one;
    return o;
  }
};

std::string binary(double bytes) {
  if (bytes < 0x1p20) return fmt::format("{:.1f} KiB", bytes / 0x1p10);
  return bytes < 0x1p30 ? fmt::format("{:.1f} MiB", bytes / 0x1p20) : fmt::format("{:.2f} GiB", bytes / 0x1p30);
}
double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

StepShare total(const StepCost& c) {
  StepShare all;
  for (const StepShare* s : {&c.forward, &c.backward, &c.optimizer}) {
    all.flops += s->flops;
    all.bytes += s->bytes;
    all.calls += s->calls;
  }
  return all;
}

void print_memory(const StepCost& c, Device device) {
  const auto size = [](int64_t bytes) { return binary(static_cast<double>(bytes)); };
  fmt::print("peak memory of tensors {}: parameters {}, AdamW's state {}, gradients {}, the rest {}\n",
             size(c.peak_bytes), size(c.parameter_bytes), size(c.state_bytes), size(c.gradient_bytes),
             size(c.peak_bytes - c.parameter_bytes - c.state_bytes - c.gradient_bytes));
  if (!device.is_gpu())
    return fmt::print("workspace of kernels: at most {} in a call; with it the peak is {}\n", size(c.workspace_bytes),
                      size(c.peak_with_workspace));
  fmt::print("workspace of kernels comes on top, and is known where there is a card\n");
  for (const models::VendorWorkspace& v : c.vendors)
    fmt::print("   {}, where picked: at most {} in a call\n", v.library, size(v.bytes));
}

void print_modules(const StepCost& c) {
  const StepShare all = total(c);
  fmt::print("\n{:<20} {:>6} {:>14} {:>7} {:>14} {:>7}\n", "module", "calls", "FLOPs", "%", "bytes moved", "%");
  for (const auto& [name, s] : c.modules)
    fmt::print("{:<20} {:>6} {:>14} {:>7.2f} {:>14} {:>7.2f}\n", name, s.calls, decimal(s.flops, ""),
               percent(s.flops, all.flops), decimal(s.bytes, "B"), percent(s.bytes, all.bytes));
}

void print(const StepCost& c, const ModelOptions& options) {
  fmt::print("{}: a training step of {}, {}, on {}; nothing is computed\n", options.model, c.batch,
             options.amp == "off" ? "f32" : options.amp, to_string(options.target()));
  fmt::print("parameters {}\n", c.parameters);
  const StepShare all = total(c);
  for (const auto& [name, s] :
       {std::pair{"forward", c.forward}, {"backward", c.backward}, {"AdamW", c.optimizer}, {"step", all}})
    fmt::print("{:<9} {:>10}, {:>9} moved, {} operators\n", name, decimal(s.flops, "FLOP"), decimal(s.bytes, "B"),
               s.calls);
  print_memory(c, options.target());
  print_modules(c);
}

void write(const StepCost& c, const ModelOptions& options) {
  Results results("explain model", options);
  const StepShare all = total(c);
  results.add("parameters", static_cast<double>(c.parameters), "", false);
  for (const auto& [name, s] :
       {std::pair{"forward", c.forward}, {"backward", c.backward}, {"optimizer", c.optimizer}, {"step", all}}) {
    results.add(std::string(name) + "_flops", s.flops, "FLOP", false);
    results.add(std::string(name) + "_bytes", s.bytes, "B", false);
  }
  results.add("peak_memory", static_cast<double>(c.peak_bytes), "B", false);
  if (!options.target().is_gpu()) {
    results.add("workspace", static_cast<double>(c.workspace_bytes), "B", false);
    results.add("peak_memory_with_workspace", static_cast<double>(c.peak_with_workspace), "B", false);
  }
  nlohmann::json& extra = results.extra();
  extra["model"] = options.model;
  extra["batch"] = c.batch;
  extra["amp"] = options.amp;
  extra["memory"] = {{"parameters", c.parameter_bytes}, {"state", c.state_bytes}, {"gradients", c.gradient_bytes}};
  extra["vendor_workspace"] = nlohmann::json::array();
  for (const models::VendorWorkspace& v : c.vendors)
    extra["vendor_workspace"].push_back({{"library", v.library}, {"at_most", v.bytes}});
  extra["modules"] = nlohmann::json::array();
  for (const auto& [name, s] : c.modules)
    extra["modules"].push_back({{"name", name}, {"calls", s.calls}, {"flops", s.flops}, {"bytes", s.bytes}});
  results.write();
}

void run(ModelOptions& options) {
  try {
    options.device = to_string(meta(parse_device(options.device)));
    options.apply();
    const StepCost cost = models::cost_of_step(options.step());
    print(cost, options);
    write(cost, options);
  } catch (const FileError&) {
    throw;
  } catch (const Error& e) {
    throw UsageError(e.what());
  }
}

}  // namespace

void add_explain_model(Command explain) {
  const Command command = explain.command(
      "model", "Say what a training step of a model takes: parameters, FLOPs, bytes and memory, without computing it.");
  auto options = std::make_shared<ModelOptions>();
  command.option("name", options->model, fmt::format("{}", fmt::join(models::step_models(), ", "))).required();
  command.option("--batch", options->batch, "sequences or images; 0: as many as the model is usually given")
      .range(0, INT_MAX)
      .with_default();
  command.option("--amp", options->amp, "mixed precision: off, bf16 or fp16")
      .one_of({"off", "bf16", "fp16"})
      .with_default();
  options->add_to(command, true);
  command.run([options] { run(*options); });
}

}  // namespace tessera::app
