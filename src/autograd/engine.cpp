// Walks the recorded graph backwards: always the latest recorded node next, since all its consumers are later still.
#include <algorithm>
#include <memory_resource>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "ops/gradient.h"
#include "tessera/autocast.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

// sum += term, in place where nobody else sees the sum.
void accumulate(Tensor& sum, Tensor term) {
  if (!sum.defined()) sum = std::move(term);
  else if (!grad_enabled() && is_sole_owner(sum) && sum.dtype() == term.dtype()) sum.add_(term);
  else sum = add(sum, term);
}

class Backward {
 public:
  /// With `targets`, only their gradients are computed and no leaf is touched.
  Backward(const Tensors& outputs, const Tensors* targets, bool retain_graph)
      : targets_(targets), retain_(retain_graph) {
    if (targets) {
      captured_.resize(targets->size());
      for (size_t i = 0; i < targets->size(); ++i) {
        Edge e = gradient_edge((*targets)[i]);
        if (!e) throw Error("grad: input " + std::to_string(i) + " does not require a gradient");
        if (e.leaf) target_leaves_[e.leaf.get()].push_back(i);
        else target_nodes_[e.node.get()].push_back({e.index, i});
      }
    }
    for (const Tensor& t : outputs)
      if (Edge e = gradient_edge(t)) discover(e);
  }

  void seed(const Tensor& output, Tensor gradient) {
    Edge e = gradient_edge(output);
    if (!e) return;
    if (e.leaf) ++leaf_pending_[e.leaf.get()];
    send(e, std::move(gradient));
  }

  void run() {
    while (!queue_.empty()) {
      Ref<Node> node = queue_.top().node;
      queue_.pop();
      auto it = buffers_.find(node.get());
      Tensors grads = std::move(it->second);
      buffers_.erase(it);
      step(*node, grads);
    }
  }

  Tensors& captured() { return captured_; }

 private:
  struct Later {
    Ref<Node> node;
    bool operator<(const Later& o) const { return node->sequence < o.node->sequence; }
  };

  // Counts what will arrive at each leaf and finds the nodes that lead to a target; iterative, graphs can be deep.
  void discover(const Edge& root) {
    if (!root.node) return;
    std::pmr::vector<Node*> order(&memory_), stack(&memory_);
    if (seen_.insert(root.node.get()).second) stack.push_back(root.node.get());
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      order.push_back(node);
      for (const Edge& e : node->next) {
        if (e.leaf) ++leaf_pending_[e.leaf.get()];
        else if (e.node && seen_.insert(e.node.get()).second) stack.push_back(e.node.get());
      }
    }
    if (!targets_) return;
    std::sort(order.begin(), order.end(), [](Node* a, Node* b) { return a->sequence < b->sequence; });
    for (Node* node : order) {
      bool leads = target_nodes_.count(node) > 0;
      for (const Edge& e : node->next)
        leads |= e.leaf ? target_leaves_.count(e.leaf.get()) > 0 : e.node && needed_.count(e.node.get()) > 0;
      if (leads) needed_.insert(node);
    }
  }

  bool wanted(const Edge& e) const {
    if (!targets_) return static_cast<bool>(e);
    return e.leaf ? target_leaves_.count(e.leaf.get()) > 0 : e.node && needed_.count(e.node.get()) > 0;
  }

  void step(Node& node, Tensors& grads) {
    for (auto& [index, hook] : node.hooks)
      if (grads[index].defined())
        if (Tensor changed = hook(grads[index]); changed.defined()) grads[index] = changed;
    if (auto it = target_nodes_.find(&node); it != target_nodes_.end())
      for (auto [index, slot] : it->second) accumulate(captured_[slot], grads[index]);
    bool any = false;
    for (const Edge& e : node.next) any |= wanted(e);
    if (any) {
      const int input = grad_enabled() ? -1 : node.adds_up();
      if (input >= 0) node.so_far = take_sum(node.next[input]);
      Tensors in = node.backward(grads, !retain_);
      if (node.so_far.defined()) *sum_of(node.next[input]) = std::exchange(node.so_far, {});
      if (in.size() != node.next.size())
        throw Error(
            fmt::format("{}: backward gave {} gradients for {} inputs", node.name(), in.size(), node.next.size()));
      grads.clear();
      for (size_t i = 0; i < in.size(); ++i) send(node.next[i], std::move(in[i]));
    }
    if (!retain_) node.release();
  }

  // Where what arrives at the end of an edge is added up; null: nothing has arrived.
  Tensor* sum_of(const Edge& e) {
    if (e.leaf) {
      auto it = leaf_sums_.find(e.leaf.get());
      return it == leaf_sums_.end() ? nullptr : &it->second;
    }
    auto it = e.node ? buffers_.find(e.node.get()) : buffers_.end();
    return it == buffers_.end() ? nullptr : &it->second[e.index];
  }

  // What has arrived at the end of an edge, for a node that adds to it itself.
  Tensor take_sum(const Edge& e) {
    Tensor* sum = sum_of(e);
    if (!sum || !sum->defined() || !is_sole_owner(*sum)) return {};
    if (sum->dtype() != (e.leaf ? e.leaf->dtype : e.node->outputs[e.index].dtype)) return {};
    return std::exchange(*sum, {});
  }

  void send(const Edge& e, Tensor gradient) {
    if (!wanted(e)) return;
    if (e.leaf) return arrive(*e.leaf, std::move(gradient));
    auto [it, fresh] = buffers_.try_emplace(e.node.get());
    if (fresh) {
      it->second.resize(e.node->outputs.size());
      queue_.push({e.node});
    }
    if (!gradient.defined()) return;
    const TensorMeta& expected = e.node->outputs[e.index];
    if (!(gradient.shape() == expected.shape))
      throw Error(fmt::format("backward: gradient {} arrives at {}, whose output is {}", describe(gradient),
                              e.node->name(), describe(expected)));
    accumulate(it->second[e.index], std::move(gradient));
  }

  void arrive(TensorImpl& leaf, Tensor gradient) {
    if (gradient.defined() && !(gradient.shape() == leaf.shape))
      throw Error(fmt::format("backward: gradient {} arrives at a leaf of shape {}", describe(gradient),
                              to_string(leaf.shape)));
    if (gradient.defined()) accumulate(leaf_sums_[&leaf], std::move(gradient));
    if (--leaf_pending_[&leaf] > 0) return;
    Tensor total = std::move(leaf_sums_[&leaf]);
    leaf_sums_.erase(&leaf);
    if (!total.defined()) return;
    AutogradMeta& meta = *leaf.autograd;
    for (auto& hook : meta.hooks)
      if (Tensor changed = hook(total); changed.defined()) total = changed;
    if (targets_) {
      for (size_t slot : target_leaves_[&leaf]) captured_[slot] = total;
      return;
    }
    keep(meta, std::move(total));
    for (auto& callback : meta.ready) callback(Tensor(Ref<TensorImpl>(&leaf)));
  }

  // The gradient becomes the leaf's own: a view or a tensor others hold is copied first.
  static void keep(AutogradMeta& meta, Tensor total) {
    if (meta.grad.defined()) accumulate(meta.grad, std::move(total));
    else meta.grad = grad_enabled() || is_sole_owner(total) ? std::move(total) : total.clone();
  }

  template <class Key, class Value>
  using Map = std::pmr::unordered_map<Key*, Value>;

  // Of what grows with the graph and is kept to the end: a small one takes nothing from the heap.
  std::byte room_[2048];
  std::pmr::monotonic_buffer_resource memory_{room_, sizeof room_};
  const Tensors* targets_;
  bool retain_;
  std::priority_queue<Later, std::pmr::vector<Later>> queue_{std::less<Later>(), std::pmr::vector<Later>(&memory_)};
  std::unordered_map<Node*, Tensors> buffers_;
  Map<TensorImpl, int64_t> leaf_pending_{&memory_};
  Map<TensorImpl, Tensor> leaf_sums_{&memory_};
  std::pmr::unordered_set<Node*> seen_{&memory_}, needed_{&memory_};
  Map<TensorImpl, std::pmr::vector<size_t>> target_leaves_{&memory_};
  Map<Node, std::pmr::vector<std::pair<int32_t, size_t>>> target_nodes_{&memory_};
  Tensors captured_;
};

