// Graphs made ready to run: names became slots, nodes know their handlers, and values die behind their last use.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "onnx/proto.h"
#include "onnx/tensors.h"
#include "tessera/onnx.h"

namespace tessera::onnx {

struct Entry;
struct Graph;

/// A graph in an attribute.
struct Body {
  std::string name;  // of the attribute
  std::unique_ptr<Graph> graph;
};

struct Step {
  const Entry* entry = nullptr;  // null: a call of `function`
  std::unique_ptr<Graph> function;
  std::string op, name, file;
  int opset = 0;
  std::vector<int> in, out;  // slots; -1: absent
  std::vector<AttributeProto> attributes;
  std::vector<Body> bodies;
  std::vector<int> frees;  // slots that nothing uses any more
};
/// "model.onnx: node conv1 (Conv): "
std::string where(const Step& step);

struct Graph {
  std::vector<Port> inputs, outputs;
  std::vector<int> input_slots, output_slots;
  std::vector<int64_t> input_types;  // of elements; 0: not said
  size_t required_inputs = 0;        // those behind it have a value in the file
  /// Values of the graph around this one that it uses: the slot there, and here.
  std::vector<std::pair<int, int>> captures;
  std::vector<std::pair<int, Value>> constants;
  std::vector<Step> steps;
  int slots = 0;
};

/// What runs of graphs share.
struct Frame {
  const LoadOptions& options;
  int64_t& turns;  // of all loops so far
  const Graph& graph;
  std::vector<Value>& values;  // by slot
};

/// Makes the graph of a model ready. Throws FileError, or Unsupported; where `problems` is given, nodes that cannot run
/// go there instead, and the graph is only good to be looked at.
Graph prepare(const ModelProto& model, Source& source, const LoadOptions& options,
              std::vector<std::string>* problems = nullptr);
/// Replaces steps whose inputs are known by what they give.
void fold_constants(Graph& graph, const LoadOptions& options);

/// What is left of a graph for inputs of given sizes.
struct Specialization {
  std::vector<std::pair<int, Value>> known;  // values of slots
  std::vector<const Step*> steps;
  std::vector<std::vector<int>> frees;  // slots that nothing uses behind each step
};

/// The slots that a step, or a graph in it, reads.
template <typename F>
void for_each_read(const Step& step, F&& fn) {
  for (const int slot : step.in)
    if (slot >= 0) fn(slot);
  for (const Body& body : step.bodies)
    for (const auto& [there, here] : body.graph->captures) fn(there);
}
int64_t bytes_of(const Value& value);
/// By slot: the constants.
std::vector<Value> values_of(const Graph& graph);

/// Which values nothing uses behind each of some steps; constants and outputs stay.
std::vector<std::vector<int>> last_uses(const Graph& graph, const std::vector<const Step*>& steps);
/// Says so of each step of the graph.
void find_last_uses(Graph& graph);
/// Drops steps whose results nothing uses, and constants.
void drop_unused(Graph& graph);

/// `outer`: of the graph around this one, if there is one.
Values run(const Graph& graph, const Values& inputs, const LoadOptions& options, const Frame* outer = nullptr);
Values run(const Graph& graph, const Specialization& special, const Values& inputs, const LoadOptions& options);
/// Runs one step on the values of a frame, and leaves what it gives there.
void run_step(const Step& step, const Frame& frame);

}  // namespace tessera::onnx
