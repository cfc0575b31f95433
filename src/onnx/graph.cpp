#include "onnx/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "onnx/handler.h"
#include "onnx/schema.h"

namespace tessera::onnx {
namespace {

constexpr int64_t kLongestList = 64;
constexpr int kDeepestCalls = 64;          // functions in functions, graphs in graphs
constexpr int64_t kMostSteps = 2'000'000;  // of a model, with those that calls of functions become
constexpr size_t kMostCopied = size_t{1} << 30;
constexpr int64_t kNewestIr = 14;
constexpr int kNewestOpset = 28, kOldestOpset = 1;

std::string_view plain_domain(std::string_view domain) { return domain == "ai.onnx" ? "" : domain; }

Port port_of(const ValueInfoProto& info) {
  Port port{.name = std::string(info.name), .type = ""};
  const TypeProto* type = info.type ? &*info.type : nullptr;
  while (type && !type->tensor) {
    const Optional<ElementType>& element = type->sequence ? type->sequence : type->optional;
    if (!element) break;
    if (port.kind == Port::kTensor) port.kind = type->sequence ? Port::kSequence : Port::kOptional;
    type = element->elem_type ? &*element->elem_type : nullptr;
  }
  if (!type || !type->tensor) return port;
  port.type = type_name(type->tensor->elem_type);
  if (!type->tensor->shape) return port;
  port.has_shape = true;
  for (const Dimension& d : type->tensor->shape->dims)
    port.dims.push_back(d.value ? std::to_string(*d.value) : d.param.empty() ? "?" : std::string(d.param));
  return port;
}
int64_t element_type(const ValueInfoProto& info) {
  return info.type && info.type->tensor ? info.type->tensor->elem_type : 0;
}

/// What all graphs of one model share while they are made.
struct Context {
  const ModelProto& model;
  Source& source;
  const LoadOptions& options;
  std::vector<std::string>* problems;
  std::map<std::tuple<Bytes, Bytes, Bytes>, const FunctionProto*> functions = {};  // domain, name, overload
  int64_t steps = 0;
  size_t copied = 0;  // bytes of tensors in functions, which each call has for itself
};

size_t bytes_of(const TensorProto& t) {
  return t.raw_data.size() + t.float_data.size() * sizeof(float) +
         (t.int32_data.size() + t.int64_data.size() + t.uint64_data.size() + t.double_data.size()) * sizeof(int64_t);
}

using Opsets = std::map<std::string, int, std::less<>>;

Opsets opsets_of(const std::vector<OperatorSet>& sets, const std::string& file) {
  Opsets out;
  for (const OperatorSet& set : sets) {
    const int version = static_cast<int>(std::clamp<int64_t>(set.version, -1, 1 << 20));
    const auto [at, is_new] = out.emplace(plain_domain(set.domain), version);
    if (!is_new && at->second != version)
      throw FileError(
          fmt::format("{}: imports opsets {} and {} of {}", file, at->second, version, in_quotes(set.domain)));
  }
  return out;
}

/// The attributes of a call of a function, for references to them within it.
using Given = std::map<std::string, const AttributeProto*, std::less<>>;

class Builder {
 public:
  Builder(Context& context, const Opsets& opsets, Builder* outer, const Given* given, int depth)
      : context_(context), opsets_(opsets), outer_(outer), given_(given), depth_(depth) {}

  Graph of_graph(const GraphProto& proto) {
    for (const TensorProto& t : proto.initializers) {
      count_copy(bytes_of(t));
      constant(std::string(t.name), context_.source.tensor(t));
    }
    for (const SparseTensorProto& t : proto.sparse_initializers)
      constant(std::string(t.values ? t.values->name : Bytes()), context_.source.tensor(t));
    for (const ValueInfoProto& info : proto.inputs) {
      if (info.name.empty()) fail("an input without a name");
      const auto known = slots_.find(std::string(info.name));
      // What has a value in the file comes behind the others, and may be left out. Files of before IR 4 list all of
      // their weights so, which nobody replaces.
      if (known == slots_.end()) required_.push_back(&info);
      else if (context_.model.ir_version >= 4) optional_.push_back(&info);
    }
    for (const ValueInfoProto* info : required_)
      if (const int64_t type = element_type(*info); type != 0 && !dtype_from(type))
        cannot(fmt::format("{}: input {}: elements of {} are not supported", context_.source.file(),
                           in_quotes(info->name), type_name(type)));
    for (const auto* list : {&required_, &optional_})
      for (const ValueInfoProto* info : *list) {
        graph_.inputs.push_back(port_of(*info));
        graph_.input_types.push_back(element_type(*info));
        graph_.input_slots.push_back(list == &required_ ? define(std::string(info->name))
                                                        : slots_.at(std::string(info->name)));
      }
    graph_.required_inputs = required_.size();
    for (const NodeProto& node : proto.nodes) add(node);
    for (const ValueInfoProto& info : proto.outputs) {
      graph_.outputs.push_back(port_of(info));
      graph_.output_slots.push_back(use(std::string(info.name), "output"));
    }
    return finish();
  }

