// The graph that is recorded: construction and destruction. Walking it is autograd's business.
#include <atomic>
#include <vector>

#include "core/capture_state.h"
#include "core/util/waiting.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

thread_local bool recording = true;

// Destroys nodes one after another: a chain of a million operations must not recurse through destructors.
void release_later(Ref<Node> node) {
  if (!node.unique()) return;
  thread_local std::vector<Ref<Node>> pending;
  thread_local bool draining = false;
  pending.push_back(std::move(node));
  if (draining) return;
  draining = true;
  while (!pending.empty()) {
    Ref<Node> last = std::move(pending.back());
    pending.pop_back();
    last = nullptr;
  }
  draining = false;
}

}  // namespace

bool grad_enabled() { return recording; }
GradMode::GradMode(bool enabled) : previous_(recording) { recording = enabled; }
GradMode::~GradMode() { recording = previous_; }

static constinit std::atomic<uint64_t> sequences{0};
Node::Node() : sequence(sequences.fetch_add(1, std::memory_order_relaxed)) {}
uint64_t Node::next_sequence() { return sequences.load(std::memory_order_relaxed); }
Node::~Node() {
  for (Edge& e : next)
    if (e.node) release_later(std::move(e.node));
}

AutogradMeta::~AutogradMeta() {
  if (node) release_later(std::move(node));
}

Edge gradient_edge(const Tensor& tensor) {
  settle();
  const auto& meta = tensor.impl().autograd;
  if (!meta || !meta->requires_grad) return {};
  if (meta->node) return {meta->node, {}, meta->index};
  return {{}, tensor.ref(), 0};
}

namespace {
AutogradMeta& ensure_meta(const Tensor& t) {
  settle();
  auto& meta = t.impl().autograd;
  if (!meta) meta = std::make_unique<AutogradMeta>();
  return *meta;
}
}  // namespace

bool Tensor::requires_grad() const { return impl().autograd && impl().autograd->requires_grad; }
bool Tensor::is_leaf() const {
  settle();
  return !impl().autograd || !impl().autograd->node;
}
Tensor Tensor::grad() const { return impl().autograd ? impl().autograd->grad : Tensor(); }

Tensor& Tensor::set_requires_grad(bool on) {
  if (on && !is_floating(dtype())) throw Error("requires_grad: " + describe(*this) + " is not floating");
  if (!is_leaf()) throw Error("requires_grad: only leaves can change it; use detach()");
  ensure_meta(*this).requires_grad = on;
  return *this;
}

void Tensor::set_grad(Tensor grad) const {
  if (grad.defined() && !(grad.shape() == shape()))
    throw Error("set_grad: gradient " + describe(grad) + " for tensor " + describe(*this));
  if (current_capture) current_capture->gradient_changes(impl());
  AutogradMeta& meta = ensure_meta(*this);
  meta.grad = std::move(grad);
  meta.owns_grad = false;
}

void Tensor::register_hook(GradHook hook) const {
  settle();
  if (!requires_grad()) throw Error("register_hook: " + describe(*this) + " does not require a gradient");
  AutogradMeta& meta = *impl().autograd;
  if (meta.node) meta.node->hooks.emplace_back(meta.index, std::move(hook));
  else meta.hooks.push_back(std::move(hook));
}

uint64_t on_gradient_ready(const Tensor& leaf, std::function<void(const Tensor&)> callback) {
  static std::atomic<uint64_t> numbers{0};
  if (!leaf.requires_grad() || !leaf.is_leaf())
    throw Error("on_gradient_ready: " + describe(leaf) + " is not a leaf that requires a gradient");
  const uint64_t number = ++numbers;
  ensure_meta(leaf).ready.emplace_back(number, std::move(callback));
  return number;
}

void remove_gradient_callback(const Tensor& leaf, uint64_t number) {
  if (AutogradMeta* meta = leaf.impl().autograd.get())
    std::erase_if(meta->ready, [&](const auto& callback) { return callback.first == number; });
}

}  // namespace tessera
