// Optimizers without a kernel of their own: their steps are written in operators, so they run wherever these do.
#include "optim/state.h"
#include "tessera/ops_math.h"

namespace tessera::optim {
namespace {

/// base^exponent, in f64: for steps, whose powers are near 1.
Tensor power(double base, const Tensor& exponent) { return pow(full({}, base, Float64, exponent.device()), exponent); }

Tensor like(const Tensor& scalar, const Tensor& values) { return scalar.to(values.dtype()); }

/// first = beta first + (1 - beta) value
void decay(Tensor& average, double beta, const Tensor& value) { average = average * beta + value * (1 - beta); }

/// Moves both moments of Adam on.
void move_moments(RuleStep& s, double beta2) {
  decay(s.moments[0], s.attrs.beta1, s.gradient);
  decay(s.moments[1], beta2, square(s.gradient));
}

/// parameter - factor direction
Tensor moved(const RuleStep& s, const Tensor& factor, const Tensor& direction) {
  return s.parameter - like(factor, direction) * direction;
}

Method rule_method(std::vector<Moment> moments, Rule rule) {
  OptimAttrs attrs;
  attrs.decoupled = false;
  return {attrs, std::move(moments), std::move(rule)};
}
// One of Adam's kin.
Method beta_method(std::vector<Moment> moments, Rule rule, double beta1, bool decoupled = false) {
  Method method = rule_method(std::move(moments), std::move(rule));
  method.attrs.beta1 = beta1;
  method.attrs.decoupled = decoupled;
  method.momentum = &OptimAttrs::beta1;
  return method;
}

void check_option(bool good, const char* name, const char* option, double value, const char* range) {
  if (!good) throw Error(fmt::format("{}: {} = {} is not {}", name, option, value, range));
}
void check_fraction(const char* name, const char* option, double value) {
  check_option(value >= 0 && value < 1, name, option, value, "in [0, 1)");
}
void check_positive(const char* name, const char* option, double value) {
  check_option(value >= 0 && std::isfinite(value), name, option, value, "a number from 0 on");
}

Method nadam_method(const NAdamOptions& o) {
  check_betas("NAdam", o.beta1, o.beta2, o.eps);
  check_positive("NAdam", "momentum_decay", o.momentum_decay);
  const Rule rule = [o](RuleStep& s) {
    move_moments(s, o.beta2);
    const auto momentum = [&](const Tensor& step) {
      return (1 - 0.5 * power(0.96, step * o.momentum_decay)) * s.attrs.beta1;
    };
    const Tensors& numbers = s.common([&] {
      const Tensor now = momentum(s.step), next = momentum(s.step + 1);
      return Tensors{now, next, s.lr * (1 - now), s.lr * next, like(1 - power(o.beta2, s.step), s.parameter)};
    });
    const Tensor product = s.moments[2].to(Float64) * numbers[0];
    s.moments[2] = like(product, s.parameter);
    const Tensor root = sqrt(s.moments[1] / numbers[4]) + o.eps;
    const Tensor of_gradient = numbers[2] / (1 - product), of_mean = numbers[3] / (1 - product * numbers[1]);
    const Tensor direction = s.gradient * like(of_gradient, s.gradient) + s.moments[0] * like(of_mean, s.gradient);
    return s.parameter - direction / root;
  };
  return beta_method({"exp_avg", "exp_avg_sq", Moment("mu_product", 1, true)}, rule, o.beta1, o.decoupled);
}

Method radam_method(const RAdamOptions& o) {
  check_betas("RAdam", o.beta1, o.beta2, o.eps);
  const Rule rule = [o](RuleStep& s) {
    move_moments(s, o.beta2);
    const Tensors& numbers = s.common([&] {
      const double longest = 2 / (1 - o.beta2) - 1;
      const Tensor power2 = power(o.beta2, s.step), correction = 1 - power2;
      const Tensor length = longest - 2 * s.step * power2 / correction, five = full({}, 5, Float64, length.device());
      const Tensor used = maximum(length, five);  // where it is shorter, the factor is not
      const Tensor rectified =
          sqrt((used - 4) * (used - 2) * longest / (used * ((longest - 4) * (longest - 2)))) * sqrt(correction);
      return Tensors{gt(length, five), like(rectified, s.parameter),
                     full({}, 1, s.parameter.dtype(), s.parameter.device()),
                     like(s.lr / (1 - power(s.attrs.beta1, s.step)), s.parameter)};
    });
    const Tensor factor = where(numbers[0], numbers[1] / (sqrt(s.moments[1]) + o.eps), numbers[2]);
    return moved(s, numbers[3], s.moments[0] * factor);
  };
  return beta_method({"exp_avg", "exp_avg_sq"}, rule, o.beta1, o.decoupled);
}

Method adamax_method(const AdamaxOptions& o) {
  check_betas("Adamax", o.beta1, o.beta2, o.eps);
  const Rule rule = [o](RuleStep& s) {
    decay(s.moments[0], s.attrs.beta1, s.gradient);
    s.moments[1] = maximum(s.moments[1] * o.beta2, abs(s.gradient) + o.eps);
    const Tensors& numbers =
        s.common([&] { return Tensors{like(s.lr / (1 - power(s.attrs.beta1, s.step)), s.parameter)}; });
    return moved(s, numbers[0], s.moments[0] / s.moments[1]);
  };
  return beta_method({"exp_avg", "exp_inf"}, rule, o.beta1);
}

Method rmsprop_method(const RMSpropOptions& o) {
  check_fraction("RMSprop", "alpha", o.alpha);
  check_fraction("RMSprop", "momentum", o.momentum);
  check_positive("RMSprop", "eps", o.eps);
  std::vector<Moment> moments{"square_avg"};
  if (o.momentum != 0) moments.push_back("momentum_buffer");
  if (o.centered) moments.push_back("grad_avg");
  const Rule rule = [o](RuleStep& s) {
    decay(s.moments[0], o.alpha, square(s.gradient));
    Tensor spread = s.moments[0];
    if (o.centered) {
      decay(s.moments.back(), o.alpha, s.gradient);
      spread = spread - square(s.moments.back());
    }
    Tensor direction = s.gradient / (sqrt(spread) + o.eps);
    if (o.momentum != 0) direction = s.moments[1] = s.moments[1] * s.attrs.momentum + direction;
    return moved(s, s.lr, direction);
  };
  Method method = rule_method(std::move(moments), rule);
  method.attrs.momentum = o.momentum;
  if (o.momentum != 0) method.momentum = &OptimAttrs::momentum;
  return method;
}

Method adagrad_method(const AdagradOptions& o) {
  check_positive("Adagrad", "lr_decay", o.lr_decay);
  check_positive("Adagrad", "initial_sum", o.initial_sum);
  check_positive("Adagrad", "eps", o.eps);
  const Rule rule = [o](RuleStep& s) {
    s.moments[0] = s.moments[0] + square(s.gradient);
    const Tensors& numbers =
        s.common([&] { return Tensors{like(s.lr / ((s.step - 1) * o.lr_decay + 1), s.parameter)}; });
    return moved(s, numbers[0], s.gradient / (sqrt(s.moments[0]) + o.eps));
  };
  return rule_method({Moment("sum", o.initial_sum)}, rule);
}

Method adadelta_method(const AdadeltaOptions& o) {
  check_fraction("Adadelta", "rho", o.rho);
  check_positive("Adadelta", "eps", o.eps);
  const Rule rule = [o](RuleStep& s) {
    decay(s.moments[0], o.rho, square(s.gradient));
    const Tensor delta = sqrt(s.moments[1] + o.eps) / sqrt(s.moments[0] + o.eps) * s.gradient;
    decay(s.moments[1], o.rho, square(delta));
    return moved(s, s.lr, delta);
  };
  return rule_method({"square_avg", "acc_delta"}, rule);
}

// What a rule reads of parameter i.
RuleStep inputs_of(const Group& group, size_t i, const StepOptions& options, const Tensor& step, const Tensor& lr) {
  const OptimAttrs& attrs = group.method.attrs;
  const Tensor& parameter = group.parameters[i];
  const DType dtype = parameter.dtype() == Float64 ? Float64 : Float32;
  RuleStep s{parameter.detach().to(dtype), parameter.grad().detach().to(dtype), step, lr, attrs, {}};
  if (options.grad_scale.defined()) s.gradient = s.gradient * options.grad_scale.to(dtype);
  if (attrs.weight_decay != 0 && attrs.decoupled)
    s.parameter = s.parameter * like(1 - s.lr * attrs.weight_decay, s.parameter);
  else if (attrs.weight_decay != 0) s.gradient = s.gradient + s.parameter * attrs.weight_decay;
  for (const Tensors& list : group.moments) s.moments.push_back(list[i]);
  return s;
}

}  // namespace

void check_betas(const char* name, double beta1, double beta2, double eps) {
  if (!(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1 && eps >= 0))
    throw Error(fmt::format("{}: betas {} and {} are not in [0, 1), or eps {} is negative", name, beta1, beta2, eps));
}

Method amsgrad_method(double beta1, double beta2, double eps, bool decoupled) {
  const Rule rule = [=](RuleStep& s) {
    move_moments(s, beta2);
    s.moments[2] = maximum(s.moments[2], s.moments[1]);
    const Tensors& numbers = s.common([&] {
      return Tensors{like(1 - power(beta2, s.step), s.parameter),
                     like(s.lr / (1 - power(s.attrs.beta1, s.step)), s.parameter)};
    });
    return moved(s, numbers[1], s.moments[0] / (sqrt(s.moments[2] / numbers[0]) + eps));
  };
  return beta_method({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, rule, beta1, decoupled);
}

void step_by_rule(Group& group, const StepOptions& options) {
  const auto write = [&](Tensor to, const Tensor& value) {
    to.copy_(options.found_inf.defined() ? where(options.found_inf, to.to(value.dtype()), value) : value);
  };
  const Tensor step = group.step.to(Float64) + 1, lr = group.lr.to(Float64);
  std::map<DType, Tensors> shared;
  bool any = false;
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    if (!group.parameters[i].grad().defined()) continue;
    any = true;
    RuleStep inputs = inputs_of(group, i, options, step, lr);
    inputs.shared = &shared;
    write(group.parameters[i], group.method.rule(inputs));
    for (size_t m = 0; m < group.moments.size(); ++m) write(group.moments[m][i], inputs.moments[m]);
  }
  if (any) write(group.step, step);
}

NAdam::NAdam(std::vector<Tensor> parameters, const NAdamOptions& options)
    : NAdam(std::vector<ParamGroup<NAdamOptions>>{{std::move(parameters), options}}) {}
NAdam::NAdam(const std::vector<ParamGroup<NAdamOptions>>& groups)
    : Optimizer(State::make("NAdam", groups, nadam_method)) {}

RAdam::RAdam(std::vector<Tensor> parameters, const RAdamOptions& options)
    : RAdam(std::vector<ParamGroup<RAdamOptions>>{{std::move(parameters), options}}) {}
RAdam::RAdam(const std::vector<ParamGroup<RAdamOptions>>& groups)
    : Optimizer(State::make("RAdam", groups, radam_method)) {}

Adamax::Adamax(std::vector<Tensor> parameters, const AdamaxOptions& options)
    : Adamax(std::vector<ParamGroup<AdamaxOptions>>{{std::move(parameters), options}}) {}
Adamax::Adamax(const std::vector<ParamGroup<AdamaxOptions>>& groups)
    : Optimizer(State::make("Adamax", groups, adamax_method)) {}

RMSprop::RMSprop(std::vector<Tensor> parameters, const RMSpropOptions& options)
    : RMSprop(std::vector<ParamGroup<RMSpropOptions>>{{std::move(parameters), options}}) {}
RMSprop::RMSprop(const std::vector<ParamGroup<RMSpropOptions>>& groups)
    : Optimizer(State::make("RMSprop", groups, rmsprop_method)) {}

Adagrad::Adagrad(std::vector<Tensor> parameters, const AdagradOptions& options)
    : Adagrad(std::vector<ParamGroup<AdagradOptions>>{{std::move(parameters), options}}) {}
Adagrad::Adagrad(const std::vector<ParamGroup<AdagradOptions>>& groups)
    : Optimizer(State::make("Adagrad", groups, adagrad_method)) {}

Adadelta::Adadelta(std::vector<Tensor> parameters, const AdadeltaOptions& options)
    : Adadelta(std::vector<ParamGroup<AdadeltaOptions>>{{std::move(parameters), options}}) {}
Adadelta::Adadelta(const std::vector<ParamGroup<AdadeltaOptions>>& groups)
    : Optimizer(State::make("Adadelta", groups, adadelta_method)) {}

}  // namespace tessera::optim
