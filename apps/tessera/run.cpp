// tessera run MODEL.onnx: runs a model file once, and says what comes out.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "command.h"
#include "io/file.h"
#include "model_inputs.h"
#include "profiling.h"
#include "tessera/io.h"
#include "tessera/onnx.h"
#include "tessera/ops.h"
#include "tessera/stream.h"

namespace tessera::app {
namespace {

struct RunOptions {
  CommonOptions common;
  RecordingOptions recording;
  std::string model, output, dtype = "as it is";
  std::vector<std::string> inputs, dims;
};

/// What a tensor with elements comes to.
struct Range {
  double low, high, mean;
  explicit Range(const Tensor& t) {
    const Tensor wide = t.to(cpu()).to(Float64);
    low = amin(wide).item(), high = amax(wide).item(), mean = tessera::mean(wide).item();
  }
};

/// The name as it is, or in quotes where it would disturb a terminal.
std::string plain(const std::string& name) {
  const auto disturbs = [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; };
  return std::any_of(name.begin(), name.end(), disturbs) ? in_quotes(name) : name;
}

/// A line for each value, and an object for each tensor.
void report(const std::string& name, const onnx::Value& value, nlohmann::json& list) {
  if (!value.is_tensor()) {
    fmt::print("{}  {}\n", plain(name), describe(value));
    if (value.is_sequence())
      for (size_t i = 0; i < value.sequence().size(); ++i)
        report(fmt::format("{}[{}]", name, i), value.sequence()[i], list);
    return;
  }
  const Tensor& t = value.tensor();
  fmt::print("{}  {}{}  ", plain(name), tessera::name(t.dtype()), to_string(t.shape()));
  nlohmann::json& one = list.emplace_back();
  one = {{"name", name}, {"dtype", tessera::name(t.dtype())}, {"shape", nlohmann::json::array()}};
  for (const Dim d : t.shape()) one["shape"].push_back(d.value());
  if (t.numel() == 0) return fmt::print("no elements\n");
  const Range range(t);
  fmt::print("{:.6g} to {:.6g}, mean {:.6g}\n", range.low, range.high, range.mean);
  one["min"] = range.low, one["max"] = range.high, one["mean"] = range.mean;
}

/// A file name of an output's name, which may have slashes.
std::string file_name(std::string name) {
  for (char& c : name)
    if (c == '/' || c == '\\' || c == ':' || static_cast<unsigned char>(c) < 32) c = '_';
  return name.empty() || name[0] == '.' ? "_" + name : name;
}
void save(const std::string& folder, const std::string& name, const onnx::Value& value) {
  if (value.is_sequence()) {
    for (size_t i = 0; i < value.sequence().size(); ++i)
      save(folder, fmt::format("{}.{}", name, i), value.sequence()[i]);
    return;
  }
  if (!value.is_tensor()) return;
  const Tensor t = value.tensor().to(cpu());
  save_npy((std::filesystem::path(folder) / (name + ".npy")).string(),
           t.dtype() == BFloat16 ? t.to(Float32) : t);  // NumPy has no bf16
}

void run(const RunOptions& options) {
  options.common.apply();
  const auto files = parse_files(options.inputs);
  const auto dims = parse_dims(options.dims);
  const Device device = options.common.target();
  const DType dtype = options.dtype.ends_with("16") ? options.dtype == "bf16" ? BFloat16 : Float16 : Float32;
  const onnx::Model model(options.model, {.device = device, .dtype = dtype});
  const auto inputs = model_inputs(model, files, dims);
  std::map<std::string, onnx::Value> outputs;
  const auto begin = std::chrono::steady_clock::now();
  with_profile(options.recording, device, false, [&] {
    outputs = model.run_by_name(inputs);
    if (device.is_gpu()) current_stream(device).synchronize();
  });
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  Results results("run", options.common);
  nlohmann::json& list = results.extra()["outputs"] = nlohmann::json::array();
  for (const onnx::Port& port : model.outputs()) report(port.name, outputs[port.name], list);
  if (!options.output.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.output, error);
    if (error) throw Error(fmt::format("cannot make the folder {}: {}", options.output, error.message()));
    std::set<std::string> names;
    for (const auto& [name, value] : outputs) {
      std::string file = file_name(name);
      for (int i = 2; !names.insert(file).second; ++i) file = fmt::format("{}_{}", file_name(name), i);
      save(options.output, file, value);
    }
  }
  results.add("first run", took.count(), "ms", false);
  results.write();
}

}  // namespace

void add_run(Command app) {
  const Command command = app.command("run", "Run a model file (ONNX) once.");
  auto options = std::make_shared<RunOptions>();
  command.option("model", options->model, "an ONNX file").required();
  command.option("--input", options->inputs,
                 "NAME=FILE: .npy, or .pb as in ONNX's tests; inputs without a file are drawn");
  command.option("--dim", options->dims, "NAME=SIZE: of a size that the model leaves open");
  command.option("--output", options->output, "folder for outputs, as NAME.npy; / and the like become _");
  command.option("--dtype", options->dtype, "products in f16, also called fp16, or bf16")
      .one_of({"as it is", "f16", "fp16", "bf16"})
      .with_default();
  options->common.add_to(command, true);
  options->recording.add_to(command, "wait=0,warmup=0,active=1");
  command.run([options] { run(*options); });
}

}  // namespace tessera::app
