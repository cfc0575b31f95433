// Handlers: what each operator of ONNX is here, written as calls of public operators. A handler of a new operator is a
// function and a line in the table of its family (src/onnx/handlers/).
#pragma once
#include <fmt/format.h>

#include <span>

#include "onnx/graph.h"
#include "tessera/onnx.h"

namespace tessera::onnx {

/// A node at work: its inputs, and its attributes by name. What a node does wrong throws Error that names it.
class Call {
 public:
  Call(const Step& step, const Frame& frame, Values in);

  /// The version of the operator's domain that the model imports.
  int opset() const { return step_.opset; }
  std::string_view op() const { return step_.op; }

  // Inputs.
  size_t inputs() const { return in_.size(); }
  bool has(size_t i) const { return i < in_.size() && !in_[i].is_absent(); }
  /// Absent where the node does not name it.
  const Value& value(size_t i) const;
  /// Throws where it is absent or no tensor. On the device where one of the inputs is.
  const Tensor& in(size_t i) const;
  /// Undefined where it is absent.
  Tensor optional(size_t i) const { return has(i) ? in(i) : Tensor(); }
  /// All of them, for operators that take any number.
  Tensors tensors() const;
  /// The elements of a small integer input.
  std::vector<int64_t> ints(size_t i) const;
  std::vector<int64_t> ints(size_t i, std::vector<int64_t> otherwise) const { return has(i) ? ints(i) : otherwise; }
  /// The elements of a small floating input.
  std::vector<double> numbers(size_t i) const;
  /// The one element of an input.
  double number(size_t i) const { return in(i).item(); }
  /// The same, which must be an integer: exporters say INT64_MAX for "all", which no double is. Throws outside of
  /// `least` to `most`.
  int64_t whole(size_t i, int64_t least, int64_t most) const;

  /// Throws where inputs 0 and 1 are of different types, unless products run in a lower one, so that these meet.
  void check_types() const;

  // Outputs.
  size_t outputs() const { return step_.out.size(); }
  /// Whether something uses output i.
  bool wants(size_t i) const { return i < step_.out.size() && step_.out[i] >= 0; }

  // Attributes: the value, or what holds without it.
  bool has_attribute(std::string_view name) const { return find(name) != nullptr; }
  int64_t integer(std::string_view name, int64_t otherwise) const;
  bool flag(std::string_view name, bool otherwise) const { return integer(name, otherwise) != 0; }
  double real(std::string_view name, double otherwise) const;
  std::string text(std::string_view name, std::string_view otherwise) const;
  std::vector<int64_t> integers(std::string_view name, std::vector<int64_t> otherwise = {}) const;
  std::vector<double> reals(std::string_view name, std::vector<double> otherwise = {}) const;
  std::vector<std::string> texts(std::string_view name) const;
  /// The attribute `axis`, counted from the start. Throws outside of `rank` dims, as axis_in() does for any number.
  int64_t axis(int64_t otherwise, int64_t rank) const { return axis_in(integer("axis", otherwise), rank); }
  int64_t axis_in(int64_t axis, int64_t rank) const;
  Tensor tensor(std::string_view name) const;
  /// An attribute that names a type; `otherwise` where there is none.
  DType dtype(std::string_view name, DType otherwise) const;

  /// Runs a graph that is an attribute. Throws where there is none of that name.
  Values run(std::string_view graph, const Values& inputs) const;
  bool has_graph(std::string_view name) const;
  size_t inputs_of(std::string_view graph) const;
  /// Counts a turn of a loop. Throws where those of this run are more than allowed.
  void count_turn() const;
  Device device() const { return frame_.options.device; }
  /// Whether images had better lie channels last.
  bool channels_last() const { return frame_.options.optimize; }

  /// Throws Error: the node, and what is wrong with it.
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) const {
    throw Error(where(step_) + fmt::format(text, std::forward<Args>(args)...));
  }
  /// Throws Unsupported.
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    throw Unsupported(where(step_) + fmt::format(text, std::forward<Args>(args)...));
  }

 private:
  const AttributeProto* find(std::string_view name) const;
  const AttributeProto* find(std::string_view name, AttributeType type) const;

  const Step& step_;
  const Frame& frame_;
  mutable Values in_;
  bool on_device_ = false;  // a GPU, where an input is
};

using Handler = Values (*)(const Call&);

/// One operator from one opset on; a later line of the same operator takes over from its own.
struct Entry {
  std::string_view op;
  int since;
  Handler run;
  std::string_view domain = "";
  bool random = false;  // differs from run to run
};

// The families: handlers/*.cpp.
std::span<const Entry> math_handlers();
std::span<const Entry> shape_handlers();
std::span<const Entry> reduction_handlers();
std::span<const Entry> linear_handlers();
std::span<const Entry> norm_handlers();
std::span<const Entry> index_handlers();
std::span<const Entry> control_handlers();
std::span<const Entry> creation_handlers();
std::span<const Entry> loss_handlers();
std::span<const Entry> quantize_handlers();
std::span<const Entry> attention_handlers();
std::span<const Entry> function_handlers();
std::span<const Entry> order_handlers();
std::span<const Entry> window_handlers();
std::span<const Entry> image_handlers();
std::span<const Entry> recurrent_handlers();
std::span<const Entry> signal_handlers();
std::span<const Entry> feature_handlers();
std::span<const Entry> microsoft_handlers();
std::span<const Entry> microsoft_attention_handlers();
std::span<const Entry> microsoft_quantize_handlers();

/// The one that serves an operator at an opset; null where there is none.
const Entry* find_handler(std::string_view domain, std::string_view op, int opset);
/// The names of all operators that are served, each once, in order.
const std::vector<std::string_view>& all_operators();

}  // namespace tessera::onnx
