// Walks the recorded graph backwards: always the latest recorded node next, since all its consumers are later still.
#include <algorithm>
#include <optional>
#include <unordered_map>

#include <fmt/format.h>

#include "core/capture_state.h"
#include "core/util/observers.h"
#include "core/util/waiting.h"
#include "ops/gradient.h"
#include "tessera/autocast.h"
#include "tessera/autograd.h"
#include "tessera/interrupt.h"
#include "tessera/observer.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

// A copy of its own.
Tensor copied(const Tensor& t) {
  return t.is_contiguous(ChannelsLast) ? t.permute({0, 2, 3, 1}).clone().permute({0, 3, 1, 2}) : t.clone();
}

/// Values by pointer, in the order in which they came: a few are looked for one by one, more of them by hash.
template <class Key, class Value>
class PointerMap {
 public:
  Value* find(const Key* key) {
    if (entries_.size() <= kFew) {
      for (auto& [known, value] : entries_)
        if (known == key) return &value;
      return nullptr;
    }
    auto it = places_.find(key);
    return it == places_.end() ? nullptr : &entries_[it->second].second;
  }
  /// And whether it is new. Moves other values.
  std::pair<Value*, bool> insert(const Key* key) {
    if (Value* known = find(key)) return {known, false};
    entries_.emplace_back(key, Value());
    if (entries_.size() == kFew + 1)
      for (size_t i = 0; i < kFew; ++i) places_.emplace(entries_[i].first, i);
    if (entries_.size() > kFew) places_.emplace(key, entries_.size() - 1);
    return {&entries_.back().second, true};
  }

 private:
  static constexpr size_t kFew = 8;
  SmallVector<std::pair<const Key*, Value>, 4> entries_;
  std::unordered_map<const Key*, size_t> places_;
};

/// The blocks of memory that gradients on their way lie in: how many of them do in each, and which of them others may
/// see. The walk counts these itself, so that what it overwrites follows from the graph, whoever else holds a tensor.
class Blocks {
 public:
  static constexpr int32_t kOthers = -1;
  /// Of one gradient, which nobody else sees.
  int32_t make() {
    gradients_.push_back(1);
    return static_cast<int32_t>(gradients_.size() - 1);
  }
  int32_t join(int32_t block) {
    if (block != kOthers) ++gradients_[static_cast<size_t>(block)];
    return block;
  }
  void leave(int32_t block) {
    if (block != kOthers) --gradients_[static_cast<size_t>(block)];
  }
  /// Whoever has seen a gradient of it may keep that.
  void expose(int32_t block) { join(block); }
  bool is_of_one(int32_t block) const { return block != kOthers && gradients_[static_cast<size_t>(block)] == 1; }

 private:
  std::vector<int32_t> gradients_;
};

/// A gradient on its way.
struct Gradient {
  Tensor value;
  int32_t block = Blocks::kOthers;
};

/// Where a gradient flows, of a graph that somebody else holds.
struct Place {
  Node* node = nullptr;
  TensorImpl* leaf = nullptr;
  int32_t index = 0;

  Place(const Edge& e) : node(e.node.get()), leaf(e.leaf.get()), index(e.index) {}
  explicit Place(const Tensor& t) {
    const AutogradMeta* meta = t.impl().autograd.get();
    if (!meta || !meta->requires_grad) return;
    node = meta->node.get();
    index = meta->index;
    if (!node) leaf = &t.impl();
  }
  explicit operator bool() const { return node || leaf; }
};

class Backward {
 public:
  /// With `targets`, only their gradients are computed and no leaf is touched.
  Backward(const Tensors& outputs, const Tensors* targets, bool retain_graph)
      : targets_(targets), retain_(retain_graph) {
    settle();
    if (targets) {
      captured_.resize(targets->size());
      for (size_t i = 0; i < targets->size(); ++i) {
        const Place at((*targets)[i]);
        if (!at) throw Error("grad: input " + std::to_string(i) + " does not require a gradient");
        if (at.leaf) leaves_.insert(at.leaf).first->targets.push_back(i);
        else nodes_.insert(at.node).first->targets.push_back({at.index, i});
      }
    }
    for (const Tensor& t : outputs)
      if (const Place at(t); at.node) discover(*at.node);
      else if (at.leaf) leaves_.insert(at.leaf);
  }

  /// `made`: for this walk alone.
  void seed(const Tensor& output, Tensor gradient, bool made) {
    const Place at(output);
    if (!at) return;
    if (at.leaf) ++leaves_.find(at.leaf)->pending;
    send(at, {std::move(gradient), made ? blocks_.make() : Blocks::kOthers});
  }

