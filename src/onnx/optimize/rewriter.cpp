#include "onnx/optimize/rewriter.h"

#include <algorithm>
#include <cmath>

#include "onnx/optimize.h"
#include "tessera/autograd.h"

namespace tessera::onnx {

Rewriter::Rewriter(Graph& graph, DType products)
    : graph_(graph), products_(products), gone_(graph.steps.size()), known_(static_cast<size_t>(graph.slots)) {
  maker_.assign(known_, -1);
  users_.assign(known_, {});
  constant_.assign(known_, {});
  is_output_.assign(known_, false);
  for (size_t i = 0; i < graph.steps.size(); ++i) {
    const Step& step = graph.steps[i];
    const int at = static_cast<int>(i);
    for (const int slot : step.in)
      if (slot >= 0) users_[static_cast<size_t>(slot)].insert(at);
    for (const Body& body : step.bodies)
      for (const auto& [there, here] : body.graph->captures) users_[static_cast<size_t>(there)].insert(at);
    for (const int slot : step.out)
      if (slot >= 0) maker_[static_cast<size_t>(slot)] = at;
  }
  for (const int slot : graph.output_slots)
    if (slot >= 0) is_output_[static_cast<size_t>(slot)] = true;
  std::vector<bool> given(known_);
  for (const int slot : graph.input_slots) given[static_cast<size_t>(slot)] = true;
  for (size_t i = 0; i < graph.constants.size(); ++i) {
    const auto& [slot, value] = graph.constants[i];
    if (given[static_cast<size_t>(slot)] || !value.is_tensor()) continue;
    constant_[static_cast<size_t>(slot)] = value.tensor();
    place_[slot] = i;
  }
}

bool Rewriter::is(int at, std::string_view op, std::string_view domain) const {
  if (at < 0 || gone_[static_cast<size_t>(at)]) return false;
  const Step& s = step(at);
  return s.entry && s.entry->domain == domain && s.op == op && s.bodies.empty();
}
int Rewriter::maker(int slot) const { return slot < 0 ? -1 : maker_[static_cast<size_t>(slot)]; }
int Rewriter::maker(int slot, std::string_view op) const {
  const int at = maker(slot);
  return is(at, op) ? at : -1;
}
int Rewriter::only_user(int slot) const {
  if (slot < 0) return -1;
  const auto& users = users_[static_cast<size_t>(slot)];
  return users.size() == 1 && !is_output_[static_cast<size_t>(slot)] ? *users.begin() : -1;
}
int Rewriter::only_user(int slot, std::string_view op) const {
  const int at = only_user(slot);
  return is(at, op) ? at : -1;
}
int Rewriter::own_maker(int slot, std::string_view op) const { return only_user(slot) < 0 ? -1 : maker(slot, op); }
bool Rewriter::is_seen_only_by(int slot, const std::vector<int>& steps) const {
  const auto& users = users_[static_cast<size_t>(slot)];
  return !is_output_[static_cast<size_t>(slot)] && std::all_of(users.begin(), users.end(), [&](int at) {
    return std::find(steps.begin(), steps.end(), at) != steps.end();
  });
}
bool Rewriter::is_used(int slot) const {
  return slot >= 0 && (is_output_[static_cast<size_t>(slot)] || !users_[static_cast<size_t>(slot)].empty());
}

Tensor Rewriter::constant(int slot) const { return slot < 0 ? Tensor() : constant_[static_cast<size_t>(slot)]; }
Tensor Rewriter::constant(const Step& step, size_t i) const {
  return i < step.in.size() ? constant(step.in[i]) : Tensor();
}
std::optional<double> Rewriter::number(int slot, int64_t rank) const {
  const Tensor t = constant(slot);
  if (!t.defined() || t.numel() != 1 || t.dim() > rank || !is_floating(t.dtype())) return {};
  return t.item();
}
std::optional<std::vector<int64_t>> Rewriter::integers(int slot) const {
  const Tensor t = constant(slot);
  if (!t.defined() || is_floating(t.dtype()) || t.dim() > 1) return {};
  return t.to(cpu()).to_vector<int64_t>();
}
int Rewriter::add_constant(Tensor value) {
  constant_.push_back(std::move(value));
  users_.emplace_back();
  is_output_.push_back(false);
  maker_.push_back(-1);
  return graph_.slots++;
}

void Rewriter::replace(int at, int named, const Entry* entry, std::vector<int> in,
                       std::vector<AttributeProto> attributes) {
  Step& s = graph_.steps[static_cast<size_t>(at)];
  for (const int slot : in)
    if (slot >= 0) users_[static_cast<size_t>(slot)].insert(at);
  const std::vector<int> before = std::exchange(s.in, std::move(in));
  const Step& like = step(named);
  s.name = like.name;
  if (like.entry == entry) s.opset = like.opset;
  else s.opset = std::max(s.opset, entry->since);
  s.entry = entry;
  s.op = std::string(entry->op);
  s.attributes = std::move(attributes);
  s.out.resize(1);
  for (const int slot : before) release(slot, at);
}
void Rewriter::release(int slot, int user) {
  std::vector<std::pair<int, int>> released{{slot, user}};  // no recursion: what is behind may be a long chain
  while (!released.empty()) {
    std::tie(slot, user) = released.back();
    released.pop_back();
    if (slot < 0) continue;
    auto& users = users_[static_cast<size_t>(slot)];
    if (const auto place = users.find(user); place != users.end()) users.erase(place);
    if (!is_used(slot)) forget(slot);
    const int at = maker(slot);
    if (at < 0 || gone_[static_cast<size_t>(at)] || !step(at).bodies.empty()) continue;
    const auto& out = step(at).out;
    if (std::any_of(out.begin(), out.end(), [&](int s) { return is_used(s); })) continue;
    gone_[static_cast<size_t>(at)] = true;
    for (const int in : step(at).in) released.emplace_back(in, at);
  }
}

void Rewriter::forget(int slot) {
  constant_[static_cast<size_t>(slot)] = Tensor();
  const auto place = place_.find(slot);
  if (place != place_.end()) graph_.constants[place->second].second = Value();
}

void Rewriter::finish() {
  std::vector<Step> steps;
  for (size_t i = 0; i < graph_.steps.size(); ++i)
    if (!gone_[i]) steps.push_back(std::move(graph_.steps[i]));
  graph_.steps = std::move(steps);
  for (size_t slot = known_; slot < constant_.size(); ++slot)
    graph_.constants.emplace_back(static_cast<int>(slot), constant_[slot]);
  drop_unused(graph_);
  find_last_uses(graph_);
}

const AttributeProto* attribute_of(const Step& step, std::string_view name) {
  for (const AttributeProto& a : step.attributes)
    if (a.name == name) return &a;
  return nullptr;
}
double real_of(const Step& step, std::string_view name, double otherwise) {
  const AttributeProto* a = attribute_of(step, name);
  return a ? static_cast<double>(a->f) : otherwise;
}
int64_t integer_of(const Step& step, std::string_view name, int64_t otherwise) {
  const AttributeProto* a = attribute_of(step, name);
  return a ? a->i : otherwise;
}
bool is_close(double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b); }

