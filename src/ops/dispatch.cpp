// The one way down: infer, allocate or alias, pick, run, record.
#include "tessera/autograd.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/capture_state.h"
#include "core/gpu/backend.h"
#include "core/util/waiting.h"
#include "ops/autocast.h"
#include "ops/call_plan.h"
#include "ops/capture.h"
#include "ops/cost.h"
#include "ops/elements.h"
#include "ops/observe.h"
#include "ops/op_table.h"
#include "ops/output_layout.h"
#include "ops/record.h"

namespace tessera {
namespace {

// A recorded call of an op.
struct OpNode final : Node, Recycled {
  // An output is saved without its node, which would own itself otherwise.
  struct SavedTensor {
    Tensor tensor;
    uint32_t version = 0;
  };

  const Op* op;
  Attrs attrs;
  std::string scope;  // that called, while somebody observes: backward's calls are within it, too
  uint32_t needs = 0;
  bool released = false;
  SmallVector<SavedTensor, 4> inputs;
  SmallVector<SavedTensor, 3> outputs_saved;
  SmallVector<TensorType, 2> input_metas;

  OpNode(const Op& op, const Attrs& attrs) : op(&op), attrs(attrs) {
    if (observers::exist()) scope = scope_path();
  }
  std::string_view name() const override { return op->name; }
  int adds_up() const override { return op->adds_up; }
  bool takes_any_dtype() const override { return op->takes_any_dtype; }

  Tensors backward(const Tensors& grads, BackwardStep& step) override {
    if (std::none_of(grads.begin(), grads.end(), [](const Tensor& g) { return g.defined(); }))
      return Tensors(next.size());
    const NamedScope named(scope);
    if (released)
      throw Error(
          fmt::format("{}: backward runs a second time over a graph that was freed; use retain_graph", op->name));
    Tensors in(inputs.size()), out(outputs_saved.size());
    for (size_t i = 0; i < in.size(); ++i) in[i] = restore(inputs[i]);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = restore(outputs_saved[i]);
      if (out[i].defined() && grad_enabled()) out[i] = attach(out[i], static_cast<int32_t>(i));
    }
    if (step.last) release();
    const bool fused = op->fused_vjp && !grad_enabled();
    const Saved saved{.attrs = attrs,
                      .inputs = in,
                      .outputs = out,
                      .metas = input_metas,
                      .needs = needs,
                      .so_far = fused ? std::move(step.so_far) : Tensor(),
                      .owned = step.owned,
                      .last = step.last,
                      .node = this};
    Tensors found = fused ? op->fused_vjp(saved, grads) : op->vjp(saved, grads);
    step.exposed = saved.exposed;
    for (Tensors* list : {&in, &out})
      for (Tensor& t : *list)
        if (t.defined()) step.kept.push_back(std::move(t));
    return found;
  }

  void release() override {
    released |= !inputs.empty() || !outputs_saved.empty();  // what saved nothing, such as a cast, can go on
    inputs.clear();
    outputs_saved.clear();
  }

