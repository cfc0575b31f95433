#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <optional>
#include <unordered_set>

#include "ops/lower_copy.h"
#include "ops/optim.h"
#include "ops/output_layout.h"
#include "tessera/autograd.h"
#include "tessera/observer.h"
#include "tessera/ops.h"
#include "tessera/optim.h"

namespace tessera::optim {

// A group with its state: for Adam the first and second moments, for SGD the velocity if there is momentum.
struct Group {
  Tensors parameters;
  std::vector<std::shared_ptr<LowerCopy>> copies;  // of the parameters in halves, once autocast has made some
  std::vector<Tensors> moments;
  Tensor step, lr;
  double base_lr = 0, current_lr = 0;  // the second as `lr` holds it, so that nobody needs to wait for a device
  OptimAttrs attrs;
};

struct Optimizer::State {
  const char* name;
  std::vector<const char*> moment_names;
  std::vector<Group> groups;

  // Calls fn(name, tensor) for everything that is saved.
  template <class Fn>
  void each(const Fn& fn) const {
    size_t index = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      fn(fmt::format("group.{}.step", g), groups[g].step);
      for (size_t i = 0; i < groups[g].parameters.size(); ++i, ++index)
        for (size_t m = 0; m < groups[g].moments.size(); ++m)
          fn(fmt::format("param.{}.{}", index, moment_names[m]), groups[g].moments[m][i]);
    }
  }

  template <class Options, class ToAttrs>
  static std::unique_ptr<State> make(const char* name, std::vector<const char*> moment_names,
                                     const std::vector<ParamGroup<Options>>& groups, const ToAttrs& to_attrs) {
    auto state = std::make_unique<State>();
    state->name = name;
    state->moment_names = std::move(moment_names);
    std::unordered_set<const TensorImpl*> all;
    for (const ParamGroup<Options>& from : groups) {
      check_rate(name, from.options.lr, from.options.weight_decay);
      Group group;
      std::unordered_set<const TensorImpl*> mine;
      for (const Tensor& p : from.parameters) {
        if (!mine.insert(p.ref().get()).second) continue;
        if (!all.insert(p.ref().get()).second) throw Error(fmt::format("{}: {} is in two groups", name, describe(p)));
        if (!p.requires_grad() || !p.is_leaf()) throw Error(fmt::format("{}: {} is not trainable", name, describe(p)));
        group.parameters.push_back(p);
      }
      group.attrs = to_attrs(from.options);
      group.base_lr = from.options.lr;
      group.current_lr = static_cast<float>(group.base_lr);
      const bool has_moments = std::string_view(name) != "SGD" || group.attrs.momentum != 0;
      if (has_moments) group.moments.resize(state->moment_names.size());
      for (Tensors& list : group.moments)
        for (const Tensor& p : group.parameters)
          list.push_back(zeros_beside(p, p.dtype() == Float64 ? Float64 : Float32));
      const Device device = group.parameters.empty() ? cpu() : group.parameters[0].device();
      group.step = zeros({}, Float32, device);
      group.lr = full({}, group.base_lr, Float32, device);
      state->groups.push_back(std::move(group));
    }
    if (all.empty()) throw Error(fmt::format("{}: no parameters", name));
    for (Group& group : state->groups)
      for (const Tensor& p : group.parameters) group.copies.push_back(share_lower_copy(p));
    return state;
  }

  Group& group(int number) {
    if (number < 0 || number >= static_cast<int>(groups.size()))
      throw Error(fmt::format("{}: there is no group {} of {}", name, number, groups.size()));
    return groups[static_cast<size_t>(number)];
  }

  static void check_rate(const char* name, double lr, double weight_decay) {
    if (!(lr >= 0 && std::isfinite(lr)) || !(weight_decay >= 0 && std::isfinite(weight_decay)))
      throw Error(fmt::format("{}: lr = {} and weight_decay = {} must not be negative", name, lr, weight_decay));
  }
};

Optimizer::Optimizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Optimizer::~Optimizer() = default;

void Optimizer::step(const StepOptions& options) {
  NoGrad guard;
  const NamedScope scope("optimizer");
  for (Group& g : state_->groups) {
    Tensors parameters, copies, grads;
    std::vector<Tensors> moments(g.moments.size());
    for (size_t i = 0; i < g.parameters.size(); ++i) {
      Tensor grad = g.parameters[i].grad();
      if (!grad.defined()) continue;
      parameters.push_back(g.parameters[i]);
      copies.push_back(g.copies[i]->writable(g.parameters[i]));
      grads.push_back(std::move(grad));
      for (size_t m = 0; m < moments.size(); ++m) moments[m].push_back(g.moments[m][i]);
    }
    if (parameters.empty()) continue;
    const StepInputs inputs{g.lr, options.grad_scale, options.found_inf};
    if (state_->moment_names.size() == 2)
      adam_(parameters, moments[0], moments[1], g.step, grads, inputs, g.attrs, copies);
    else sgd_(parameters, moments.empty() ? Tensors() : moments[0], g.step, grads, inputs, g.attrs, copies);
  }
}

