#include "ops/map_graph.h"

#include <algorithm>
#include <mutex>

#include <fmt/format.h>

#include "core/capture_state.h"
#include "core/util/waiting.h"
#include "ops/autocast.h"
#include "ops/capture.h"
#include "ops/gradient.h"
#include "ops/op_table.h"
#include "tessera/autograd.h"

namespace tessera {

Tensor MapFunction::operator()(const Tensors& in) const {
  Tensors given;
  for (const Tensor& t : in) given.push_back(cast(t, computed));
  return cast(f(given.data(), numbers.data()), result);
}

bool MapFunction::operator==(const MapFunction& o) const {
  return f == o.f && computed == o.computed && result == o.result && numbers.size() == o.numbers.size() &&
         std::memcmp(numbers.data(), o.numbers.data(), numbers.size() * sizeof(double)) == 0;
}

namespace {

// ---- graphs of maps

bool is_map(const Op& op) {
  if (op.name == "full") return true;
  const auto ops = elementwise_ops();
  return op.name != "fill_" && op.name != "copy_" && std::find(ops.begin(), ops.end(), &op) != ops.end();
}

/// A captured graph whose nodes are maps, cleaned: what was overwritten is a value of its own, what is computed twice
/// is computed once, and what nobody reads is not computed.
class Cleaned {
 public:
  /// Null where a node is no map.
  static Ref<Graph> of(const Graph& graph) {
    Cleaned made;
    made.now_.assign(graph.values.size(), -1);
    for (const int32_t v : graph.inputs) made.graph_->inputs.push_back(made.make(v, graph));
    for (const GraphNode& node : graph.nodes)
      if (!made.add(node, graph)) return {};
    for (const int32_t v : graph.outputs)
      if (v >= 0) made.graph_->outputs.push_back(made.now_[static_cast<size_t>(v)]);
    made.drop_unread();
    return made.graph_;
  }

 private:
  int32_t make(int32_t of, const Graph& graph) {
    graph_->values.push_back(graph.values[static_cast<size_t>(of)]);
    return now_[static_cast<size_t>(of)] = static_cast<int32_t>(graph_->values.size()) - 1;
  }

  bool add(const GraphNode& node, const Graph& graph) {
    if (!is_map(*node.op) || node.outputs.size() != 1) return false;
    GraphNode made{node.op, node.attrs, {}, {}};
    for (const int32_t v : node.inputs) {
      if (v < 0 || now_[static_cast<size_t>(v)] < 0) return false;
      made.inputs.push_back(now_[static_cast<size_t>(v)]);
    }
    for (const GraphNode& known : graph_->nodes)
      if (known.op == made.op && known.inputs == made.inputs && known.attrs == made.attrs) {
        now_[static_cast<size_t>(node.outputs[0])] = known.outputs[0];
        return true;
      }
    made.outputs.push_back(make(node.outputs[0], graph));
    graph_->nodes.push_back(std::move(made));
    return true;
  }

  void drop_unread() {
    std::vector<bool> read(graph_->values.size(), false);
    for (const int32_t v : graph_->outputs) read[static_cast<size_t>(v)] = true;
    std::vector<GraphNode> kept;
    for (size_t n = graph_->nodes.size(); n-- > 0;) {
      GraphNode& node = graph_->nodes[n];
      if (!read[static_cast<size_t>(node.outputs[0])]) continue;
      for (const int32_t v : node.inputs) read[static_cast<size_t>(v)] = true;
      kept.push_back(std::move(node));
    }
    std::reverse(kept.begin(), kept.end());
    graph_->nodes = std::move(kept);
  }

  Ref<Graph> graph_ = make_ref<Graph>();
  std::vector<int32_t> now_;  // of the captured graph's values
};

// What f does to elements, and which of its results there are.
Ref<Graph> graph_of(const std::function<Tensors(const Tensors&)>& f, std::span<const DType> dtypes,
                    std::vector<bool>* defined = nullptr) {
  settle();
  Tensors in;
  for (const DType dtype : dtypes) in.push_back(empty({2}, dtype));
  const Program program = capture(f, in);
  if (!program.closed_over.empty()) return {};
  if (defined)
    for (const int32_t v : program.graph->outputs) defined->push_back(v >= 0);
  return Cleaned::of(*program.graph);
}

std::string text_of(const Graph& graph) {
  std::string text;
  for (const GraphNode& node : graph.nodes)
    if (node.op->name != "full") text += (text.empty() ? "" : ", ") + std::string(node.op->name);
  return text;
}

struct Named : MapGraph {
  std::string text() const override { return fmt::format("maps({})", to_text(AttrValue(text_of(*graph)))); }
};

/// Gradients of some inputs, by a graph; without one they are made of operators.
struct Gradients {
  uint32_t needs = 0;
  Ref<MapGraph> graph;
  Attrs attrs;                // of map_graph
  std::vector<bool> defined;  // of the inputs that need one
};

struct Function final : Named {
  MapFunction function;
  std::vector<DType> dtypes;