 private:
  Tensor restore(const SavedTensor& s) const {
    if (s.tensor.defined() && s.tensor.storage()->version.load(std::memory_order_relaxed) != s.version)
      throw Error(fmt::format("{}: a tensor needed by backward ({}) was changed in place (version {}, saved at {})",
                              op->name, describe(s.tensor), s.tensor.storage()->version.load(), s.version));
    return s.tensor;
  }
  Tensor attach(const Tensor& plain, int32_t index) {
    Tensor t = plain.detach();
    auto meta = std::make_unique<AutogradMeta>();
    meta->requires_grad = true;
    meta->node = Ref<Node>(this);
    meta->index = index;
    t.impl().autograd = std::move(meta);
    return t;
  }
};

bool needs_grad(const Tensor& t) { return t.defined() && t.impl().autograd && t.impl().autograd->requires_grad; }

Device common_device(const Op& op, const Tensors& in) {
  const Tensor* first = nullptr;
  for (const Tensor& t : in) {
    if (!t.defined()) continue;
    if (!first) first = &t;
    else if (!(t.device() == first->device()))
      throw Error(fmt::format("{}: inputs on different devices: {} and {}", op.name, describe(*first), describe(t)));
  }
  return first ? first->device() : cpu();
}

void check_in_place(const Op& op, const Tensors& in, size_t written) {
  for (size_t i = 0; i < written; ++i) {
    if (!in[i].defined() || !needs_grad(in[i])) continue;
    if (in[i].is_leaf())
      throw Error(fmt::format("{}: a leaf that requires a gradient cannot be changed in place; use NoGrad or detach()",
                              op.name));
    if (in[i].impl().autograd->is_view)
      throw Error(fmt::format("{}: in-place change of a view that requires a gradient is not supported", op.name));
  }
}

// What is packed is there for evaluation.
void require_plain(const Op& op, const Tensors& in) {
  for (const Tensor& t : in)
    if (t.defined() && t.storage()->packing)
      throw Error(fmt::format("{}: {} has no gradients, and gives none to others; use NoGrad, or the plain tensor",
                              op.name, describe(t)));
}

// A gradient would be lost without a word.
void require_vjp(const Op& op, const Tensors& in, const Tensors& out) {
  const auto takes_part = [](const Tensor& t) { return t.defined() && is_floating(t.dtype()); };
  if (std::none_of(out.begin(), out.end(), takes_part)) return;
  for (size_t i = 0; i < in.size(); ++i)
    if (needs_grad(in[i]))
      throw Error(fmt::format("{}: has no vjp, and input {} requires a gradient; give it to detach(), or use NoGrad",
                              op.name, i));
}

OpNode::SavedTensor kept(Tensor t, bool overwritten = false) {
  // A saved input that this very call overwrote is lost: its version is the one before.
  const uint32_t version = t.defined() ? t.storage()->version.load(std::memory_order_relaxed) - overwritten : 0;
  return {std::move(t), version};
}

// Takes what it saves of inputs and hidden outputs.
void save(OpNode& node, Tensors& in, Tensors& out) {
  const Saves& saves = node.op->saves;
  const size_t visible = out.size() - node.op->hidden_outputs, overwritten = node.op->in_place ? visible : 0;
  if (saves.metas)
    for (const Tensor& t : in)
      node.input_metas.push_back(t.defined() ? TensorType{t.shape(), t.dtype(), t.device()} : TensorType{});
  if (saves.inputs) {
    node.inputs.reserve(in.size());
    for (size_t i = 0; i < in.size(); ++i)
      if (i > 31 || saves.inputs >> i & 1) node.inputs.push_back(kept(std::move(in[i]), i < overwritten));
      else node.inputs.emplace_back();
  }
  if (saves.outputs) {
    node.outputs_saved.reserve(out.size());
    for (size_t i = 0; i < out.size(); ++i)
      if (out[i].defined() && (i > 31 || saves.outputs >> i & 1))  // hidden ones get no node
        node.outputs_saved.push_back(kept(i < visible ? out[i].detach() : std::move(out[i])));
      else node.outputs_saved.emplace_back();
  }
}

// Inputs and hidden outputs are its to keep.
void record(const Op& op, Tensors& in, Tensors& out, const Attrs& attrs) {
  auto node = make_ref<OpNode>(op, attrs);
  node->next.reserve(in.size());
  for (size_t i = 0; i < in.size(); ++i)
    if (needs_grad(in[i])) {
      node->next.push_back(gradient_edge(in[i]));
      if (i < 32) node->needs |= 1u << i;
    } else {
      node->next.emplace_back();
    }
  const size_t visible = out.size() - op.hidden_outputs;
  for (size_t i = 0; i < visible; ++i) {
    if (!out[i].defined()) {
      node->outputs.emplace_back();
      continue;
    }
    node->outputs.emplace_back(out[i].shape(), out[i].dtype(), out[i].device());
    if (!is_floating(out[i].dtype())) continue;
    auto& meta = out[i].impl().autograd;
    if (!meta) meta = std::make_unique<AutogradMeta>();
    meta->requires_grad = true;
    meta->index = static_cast<int32_t>(i);
    meta->is_view = op.view && out[i].storage() == in[0].storage();
  }
  save(*node, in, out);
  Ref<Node> owner = std::move(node);
  for (size_t i = 0; i < visible; ++i)
    if (out[i].defined() && is_floating(out[i].dtype()))
      out[i].impl().autograd->node = i + 1 < visible ? owner : std::move(owner);
}

// The output of a view op, if strides allow one.
bool alias(const Op& op, const Tensor& in, const Attrs& attrs, Tensors& out) {
  if (in.storage()->packing) refuse_packed(op, 0, describe(in));
  auto layout = op.view(in.impl(), attrs);
  if (layout) out.push_back(as_strided_dims(in.storage(), layout->shape, layout->strides, layout->offset, in.dtype()));
  return layout.has_value();
}

// What is known of the elements of a result without memory.
void carry_elements(const Op& op, const Tensors& in, const Attrs& attrs, const Tensor& out) {
  const auto metas = metas_of({in.data(), in.size()}, out.device());
  out.impl().elements = carried_elements(op, {metas.data(), metas.size()}, attrs, out.meta());
  out.impl().elements_version = out.storage()->version.load(std::memory_order_relaxed);
}

Tensors make_outputs(const Op& op, const Tensors& in, const Metas& metas) {
  Tensors out;
  const size_t written = op.in_place ? metas.size() - op.hidden_outputs : 0;
  for (size_t i = 0; i < metas.size(); ++i)
    if (i < written) out.push_back(in[i]);
    else if (is_absent(metas[i])) out.push_back({});
    else out.push_back(make_output(metas[i]));
  return out;
}

[[gnu::noinline, gnu::cold]] void note_launch(const Op& op, const Plan& plan, Device device) {
  void* const stream = device.is_card() ? gpu::stream_of(gpu::state(device)).handle : nullptr;
  observers::launched({op.name, plan.kernel()->name, device, stream});
}

// What a replay's kernels are, for those who will see it replayed.
[[gnu::noinline, gnu::cold]] void note_captured(const Op& op, const Plan& plan, const Tensors& in, const Tensors& out,
                                                const Attrs& attrs, Device device) {
  const auto ins = metas_of({in.data(), in.size()}, device), outs = metas_of({out.data(), out.size()}, device);
  const Cost cost = cost_of(op, {ins.data(), ins.size()}, {outs.data(), outs.size()}, attrs);
  gpu::note_captured(
      device,
      {std::string(op.name), plan.kernel()->name, scope_path(), {ins.begin(), ins.end()}, cost.flops, cost.bytes});
}

}  // namespace

