// What ONNX says of the nodes of an operator: a file that breaks it is refused, and what is misspelt is not passed
// over.
#pragma once
#include <span>
#include <string_view>

namespace tessera::onnx {

struct Step;

/// From one opset on, until the next of the same operator.
struct NodeSchema {
  std::string_view domain, op;
  int since;
  int fewest_inputs, most_inputs, most_outputs;  // -1: any number
  /// "axis:i to:i!": names, types by a letter, and whether a node must have them.
  std::string_view attributes;
};
/// In order of domain, operator and opset.
std::span<const NodeSchema> node_schemas();

/// Throws FileError where a node has inputs, outputs or attributes that its operator does not take, or lacks some that
/// it must have.
void check_schema(const Step& step, std::string_view domain);

}  // namespace tessera::onnx
