// Operators that a program defines at run time. Like the library's own they are found by name, differentiated,
// captured, printed and read back.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/attributes.h"
#include "tessera/error.h"
#include "tessera/tensor.h"

namespace tessera {

struct Op;
class Attrs;

/// The attributes of one call.
class Attributes {
 public:
  explicit Attributes(const Attrs& attrs) : attrs_(&attrs) {}
  /// T is one of AttrValue's types. Throws Error where there is no such attribute, or it is of another kind.
  template <class T>
  T get(std::string_view name) const {
    const AttrValue found = value(name);
    if (const T* same = std::get_if<T>(&found)) return *same;
    throw Error("attribute '" + std::string(name) + "' is of another kind: " + to_text(found));
  }
  AttrValue value(std::string_view name) const;

 private:
  const Attrs* attrs_;
};

/// An attribute's name with a value. In a definition that is the value of calls that do not name it, and says of what
/// kind it is.
struct NamedValue {
  std::string name;
  AttrValue value;
};

/// What a gradient function sees of a call.
struct RecordedCall {
  std::span<const Tensor> inputs, outputs;  ///< undefined where not given, or not kept
  Attributes attributes;
  uint32_t needs = 0;
  bool needs_input(size_t i) const { return i > 31 || (needs >> i & 1); }  ///< whether its gradient is wanted
};

/// What a kernel gets. Outputs are dense; it honours the strides of the inputs and allocates nothing. Tensors have
/// memory for `run` alone: the other functions see how they lie, once for all calls whose tensors lie alike.
struct KernelCall {
  std::span<const Tensor> in, out;
  Attributes attributes;
  void* workspace = nullptr;
};

struct OpKernel {
  std::string name;
  std::function<void(const KernelCall&)> run;
  DeviceType device = DeviceType::CPU;
  std::function<bool(const KernelCall&)> supports = {};           ///< none: it takes every call
  std::function<size_t(const KernelCall&)> workspace_bytes = {};  ///< none: 0
};

/// An operator, defined once. Its functions may be called from several threads at a time, for as long as the program
/// runs.
///
///   register_op({.name = "scaled_sine",
///                .inputs = "x",
///                .outputs = "y",
///                .attributes = {{"factor", 1.0}},
///                .infer = [](auto in, const Attributes&) { return std::vector{in[0]}; },
///                .vjp = [](const RecordedCall& call, const Tensors& grads) {
///                  return Tensors{grads[0] * cos(call.inputs[0]) * call.attributes.get<double>("factor")};
///                },
///                .compute = [](auto in, const Attributes& a) {
///                  return Tensors{sin(in[0]) * a.get<double>("factor")};
///                }});
///   Tensor y = call_op("scaled_sine", {x}, {{"factor", 2.0}})[0];
struct OpDefinition {
  std::string name;     ///< letters, digits, '_' and '.', such as "my_library.scale"; the last is no '_'
  std::string inputs;   ///< "x, weight, bias?": `?` may be undefined; "tensors...", alone: any number of them
  std::string outputs;  ///< "y, mean"
  std::vector<NamedValue> attributes = {};
  /// Shapes and dtypes of the outputs. Throws Error where inputs do not fit: it is the only check.
  std::function<std::vector<TensorMeta>(std::span<const TensorMeta> in, const Attributes&)> infer;
  /// Gradients of the inputs, undefined where there is none, from those of the outputs, written in operators. Without
  /// it a call with floating outputs is an Error where an input requires a gradient.
  std::function<Tensors(const RecordedCall&, const Tensors& grads)> vjp = {};
  /// Made of other operators; nothing of it is recorded. Either this, or kernels.
  std::function<Tensors(std::span<const Tensor> in, const Attributes&)> compute = {};
  /// In their order: a call gets the first that supports it.
  std::vector<OpKernel> kernels = {};
  /// On float64 tensors of the CPU, for tests.
  std::function<Tensors(std::span<const Tensor> in, const Attributes&)> reference = {};
  uint32_t keeps_inputs = ~0u, keeps_outputs = ~0u;  ///< bit i: vjp needs that tensor
  bool gives_gradients = false;  ///< nobody holds what vjp returns or was given: backward may overwrite it
};

/// Throws Error `op 'scale' is registered already`, where a name is the library's, and where a definition is not
/// complete or its names are no names.
const Op& register_op(OpDefinition definition);

/// Calls an operator, the library's or a registered one, by its name. Throws Error where there is none, where the
/// number of inputs is not its own, and as it does itself.
Tensors call_op(std::string_view name, const Tensors& inputs, const std::vector<NamedValue>& attributes = {});

}  // namespace tessera
