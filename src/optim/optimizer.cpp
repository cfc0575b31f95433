#include <fmt/ranges.h>

#include <optional>

#include "optim/state.h"
#include "tessera/autograd.h"
#include "tessera/observer.h"

namespace tessera::optim {

Optimizer::Optimizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Optimizer::~Optimizer() = default;

void Optimizer::step(const StepOptions& options) {
  NoGrad guard;
  const NamedScope scope("optimizer");
  for (Group& g : state_->groups) {
    if (g.method.rule) {
      step_by_rule(g, options);
      continue;
    }
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
    const OptimAttrs& attrs = g.method.attrs;
    if (moments.size() == 2) adam_(parameters, moments[0], moments[1], g.step, grads, inputs, attrs, copies);
    else sgd_(parameters, moments.empty() ? Tensors() : moments[0], g.step, grads, inputs, attrs, copies);
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
double Optimizer::weight_decay(int group) const { return state_->group(group).method.attrs.weight_decay; }
double Optimizer::momentum(int group) const {
  const Method& method = state_->group(group).method;
  return method.momentum ? method.attrs.*method.momentum : 0;
}
void Optimizer::set_momentum(double momentum, int group) {
  Group& g = state_->group(group);
  Method& method = g.method;
  if (!method.momentum) throw Error(fmt::format("{}: was made without a momentum", state_->name));
  if (!(momentum > 0 && momentum < 1))
    throw Error(fmt::format("{}: momentum = {} is not in (0, 1)", state_->name, momentum));
  if (method.moments.empty()) {  // SGD, which has had none
    method.moments.emplace_back("momentum");
    g.moments.push_back(State::initial(method.moments[0], g.parameters));
  }
  method.attrs.*method.momentum = momentum;
}
void Optimizer::set_lr(double lr, int group) {
  Group& g = state_->group(group);
  State::check_rate(state_->name, lr, 0);
  g.lr.fill_(lr);
  g.current_lr = static_cast<float>(lr);
}
void Optimizer::set_weight_decay(double weight_decay, int group) {
  Group& g = state_->group(group);
  State::check_rate(state_->name, 0, weight_decay);
  g.method.attrs.weight_decay = weight_decay;
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

Method sgd_method(const SGDOptions& o) {
  if (!(o.momentum >= 0 && o.momentum < 1)) throw Error(fmt::format("SGD: momentum = {} is not in [0, 1)", o.momentum));
  if (o.nesterov && (o.momentum == 0 || o.dampening != 0)) throw Error("SGD: nesterov needs momentum and no dampening");
  OptimAttrs a;
  a.momentum = o.momentum;
  a.dampening = o.dampening;
  a.nesterov = o.nesterov;
  return {a, o.momentum != 0 ? std::vector<Moment>{"momentum"} : std::vector<Moment>(), {}, &OptimAttrs::momentum};
}

template <class Options>
auto adam_method(const char* name, bool decoupled) {
  return [=](const Options& o) {
    check_betas(name, o.beta1, o.beta2, o.eps);
    if (o.amsgrad) return amsgrad_method(o.beta1, o.beta2, o.eps, decoupled);
    OptimAttrs a;
    a.beta1 = o.beta1;
    a.beta2 = o.beta2;
    a.eps = o.eps;
    a.decoupled = decoupled;
    return Method{a, {"exp_avg", "exp_avg_sq"}, {}, &OptimAttrs::beta1};
  };
}

}  // namespace

SGD::SGD(std::vector<Tensor> parameters, const SGDOptions& options)
    : SGD(std::vector<ParamGroup<SGDOptions>>{{std::move(parameters), options}}) {}
SGD::SGD(const std::vector<ParamGroup<SGDOptions>>& groups) : Optimizer(State::make("SGD", groups, sgd_method)) {}

Adam::Adam(std::vector<Tensor> parameters, const AdamOptions& options)
    : Adam(std::vector<ParamGroup<AdamOptions>>{{std::move(parameters), options}}) {}
Adam::Adam(const std::vector<ParamGroup<AdamOptions>>& groups)
    : Optimizer(State::make("Adam", groups, adam_method<AdamOptions>("Adam", false))) {}

AdamW::AdamW(std::vector<Tensor> parameters, const AdamWOptions& options)
    : AdamW(std::vector<ParamGroup<AdamWOptions>>{{std::move(parameters), options}}) {}
AdamW::AdamW(const std::vector<ParamGroup<AdamWOptions>>& groups)
    : Optimizer(State::make("AdamW", groups, adam_method<AdamWOptions>("AdamW", true))) {}

}  // namespace tessera::optim
