// What optimizers keep, and how their groups are updated.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <unordered_set>

#include "ops/lower_copy.h"
#include "ops/optim.h"
#include "ops/output_layout.h"
#include "tessera/ops.h"
#include "tessera/optim.h"

namespace tessera::optim {

/// What an optimizer keeps for each parameter, in its shape, or without dims.
struct Moment {
  const char* name;
  double initial = 0;
  bool scalar = false;
  Moment(const char* name, double initial = 0, bool scalar = false) : name(name), initial(initial), scalar(scalar) {}
};

/// One parameter's step by operators, in the dtype of its moments. `step` counts this one, in f64.
struct RuleStep {
  Tensor parameter, gradient, step, lr;
  OptimAttrs attrs;             ///< whose momentum and beta1 may change between steps
  std::vector<Tensor> moments;  ///< a rule puts the new ones here
  std::map<DType, Tensors>* shared = nullptr;
  /// Numbers that parameters of one dtype have in common, made once in a step of the group.
  template <class Make>
  const Tensors& common(const Make& make) const {
    Tensors& numbers = (*shared)[parameter.dtype()];
    if (numbers.empty()) numbers = make();
    return numbers;
  }
};
/// Returns the new parameter. Weight decay that is added to gradients has been.
using Rule = std::function<Tensor(RuleStep&)>;

/// How a group is updated: by the kernels of Adam and SGD, or by a rule.
struct Method {
  OptimAttrs attrs;
  std::vector<Moment> moments;
  Rule rule = {};
  double OptimAttrs::*momentum = nullptr;  ///< which one is the momentum, if any
};

/// A group with its state.
struct Group {
  Tensors parameters;
  std::vector<std::shared_ptr<LowerCopy>> copies;  // of the parameters in halves, once autocast has made some
  std::vector<Tensors> moments;
  Method method;
  Tensor step, lr;
  double base_lr = 0, current_lr = 0;  // the second as `lr` holds it, so that nobody needs to wait for a device
};

struct Optimizer::State {
  const char* name;
  std::vector<Group> groups;

  // Calls fn(name, tensor) for everything that is saved.
  template <class Fn>
  void each(const Fn& fn) const {
    size_t index = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      fn(fmt::format("group.{}.step", g), groups[g].step);
      for (size_t i = 0; i < groups[g].parameters.size(); ++i, ++index)
        for (size_t m = 0; m < groups[g].moments.size(); ++m)
          fn(fmt::format("param.{}.{}", index, groups[g].method.moments[m].name), groups[g].moments[m][i]);
    }
  }

  template <class Options, class ToMethod>
  static std::unique_ptr<State> make(const char* name, const std::vector<ParamGroup<Options>>& groups,
                                     const ToMethod& to_method) {
    auto state = std::make_unique<State>();
    state->name = name;
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
      group.method = to_method(from.options);
      group.method.attrs.weight_decay = from.options.weight_decay;
      group.base_lr = from.options.lr;
      group.current_lr = static_cast<float>(group.base_lr);
      for (const Moment& moment : group.method.moments) group.moments.push_back(initial(moment, group.parameters));
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

  static Tensors initial(const Moment& moment, const Tensors& parameters) {
    Tensors out;
    for (const Tensor& p : parameters) {
      const DType dtype = p.dtype() == Float64 ? Float64 : Float32;
      out.push_back(moment.scalar ? zeros({}, dtype, p.device()) : zeros_beside(p, dtype));
      if (moment.initial != 0) out.back().fill_(moment.initial);
    }
    return out;
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

/// Throws Error unless betas lie in [0, 1) and eps is not negative.
void check_betas(const char* name, double beta1, double beta2, double eps);
/// Adam and AdamW with amsgrad, by operators.
Method amsgrad_method(double beta1, double beta2, double eps, bool decoupled);
/// A step of all parameters of a group that have gradients.
void step_by_rule(Group& group, const StepOptions& options);

}  // namespace tessera::optim
