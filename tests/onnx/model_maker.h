// Small models for tests, made as files have them.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "onnx/proto.h"
#include "onnx/tensors.h"

namespace tessera::onnx {

/// A model that grows by its functions; texts live as long as it does.
class ModelMaker {
 public:
  explicit ModelMaker(int64_t opset = 20) {
    model_.ir_version = 10;
    model_.opsets.push_back({"", opset});
    (void)model_.graph.make();
  }
  ModelProto& proto() { return model_; }
  GraphProto& graph() { return model_.graph.make(); }
  Bytes keep(std::string text) { return texts_.emplace_back(std::move(text)); }

  /// Sizes below 0 are open.
  ValueInfoProto value(const std::string& name, std::vector<int64_t> dims, int64_t type = kFloat) {
    ValueInfoProto info{.name = keep(name)};
    TensorType& tensor = info.type.make().tensor.make();
    tensor.elem_type = type;
    for (const int64_t d : dims) {
      Dimension& dim = tensor.shape.make().dims.emplace_back();
      if (d >= 0) dim.value.make() = d;
      else dim.param = "n";
    }
    (void)tensor.shape.make();
    return info;
  }
  ModelMaker& input(const std::string& name, std::vector<int64_t> dims, int64_t type = kFloat) {
    graph().inputs.push_back(value(name, std::move(dims), type));
    return *this;
  }
  ModelMaker& output(const std::string& name, std::vector<int64_t> dims, int64_t type = kFloat) {
    graph().outputs.push_back(value(name, std::move(dims), type));
    return *this;
  }
  ModelMaker& weight(const std::string& name, std::vector<int64_t> dims, std::vector<float> values) {
    graph().initializers.push_back(
        {.dims = std::move(dims), .data_type = kFloat, .float_data = std::move(values), .name = keep(name)});
    return *this;
  }
  ModelMaker& integers(const std::string& name, std::vector<int64_t> values) {
    graph().initializers.push_back(
        {.dims = {static_cast<int64_t>(values.size())}, .data_type = kInt64, .int64_data = values, .name = keep(name)});
    return *this;
  }
  NodeProto node(const std::string& op, const std::vector<std::string>& inputs,
                 const std::vector<std::string>& outputs) {
    NodeProto node{.op_type = keep(op)};
    for (const std::string& name : inputs) node.inputs.push_back(keep(name));
    for (const std::string& name : outputs) node.outputs.push_back(keep(name));
    return node;
  }
  NodeProto& add(const std::string& op, const std::vector<std::string>& inputs,
                 const std::vector<std::string>& outputs) {
    return graph().nodes.emplace_back(node(op, inputs, outputs));
  }
  std::string bytes() const { return write_proto(model_); }

 private:
  ModelProto model_;
  std::deque<std::string> texts_;
};

inline AttributeProto attribute(Bytes name, int64_t value) { return {.name = name, .type = kIntAttribute, .i = value}; }

}  // namespace tessera::onnx
