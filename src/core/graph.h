// A program as data: operators, attributes and values. ops/capture.h makes and runs them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/op.h"
#include "core/symbols.h"

namespace tessera {

/// A tensor of a graph, known by its place in Graph::values.
struct GraphValue {
  TensorMeta meta;
  DimStrides strides;  ///< how it lies; empty: dense
  friend bool operator==(const GraphValue& a, const GraphValue& b) {
    return a.meta.shape == b.meta.shape && a.meta.dtype == b.meta.dtype && a.meta.device == b.meta.device &&
           a.meta.packing == b.meta.packing && a.strides == b.strides;
  }
};

/// A call of an operator. What is written in place keeps its number: the output is the input.
struct GraphNode {
  const Op* op = nullptr;
  Attrs attrs;
  SmallVector<int32_t, 4> inputs;   ///< values; -1: absent
  SmallVector<int32_t, 3> outputs;  ///< values, hidden outputs last; -1: not made
  friend bool operator==(const GraphNode& a, const GraphNode& b) {
    return a.op == b.op && a.attrs == b.attrs && a.inputs == b.inputs && a.outputs == b.outputs;
  }
};

/// Nodes in the order in which they run. Sub-graphs are attributes.
struct Graph final : AttrObject {
  std::vector<GraphValue> values;
  std::vector<int32_t> inputs, outputs;  ///< -1: an undefined output
  std::vector<GraphNode> nodes;

  /// One line a node, `%5: f32[4, 3] = softmax(%4) dim=1`; parse_graph() reads it back equal. Bounds of symbols stand
  /// once, in the first line: `graph(%0: f32[n, 3] on cpu) where n in [0, 12] {`.
  std::string text() const override;
  bool equals(const AttrObject& other) const override;
  /// Every symbol, in values and attributes. Throws Error where two have one name.
  Symbols symbols() const;
};

}  // namespace tessera