Tensor seed_gradient(const char* op, const Tensor& output, const Tensor& gradient) {
  if (gradient.defined()) {
    if (!(gradient.shape() == output.shape()))
      throw Error(fmt::format("{}: gradient {} for output {}", op, describe(gradient), describe(output)));
    return gradient;
  }
  if (output.numel() != 1)
    throw Error(fmt::format("{}: {} has more than one element, so its gradient must be given", op, describe(output)));
  return ones(output.shape(), output.dtype(), output.device());
}

}  // namespace

void Tensor::backward(Tensor gradient, bool retain_graph, bool create_graph) const {
  if (!requires_grad()) throw Error("backward: " + describe(*this) + " does not require a gradient");
  gradient = seed_gradient("backward", *this, gradient);
  GradMode mode(create_graph);
  amp::NoAutocast plain;
  Backward walk({*this}, nullptr, retain_graph || create_graph);
  walk.seed(*this, std::move(gradient));
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
    walk.seed(outputs[i], seed_gradient("grad", outputs[i], grad_outputs.empty() ? Tensor() : grad_outputs[i]));
  walk.run();
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!walk.captured()[i].defined() && !allow_unused)
      throw Error(fmt::format("grad: input {} was not used by the outputs", i));
  return std::move(walk.captured());
}

namespace {

struct CustomNode final : Node {
  std::string label;
  CustomBackward function;
  Tensors inputs, results;
  std::string_view name() const override { return label; }
  Tensors backward(const Tensors& grads, bool) override {
    if (!function) throw Error(label + ": backward runs a second time over a graph that was freed; use retain_graph");
    return function(inputs, results, grads);
  }
  void release() override {
    function = nullptr;
    inputs.clear();
    results.clear();
  }
};

}  // namespace

Tensors custom_function(const char* name, const Tensors& inputs, CustomForward forward, CustomBackward backward) {
  Tensors outputs;
  {
    NoGrad guard;
    outputs = forward(inputs);
  }
  bool recorded = grad_enabled() && std::any_of(inputs.begin(), inputs.end(),
                                                [](const Tensor& t) { return t.defined() && t.requires_grad(); });
  if (!recorded) return outputs;
  auto node = make_ref<CustomNode>();
  node->label = name;
  node->function = std::move(backward);
  node->inputs = inputs;
  for (const Tensor& t : inputs) node->next.push_back(t.defined() ? gradient_edge(t) : Edge{});
  for (size_t i = 0; i < outputs.size(); ++i) {
    node->results.push_back(outputs[i].detach());
    node->outputs.push_back(outputs[i].meta());
    outputs[i] = outputs[i].detach();  // an output may be an input that was passed through
    auto meta = std::make_unique<AutogradMeta>();
    meta->requires_grad = is_floating(outputs[i].dtype());
    meta->node = Ref<Node>(node.get());
    meta->index = static_cast<int32_t>(i);
    outputs[i].impl().autograd = std::move(meta);
  }
  return outputs;
}

}  // namespace tessera
