#include "ops/capture.h"

#include <atomic>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "core/capture_state.h"
#include "ops/observe.h"
#include "ops/op_table.h"
#include "ops/random.h"
#include "ops/schema.h"
#include "tessera/autocast.h"
#include "tessera/autograd.h"
#include "tessera/observer.h"

namespace tessera {
namespace {

// Attributes name the devices on which a program will run.
Attrs with_memory(const Attrs& attrs) {
  Attrs out = attrs;
  for (const AttrField& f : attrs.type().fields)
    if (f.kind == AttrKind::Device)
      if (Device device = std::get<Device>(attrs.get(f.name)); device.meta && device.index >= 0) {
        device.meta = false;
        out.set(f.name, device);
      }
  return out;
}

class Capturing final : public CaptureState {
 public:
  Capturing() : serial_(++serials) {
    if (current_capture) throw Error("capture: a function is being captured already");
    current_capture = this;
  }
  ~Capturing() override { close(); }

  // A tensor like `t`, without memory, which is the graph's next input.
  Tensor input(const Tensor& t) {
    Tensor twin = twin_of(t);
    graph_->inputs.push_back(number(twin));
    return twin;
  }

  Tensors record(const Op& op, const Tensors& in, const Attrs& attrs, bool keep_hidden) {
    Tensors seen;
    GraphNode node{&op, with_memory(attrs), {}, {}};
    for (const Tensor& t : in) {
      seen.push_back(stand_in(t));
      node.inputs.push_back(t.defined() ? value_of(seen.back()) : -1);
    }
    Tensors out = execute(op, seen, attrs, keep_hidden);
    const size_t written = op.in_place ? out.size() - op.hidden_outputs : 0;
    for (size_t i = 0; i < out.size(); ++i) {
      if (!out[i].defined()) node.outputs.push_back(-1);
      else node.outputs.push_back(i < written ? node.inputs[i] : number(out[i]));
      if (i < written) out[i] = in[i];
    }
    symbols_.add_all(node.attrs);
    append(std::move(node), op.view && out[0].storage() == seen[0].storage());
    return out;
  }

  Dim new_count(const Op& op, Dim count) {
    std::string name;
    for (int n = 1; name.empty() || symbols_.has(name); ++n) name = fmt::format("{}_{}", op.name, n);
    return Dim::count(name, count.high(), op.name);
  }

  Tensor draw(Generator& generator, Dim elements, Device device) override {
    return draw_state(generator, elements, device);
  }

  void gradient_changes(const TensorImpl& leaf) override {
    if (leaf.storage->device.meta) return;
    for (const Leaf& known : leaves_)
      if (known.leaf.get() == &leaf) return;
    const AutogradMeta* meta = leaf.autograd.get();
    leaves_.push_back(
        {Ref<TensorImpl>(const_cast<TensorImpl*>(&leaf)), meta ? meta->grad : Tensor(), meta && meta->owns_grad});
  }

  Program finish(size_t inputs, const Tensors& outputs) {
    Program program;
    program.inputs = inputs;
    program.outputs = outputs.size();
    for (const Tensor& t : outputs) graph_->outputs.push_back(t.defined() ? value_of(stand_in(t)) : -1);
    for (const Leaf& l : leaves_) {
      const Tensor grad = Tensor(l.leaf).grad();
      graph_->outputs.push_back(grad.defined() ? value_of(stand_in(grad)) : -1);
      program.leaves.push_back(Tensor(l.leaf));
    }
    close();
    inputs_first();
    program.closed_over = std::move(closed_over_);
    program.paths = std::move(paths_);
    program.views = std::move(views_);
    program.graph = std::move(graph_);
    return program;
  }

 private:
  struct Leaf {
    Ref<TensorImpl> leaf;
    Tensor grad;  // before
    bool owns_grad = false;
  };

  // Functions run as they are again, and leaves have the gradients that they had.
  void close() {
    if (current_capture != this) return;
    current_capture = nullptr;
    for (Leaf& l : leaves_) {
      Tensor(l.leaf).set_grad(std::move(l.grad));
      l.leaf->autograd->owns_grad = l.owns_grad;
    }
  }

  // Numbers the values anew: inputs, which were met along the way, then results in their order.
  void inputs_first() {
    Graph& g = *graph_;
    std::vector<int32_t> places(g.values.size(), -1);
    std::vector<GraphValue> values;
    const auto move = [&](size_t v) {
      places[v] = static_cast<int32_t>(values.size());
      values.push_back(std::move(g.values[v]));
    };
    for (const int32_t v : g.inputs) move(static_cast<size_t>(v));
    for (size_t v = 0; v < places.size(); ++v)
      if (places[v] < 0) move(v);
    g.values = std::move(values);
    const auto renumber = [&](auto& list) {
      for (int32_t& v : list)
        if (v >= 0) v = places[static_cast<size_t>(v)];
    };
    renumber(g.inputs);
    renumber(g.outputs);
    for (GraphNode& node : g.nodes) {
      renumber(node.inputs);
      renumber(node.outputs);
    }
  }