void Optimizer::zero_grad() {
  for (Group& g : state_->groups)
    for (const Tensor& p : g.parameters) p.set_grad({});
}

Tensors Optimizer::parameters() const {
  Tensors out;
  for (const Group& g : state_->groups) out.append(g.parameters.begin(), g.parameters.end());
  return out;
}
int Optimizer::groups() const { return static_cast<int>(state_->groups.size()); }
Tensors Optimizer::parameters(int group) const { return state_->group(group).parameters; }
double Optimizer::lr(int group) const { return state_->group(group).current_lr; }
double Optimizer::initial_lr(int group) const { return state_->group(group).base_lr; }
double Optimizer::weight_decay(int group) const { return state_->group(group).attrs.weight_decay; }
void Optimizer::set_lr(double lr, int group) {
  Group& g = state_->group(group);
  State::check_rate(state_->name, lr, 0);
  g.lr.fill_(lr);
  g.current_lr = static_cast<float>(lr);
}
void Optimizer::set_weight_decay(double weight_decay, int group) {
  Group& g = state_->group(group);
  State::check_rate(state_->name, 0, weight_decay);
  g.attrs.weight_decay = weight_decay;
}
void Optimizer::scale_lr(double factor) {
  for (Group& g : state_->groups) {
    g.lr.fill_(g.base_lr * factor);
    g.current_lr = static_cast<float>(g.base_lr * factor);
  }
}

StateDict Optimizer::state_dict() const {
  StateDict out;
  state_->each([&](const std::string& name, const Tensor& t) { out.emplace(name, t); });
  return out;
}

void Optimizer::load_state_dict(const StateDict& dict) {
  std::vector<std::string> problems;
  size_t found = 0;
  state_->each([&](const std::string& name, const Tensor& t) {
    auto it = dict.find(name);
    if (it == dict.end()) return problems.push_back("missing " + name);
    ++found;
    if (it->second.shape() != t.shape() || it->second.dtype() != t.dtype())
      problems.push_back(fmt::format("{} is {} here and {} there", name, describe(t), describe(it->second)));
  });
  if (found != dict.size()) problems.push_back(fmt::format("{} unexpected names", dict.size() - found));
  if (!problems.empty()) throw Error(fmt::format("{}::load_state_dict: {}", state_->name, fmt::join(problems, "; ")));
  NoGrad guard;
  state_->each([&](const std::string& name, Tensor t) { t.copy_(dict.find(name)->second); });
}

namespace {

OptimAttrs sgd_attrs(const SGDOptions& o) {
  if (!(o.momentum >= 0 && o.momentum < 1)) throw Error(fmt::format("SGD: momentum = {} is not in [0, 1)", o.momentum));
  if (o.nesterov && (o.momentum == 0 || o.dampening != 0)) throw Error("SGD: nesterov needs momentum and no dampening");
  OptimAttrs a;
  a.momentum = o.momentum;
  a.dampening = o.dampening;
  a.weight_decay = o.weight_decay;
  a.nesterov = o.nesterov;
  return a;
}

template <class Options>
auto adam_attrs(const char* name, bool decoupled) {
  return [=](const Options& o) {
    if (!(o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1 && o.eps >= 0))
      throw Error(
          fmt::format("{}: betas {} and {} are not in [0, 1), or eps {} is negative", name, o.beta1, o.beta2, o.eps));
    OptimAttrs a;
    a.beta1 = o.beta1;
    a.beta2 = o.beta2;
    a.eps = o.eps;
    a.weight_decay = o.weight_decay;
    a.decoupled = decoupled;
    return a;
  };
}

}  // namespace

SGD::SGD(std::vector<Tensor> parameters, const SGDOptions& options)
    : SGD(std::vector<ParamGroup<SGDOptions>>{{std::move(parameters), options}}) {}
SGD::SGD(const std::vector<ParamGroup<SGDOptions>>& groups)
    : Optimizer(State::make("SGD", {"momentum"}, groups, sgd_attrs)) {}

Adam::Adam(std::vector<Tensor> parameters, const AdamOptions& options)
    : Adam(std::vector<ParamGroup<AdamOptions>>{{std::move(parameters), options}}) {}
Adam::Adam(const std::vector<ParamGroup<AdamOptions>>& groups)
    : Optimizer(State::make("Adam", {"exp_avg", "exp_avg_sq"}, groups, adam_attrs<AdamOptions>("Adam", false))) {}

AdamW::AdamW(std::vector<Tensor> parameters, const AdamWOptions& options)
    : AdamW(std::vector<ParamGroup<AdamWOptions>>{{std::move(parameters), options}}) {}
AdamW::AdamW(const std::vector<ParamGroup<AdamWOptions>>& groups)
    : Optimizer(State::make("AdamW", {"exp_avg", "exp_avg_sq"}, groups, adam_attrs<AdamWOptions>("AdamW", true))) {}

}  // namespace tessera::optim
