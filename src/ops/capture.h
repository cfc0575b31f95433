// Functions as graphs: what they dispatch on tensors without memory is recorded, printed, read back and run.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"

namespace tessera {

/// A captured function: its graph, and what it needs besides its inputs.
struct Program {
  Ref<Graph> graph;
  size_t inputs = 0;    ///< of the function; those of the graph that follow are `closed_over`
  Tensors closed_over;  ///< by reference: parameters, states, constants
  size_t outputs = 0;   ///< of the function; those of the graph that follow are gradients
  Tensors leaves;       ///< whose .grad() the function leaves behind, in the order of the graph's further outputs
  std::vector<std::string> paths;  ///< of each node: scope_path() at its call, such as "h.3.attention"
  std::vector<bool> views;         ///< of each node: whether its output lies in the memory of its first input

  /// Runs the graph on such inputs, and sets the leaves' gradients. Throws Error where inputs are not as captured.
  Tensors operator()(const Tensors& given) const;
};

/// Records fn, which is called once with tensors like `inputs` but without memory. Tensors with memory that it uses
/// become inputs of the graph, by reference. Nothing is computed, written or drawn. Throws Error where fn reads a
/// value.
Program capture(const std::function<Tensors(const Tensors&)>& fn, const Tensors& inputs);

/// Interprets a graph, operator by operator; nothing is recorded for backward. Symbols are what the inputs' sizes, and
/// counts as they are computed, make them. Throws Error where inputs differ from the graph's in number, shape, dtype or
/// device, and where a size leaves its bounds or is not what others make it.
Tensors run(const Graph& graph, const Tensors& inputs);

/// What Graph::text() gave. Every line is checked by its operator's `infer`. Throws Error `graph, line 3: ...`.
Ref<Graph> parse_graph(std::string_view text);

// ---- for dispatch.cpp

/// Runs or records an op, without autograd: all outputs, hidden ones undefined unless `keep_hidden`.
Tensors execute(const Op& op, const Tensors& in, const Attrs& attrs, bool keep_hidden);
/// The same on stand-ins of what has memory, into the current capture.
Tensors record_execution(const Op& op, const Tensors& in, const Attrs& attrs, bool keep_hidden);
/// What the count of an op is called where there is no memory: a symbol that the current capture, or else the process,
/// does not have yet. `count` is what `infer` said.
Dim new_count(const Op& op, Dim count);

}  // namespace tessera