  void run() {
    const NamedScope scope("backward");
    struct Current {  // backward may be called within backward
      Backward* outer;
      explicit Current(Backward* walk) : outer(std::exchange(current, walk)) {}
      ~Current() { current = outer; }
    } here(this);
    while (!queue_.empty()) {
      check_interrupt();
      std::pop_heap(queue_.begin(), queue_.end(), earlier);
      const Ref<Node> node = std::move(queue_.back());
      queue_.pop_back();
      step(*node, *nodes_.find(node.get()));
    }
    for (size_t i = 0; i < at_end_.size(); ++i) std::exchange(at_end_[i], {})();
  }

  void at_end(std::function<void()> callback) { at_end_.push_back(std::move(callback)); }
  static thread_local Backward* current;  // the innermost one of this thread

  Tensors& captured() { return captured_; }

 private:
  struct AtLeaf {
    int64_t pending = 0;             // gradients that will arrive
    Gradient sum;                    // of those that have
    SmallVector<size_t, 1> targets;  // places among the results
  };
  struct AtNode {
    bool seen = false, queued = false;
    bool leads = false;                                  // to a target
    SmallVector<Gradient, 1> grads;                      // of its outputs, once it is queued
    SmallVector<std::pair<int32_t, size_t>, 1> targets;  // outputs, and their places among the results
  };

  static bool earlier(const Ref<Node>& a, const Ref<Node>& b) { return a->sequence < b->sequence; }

  // Counts what will arrive at each leaf and finds the nodes that lead to a target; iterative, graphs can be deep.
  void discover(const Node& root) {
    SmallVector<const Node*, 16> order, stack;
    const auto see = [&](const Node& node) {
      if (!std::exchange(nodes_.insert(&node).first->seen, true)) stack.push_back(&node);
    };
    see(root);
    while (!stack.empty()) {
      const Node& node = *stack.back();
      stack.pop_back();
      order.push_back(&node);
      for (const Edge& e : node.next) {
        if (e.leaf) ++leaves_.insert(e.leaf.get()).first->pending;
        else if (e.node) see(*e.node);
      }
    }
    if (!targets_) return;
    std::sort(order.begin(), order.end(), [](const Node* a, const Node* b) { return a->sequence < b->sequence; });
    for (const Node* node : order) {
      AtNode& at = *nodes_.find(node);
      at.leads = !at.targets.empty() ||
                 std::any_of(node->next.begin(), node->next.end(), [&](const Edge& e) { return wanted(e); });
    }
  }

  bool wanted(const Place& p) {
    if (!targets_ || !p) return static_cast<bool>(p);
    return p.leaf ? !leaves_.find(p.leaf)->targets.empty() : nodes_.find(p.node)->leads;
  }

  // Nobody else sees it, and a map or a sum can write over it.
  bool owns(const Gradient& g) const {
    return !grad_enabled() && g.value.defined() && blocks_.is_of_one(g.block) && lies_apart(g.value);
  }

  // sum += term, in place where the sum is this walk's own.
  void accumulate(Gradient& sum, Gradient term) {
    if (!sum.value.defined()) {
      sum = std::move(term);
    } else if (owns(sum) && sum.value.dtype() == term.value.dtype()) {
      sum.value.add_(term.value);
      blocks_.leave(term.block);
    } else {
      sum.value = add(sum.value, term.value);
      blocks_.leave(sum.block);
      blocks_.leave(term.block);
      sum.block = blocks_.make();
    }
  }

  // What hooks make of a gradient, which they may keep.
  void run_hook(const GradHook& hook, Gradient& g) {
    Tensor changed = hook(g.value);
    blocks_.expose(g.block);
    if (changed.defined()) g = {std::move(changed), Blocks::kOthers};
  }

  void step(Node& node, AtNode& at) {
    at.queued = false;
    SmallVector<Gradient, 1> grads = std::move(at.grads);
    for (auto& [index, hook] : node.hooks)
      if (grads[index].value.defined()) run_hook(hook, grads[index]);
    for (auto [index, slot] : at.targets) {
      captured_[slot] = grads[index].value;
      blocks_.expose(grads[index].block);
    }
    if (std::any_of(node.next.begin(), node.next.end(), [&](const Edge& e) { return wanted(e); }))
      pass_on(node, std::move(grads));
    if (!retain_) node.release();
  }

  static Tensors backward_of(Node& node, const Tensors& grads, BackwardStep& step) {
    struct Known {
      int64_t before;
      ~Known() { observers::backward_of = before; }
    } known{std::exchange(observers::backward_of, static_cast<int64_t>(node.sequence))};
    return node.backward(grads, step);
  }

