// Writing models: what each operator of a captured graph is in ONNX. A writer of a new operator is a function and a
// line in the table of its family (src/onnx/writers/).
#pragma once
#include <fmt/format.h>

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onnx/proto.h"
#include "ops/capture.h"
#include "tessera/onnx.h"
#include "tessera/state_dict.h"

namespace tessera::onnx {

/// What a value is called in the file; empty: absent.
using Name = std::string;
using Names = std::vector<Name>;
using Attributes = std::vector<AttributeProto>;

// Attributes of nodes; names and texts are literals.
AttributeProto integer(Bytes name, int64_t value);
AttributeProto integers(Bytes name, std::vector<int64_t> values);
AttributeProto real(Bytes name, double value);
AttributeProto text(Bytes name, Bytes value);
AttributeProto texts(Bytes name, std::vector<Bytes> values);

/// The file in which a model's large weights lie, and the place that one takes there.
std::string external_name(const std::string& path);
size_t padded_bytes(size_t bytes);

/// A graph of ONNX that grows node by node. A node that is there already is not made again.
class GraphWriter {
 public:
  /// `weights`: names of what the program closes over.
  GraphWriter(const Program& program, const StateDict& weights, const SaveOptions& options, std::string file);

  /// Writes all nodes. Throws Unsupported.
  void write();
  /// The model, which refers to this object. Large weights are in `external`, and the model says so.
  struct Weight {
    Name name;
    Tensor tensor;  // dense, on the host
  };
  ModelProto model(std::vector<Weight>& external);

  int opset() const { return static_cast<int>(options_.opset); }
  /// The results of a node, as many as `outputs`.
  Names nodes(std::string_view op, const Names& in, size_t outputs, Attributes attributes = {});
  Name constant(const Tensor& value);
  /// The node of the captured graph that makes a value; null where none does, or where it is not the last to write it.
  const GraphNode* maker(int32_t value) const;
  /// Whether something writes to the memory of a value in place. And what the value is called at the time.
  bool is_overwritten(int32_t value) const { return overwritten_[static_cast<size_t>(memory_of(value))]; }
  /// What is known of a value: the elements of a tensor that the program closes over, in another shape perhaps.
  Tensor known(int32_t value) const;
  const Name& name_of(int32_t value) const { return values_[static_cast<size_t>(value)]; }
  /// A size, i64 [1]. Throws Unsupported where no value has it.
  Name dim(Dim d);
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  struct Made {
    std::string op;
    Name name;
    Names in, out;
    Attributes attributes;
  };
  /// What lies in another value's memory: that value, the node that makes the view, and how often that memory had been
  /// written to when the view got its name.
  struct View {
    int32_t of = -1;
    size_t node = 0, writes = 0;
  };
  void find_views();
  int32_t memory_of(int32_t value) const;
  Name quotient(Dim numerator, Dim denominator);
  Names write_node(const GraphNode& node);
  void renew(int32_t value);
  void write_back(int32_t value);
  Name unique(const Name& wanted);
  void bind(int32_t value, const Name& name);
  void name_inputs(const StateDict& weights);
  void name_outputs();
  void rename(const Name& from, const Name& to);
  bool is_made(const Name& name) const;
  void drop_unused();
  ValueInfoProto info(const Name& name, int32_t value);
  TensorProto weight(const Weight& w) const;

  const Program& program_;
  const tessera::Graph& graph_;
  const SaveOptions& options_;
  std::string file_;
  size_t at_ = 0;  // the node of the captured graph that is being written
  std::vector<Made> made_;
  std::vector<Weight> weights_;
  std::vector<Name> values_;  // of the captured graph
  std::vector<View> views_;   // for each of these
  std::vector<size_t> writes_;
  std::vector<bool> overwritten_;
  Names inputs_, outputs_;
  std::set<Name> taken_;
  std::map<std::string, Names> results_;     // of a node, by all that it is
  std::map<std::string, Name> constants_;    // small ones, by all that they are
  std::vector<std::pair<Dim, Name>> sizes_;  // and which value has it, at the dim that follows
  std::vector<int64_t> size_dims_;
  std::deque<std::string> texts_;  // that the model refers to
};

/// A call of an operator, on its way to be nodes.
class OpCall {
 public:
  OpCall(GraphWriter& writer, const tessera::Graph& graph, const GraphNode& node, Names in)
      : writer_(writer), graph_(graph), node_(node), in_(std::move(in)) {}