  Tensor twin_of(const Tensor& t) {
    Ref<Storage>& storage = storages_[t.storage().get()];
    if (!storage) storage = allocate(t.storage()->bytes, t.device());
    storage->symbolic = t.storage()->symbolic;
    storage->rows = t.storage()->rows;
    storage->row_length = t.storage()->row_length;
    storage->packing = t.storage()->packing;
    if (t.impl().symbolic)
      return as_strided_dims(storage, t.shape(), t.impl().symbolic->strides, t.impl().symbolic->offset, t.dtype());
    return as_strided(storage, t.shape(), t.strides(), t.offset(), t.dtype());
  }

  // What an operator is given in the place of `t`; of what has memory always the same.
  Tensor stand_in(const Tensor& t) {
    if (!t.defined() || t.device().meta) return t;
    Tensor& twin = twins_[t.ref().get()];
    if (twin.defined()) return twin;
    twin = input(t);
    closed_over_.push_back(t.requires_grad() && !t.is_leaf() ? t.detach() : t);
    return twin;
  }

  int32_t number(const Tensor& t) {
    Device device = t.device();
    if (device.index >= 0) device.meta = false;
    GraphValue value{{t.shape(), t.dtype(), device}, {}};
    value.meta.packing = t.storage()->packing;
    if (!value.meta.packing) value.strides = t.meta().strides;
    symbols_.add_all(value.meta.shape);
    symbols_.add_all(value.strides);
    graph_->values.push_back(std::move(value));
    t.impl().capture = serial_;
    t.impl().value = static_cast<uint32_t>(graph_->values.size() - 1);
    return static_cast<int32_t>(t.impl().value);
  }

  int32_t value_of(const Tensor& t) {
    if (t.impl().capture == serial_) return static_cast<int32_t>(t.impl().value);
    if (t.impl().capture != 0)
      throw Error("capture: " + describe(t) + " belongs to another captured function, and is no input of this one");
    if (!t.is_contiguous() && t.shape().numel() != Dim(0))
      throw Error("capture: no operator made " + describe(t) + ", which does not lie dense");
    const int32_t value = number(t);  // of empty(), which is no operator
    append({&find_op("empty"),
            CreateAttrs{DimList(t.shape()), t.dtype(), 0, 0, graph_->values.back().meta.device},
            {},
            {value}});
    return value;
  }

  void append(GraphNode node, bool is_view = false) {
    graph_->nodes.push_back(std::move(node));
    paths_.push_back(scope_path());
    views_.push_back(is_view);
  }