  // From the gradients of a node's outputs to those of its inputs.
  void pass_on(Node& node, SmallVector<Gradient, 1> grads) {
    BackwardStep step{.last = !retain_};
    Tensors values;
    SmallVector<int32_t, 2> came;
    for (size_t i = 0; i < grads.size(); ++i) {
      if (i < 32 && owns(grads[i])) step.owned |= 1u << i;
      values.push_back(std::move(grads[i].value));
      came.push_back(grads[i].block);
    }
    const int input = grad_enabled() ? -1 : node.adds_up();
    Gradient sum = input < 0 ? Gradient() : take_sum(node.next[input]);
    step.so_far = sum.value;
    sum.value = {};
    Tensors in = backward_of(node, values, step);
    if (in.size() != node.next.size())
      throw Error(
          fmt::format("{}: backward gave {} gradients for {} inputs", node.name(), in.size(), node.next.size()));
    if (step.so_far.defined()) *sum_of(node.next[input]) = {std::move(step.so_far), sum.block};
    const SmallVector<int32_t, 4> blocks = blocks_of(node, in, values, came, step);
    step.kept.clear();
    values.clear();
    if (!step.exposed)
      for (const int32_t block : came) blocks_.leave(block);
    for (size_t i = 0; i < in.size(); ++i) send(node.next[i], {std::move(in[i]), blocks[i]});
  }

  // Where a node's results lie: in memory of gradients that came, of others, or in some that is new.
  SmallVector<int32_t, 4> blocks_of(const Node& node, const Tensors& results, const Tensors& grads,
                                    const SmallVector<int32_t, 2>& came, const BackwardStep& step) {
    SmallVector<int32_t, 4> blocks(results.size(), Blocks::kOthers);
    if (step.exposed || grad_enabled()) return blocks;
    const auto lies_in = [](const Storage* memory, const Tensor& t) {
      return t.defined() && t.storage().get() == memory;
    };
    std::optional<PointerMap<Storage, int32_t>> many;  // blocks of results, where there are many
    if (results.size() > 16) many.emplace();
    const auto block_of = [&](size_t result) {
      const Storage* memory = results[result].storage().get();
      for (const Tensor& t : step.kept)
        if (lies_in(memory, t)) return Blocks::kOthers;
      for (size_t i = 0; i < grads.size(); ++i)
        if (lies_in(memory, grads[i])) return blocks_.join(came[i]);
      if (many) {
        auto [block, is_new] = many->insert(memory);
        return is_new ? *block = blocks_.make() : blocks_.join(*block);
      }
      for (size_t i = 0; i < result; ++i)
        if (lies_in(memory, results[i]) && wanted(node.next[i])) return blocks_.join(blocks[i]);
      return blocks_.make();
    };
    for (size_t i = 0; i < results.size(); ++i)
      if (results[i].defined() && wanted(node.next[i])) blocks[i] = block_of(i);
    return blocks;
  }

  // Where what arrives is added up; null: nothing has arrived.
  Gradient* sum_of(const Place& p) {
    if (p.leaf) return &leaves_.find(p.leaf)->sum;
    AtNode* at = p.node ? nodes_.find(p.node) : nullptr;
    return at && at->queued ? &at->grads[p.index] : nullptr;
  }

  // What has arrived, for a node that adds to it itself.
  Gradient take_sum(const Place& p) {
    Gradient* sum = sum_of(p);
    if (!sum || !owns(*sum)) return {};
    if (sum->value.dtype() != (p.leaf ? p.leaf->dtype : p.node->outputs[p.index].dtype)) return {};
    return std::exchange(*sum, {});
  }

  void send(const Place& p, Gradient gradient) {
    if (!wanted(p)) return;
    if (p.leaf) return arrive(*p.leaf, std::move(gradient));
    AtNode& at = *nodes_.find(p.node);
    if (!std::exchange(at.queued, true)) {
      at.grads.resize(p.node->outputs.size());
      queue_.emplace_back(p.node);
      std::push_heap(queue_.begin(), queue_.end(), earlier);
    }
    if (!gradient.value.defined()) return;
    const TensorType& expected = p.node->outputs[p.index];
    if (!(gradient.value.shape() == expected.shape))
      throw Error(fmt::format("backward: gradient {} arrives at {}, whose output is {}", describe(gradient.value),
                              p.node->name(), describe(expected)));
    accumulate(at.grads[p.index], std::move(gradient));
  }