  Graph of_function(const FunctionProto& proto) {
    for (const Bytes name : proto.inputs) {
      graph_.inputs.push_back({.name = std::string(name), .type = ""});
      graph_.input_types.push_back(0);
      graph_.input_slots.push_back(define(std::string(name)));
    }
    for (const NodeProto& node : proto.nodes) add(node);
    for (const Bytes name : proto.outputs) {
      graph_.outputs.push_back({.name = std::string(name), .type = ""});
      graph_.output_slots.push_back(use(std::string(name), "output"));
    }
    return finish();
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) const {
    throw FileError(context_.source.file() + ": " + fmt::format(text, std::forward<Args>(args)...));
  }

  template <class... Args>
  [[noreturn]] static void fail_at(const Step& step, fmt::format_string<Args...> text, Args&&... args) {
    throw FileError(where(step) + fmt::format(text, std::forward<Args>(args)...));
  }

  int define(const std::string& name) {
    if (!slots_.emplace(name, graph_.slots).second) fail("the name {} is used twice", in_quotes(name));
    return graph_.slots++;
  }
  void constant(const std::string& name, Tensor value) {
    // Sizes, axes and the like are read on the host; a call that computes with them moves them.
    const bool is_list = !is_floating(value.dtype()) && value.dim() <= 1 && value.numel() <= kLongestList;
    graph_.constants.emplace_back(define(name), is_list ? value : value.to(context_.options.device));
  }

  /// The slot of a value; from the graphs around this one, too. -1 where none has it.
  int find(const std::string& name) {
    if (const auto at = slots_.find(name); at != slots_.end()) return at->second;
    if (!outer_) return -1;
    const int there = outer_->find(name);
    if (there < 0) return -1;
    const int here = graph_.slots++;
    slots_.emplace(name, here);
    captured_.insert(name);
    graph_.captures.emplace_back(there, here);
    return here;
  }
  int use(const std::string& name, std::string_view what) {
    if (name.empty()) return -1;
    const int slot = find(name);
    if (slot < 0) fail("{} {} is computed by no node before it", what, in_quotes(name));
    return slot;
  }

  void add(const NodeProto& node) {
    Step step;
    step.op = std::string(node.op_type);
    step.name = std::string(node.name);
    step.file = context_.source.file();
    const std::string_view domain = plain_domain(node.domain);
    step.in.reserve(node.inputs.size());
    for (const Bytes name : node.inputs) step.in.push_back(use(std::string(name), "input"));
    take_attributes(node.attributes, step);
    resolve(node, domain, step);
    for (const Bytes name : node.outputs) {
      if (captured_.count(std::string(name))) slots_.erase(std::string(name)), captured_.erase(std::string(name));
      step.out.push_back(name.empty() ? -1 : define(std::string(name)));
    }
    if (step.entry) check_schema(step, domain);
    if (++context_.steps > kMostSteps) fail_at(step, "nodes become more than {}", kMostSteps);
    graph_.steps.push_back(std::move(step));
  }

  void take_attributes(const std::vector<AttributeProto>& attributes, Step& step) {
    for (const AttributeProto& attribute : attributes) {
      const AttributeProto* a = &attribute;
      if (!a->reference.empty()) {
        if (!given_) fail_at(step, "attribute {} refers to one of a function, but is in none", in_quotes(a->name));
        const auto at = given_->find(a->reference);
        if (at == given_->end()) continue;  // the call leaves it out
        a = at->second;
      }
      if (a->type == kGraphAttribute || (a->type == 0 && a->g)) {
        if (!a->g) fail_at(step, "attribute {} has no graph", in_quotes(attribute.name));
        if (depth_ >= kDeepestCalls) fail_at(step, "graphs are nested more than {} deep", kDeepestCalls);
        Builder inner(context_, opsets_, this, given_, depth_ + 1);
        step.bodies.push_back({std::string(attribute.name), std::make_unique<Graph>(inner.of_graph(*a->g))});
        continue;
      }
      if (a->t) count_copy(bytes_of(*a->t));
      count_copy((a->ints.size() + a->floats.size() + a->strings.size() + a->tensors.size()) * sizeof(TensorProto));
      AttributeProto& kept = step.attributes.emplace_back(*a);
      kept.name = attribute.name;
    }
  }

  /// Of what a function holds. A few bytes of a file must not become many.
  void count_copy(size_t bytes) {
    if (given_ && (context_.copied += bytes) > kMostCopied)
      fail("what functions hold becomes more than {} bytes", kMostCopied);
  }

