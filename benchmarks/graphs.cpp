// What a node of a model file costs before its kernel has anything to do: runs of graphs of 1,000 nodes on one element.
#include <benchmark/benchmark.h>

#include <deque>

#include "onnx/proto.h"
#include "tessera/onnx.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

constexpr int kNodes = 1000;

/// A chain of nodes; those of two inputs take a constant of their own.
onnx::Model chain_of(const std::vector<std::string>& operators) {
  std::deque<std::string> names;
  const auto keep = [&](std::string name) { return onnx::Bytes(names.emplace_back(std::move(name))); };
  onnx::ModelProto model;
  model.ir_version = 10;
  model.opsets.push_back({"", 20});
  onnx::GraphProto& graph = model.graph.make();
  const auto port = [&](onnx::Bytes name) {
    onnx::ValueInfoProto info{.name = name};
    onnx::TensorType& type = info.type.make().tensor.make();
    type.elem_type = 1;
    type.shape.make().dims.emplace_back().value.make() = 1;
    return info;
  };
  onnx::Bytes value = keep("x");
  graph.inputs.push_back(port(value));
  for (int i = 0; i < kNodes; ++i) {
    onnx::NodeProto& node = graph.nodes.emplace_back();
    node.op_type = operators[static_cast<size_t>(i) % operators.size()];
    node.name = keep("/layer/node_" + std::to_string(i));
    node.inputs = {value};
    if (node.op_type == "Add" || node.op_type == "Mul") {
      graph.initializers.push_back(
          {.dims = {1}, .data_type = 1, .float_data = {0.5f}, .name = keep("c" + std::to_string(i))});
      node.inputs.push_back(graph.initializers.back().name);
    }
    value = keep("v" + std::to_string(i));
    node.outputs = {value};
  }
  graph.outputs.push_back(port(value));
  return onnx::Model::from_bytes(onnx::write_proto(model), "chain");
}

void run_chain(benchmark::State& state, const std::vector<std::string>& operators) {
  const onnx::Model model = chain_of(operators);
  const onnx::Values x = {ones({1})};
  for (auto _ : state) benchmark::DoNotOptimize(model.run(x));
  state.counters["per_node"] =
      benchmark::Counter(kNodes, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK_CAPTURE(run_chain, mixed, std::vector<std::string>{"Add", "Mul", "Relu", "Sigmoid", "Tanh"});
BENCHMARK_CAPTURE(run_chain, add, std::vector<std::string>{"Add"});
BENCHMARK_CAPTURE(run_chain, abs, std::vector<std::string>{"Abs"});

}  // namespace
}  // namespace tessera