  void arrive(TensorImpl& leaf, Gradient gradient) {
    if (gradient.value.defined() && !(gradient.value.shape() == leaf.shape))
      throw Error(fmt::format("backward: gradient {} arrives at a leaf of shape {}", describe(gradient.value),
                              to_string(leaf.shape)));
    AtLeaf& at = *leaves_.find(&leaf);
    if (gradient.value.defined()) accumulate(at.sum, std::move(gradient));
    if (--at.pending > 0) return;
    Gradient total = std::exchange(at.sum, {});
    if (!total.value.defined()) return;
    AutogradMeta& meta = *leaf.autograd;
    for (auto& hook : meta.hooks) run_hook(hook, total);
    if (targets_) {
      for (size_t slot : at.targets) captured_[slot] = total.value;
      blocks_.expose(total.block);
      return;
    }
    if (current_capture) note_change(leaf, meta);
    keep(meta, std::move(total));
    for (auto& [number, callback] : meta.ready) callback(Tensor(Ref<TensorImpl>(&leaf)));
  }

  static void note_change(const TensorImpl& leaf, const AutogradMeta& meta) {
    current_capture->gradient_changes(leaf);
    if (meta.grad.defined() && !meta.grad.device().meta && !leaf.storage->device.meta)
      throw Error("capture: a leaf has a gradient already, to which each run would add; call zero_grad() first");
  }

  // The gradient becomes the leaf's own: a view or a tensor others may hold is copied first.
  void keep(AutogradMeta& meta, Gradient total) {
    const bool own = !grad_enabled();
    if (!meta.grad.defined()) {
      meta.grad = !own || owns(total) ? std::move(total.value) : copied(total.value);
    } else if (own && meta.owns_grad && lies_apart(meta.grad) && meta.grad.dtype() == total.value.dtype()) {
      meta.grad.add_(total.value);
    } else {
      meta.grad = add(meta.grad, total.value);
    }
    meta.owns_grad = own;
    blocks_.leave(total.block);
  }

  const Tensors* targets_;
  bool retain_;
  // All that the walk will meet; what is in them moves no more once it has begun.
  PointerMap<TensorImpl, AtLeaf> leaves_;
  PointerMap<Node, AtNode> nodes_;
  SmallVector<Ref<Node>, 8> queue_;  // a heap, the latest first
  Tensors captured_;
  Blocks blocks_;
  std::vector<std::function<void()>> at_end_;
};

thread_local Backward* Backward::current = nullptr;

// `given`: the caller gives its memory away, too.
void seed(Backward& walk, const char* op, const Tensor& output, Tensor gradient, bool given = false) {
  if (gradient.defined()) {
    if (!(gradient.shape() == output.shape()))
      throw Error(fmt::format("{}: gradient {} for output {}", op, describe(gradient), describe(output)));
    return walk.seed(output, std::move(gradient), given);
  }
  if (output.numel() != 1)
    throw Error(fmt::format("{}: {} has more than one element, so its gradient must be given", op, describe(output)));
  walk.seed(output, ones(output.shape(), output.dtype(), output.device()), true);
}

}  // namespace

void at_end_of_backward(std::function<void()> callback) {
  if (!Backward::current) throw Error("at_end_of_backward: this thread is not in backward");
  Backward::current->at_end(std::move(callback));
}

void Tensor::backward(Tensor gradient, bool retain_graph, bool create_graph) const {
  if (!requires_grad()) throw Error("backward: " + describe(*this) + " does not require a gradient");
  GradMode mode(create_graph);
  amp::NoAutocast plain;
  Backward walk({*this}, nullptr, retain_graph || create_graph);
  seed(walk, "backward", *this, std::move(gradient));
  walk.run();
}

Tensors grad(const Tensors& outputs, const Tensors& inputs, const Tensors& grad_outputs, bool retain_graph,
             bool create_graph, bool allow_unused) {
  if (!grad_outputs.empty() && grad_outputs.size() != outputs.size())
    throw Error(fmt::format("grad: {} gradients for {} outputs", grad_outputs.size(), outputs.size()));
  GradMode mode(create_graph);
  amp::NoAutocast plain;
  Backward walk(outputs, &inputs, retain_graph || create_graph);
  for (size_t i = 0; i < outputs.size(); ++i)
    seed(walk, "grad", outputs[i], grad_outputs.empty() ? Tensor() : grad_outputs[i]);
  walk.run();
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!walk.captured()[i].defined() && !allow_unused)
      throw Error(fmt::format("grad: input {} was not used by the outputs", i));
  return std::move(walk.captured());
}

void backward(const Tensors& outputs, Tensors&& gradients, bool retain_graph) {
  if (gradients.size() != outputs.size())
    throw Error(fmt::format("backward: {} gradients for {} outputs", gradients.size(), outputs.size()));
  for (const Tensor& t : outputs)
    if (!t.requires_grad()) throw Error("backward: " + describe(t) + " does not require a gradient");
  GradMode mode(false);
  amp::NoAutocast plain;
  Backward walk(outputs, nullptr, retain_graph);
  for (size_t i = 0; i < outputs.size(); ++i) seed(walk, "backward", outputs[i], std::move(gradients[i]), true);
  walk.run();
}

}  // namespace tessera
