// Reverse-mode differentiation: what is recorded, and how it is walked back.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/tensor.h"

namespace tessera {

/// Whether operations are recorded on this thread.
bool grad_enabled();
/// Sets recording for a scope: `NoGrad guard;`
class GradMode {
 public:
  explicit GradMode(bool enabled);
  ~GradMode();
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  bool previous_;
};
class NoGrad : public GradMode {
 public:
  NoGrad() : GradMode(false) {}
};

struct Node;
/// Where a gradient flows: output `index` of `node`, or a leaf that accumulates it.
struct Edge {
  Ref<Node> node;
  Ref<TensorImpl> leaf;
  int32_t index = 0;
  explicit operator bool() const { return node || leaf; }
};

/// What one step of backward tells a node, and what it hears.
struct BackwardStep {
  bool last = false;   ///< the node will not run again, so what it saved may be freed along the way
  uint32_t owned = 0;  ///< bit i: nobody else sees the gradient of output i, which may be overwritten
  Tensor so_far = {};  ///< see adds_up()
  /// Filled in: tensors whose memory the results may share although the node does not give it away. What shares none
  /// of it, nor that of the gradients that came, is new, and nobody else's.
  Tensors kept = {};
  bool exposed = false;  ///< filled in: others may hold the results, and the gradients that came
};

/// One recorded operation. Its gradients flow along `next`, one edge per input.
struct Node : RefCounted {
  uint64_t sequence = 0;  ///< order of recording: a node's consumers have higher numbers
  SmallVector<Edge, 4> next;
  SmallVector<TensorType, 1> outputs;               ///< of what was produced, to make zeros for unused outputs
  std::vector<std::pair<int32_t, GradHook>> hooks;  ///< (output, hook)
  Node();
  /// That of the next one.
  static uint64_t next_sequence();
  virtual ~Node();
  virtual std::string_view name() const = 0;
  /// Gradients of the inputs from those of the outputs (undefined means zero).
  virtual Tensors backward(const Tensors& grads, BackwardStep& step) = 0;
  /// The input whose gradient backward may add to BackwardStep::so_far, which it then takes; negative: none.
  virtual int adds_up() const { return -1; }
  /// Whether the gradient of its output may have another dtype than that: a cast's.
  virtual bool takes_any_dtype() const { return false; }
  /// Frees what was saved; a second backward then throws.
  virtual void release() = 0;
};

struct AutogradMeta : Recycled {
  bool requires_grad = false;
  Tensor grad;
  bool owns_grad = false;  ///< backward made `grad` for this leaf alone, and adds to it in place
  Ref<Node> node;          ///< the operation that made the tensor; null for leaves
  int32_t index = 0;
  bool is_view = false;
  std::vector<GradHook> hooks;  ///< of a leaf, before accumulation
  /// Of a leaf, after its gradient is complete, by their numbers.
  std::vector<std::pair<uint64_t, std::function<void(const Tensor&)>>> ready;
  std::weak_ptr<void> derived;  ///< of a leaf: what its owner, such as an optimizer, makes of it and keeps
  ~AutogradMeta();
};

/// The edge along which the gradient of `tensor` flows; empty if it needs none.
Edge gradient_edge(const Tensor& tensor);

/// Called with a leaf once its gradient of this backward is complete (for overlapped reduction). Returns a number by
/// which to remove it.
uint64_t on_gradient_ready(const Tensor& leaf, std::function<void(const Tensor&)> callback);
void remove_gradient_callback(const Tensor& leaf, uint64_t number);
/// Calls `callback` once when the backward that this thread is in has ended, in the order of these calls. To be called
/// by hooks and callbacks; throws Error outside of backward.
void at_end_of_backward(std::function<void()> callback);

/// Gradients of `outputs` with respect to `inputs`, without touching any .grad().
/// `grad_outputs` may be empty where every output has one element. With `create_graph` the result can be differentiated
/// again. Throws Error if an input is not reached, unless `allow_unused` (its gradient is then undefined).
Tensors grad(const Tensors& outputs, const Tensors& inputs, const Tensors& grad_outputs = {}, bool retain_graph = false,
             bool create_graph = false, bool allow_unused = false);

/// Tensor::backward from several tensors at once. The gradients are given away, each in memory of its own: they are
/// overwritten where that saves another tensor. An undefined one is one, for a single element.
void backward(const Tensors& outputs, Tensors&& gradients, bool retain_graph = false);

/// An operation with its own backward: `forward` runs unrecorded, `backward` maps output gradients to input gradients.
/// To everything else it is one operator: a captured function calls `forward` and `backward` again in each run, which
/// therefore use no other tensor of that function than their inputs. An output that is an input is copied.
/// `gives_gradients`: nobody holds what `backward` returns or was given, so that both may be overwritten.
using CustomForward = std::function<Tensors(const Tensors&)>;
using CustomBackward = std::function<Tensors(const Tensors& inputs, const Tensors& outputs, const Tensors& grads)>;
Tensors custom_function(std::string name, const Tensors& inputs, CustomForward forward, CustomBackward backward,
                        bool gives_gradients = false);

/// function(inputs), of which nothing is kept but inputs and outputs: backward runs it again, with the same random
/// numbers of the default generator and under the same autocast. Parameters that it uses get their gradients then, also
/// where grad() is asked for others. Its gradients are not differentiated again. While a function is captured, it is
/// function(inputs) alone. Chen et al. 2016.
Tensors checkpoint(const CustomForward& function, const Tensors& inputs);

}  // namespace tessera
