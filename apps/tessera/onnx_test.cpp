// tessera onnx-test DIR...: folders in the layout of ONNX's backend tests: model.onnx and
// test_data_set_N/{input,output}_N.pb.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "command.h"
#include "tessera/io.h"
#include "tessera/onnx.h"
#include "tessera/ops.h"

namespace tessera::app {
namespace {

namespace fs = std::filesystem;

struct OnnxTestOptions {
  CommonOptions common;
  std::vector<std::string> folders, only;
  double rtol = 1e-3, atol = 1e-7;  // ONNX's own
  bool verbose = false;
};

struct Outcome {
  std::string name, result, why;  // result: passed, failed or refused
};

struct Mismatch : Error {
  using Error::Error;
};

void compare_tensors(const Tensor& got, const Tensor& want, const OnnxTestOptions& options, const std::string& at) {
  if (got.dtype() != want.dtype() || got.shape() != want.shape())
    throw Mismatch(fmt::format("{} is {}, should be {}", at, describe(got), describe(want)));
  const auto a = got.to(cpu()).to_vector<double>(), b = want.to_vector<double>();
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])) ||
                      std::abs(a[i] - b[i]) <= options.atol + options.rtol * std::abs(b[i]);
    if (!same && wrong++ == 0) first = i;
  }
  if (wrong)
    throw Mismatch(fmt::format("{}: {} of {} elements differ, the first is {:.9g} and should be {:.9g}", at, wrong,
                               a.size(), a[first], b[first]));
}

// Draws differ from run to run, but are of one distribution: their means are within six deviations of each other.
void compare_draws(const Tensor& got, const Tensor& want, const std::string& at) {
  if (got.dtype() != want.dtype() || got.shape() != want.shape())
    throw Mismatch(fmt::format("{} is {}, should be {}", at, describe(got), describe(want)));
  const auto moments = [](const Tensor& t) {
    const Tensor wide = t.to(cpu()).to(Float64);
    return std::pair(mean(wide).item(), var(wide, {}, 0).item());
  };
  if (got.numel() == 0) return;
  const auto [a, a_var] = moments(got);
  const auto [b, b_var] = moments(want);
  if (std::abs(a - b) > 6 * std::sqrt((a_var + b_var + 1e-12) / static_cast<double>(got.numel())))
    throw Mismatch(fmt::format("{}: its mean is {:.4g}, should be {:.4g}", at, a, b));
}

void compare(const onnx::Value& got, const onnx::Value& want, const OnnxTestOptions& options, const std::string& at) {
  if (want.is_tensor() && got.is_tensor()) return compare_tensors(got.tensor(), want.tensor(), options, at);
  if (want.is_sequence() && got.is_sequence() && want.sequence().size() == got.sequence().size()) {
    for (size_t i = 0; i < want.sequence().size(); ++i)
      compare(got.sequence()[i], want.sequence()[i], options, fmt::format("{}[{}]", at, i));
    return;
  }
  if (want.is_absent() && got.is_absent()) return;
  throw Mismatch(fmt::format("{} is {}, should be {}", at, describe(got), describe(want)));
}

onnx::Values read_values(const fs::path& folder, const std::string& kind, const std::vector<onnx::Port>& ports) {
  onnx::Values all;
  for (size_t i = 0;; ++i) {
    const fs::path file = folder / fmt::format("{}_{}.pb", kind, i);
    if (!fs::exists(file)) return all;
    if (i >= ports.size())
      throw FileError(fmt::format("{}: the model has {} such values", file.string(), ports.size()));
    all.push_back(onnx::read_value(read_file(file.string()), ports[i].kind, file.string()));
  }
}

void compare_outputs(const onnx::Model& model, const onnx::Values& got, const onnx::Values& want,
                     const OnnxTestOptions& options) {
  if (want.size() != got.size()) throw Mismatch(fmt::format("{} outputs, should be {}", got.size(), want.size()));
  for (size_t i = 0; i < want.size(); ++i) {
    const std::string at = "output " + model.outputs()[i].name;
    if (model.is_random() && got[i].is_tensor()) compare_draws(got[i].tensor(), want[i].tensor(), at);
    else compare(got[i], want[i], options, at);
  }
}