  /// Finds what runs the node: a function of the file, or a handler.
  void resolve(const NodeProto& node, std::string_view domain, Step& step) {
    const auto version = opsets_.find(domain);
    const auto function = context_.functions.find({domain, node.op_type, node.overload});
    if (function != context_.functions.end()) return call(*function->second, step);
    if (version == opsets_.end())
      return cannot(step, fmt::format("the file imports no operators of {}", in_quotes(node.domain)));
    step.opset = version->second;
    if (domain.empty() && (step.opset > kNewestOpset || step.opset < kOldestOpset))
      return cannot(step, fmt::format("opset {} is not known; {} is the newest that is", step.opset, kNewestOpset));
    step.entry = find_handler(domain, node.op_type, step.opset);
    if (step.entry) return;
    cannot(step, domain.empty() ? "the operator is not supported"
                                : fmt::format("the operator of {} is not supported", in_quotes(node.domain)));
  }
  void call(const FunctionProto& function, Step& step) {
    if (depth_ >= kDeepestCalls) fail_at(step, "functions call each other more than {} deep", kDeepestCalls);
    Given given;
    for (const AttributeProto& a : function.defaults) given[std::string(a.name)] = &a;
    for (const AttributeProto& a : step.attributes) given[std::string(a.name)] = &a;
    const Opsets opsets = opsets_of(function.opsets, context_.source.file());
    Builder inner(context_, opsets, nullptr, &given, depth_ + 1);
    step.function = std::make_unique<Graph>(inner.of_function(function));
    if (step.in.size() > step.function->inputs.size())
      fail_at(step, "{} inputs, of which the function takes {}", step.in.size(), step.function->inputs.size());
  }
  void cannot(const Step& step, const std::string& why) { cannot(where(step) + why); }
  void cannot(const std::string& what) {
    if (!context_.problems) throw Unsupported(what);
    context_.problems->push_back(what);
  }

  Graph finish() {
    find_last_uses(graph_);
    return std::move(graph_);
  }
  Context& context_;
  const Opsets& opsets_;
  Builder* outer_;
  const Given* given_;
  int depth_;
  Graph graph_;
  std::unordered_map<std::string, int> slots_;
  std::unordered_set<std::string> captured_;  // a node here may give such a name anew
  std::vector<const ValueInfoProto*> required_, optional_;
};

}  // namespace

std::string where(const Step& step) {
  return fmt::format("{}: node {}{}: ", step.file, step.name.empty() ? "" : in_quotes(step.name) + " ",
                     step.name.empty() ? step.op : "(" + step.op + ")");
}

std::vector<std::vector<int>> last_uses(const Graph& graph, const std::vector<const Step*>& steps) {
  constexpr int unused = -2;  // by any step, or kept for the caller
  std::vector<int> last(static_cast<size_t>(graph.slots), unused);
  const auto see = [&](int slot, int step) {
    if (slot >= 0) last[static_cast<size_t>(slot)] = step;
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    const int at = static_cast<int>(i);
    for (const int slot : steps[i]->out) see(slot, at);
    for_each_read(*steps[i], [&](int slot) { see(slot, at); });
  }
  for (const int slot : graph.output_slots) see(slot, unused);
  for (const auto& [slot, value] : graph.constants) see(slot, unused);
  std::vector<std::vector<int>> frees(steps.size());
  for (size_t slot = 0; slot < last.size(); ++slot)
    if (last[slot] >= 0) frees[static_cast<size_t>(last[slot])].push_back(static_cast<int>(slot));
  return frees;
}

void find_last_uses(Graph& graph) {
  std::vector<const Step*> steps;
  for (const Step& step : graph.steps) steps.push_back(&step);
  std::vector<std::vector<int>> frees = last_uses(graph, steps);
  for (size_t i = 0; i < frees.size(); ++i) graph.steps[i].frees = std::move(frees[i]);
}

void drop_unused(Graph& graph) {
  std::vector<bool> used(static_cast<size_t>(graph.slots));
  const auto use = [&](int slot) {
    if (slot >= 0) used[static_cast<size_t>(slot)] = true;
  };
  for (const int slot : graph.output_slots) use(slot);
  for (const int slot : graph.input_slots) use(slot);
  std::vector<bool> needed(graph.steps.size());
  for (size_t i = graph.steps.size(); i-- > 0;) {
    const Step& step = graph.steps[i];
    needed[i] = std::any_of(step.out.begin(), step.out.end(),
                            [&](int slot) { return slot >= 0 && used[static_cast<size_t>(slot)]; });
    if (needed[i]) for_each_read(step, use);
  }
  std::vector<Step> steps;
  for (size_t i = 0; i < needed.size(); ++i)
    if (needed[i]) steps.push_back(std::move(graph.steps[i]));
  graph.steps = std::move(steps);
  std::erase_if(graph.constants, [&](const auto& c) { return !used[static_cast<size_t>(c.first)]; });
}

Graph prepare(const ModelProto& model, Source& source, const LoadOptions& options, std::vector<std::string>* problems) {
  if (!model.graph) throw FileError(source.file() + ": has no graph: not ONNX");
  if (model.ir_version > kNewestIr)
    throw Unsupported(fmt::format("{}: IR version {} is newer than {}, the newest that is known", source.file(),
                                  model.ir_version, kNewestIr));
  Context context{model, source, options, problems};
  for (const FunctionProto& f : model.functions)
    if (!context.functions.try_emplace({plain_domain(f.domain), f.name, f.overload}, &f).second)
      throw FileError(fmt::format("{}: the function {} is there twice", source.file(), in_quotes(f.name)));
  const Opsets opsets = opsets_of(model.opsets, source.file());
  return Builder(context, opsets, nullptr, nullptr, 0).of_graph(*model.graph);
}

}  // namespace tessera::onnx