int other_input(const Step& step, int slot) {
  if (step.in.size() != 2) return -1;
  return step.in[0] == slot ? step.in[1] : step.in[1] == slot ? step.in[0] : -1;
}

namespace {

void add_factors(const Rewriter& r, int slot, bool own, int depth, Factors& out) {
  constexpr int kDeepest = 8;
  if (const auto number = r.number(slot)) {
    out.number *= *number;
    return;
  }
  const int at = r.maker(slot);
  if (depth < kDeepest && (own || r.only_user(slot) >= 0) && r.is(at, "Mul") && r.step(at).in.size() == 2) {
    for (const int in : r.step(at).in) add_factors(r, in, false, depth + 1, out);
    return;
  }
  if (depth < kDeepest && (own || r.only_user(slot) >= 0) && r.is(at, "Div") && r.step(at).in.size() == 2) {
    if (const auto number = r.number(r.step(at).in[1])) {
      out.number /= *number;
      return add_factors(r, r.step(at).in[0], false, depth + 1, out);
    }
  }
  if (r.only_user(slot) >= 0 && r.is(at, "Pow")) {
    const auto power = r.number(r.step(at).in[1]);
    if (power && (*power == 2 || *power == 3)) {
      out.slots.insert(out.slots.end(), static_cast<size_t>(*power), r.step(at).in[0]);
      return;
    }
  }
  out.slots.push_back(slot);
}

}  // namespace

Factors factors_of(const Rewriter& r, int at) {
  Factors out;
  add_factors(r, r.step(at).out[0], true, 0, out);
  return out;
}

void optimize(Graph& graph, DType products) {
  const NoGrad no_grad;
  Rewriter r(graph, products);
  const auto each = [&](auto&&... patterns) {
    for (int at = 0; at < static_cast<int>(r.size()); ++at) (patterns(r, at), ...);
  };
  each(fold_bias, fold_batch_norm, fuse_activation, fuse_layer_norm, fuse_rms_norm, fuse_group_norm, turn_keys);
  each(fuse_batch_norm_relu, fuse_attention);
  ProductFuser products_of(r);
  each([&](Rewriter&, int at) { products_of.fuse(at); });
  each(lay_filters, fuse_convolution, mark_small_sums);
  r.finish();
}

}  // namespace tessera::onnx