Outcome test(const fs::path& folder, const OnnxTestOptions& options) {
  Outcome out{folder.filename().string(), "passed", ""};
  try {
    const onnx::Model model((folder / "model.onnx").string(), {.device = options.common.target()});
    for (int set = 0;; ++set) {
      const fs::path data = folder / fmt::format("test_data_set_{}", set);
      if (!fs::is_directory(data)) {
        if (set == 0) throw FileError(data.string() + " is missing");
        break;
      }
      const onnx::Values inputs = read_values(data, "input", model.inputs());
      const onnx::Values want = read_values(data, "output", model.outputs());
      for (int run = 0; run < 2; ++run)  // the second knows what follows from sizes
        compare_outputs(model, model.run(inputs), want, options);
    }
  } catch (const onnx::Unsupported& e) {
    out.result = "refused", out.why = e.what();
  } catch (const std::exception& e) {
    out.result = "failed", out.why = e.what();
  }
  const std::string prefix = (folder / "model.onnx").string() + ": ";
  if (out.why.starts_with(prefix)) out.why.erase(0, prefix.size());
  return out;
}

/// The folders below that hold a model, in order.
std::vector<fs::path> tests_in(const std::vector<std::string>& folders) {
  std::vector<fs::path> all;
  for (const std::string& folder : folders) {
    if (!fs::is_directory(folder)) throw UsageError(folder + " is no folder");
    if (fs::exists(fs::path(folder) / "model.onnx")) all.emplace_back(folder);
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.is_directory() && fs::exists(entry.path() / "model.onnx")) all.push_back(entry.path());
  }
  std::sort(all.begin(), all.end());
  return all;
}

/// Also between commas.
std::vector<std::string> parts_of(const std::vector<std::string>& lists) {
  std::vector<std::string> all;
  for (const std::string& list : lists)
    for (size_t begin = 0; begin <= list.size();) {
      const size_t end = std::min(list.find(',', begin), list.size());
      if (end > begin) all.push_back(list.substr(begin, end - begin));
      begin = end + 1;
    }
  return all;
}

void run(const OnnxTestOptions& options) {
  options.common.apply();
  const std::vector<std::string> only = parts_of(options.only);
  Results results("onnx-test", options.common);
  std::map<std::string, int64_t> counts;
  nlohmann::json& list = results.extra()["tests"] = nlohmann::json::array();
  for (const fs::path& folder : tests_in(options.folders)) {
    const std::string name = folder.filename().string();
    const auto names = [&](const std::string& part) { return name.find(part) != name.npos; };
    if (!only.empty() && std::none_of(only.begin(), only.end(), names)) continue;
    const Outcome outcome = test(folder, options);
    ++counts[outcome.result];
    list.push_back({{"name", outcome.name}, {"result", outcome.result}, {"why", outcome.why}});
    if (outcome.result != "passed" || options.verbose)
      fmt::print("{:7}  {}{}{}\n", outcome.result, outcome.name, outcome.why.empty() ? "" : ": ", outcome.why);
  }
  if (list.empty()) throw UsageError("there are no such tests");
  fmt::print("{} passed, {} failed, {} refused\n", counts["passed"], counts["failed"], counts["refused"]);
  for (const char* result : {"passed", "failed", "refused"})
    results.add(result, static_cast<double>(counts[result]), "tests", std::string_view(result) == "passed");
  results.write();
  if (counts["failed"]) throw Error(fmt::format("{} tests failed", counts["failed"]));
}

}  // namespace

void add_onnx_test(Command app) {
  const Command command = app.command("onnx-test", "Run folders of ONNX's backend tests.");
  auto options = std::make_shared<OnnxTestOptions>();
  command.option("folders", options->folders, "folders with model.onnx, or with such folders in them")
      .take_all()
      .required();
  command.option("--only", options->only, "tests whose name contains one of these, as in conv,pool");
  command.option("--rtol", options->rtol, "relative tolerance").range(0.0, 1.0).with_default();
  command.option("--atol", options->atol, "absolute tolerance").range(0.0, 1.0).with_default();
  command.flag("--verbose", options->verbose, "print what passes, too");
  options->common.add_to(command, true);
  command.run([options] { run(*options); });
}

}  // namespace tessera::app