  int opset() const { return writer_.opset(); }
  std::string_view op() const { return node_.op->name; }
  template <class T>
  const T& attrs() const {
    return node_.attrs.as<T>();
  }

  size_t inputs() const { return in_.size(); }
  bool has(size_t i) const { return i < in_.size() && !in_[i].empty(); }
  /// Empty where it is absent.
  Name in(size_t i) const { return i < in_.size() ? in_[i] : Name(); }
  /// The same as elements of another type.
  Name in_as(size_t i, DType dtype) const { return cast(in(i), type(i).dtype, dtype); }
  const TensorMeta& type(size_t i) const { return graph_.values[static_cast<size_t>(node_.inputs[i])].meta; }
  /// The integers of 8 bits that input i is in floats, as they were before their zero point was taken off.
  struct Bytes8 {
    Name values, zero;  // the latter may be absent
    TensorMeta type, zero_type = {};
    Tensor same_zero = {};                      // where all known zero points are that one
    int64_t low[2] = {0, 0}, high[2] = {0, 0};  // zeros that were put around the last two dims
  };
  std::optional<Bytes8> bytes(size_t i) const;
  const TensorMeta& out(size_t i = 0) const { return graph_.values[static_cast<size_t>(node_.outputs[i])].meta; }
  /// Dim `d` of input 0, counted from the start.
  int64_t axis(int64_t d) const { return d < 0 ? d + type(0).shape.rank() : d; }

  Name node(std::string_view op, const Names& in, Attributes attributes = {}) const {
    return nodes(op, in, 1, std::move(attributes))[0];
  }
  Names nodes(std::string_view op, const Names& in, size_t outputs, Attributes attributes = {}) const {
    return writer_.nodes(op, in, outputs, std::move(attributes));
  }
  Name cast(const Name& x, DType from, DType to) const;
  Name constant(const Tensor& value) const { return writer_.constant(value); }
  /// A number of that type, without dims.
  Name number(double value, DType dtype) const;
  /// i64 [n].
  Name ints(const std::vector<int64_t>& values) const;
  Name dim(Dim d) const { return writer_.dim(d); }
  /// 0, 1, ... below it, i64.
  Name places(Dim size) const;
  /// Sizes, i64 [rank].
  Name sizes(const Shape& shape) const;
  Name reshape(const Name& x, const Shape& from, const Shape& to) const;
  Name transpose(const Name& x, const std::vector<int64_t>& order) const;
  Name activation(const Name& x, Activation activation, DType dtype) const;
  /// Throws Unsupported: the operator, its module, and why it cannot be written.
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> why, Args&&... args) const {
    writer_.refuse(fmt::format(why, std::forward<Args>(args)...));
  }

 private:
  GraphWriter& writer_;
  const tessera::Graph& graph_;
  const GraphNode& node_;
  Names in_;
};

/// Gives the names of the operator's outputs; hidden ones may be missing.
using OpWriter = Names (*)(const OpCall&);
struct WriterEntry {
  std::string_view op;
  OpWriter write;
};

/// Of a view, input 0 of which is `whole`: that with `part` in the place of the view.
Name written_back(const OpCall& view, const Name& part);

// The families: writers/*.cpp.
std::span<const WriterEntry> elementwise_writers();
std::span<const WriterEntry> reduction_writers();
std::span<const WriterEntry> shape_writers();
std::span<const WriterEntry> indexing_writers();
std::span<const WriterEntry> linear_writers();
std::span<const WriterEntry> window_writers();
std::span<const WriterEntry> recurrent_writers();
std::span<const WriterEntry> norm_writers();
std::span<const WriterEntry> attention_writers();
std::span<const WriterEntry> creation_writers();
std::span<const WriterEntry> update_writers();

}  // namespace tessera::onnx