  static inline std::atomic<uint32_t> serials{0};
  const uint32_t serial_;
  Ref<Graph> graph_ = make_ref<Graph>();
  Tensors closed_over_;
  std::vector<std::string> paths_;
  std::vector<bool> views_;
  std::unordered_map<const TensorImpl*, Tensor> twins_;
  std::unordered_map<const Storage*, Ref<Storage>> storages_;
  std::vector<Leaf> leaves_;
  Symbols symbols_;
};

void check_input(size_t i, const Tensor& given, const GraphValue& wanted, const SymbolValues& symbols) {
  if (!given.defined()) throw Error(fmt::format("run: input {} is undefined", i));
  Device device = given.device();
  if (wanted.meta.device.index >= 0 && !wanted.meta.device.meta) device.meta = false;
  const TensorMeta meta = {symbols.of(wanted.meta.shape), wanted.meta.dtype, wanted.meta.device};
  if (!(given.shape() == meta.shape) || given.dtype() != meta.dtype || !(device == meta.device) ||
      given.storage()->packing != wanted.meta.packing)
    throw Error(fmt::format("run: input {} is {}, not {}", i, describe(given), describe(meta)));
}

// The node after which nobody needs a value; the number of nodes for outputs.
std::vector<size_t> last_uses(const Graph& graph) {
  std::vector<size_t> last(graph.values.size(), 0);
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (const auto* list : {&graph.nodes[n].inputs})
      for (const int32_t v : *list)
        if (v >= 0) last[static_cast<size_t>(v)] = n;
  for (const int32_t v : graph.outputs)
    if (v >= 0) last[static_cast<size_t>(v)] = graph.nodes.size();
  return last;
}

// What the sizes of inputs make of the graph's symbols.
SymbolValues symbols_of(const Graph& graph, const Tensors& inputs) {
  SymbolValues symbols;
  for (size_t i = 0; i < inputs.size(); ++i) try {
      if (inputs[i].defined())
        symbols.note(graph.values[static_cast<size_t>(graph.inputs[i])].meta.shape, inputs[i].shape());
    } catch (const Error& e) {
      throw Error(fmt::format("run: input {}: {}", i, e.what()));
    }
  return symbols;
}

// Notes a count that the node has made known; sizes that were known before must be as they were said to be.
void check_outputs(const Graph& graph, const GraphNode& node, const Tensors& out, SymbolValues& symbols) {
  for (size_t i = 0; i < out.size() && i < node.outputs.size(); ++i) {
    if (node.outputs[i] < 0 || !out[i].defined()) continue;
    const Shape& wanted = graph.values[static_cast<size_t>(node.outputs[i])].meta.shape;
    if (node.op->count) symbols.note(wanted, out[i].shape());
    if (!(out[i].shape() == symbols.of(wanted)))
      throw Error(fmt::format("run: {} gives {}, not {}{}", node.op->name, to_string(out[i].shape()),
                              to_string(symbols.of(wanted)),
                              wanted.is_symbolic() ? ", which is " + to_string(wanted) : ""));
  }
}

}  // namespace

Dim new_count(const Op& op, Dim count) {
  if (is_capturing()) return static_cast<Capturing&>(*current_capture).new_count(op, count);
  static std::atomic<int64_t> serial{0};
  return Dim::count(fmt::format("{}_of_process_{}", op.name, ++serial), count.high(), op.name);
}

Tensors record_execution(const Op& op, const Tensors& in, const Attrs& attrs, bool keep_hidden) {
  return static_cast<Capturing&>(*current_capture).record(op, in, attrs, keep_hidden);
}

Program capture(const std::function<Tensors(const Tensors&)>& fn, const Tensors& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!inputs[i].defined()) throw Error(fmt::format("capture: input {} is undefined", i));
  Capturing capturing;
  Tensors given;
  for (const Tensor& t : inputs) given.push_back(capturing.input(t));
  return capturing.finish(inputs.size(), fn(given));
}

Tensors run(const Graph& graph, const Tensors& inputs) {
  if (inputs.size() != graph.inputs.size())
    throw Error(fmt::format("run: {} inputs for a graph of {}", inputs.size(), graph.inputs.size()));
  NoGrad plain;
  amp::NoAutocast as_given;
  const Symbols names = graph.symbols();
  const bool is_symbolic = !names.all().empty();
  SymbolValues symbols;
  if (is_symbolic) symbols = symbols_of(graph, inputs);
  std::vector<Tensor> values(graph.values.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto v = static_cast<size_t>(graph.inputs[i]);
    check_input(i, inputs[i], graph.values[v], symbols);
    values[v] = inputs[i];
  }
  const std::vector<size_t> last = last_uses(graph);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const GraphNode& node = graph.nodes[n];
    Tensors in;
    for (const int32_t v : node.inputs) in.push_back(v < 0 ? Tensor() : values[static_cast<size_t>(v)]);
    for (const int32_t v : node.inputs)
      if (v >= 0 && last[static_cast<size_t>(v)] == n) values[static_cast<size_t>(v)] = {};
    bool keeps_hidden = false;
    for (size_t i = node.outputs.size() - node.op->hidden_outputs; i < node.outputs.size(); ++i)
      keeps_hidden |= node.outputs[i] >= 0;
    const Attrs attrs = is_symbolic ? symbols.of(node.attrs) : node.attrs;
    Tensors out = observe(*node.op, in, attrs, false, [&] { return execute(*node.op, in, attrs, keeps_hidden); });
    if (is_symbolic) check_outputs(graph, node, out, symbols);
    for (size_t i = 0; i < out.size() && i < node.outputs.size(); ++i)
      if (const int32_t v = node.outputs[i]; v >= 0 && last[static_cast<size_t>(v)] > n)
        values[static_cast<size_t>(v)] = std::move(out[i]);
  }
  Tensors outputs;
  for (const int32_t v : graph.outputs) outputs.push_back(v < 0 ? Tensor() : values[static_cast<size_t>(v)]);
  return outputs;
}

Tensors Program::operator()(const Tensors& given) const {
  if (given.size() != inputs) throw Error(fmt::format("run: {} inputs for a function of {}", given.size(), inputs));
  // The graph's inputs are in the order in which they were met.
  Tensors all = given;
  all.append(closed_over.begin(), closed_over.end());
  Tensors out = run(*graph, all);
  for (size_t i = 0; i < leaves.size(); ++i) leaves[i].set_grad(out[outputs + i]);
  while (out.size() > outputs) out.pop_back();
  return out;
}

}  // namespace tessera
