#include "onnx/optimize.h"

#include <algorithm>
#include <cmath>

#include "onnx/handler.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"
#include "tessera/packing.h"

namespace tessera::onnx {
namespace {

Values fused_linear(const Call& c) {
  const auto activation = static_cast<Activation>(c.integer("activation", 0));
  return {linear_act(c.in(0), c.in(1), c.optional(2), activation, c.optional(3))};
}
constexpr Entry linear_entry{"Linear", 1, fused_linear, "tessera"};

/// A graph with who makes and who uses each value.
class Rewriter {
 public:
  Rewriter(Graph& graph, DType products) : graph_(graph), products_(products), gone_(graph.steps.size()) { index(); }

  void run() {
    for (size_t i = 0; i < graph_.steps.size(); ++i) {
      if (is(i, "BatchNormalization")) fold_batch_norm(i);
      else if (is(i, "MatMul") || is(i, "Gemm")) fuse_linear(i);
    }
    for (size_t i = 0; i < graph_.steps.size(); ++i)
      if (is(i, "Conv")) lay_filters(i);
    finish();
  }

 private:
  void index() {
    const size_t slots = static_cast<size_t>(graph_.slots);
    maker_.assign(slots, -1);
    users_.assign(slots, {});
    constant_.assign(slots, nullptr);
    is_output_.assign(slots, false);
    for (size_t i = 0; i < graph_.steps.size(); ++i) {
      const Step& step = graph_.steps[i];
      const int at = static_cast<int>(i);
      for (const int slot : step.in)
        if (slot >= 0) users_[static_cast<size_t>(slot)].push_back(at);
      for (const Body& body : step.bodies)
        for (const auto& [there, here] : body.graph->captures) users_[static_cast<size_t>(there)].push_back(at);
      for (const int slot : step.out)
        if (slot >= 0) maker_[static_cast<size_t>(slot)] = at;
    }
    for (const int slot : graph_.output_slots)
      if (slot >= 0) is_output_[static_cast<size_t>(slot)] = true;
    std::vector<bool> given(slots);
    for (const int slot : graph_.input_slots) given[static_cast<size_t>(slot)] = true;
    for (const auto& [slot, value] : graph_.constants)
      if (!given[static_cast<size_t>(slot)] && value.is_tensor())
        constant_[static_cast<size_t>(slot)] = &value.tensor();
  }

  bool is(size_t i, std::string_view op) const {
    const Step& step = graph_.steps[i];
    return !gone_[i] && step.entry && step.entry->domain.empty() && step.op == op && step.bodies.empty();
  }
  /// The tensor of input i where it is known.
  const Tensor* constant(const Step& step, size_t i) const {
    const size_t slot = i < step.in.size() && step.in[i] >= 0 ? static_cast<size_t>(step.in[i]) : constant_.size();
    return slot < constant_.size() ? constant_[slot] : nullptr;  // not of what was added
  }
  /// The one step that uses a value which nothing else sees; -1 where there are others.
  int only_user(int slot) const {
    const auto& users = users_[static_cast<size_t>(slot)];
    return users.size() == 1 && !is_output_[static_cast<size_t>(slot)] ? users[0] : -1;
  }
  int add_constant(Tensor value) {
    added_.emplace_back(graph_.slots, std::move(value));
    return graph_.slots++;
  }
  static const AttributeProto* attribute(const Step& step, std::string_view name) {
    for (const AttributeProto& a : step.attributes)
      if (a.name == name) return &a;
    return nullptr;
  }
  static double real(const Step& step, std::string_view name, double otherwise) {
    const AttributeProto* a = attribute(step, name);
    return a ? static_cast<double>(a->f) : otherwise;
  }
  static int64_t integer(const Step& step, std::string_view name, int64_t otherwise) {
    const AttributeProto* a = attribute(step, name);
    return a ? a->i : otherwise;
  }

  // y = scale (conv(x, w) + b - mean) / sqrt(var + eps) + bias is a convolution with other filters and another bias.
  void fold_batch_norm(size_t at) {
    Step& norm = graph_.steps[at];
    if (integer(norm, "training_mode", 0) || norm.in.size() != 5 || norm.in[0] < 0) return;
    for (size_t i = 1; i < norm.out.size(); ++i)
      if (norm.out[i] >= 0 &&
          (!users_[static_cast<size_t>(norm.out[i])].empty() || is_output_[static_cast<size_t>(norm.out[i])]))
        return;
    const int before = maker_[static_cast<size_t>(norm.in[0])];
    if (before < 0 || !is(static_cast<size_t>(before), "Conv") || only_user(norm.in[0]) != static_cast<int>(at)) return;
    Step& conv = graph_.steps[static_cast<size_t>(before)];
    const Tensor* const filters = constant(conv, 1);
    const bool has_bias = conv.in.size() > 2 && conv.in[2] >= 0;
    if (!filters || (has_bias && !constant(conv, 2)) || !is_floating(filters->dtype())) return;
    for (size_t i = 1; i < 5; ++i)
      if (!constant(norm, i) || constant(norm, i)->dim() != 1 || constant(norm, i)->size(0) != filters->size(0)) return;
    const auto wide = [](const Tensor& t) { return cast(t, Float64); };
    const Tensor scale = mul(wide(*constant(norm, 1)), rsqrt(wide(*constant(norm, 4)) + real(norm, "epsilon", 1e-5f)));
    Tensor bias = neg(wide(*constant(norm, 3)));
    if (has_bias) bias = add(bias, wide(*constant(conv, 2)));
    bias = add(mul(bias, scale), wide(*constant(norm, 2)));
    Shape per_filter(std::vector<int64_t>(static_cast<size_t>(filters->dim()), 1));
    per_filter[0] = scale.size(0);
    const Tensor folded = mul(wide(*filters), reshape(scale, per_filter));
    conv.in.resize(3);
    conv.in[1] = add_constant(cast(folded, filters->dtype()));
    conv.in[2] = add_constant(cast(bias, filters->dtype()));
    take_over(before, static_cast<int>(at));
  }