Tensors execute(const Op& op, const Tensors& in, const Attrs& attrs, bool keep_hidden) {
  settle();
  const Device device = in.empty() ? op.infer({}, attrs)[0].device : common_device(op, in);
  Tensors out;
  if (op.view && alias(op, in[0], attrs, out)) {
    if (op.elements && out[0].device().meta) carry_elements(op, in, attrs, out[0]);
    return out;
  }
  Ref<Plan> plan;
  if (op.compute || device.meta || is_capturing()) {
    const auto metas = metas_of({in.data(), in.size()}, device);
    const Metas outputs = infer_outputs(op, {metas.data(), metas.size()}, attrs, device, keep_hidden,
                                        [&](Dim count) { return new_count(op, count); });
    require_readable(op, {metas.data(), metas.size()}, attrs, {outputs.data(), outputs.size()});
    const bool has_memory = !device.meta && !outputs[0].device.meta && !is_capturing();
    if (has_memory && !op.in_place) return op.compute({in.data(), in.size()}, attrs);
    if (op.in_place && grad_enabled() && !is_capturing()) check_in_place(op, in, outputs.size() - op.hidden_outputs);
    out = has_memory ? op.compute({in.data(), in.size()}, attrs) : make_outputs(op, in, outputs);
    if (op.elements && !has_memory) carry_elements(op, in, attrs, out[0]);
  } else {
    const CallPlan& call = call_plan(op, in, attrs, device, keep_hidden);
    if (op.in_place && grad_enabled()) check_in_place(op, in, call.outputs.size() - op.hidden_outputs);
    out = make_outputs(op, in, call.outputs);
    plan = call.plan;
  }
  if (plan && observers::exist()) note_launch(op, *plan, device);
  if (plan) {
    run_as_planned(*plan, {in.data(), in.size()}, {out.data(), out.size()});
    if (device.is_card() && gpu::graph_being_captured(device)) note_captured(op, *plan, in, out, attrs, device);
  }
  if (op.in_place)
    for (size_t i = 0, visible = out.size() - op.hidden_outputs; i < visible; ++i)
      if (out[i].defined()) out[i].storage()->version.fetch_add(1, std::memory_order_relaxed);
  return out;
}

Tensors dispatch(const Op& op, Tensors&& in, const Attrs& attrs) {
  settle();
  if (amp::autocast_state.devices) amp::autocast(op, in);
  bool recording = false;
  if (op.vjp && grad_enabled())
    for (const Tensor& t : in) recording |= needs_grad(t);
  if (recording) require_plain(op, in);
  Tensors out = observe(op, in, attrs, recording, [&] {
    return is_capturing() ? record_execution(op, in, attrs, recording) : execute(op, in, attrs, recording);
  });
  if (op.in_place && is_capturing() && grad_enabled()) check_in_place(op, in, out.size() - op.hidden_outputs);
  if (recording) record(op, in, out, attrs);
  else if (op.registered && !op.vjp && grad_enabled()) require_vjp(op, in, out);
  for (size_t shown = out.size() - op.hidden_outputs; out.size() > shown;) out.pop_back();
  return out;
}

void record_call(const Op& op, const Tensors& in, const Tensors& out, const Attrs& attrs) {
  settle();
  if (!grad_enabled() || std::none_of(in.begin(), in.end(), needs_grad)) return;
  Tensors inputs = in, outputs = out;
  record(op, inputs, outputs, attrs);
}

Tensor dispatch_one(const Op& op, Tensors&& in, const Attrs& attrs) {
  return std::move(dispatch(op, std::move(in), attrs)[0]);
}

}  // namespace tessera
