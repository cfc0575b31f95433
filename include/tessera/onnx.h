// ONNX: model files are read, run, looked into and written. A file is mapped and its weights are views of it; nothing
// that it says is trusted. Errors are one line with the file, the node and the rule broken: FileError for what is no
// valid model, Unsupported for what is not there yet, Error for inputs that do not fit. https://onnx.ai
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/tensor.h"

namespace tessera::nn {
class Module;
}

namespace tessera::onnx {

/// What a valid model asks for and Tessera lacks.
struct Unsupported : Error {
  using Error::Error;
};

/// What flows between nodes: a tensor, a sequence of values, or nothing, which is also an optional without a value.
class Value {
 public:
  Value() = default;
  Value(Tensor tensor) : tensor_(std::move(tensor)) {}  // NOLINT: a tensor is a value
  explicit Value(std::vector<Value> sequence)
      : sequence_(std::make_shared<const std::vector<Value>>(std::move(sequence))) {}

  bool is_tensor() const { return tensor_.defined(); }
  bool is_sequence() const { return sequence_ != nullptr; }
  bool is_absent() const { return !is_tensor() && !is_sequence(); }
  /// Throws Error where it is none.
  const Tensor& tensor() const;
  const std::vector<Value>& sequence() const;

 private:
  Tensor tensor_;
  std::shared_ptr<const std::vector<Value>> sequence_;
};
using Values = std::vector<Value>;
std::string describe(const Value& value);

/// What a model says of an input or an output.
struct Port {
  enum Kind { kTensor, kSequence, kOptional };
  std::string name;
  Kind kind = kTensor;
  std::string type;        ///< of its elements, as ONNX calls it: "float"
  bool has_shape = false;  ///< otherwise even the rank is open
  /// Sizes: a number, a name, or "?".
  std::vector<std::string> dims = {};
};
std::string describe(const Port& port);
/// The number that a size of a Port is; -1 where it is open. Exporters also name sizes by terms, such as "32*height".
int64_t known_size(const std::string& dim);

struct LoadOptions {
  Device device = cpu();  ///< where weights go and nodes run
  DType dtype = Float32;  ///< f16 or bf16: products of f32 run in it, as under amp::Autocast; outputs stay as declared
  bool optimize = true;   ///< several nodes may become one call, on packed weights
  int64_t loop_limit = 1'000'000;  ///< turns of all loops in a run, beyond which it counts as endless
};

namespace detail {
struct LoadedModel;
}

class Model {
 public:
  /// Reads a file. Throws FileError, and Unsupported with the first node that cannot run.
  explicit Model(const std::string& path, const LoadOptions& options = {});
  /// The same for bytes in memory; `name` stands for the file in errors.
  static Model from_bytes(std::string bytes, const std::string& name = "model", const LoadOptions& options = {});

  /// Those that have a value in the file come last, and may be left out.
  const std::vector<Port>& inputs() const;
  const std::vector<Port>& outputs() const;
  /// Inputs in the order of inputs(); the last ones may be missing where the model gives them a value. Throws Error.
  Values run(const Values& inputs) const;
  /// The same by name.
  std::map<std::string, Value> run_by_name(const std::map<std::string, Value>& inputs) const;
  /// How often a run calls each operator outside of inner graphs: after nodes were folded, and put together.
  std::map<std::string, int64_t> calls() const;
  /// Whether some node draws random numbers, so that runs differ.
  bool is_random() const;

 private:
  Model() = default;
  std::shared_ptr<const detail::LoadedModel> loaded_;
};

/// A node of a file's outermost graph as the file has it.
struct NodeText {
  std::string op, name;
  std::vector<std::string> inputs, outputs;  ///< names of values; empty: absent
};
/// What a file holds, whether it can run here or not.
struct Inspection {
  std::string producer;  ///< with its version
  int64_t ir_version = 0;
  std::map<std::string, int64_t> opsets;  ///< by domain; that of ONNX itself is "ai.onnx"
  std::vector<Port> inputs, outputs;
  std::map<std::string, int64_t> operators;  ///< how many nodes of each, in functions and inner graphs, too
  int64_t nodes = 0, parameters = 0, parameter_bytes = 0;
  std::vector<std::string> unsupported;  ///< a line for each node that cannot run
  std::vector<NodeText> graph;
  std::map<std::string, std::vector<int64_t>> weights;  ///< sizes of the outermost graph's, by name
};
/// Throws FileError where the file is no valid model.
Inspection inspect(const std::string& path);

struct SaveOptions {
  int64_t opset = 20;  ///< 18 to 28
  /// What the first size of the first input is called, which stays open, here and where other inputs begin with the
  /// same size; empty: it is fixed, as all other sizes are.
  std::string batch = "batch";
  /// Those without are "input" and "output", and "input_2", ... behind the first.
  std::vector<std::string> inputs = {}, outputs = {};
  int64_t most_bytes = 2'000'000'000;  ///< of weights in the model file, at most so many; more go to PATH.data
};

/// Writes what the module computes in evaluation of such inputs. Each file is replaced at once, that of the data first.
/// Inputs without memory are taken as they are, with symbols as open sizes. Parameters keep their names in the state
/// dict. Throws Unsupported, which names the operator that has no counterpart in ONNX and the module that calls it, and
/// Error; then nothing has been written.
void save(const nn::Module& module, const Tensors& inputs, const std::string& path, const SaveOptions& options = {});

/// Reads a TensorProto, SequenceProto or OptionalProto from bytes, as tests of ONNX keep values. Throws FileError.
Value read_value(std::string bytes, Port::Kind kind, const std::string& name = "value");

}  // namespace tessera::onnx