  /// Step `from` gives what the first output of `later` was, which is gone.
  void take_over(int from, int later) {
    const int slot = graph_.steps[static_cast<size_t>(later)].out[0];
    graph_.steps[static_cast<size_t>(from)].out = {slot};
    maker_[static_cast<size_t>(slot)] = from;
    gone_[static_cast<size_t>(later)] = true;
  }

  static Activation activation_of(const Step& step) {
    if (step.op == "Relu") return Activation::Relu;
    if (step.op == "Tanh") return Activation::Tanh;
    if (step.op != "Gelu") return Activation::None;
    const AttributeProto* a = attribute(step, "approximate");
    return a && a->s == "tanh" ? Activation::GeluTanh : Activation::GeluErf;
  }

  void fuse_linear(size_t at) {
    Step& step = graph_.steps[at];
    const Tensor* const weight = constant(step, 1);
    if (step.in.size() < 2 || step.in[0] < 0 || !weight || weight->dim() != 2 || !is_floating(weight->dtype())) return;
    const bool gemm = step.op == "Gemm";
    if (gemm && (integer(step, "transA", 0) || real(step, "alpha", 1) != 1 || real(step, "beta", 1) != 1)) return;
    const bool turned = gemm && integer(step, "transB", 0);
    const int64_t width = weight->size(turned ? 0 : 1);
    const auto is_bias = [&](const Tensor* t) {
      return t && t->dim() == 1 && t->size(0) == width && t->dtype() == weight->dtype();
    };
    int bias = -1;
    if (gemm && step.in.size() > 2 && step.in[2] >= 0) {
      if (!is_bias(constant(step, 2))) return;
      bias = step.in[2];
    }
    // What is behind it: a bias, then an activation.
    if (bias < 0) {
      const int next = only_user(step.out[0]);
      if (next >= 0 && is(static_cast<size_t>(next), "Add") && graph_.steps[static_cast<size_t>(next)].in.size() == 2) {
        const Step& sum = graph_.steps[static_cast<size_t>(next)];
        const size_t other = sum.in[0] == step.out[0] ? 1 : 0;
        if (is_bias(constant(sum, other))) {
          bias = sum.in[other];
          take_over(static_cast<int>(at), next);
        }
      }
    }
    Activation activation = Activation::None;
    const int next = only_user(step.out[0]);
    if (next >= 0 && !gone_[static_cast<size_t>(next)] && graph_.steps[static_cast<size_t>(next)].entry &&
        graph_.steps[static_cast<size_t>(next)].entry->domain.empty()) {
      activation = activation_of(graph_.steps[static_cast<size_t>(next)]);
      if (activation != Activation::None) take_over(static_cast<int>(at), next);
    }
    const int packed = packed_of(step.in[1], *weight, turned);
    step.entry = &linear_entry;
    step.in = {step.in[0], packed, bias};
    step.attributes = {{.name = "activation", .type = kIntAttribute, .i = static_cast<int64_t>(activation)}};
  }
  /// What a product reads of a weight.
  Tensor lowered(const Tensor& weight) const { return weight.dtype() == Float32 ? cast(weight, products_) : weight; }
  void lay_filters(size_t at) {
    Step& conv = graph_.steps[at];
    const int slot = conv.in.size() > 1 ? conv.in[1] : -1;
    if (slot < 0) return;
    Tensor filters = constant(conv, 1) ? *constant(conv, 1) : Tensor();
    for (const auto& [added, value] : added_)  // a batch norm went into it
      if (added == slot) filters = value.tensor();
    if (filters.defined() && filters.dim() == 4) conv.in[1] = add_constant(lowered(filters).to(ChannelsLast));
  }

  /// A weight that several products share is packed once.
  int packed_of(int slot, const Tensor& weight, bool turned) {
    for (const auto& [from, how, to] : packed_)
      if (from == slot && how == turned) return to;
    const int to = add_constant(pack_linear(lowered(turned ? weight : transpose(weight, 0, 1))));
    packed_.emplace_back(slot, turned, to);
    return to;
  }

  /// Lets go of steps and constants that nothing needs, and says anew when values die.
  void finish() {
    std::vector<Step> steps;
    for (size_t i = 0; i < graph_.steps.size(); ++i)
      if (!gone_[i]) steps.push_back(std::move(graph_.steps[i]));
    graph_.steps = std::move(steps);
    for (auto& [slot, value] : added_) graph_.constants.emplace_back(slot, value);
    drop_unused(graph_);
    find_last_uses(graph_);
  }

  Graph& graph_;
  DType products_;
  std::vector<bool> gone_, is_output_;
  std::vector<int> maker_;
  std::vector<std::vector<int>> users_;
  std::vector<const Tensor*> constant_;
  std::vector<std::pair<int, Value>> added_;
  std::vector<std::tuple<int, bool, int>> packed_;
};

}  // namespace

void optimize(Graph& graph, DType products) {
  const NoGrad no_grad;
  Rewriter(graph, products).run();
}

}  // namespace tessera::onnx