  const Gradients& gradients(uint32_t needs) const {
    const std::lock_guard lock(mutex_);
    for (const auto& known : gradients_)
      if (known->needs == needs) return *known;
    gradients_.push_back(std::make_unique<Gradients>(traced(needs)));
    return *gradients_.back();
  }

 private:
  // Of inputs and the gradient of the result.
  Gradients traced(uint32_t needs) const {
    const auto backward = [&](const Tensors& all) {
      const GradMode recorded(true);
      Tensors in(all.begin(), all.end() - 1), wanted;
      for (size_t i = 0; i < in.size(); ++i)
        if (needs >> i & 1) wanted.push_back(in[i] = in[i].detach().set_requires_grad());
      const Tensor y = function(in);
      return y.requires_grad() ? grad({y}, wanted, {all.back()}, false, false, true) : Tensors(wanted.size());
    };
    std::vector<DType> types = dtypes;
    types.push_back(function.result);
    Gradients found{needs, {}, {}, {}};
    if (const Ref<Graph> graph = graph_of(backward, types, &found.defined)) {
      found.graph = make_ref<Named>();
      found.graph->graph = graph;
      found.attrs = FunctionAttrs{Ref<AttrObject>(found.graph.get())};
    }
    return found;
  }

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Gradients>> gradients_;
};

// ---- map_graph

Metas infer_map_graph(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("map_graph", in);
  const Graph& graph = *map_graph_of(attrs).graph;
  if (in.size() != graph.inputs.size())
    throw Error(fmt::format("map_graph: {} inputs for a function of {}", in.size(), graph.inputs.size()));
  Shape shape = in[0].shape;
  for (size_t i = 0; i < in.size(); ++i) {
    const DType wanted = graph.values[static_cast<size_t>(graph.inputs[i])].meta.dtype;
    if (in[i].dtype != wanted)
      throw Error(fmt::format("map_graph: input {} is {}, not {}", i, name(in[i].dtype), name(wanted)));
    if (!(in[i].shape == shape)) shape = broadcast_shapes("map_graph", shape, in[i].shape);
  }
  Metas out;
  for (const int32_t v : graph.outputs)
    out.push_back({shape, graph.values[static_cast<size_t>(v)].meta.dtype, in[0].device});
  return out;
}

extern const Op map_graph_op;

const Function& function_of(const Saved& s) { return dynamic_cast<const Function&>(map_graph_of(s.attrs)); }

// Through the operators that the function calls.
Tensors map_graph_vjp(const Saved& s, const Tensors& grads) {
  const bool again = grad_enabled();
  const GradMode recorded(true);
  Tensors in(s.inputs.begin(), s.inputs.end()), wanted, out(in.size());
  for (size_t i = 0; i < in.size(); ++i)
    if (s.needs_input(static_cast<int>(i)))  // gradients of what lies behind are not wanted here
      wanted.push_back(in[i] = again ? in[i] * 1.0 : in[i].detach().set_requires_grad());
  const Tensor y = function_of(s).function(in);
  if (!y.requires_grad()) return out;
  Tensors found = grad({y}, wanted, {grads[0]}, false, again, true);
  for (size_t i = 0, at = 0; i < in.size(); ++i)
    if (s.needs_input(static_cast<int>(i))) out[i] = std::move(found[at++]);
  return out;
}

Tensors map_graph_fused_vjp(const Saved& s, const Tensors& grads) {
  const Gradients& gradients = function_of(s).gradients(s.needs);
  if (!gradients.graph) return map_graph_vjp(s, grads);
  Tensors in(s.inputs.begin(), s.inputs.end()), out(in.size());
  in.push_back(grads[0]);
  Tensors found;
  if (!gradients.graph->graph->outputs.empty()) found = dispatch(map_graph_op, std::move(in), gradients.attrs);
  for (size_t i = 0, at = 0, wanted = 0; i < out.size(); ++i)
    if (s.needs_input(static_cast<int>(i)) && gradients.defined[wanted++])
      out[i] = gradient_for(std::move(found[at++]), s.inputs[i]);
  return out;
}

Tensors map_graph_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& made = dynamic_cast<const Function&>(map_graph_of(attrs));
  return {made.function.f(in.data(), made.function.numbers.data())};
}

const Op map_graph_op = {.name = "map_graph",
                         .inputs = "tensors...",
                         .outputs = "results...",
                         .attrs = attrs_of<FunctionAttrs>,
                         .infer = infer_map_graph,
                         .vjp = map_graph_vjp,
                         .fused_vjp = map_graph_fused_vjp,
                         .reference = map_graph_reference,
                         .saves = {.inputs = kAll},
                         .keeps_layout = true,
                         .layout_of = kAnyInput};

// What a call saved, and the gradient of its result.
Tensors saved_and(const Saved& s, const Tensor& grad) {
  Tensors all;
  for (const auto& list : {s.inputs, s.outputs})
    for (const Tensor& t : list)
      if (t.defined()) all.push_back(t);
  all.push_back(grad);
  return all;
}

bool can_run_as_one(const Tensors& in) {
  if (is_capturing() || !in[0].defined()) return false;
  const Device device = in[0].device();
  if (device.meta) return false;
  if (amp::autocast_state.devices >> static_cast<int>(device.type) & 1) return false;
  return std::all_of(in.begin(), in.end(), [&](const Tensor& t) {
    return t.defined() && t.device() == device && !t.storage()->packing && t.dim() <= 8 && t.numel() > 0;
  });
}

}  // namespace

