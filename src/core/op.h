// An operator, defined once; and the ordered list of kernels that can run it on a device.
#pragma once
#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "core/attrs.h"
#include "tessera/tensor.h"

namespace tessera {

using Metas = SmallVector<TensorMeta, 3>;

/// What autocast does with the floating inputs of an op: nothing; casts them to the region's lower dtype, to f32
/// (norms: or only x to the lower dtype, where the region keeps residual streams there), or to the widest among them.
enum class Autocast : uint8_t { None, Lower, Float32, Norm, Promote };

/// Bit masks over inputs and outputs of what backward needs.
struct Saves {
  uint32_t inputs = 0, outputs = 0;
  uint32_t metas = 0;  ///< inputs of which only shape and dtype are needed
};
inline constexpr uint32_t kAll = ~0u;
inline constexpr size_t kAnyInput = ~size_t{0};

struct Node;

/// What a vjp sees of a recorded call.
struct Saved {
  const Attrs& attrs;
  std::span<Tensor> inputs,
      outputs;  ///< undefined where `Saves` does not name them; a vjp may drop what it is done with
  std::span<const TensorType> metas;  ///< of the inputs, where `Saves::metas` names them
  uint32_t needs = 0;                 ///< bit i: the gradient of input i is wanted (inputs past 31 always)
  bool needs_input(int i) const { return i > 31 || (needs >> i & 1); }
  Tensor so_far = {};  ///< with Op::adds_up: to be added to the gradient of that input, where defined
  uint32_t owned = 0;  ///< bit i: nobody else sees the gradient of output i
  bool owns(int i) const { return i < 32 && (owned >> i & 1); }  ///< so that a vjp may overwrite it
  bool last = false;                                             ///< nothing that was saved will be needed again
  const Node* node = nullptr;                                    ///< the call itself, where it was recorded
  mutable bool exposed = false;  ///< set by a vjp: others may hold its results, or the gradients that it was given
};

/// How a view op lays its output over its first input's storage.
struct ViewLayout {
  Shape shape;
  DimStrides strides;
  Dim offset = 0;  // elements, from the start of the storage
};

/// Of more elements no meta carries any.
inline constexpr int64_t kMostElements = 64;

struct RegisteredOp;
struct Kernel;
using KernelList = std::span<const Kernel>;

/// Which outputs of an operator may have rows that start at whole 16 bytes on GPUs, as matrix cores read them best
/// (docs/memory.md says what else lies how).
enum class Pitched : uint8_t {
  Matrices,  ///< of halves or f32, 64 KB and more, up to three dims; and what has the shape of an input that lies so
  All,       ///< of any dtype, size and number of dims
  None,      ///< they are dense by definition, or written in one piece
};

/// Where a function of elements is smooth and of ordinary size.
struct Domain {
  double low = -2, high = 2;
};

/// Attributes of that struct with their defaults: what Op::attrs names.
template <class T>
Attrs attrs_of() {
  return T{};
}

/// One operator. `infer` is the only shape and dtype check; everything else may rely on it.
struct Op {
  std::string_view name;
  std::string_view inputs = {};          ///< "x, weight, bias?": `?` may be absent; "tensors...": any number of them
  std::string_view outputs = {};         ///< likewise; `?`: not in every call, or kept for backward alone
  Attrs (*attrs)() = attrs_of<NoAttrs>;  ///< names, kinds and defaults of the attributes
  /// Output metas, hidden outputs last. Inputs may have symbolic dims; an absent optional input, and a hidden output
  /// that this call does not have, is absent_meta(). Throws Error naming the op, the shapes and the rule.
  Metas (*infer)(std::span<const TensorMeta> in, const Attrs& attrs) = nullptr;
  /// Input gradients (one per input) from output gradients (undefined means zero), written in ops: it is captured and
  /// can itself be differentiated. Null for ops without gradient.
  Tensors (*vjp)(const Saved& saved, const Tensors& grads) = nullptr;
  /// The same through a fused kernel, used unless the backward itself is differentiated; `vjp` is its oracle.
  Tensors (*fused_vjp)(const Saved& saved, const Tensors& grads) = nullptr;
  /// A plain implementation on float64 (and integer) CPU tensors, the oracle of the tests. Visible outputs only.
  Tensors (*reference)(std::span<const Tensor> in, const Attrs& attrs) = nullptr;
  Saves saves = {};
  Autocast autocast = Autocast::None;
  Domain domain = {};      ///< of an elementwise operator: its cases draw inputs from there
  int hidden_outputs = 0;  ///< trailing outputs kept for backward and not returned to callers
  bool in_place = false;   ///< output i is input i, overwritten
  Pitched pitched = Pitched::Matrices;
  bool keeps_layout = false;     ///< images lie channels last where those of an input do:
  size_t layout_of = 0;          ///< of this one, or kAnyInput
  bool transfers = false;        ///< the outputs lie where `infer` says, not where the inputs do
  bool takes_any_dtype = false;  ///< vjp takes a gradient of another dtype than its output has
  int adds_up = -1;  ///< the input to whose gradient fused_vjp adds what its other uses have given; negative: none
  /// The output aliases input 0 and no kernel runs, unless there is no layout (a reshape that strides do not allow).
  std::optional<ViewLayout> (*view)(const TensorImpl& in, const Attrs& attrs) = nullptr;
  /// A size of the outputs depends on values: `infer` says count_symbol(), in the place of which calls in memory put
  /// what this gives, an i64[] made of operators before the outputs are; without memory it is a new symbol.
  Tensor (*count)(std::span<const Tensor> in, const Attrs& attrs) = nullptr;
  /// The elements of its output, a small integer tensor `out`, from what the inputs' metas carry: sizes are computed so
  /// before there is memory. Null where they are not known; what it throws means the same.
  Elements (*elements)(const Op& op, std::span<const TensorMeta> in, const Attrs& attrs,
                       const TensorMeta& out) = nullptr;
  /// Made by the host or of other operators, and so without kernels; not called for tensors without memory.
  Tensors (*compute)(std::span<const Tensor> in, const Attrs& attrs) = nullptr;
  const Op* made_of = nullptr;  ///< what its kernels plan with plan_call()
  /// Floating-point operations of a call whose shapes have no symbols; see cost_of(). Null: one for each element of the
  /// outputs.
  double (*flops)(std::span<const TensorMeta> in, std::span<const TensorMeta> out, const Attrs& attrs) = nullptr;
  const RegisteredOp* registered = nullptr;  ///< of one that a program defined at run time (ops/registry.cpp)
  mutable std::array<KernelList, kDeviceTypeCount> kernels = {};  ///< filled from the backends' tables at first use
};

/// What `infer` of an op with `count` puts where the count belongs: a number up to `most`.
inline Dim count_symbol(std::string_view op, Dim most) { return Dim::count({}, std::max<int64_t>(most.high(), 0), op); }

/// Stands for an absent optional input, and for a hidden output that a call does not have.
inline TensorMeta absent_meta(Device device = {}) { return {{Dim(-1)}, Float32, device}; }
/// True for such a meta.
inline bool is_absent(const TensorMeta& meta) { return meta.shape.size() == 1 && meta.shape[0] == Dim(-1); }
/// For ops without optional inputs. Throws Error `<op>: input 1 is undefined`.
inline void require_inputs(std::string_view op, std::span<const TensorMeta> in) {
  for (size_t i = 0; i < in.size(); ++i)
    if (is_absent(in[i])) throw Error(std::string(op) + ": input " + std::to_string(i) + " is undefined");
}

}  // namespace tessera
