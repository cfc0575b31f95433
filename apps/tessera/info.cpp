// tessera info MODEL.onnx: what a model file holds, and what it takes to run it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "command.h"
#include "graph_picture.h"
#include "model_inputs.h"
#include "run_cost.h"
#include "tessera/onnx.h"

namespace tessera::app {
namespace {

struct InfoOptions {
  CommonOptions common;
  std::string model, graph;
  std::vector<std::string> dims;
};

void print_ports(const char* what, const std::vector<onnx::Port>& ports) {
  fmt::print("{}\n", what);
  for (const onnx::Port& port : ports) fmt::print("  {}  {}\n", port.name, describe(port));
}

void print_run(const InfoOptions& options, const std::map<std::string, int64_t>& dims, Results& results) {
  const onnx::Model model(options.model, {.device = options.common.target()});
  const auto open = [&](const onnx::Port& port) {
    return !port.has_shape || std::any_of(port.dims.begin(), port.dims.end(), [&](const std::string& d) {
      return onnx::known_size(d) < 0 && !dims.count(d);
    });
  };
  for (const onnx::Port& port : model.inputs())
    if (port.kind != onnx::Port::kTensor || open(port))
      return fmt::print("\nFLOPs and memory are known once sizes are: give --dim NAME=SIZE for each that is open\n");
  const auto inputs = drawn_inputs(model, dims);
  reset_peak_memory(options.common.target());
  const auto operators = cost_of_run([&] { (void)model.run_by_name(inputs); });
  const int64_t peak = memory_stats(options.common.target()).peak_allocated;
  Share all;
  std::vector<std::pair<std::string, Share>> sorted(operators.begin(), operators.end());
  std::sort(sorted.begin(), sorted.end(), [](auto& a, auto& b) { return a.second.flops > b.second.flops; });
  fmt::print("\n{:<32} {:>6} {:>13} {:>13}\n", "operator here", "calls", "FLOPs", "bytes moved");
  for (const auto& [name, share] : sorted) {
    fmt::print("{:<32} {:>6} {:>13} {:>13}\n", name, share.calls, decimal(share.flops, ""), decimal(share.bytes, "B"));
    all.calls += share.calls, all.flops += share.flops, all.bytes += share.bytes;
  }
  fmt::print("{:<32} {:>6} {:>13} {:>13}\n", "all", all.calls, decimal(all.flops, ""), decimal(all.bytes, "B"));
  fmt::print("peak memory of tensors in a run {}\n", decimal(static_cast<double>(peak), "B"));
  results.add("flops", all.flops, "FLOP", false);
  results.add("peak memory", static_cast<double>(peak), "bytes", false);
}

void run(const InfoOptions& options) {
  options.common.apply();
  const auto dims = parse_dims(options.dims);
  if (!options.graph.empty()) require_graph_file(options.graph);
  const onnx::Inspection info = onnx::inspect(options.model);
  require_dims(info.inputs, dims);
  Results results("info", options.common);
  std::vector<std::string> opsets;
  for (const auto& [domain, version] : info.opsets) opsets.push_back(fmt::format("{} {}", domain, version));
  fmt::print("{}: IR {}, {}, by {}\n", options.model, info.ir_version, fmt::join(opsets, ", "),
             info.producer.empty() ? "an unnamed producer" : info.producer);
  print_ports("inputs", info.inputs);
  print_ports("outputs", info.outputs);
  fmt::print("{} numbers in parameters and constants, {}\n", info.parameters,
             decimal(static_cast<double>(info.parameter_bytes), "B"));
  fmt::print("{} nodes\n", info.nodes);
  std::vector<std::pair<std::string, int64_t>> sorted(info.operators.begin(), info.operators.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](auto& a, auto& b) { return a.second > b.second; });
  for (const auto& [op, count] : sorted) fmt::print("  {:<28} {:>6}\n", op, count);
  results.add("parameters", static_cast<double>(info.parameters), "elements", false);
  results.add("nodes", static_cast<double>(info.nodes), "nodes", false);
  if (!options.graph.empty()) {
    write_graph(info, options.graph);
    fmt::print("wrote {}\n", options.graph);
  }
  results.extra()["operators"] = info.operators;
  results.extra()["unsupported"] = info.unsupported;
  if (info.unsupported.empty()) {
    try {
      print_run(options, dims, results);
    } catch (const UsageError&) {
      throw;
    } catch (const Error& e) {
      fmt::print("\na run on drawn inputs fails: {}\n", e.what());
    }
  } else {
    fmt::print("not supported\n");
    for (const std::string& line : info.unsupported) fmt::print("  {}\n", line);
  }
  results.write();
}

}  // namespace

void add_info(Command app) {
  const Command command = app.command("info", "Look into a model file (ONNX).");
  auto options = std::make_shared<InfoOptions>();
  command.option("model", options->model, "an ONNX file").required();
  command.option("--dim", options->dims, "NAME=SIZE: of a size that the model leaves open");
  command.option("--graph", options->graph, "file for a picture of the graph: .svg, .png, .pdf by Graphviz, or .dot");
  options->common.add_to(command, true);
  command.run([options] { run(*options); });
}

}  // namespace tessera::app