std::span<const Op* const> map_graph_ops() {
  static constexpr const Op* ops[] = {&map_graph_op};
  return ops;
}

Ref<MapGraph> trace(const MapFunction& function, std::span<const DType> dtypes) {
  const NoGrad plain;
  const Ref<Graph> graph = graph_of([&](const Tensors& in) { return Tensors{function(in)}; }, dtypes);
  if (!graph || graph->nodes.size() < 2) return {};
  auto made = make_ref<Function>();
  made->graph = graph;
  made->function = function;
  made->dtypes.assign(dtypes.begin(), dtypes.end());
  return made;
}

std::optional<Attrs> TracedMaps::attrs_of(const MapFunction& function, const Tensors& in) {
  const auto alike = [&](const Traced& known) {
    return known.function == function && std::equal(in.begin(), in.end(), known.dtypes.begin(), known.dtypes.end(),
                                                    [](const Tensor& t, DType d) { return t.dtype() == d; });
  };
  const auto found = std::find_if(known_.begin(), known_.end(), alike);
  if (found != known_.end()) return found->attrs;
  Traced made{function, {}, {}};
  for (const Tensor& t : in) made.dtypes.push_back(t.dtype());
  if (Ref<MapGraph> graph = trace(function, made.dtypes)) made.attrs = FunctionAttrs{std::move(graph)};
  if (known_.size() == kMost) known_.erase(known_.begin());
  known_.push_back(std::move(made));
  return known_.back().attrs;
}

const TracedVjp::Traced& TracedVjp::traced(const Saved& s, const Tensor& grad) {
  for (const Traced& known : known_)
    if (known.dtype == grad.dtype() && known.needs == s.needs) return known;
  Traced made{grad.dtype(), s.needs, 0, {}};
  const auto backward = [&](const Tensors& all) {
    size_t next = 0;
    const auto given = [&](std::span<Tensor> saved) {
      Tensors list(saved.size());
      for (size_t i = 0; i < list.size(); ++i)
        if (saved[i].defined()) list[i] = all[next++];
      return list;
    };
    Tensors in = given(s.inputs), out = given(s.outputs), wanted;
    const Tensor& g = all.back();
    const std::vector<TensorType> metas(s.metas.size(), {g.shape(), g.dtype(), g.device()});
    const Tensors results =
        vjp_({.attrs = s.attrs, .inputs = in, .outputs = out, .metas = metas, .needs = s.needs}, {g});
    made.results = results.size();
    for (size_t i = 0; i < results.size(); ++i)
      if (s.needs_input(static_cast<int>(i))) wanted.push_back(results[i]);
    return wanted;
  };
  const std::vector<DType> dtypes(saved_and(s, grad).size(), grad.dtype());
  if (const Ref<Graph> graph = graph_of(backward, dtypes)) {
    const auto maps = std::count_if(graph->nodes.begin(), graph->nodes.end(),
                                    [](const GraphNode& node) { return node.op->name != "full"; });
    if (maps > static_cast<std::ptrdiff_t>(graph->outputs.size())) {
      auto named = make_ref<Named>();
      named->graph = graph;
      made.attrs = FunctionAttrs{Ref<AttrObject>(named.get())};
    }
  }
  known_.push_back(std::move(made));
  return known_.back();
}

Tensors TracedVjp::operator()(const Saved& s, const Tensors& grads) {
  Tensors all = saved_and(s, grads[0]);
  const auto alike = [&](const Tensor& t) { return t.defined() && t.dtype() == grads[0].dtype(); };
  if (!std::all_of(all.begin(), all.end(), alike) || !can_run_as_one(all)) return vjp_(s, grads);
  const Traced& way = traced(s, grads[0]);
  if (!way.attrs) return vjp_(s, grads);
  Tensors found = dispatch(map_graph_op, std::move(all), *way.attrs), out(way.results);
  for (size_t i = 0, at = 0; i < out.size(); ++i) {
    if (!s.needs_input(static_cast<int>(i))) continue;
    out[i] = s.metas.empty() ? std::move(found[at++]) : gradient_for(std::move(found[at++]), s.metas[i]);
  }
  return out;
}

Tensor map_elements(TracedMaps& traced, const MapFunction& function, Tensors in) {
  if (!can_run_as_one(in)) return function(in);
  const std::optional<Attrs> attrs = traced.attrs_of(function, in);
  return attrs ? dispatch_one(map_graph_op, std::move(in), *attrs) : function(in);
}

}  // namespace tessera
