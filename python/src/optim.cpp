// Optimizers, and losses scaled for f16.
#include <variant>

#include <nanobind/stl/variant.h>

#include "module.h"

namespace tessera::python {
namespace {

// An option of a group, or the constructor's.
template <class T>
void read_option(const nb::dict& group, const char* name, T& value) {
  if (group.contains(name)) value = nb::cast<T>(group[name]);
}
void read_betas(const nb::dict& group, double& beta1, double& beta2) {
  if (!group.contains("betas")) return;
  const auto betas = nb::cast<std::pair<double, double>>(group["betas"]);
  beta1 = betas.first, beta2 = betas.second;
}
void read_options(const nb::dict& group, optim::SGDOptions& o) {
  read_option(group, "lr", o.lr);
  read_option(group, "momentum", o.momentum);
  read_option(group, "dampening", o.dampening);
  read_option(group, "weight_decay", o.weight_decay);
  read_option(group, "nesterov", o.nesterov);
}
template <class Options>
void read_options(const nb::dict& group, Options& o) {
  read_option(group, "lr", o.lr);
  read_option(group, "weight_decay", o.weight_decay);
  if constexpr (requires { o.beta1; }) read_betas(group, o.beta1, o.beta2);
  if constexpr (requires { o.eps; }) read_option(group, "eps", o.eps);
  if constexpr (requires { o.amsgrad; }) read_option(group, "amsgrad", o.amsgrad);
  if constexpr (requires { o.momentum; }) read_option(group, "momentum", o.momentum);
  if constexpr (requires { o.momentum_decay; }) read_option(group, "momentum_decay", o.momentum_decay);
  if constexpr (requires { o.decoupled; }) read_option(group, "decoupled_weight_decay", o.decoupled);
  if constexpr (requires { o.alpha; }) read_option(group, "alpha", o.alpha);
  if constexpr (requires { o.centered; }) read_option(group, "centered", o.centered);
  if constexpr (requires { o.lr_decay; }) read_option(group, "lr_decay", o.lr_decay);
  if constexpr (requires { o.initial_sum; }) read_option(group, "initial_accumulator_value", o.initial_sum);
  if constexpr (requires { o.nesterov; }) {
    read_option(group, "dampening", o.dampening);
    read_option(group, "nesterov", o.nesterov);
  }
  if constexpr (requires { o.rho; }) read_option(group, "rho", o.rho);
}

// A parameter, or a pair of its name and it.
Tensor parameter_of(nb::handle item) {
  if (nb::isinstance<nb::tuple>(item) && nb::len(item) == 2) item = nb::borrow<nb::tuple>(item)[1];
  if (!nb::isinstance<Tensor>(item))
    throw nb::type_error(("a parameter is a tensor, not " + std::string(nb::repr(item).c_str())).c_str());
  return nb::cast<Tensor>(item);
}

// Tensors, or dicts with "params" and options, as PyTorch has them.
template <class Options>
std::vector<optim::ParamGroup<Options>> groups_of(nb::handle parameters, const Options& options) {
  std::vector<optim::ParamGroup<Options>> groups;
  optim::ParamGroup<Options> plain{{}, options};
  for (nb::handle item : parameters) {
    if (!nb::isinstance<nb::dict>(item)) {
      plain.parameters.push_back(parameter_of(item));
      continue;
    }
    const nb::dict group = nb::borrow<nb::dict>(item);
    optim::ParamGroup<Options> made{{}, options};
    for (nb::handle p : group["params"]) made.parameters.push_back(parameter_of(p));
    read_options(group, made.options);
    groups.push_back(std::move(made));
  }
  if (!plain.parameters.empty() || groups.empty()) groups.push_back(std::move(plain));
  return groups;
}

std::vector<Tensor> tensors_of(nb::handle parameters) {
  if (nb::isinstance<Tensor>(parameters)) return {nb::cast<Tensor>(parameters)};
  std::vector<Tensor> out;
  for (nb::handle p : parameters) out.push_back(parameter_of(p));
  return out;
}

// PyTorch's hints of how to step, which change no result.
auto foreach () { return nb::arg("foreach") = nb::none(); }
auto fused() { return nb::arg("fused") = nb::none(); }

template <class O, class Options>
void bind_adam(nb::module_& m, const char* name, double decay, const char* doc) {
  nb::class_<O, optim::Optimizer>(m, name, doc)
      .def(
          "__init__",
          [](O* made, nb::handle params, double lr, std::pair<double, double> betas, double eps, double weight_decay,
             bool amsgrad, nb::handle, nb::handle) {
            const Options options{lr, betas.first, betas.second, eps, weight_decay, amsgrad};
            new (made) O(groups_of(params, options));
          },
          nb::arg("params"), nb::arg("lr") = 1e-3, nb::arg("betas") = std::pair(0.9, 0.999), nb::arg("eps") = 1e-8,
          nb::arg("weight_decay") = decay, nb::arg("amsgrad") = false, nb::kw_only(), foreach (), fused());
}

using Betas = std::pair<double, double>;

// Those whose steps are written in operators.
void bind_rules(nb::module_& m) {
  using namespace optim;
  const Betas betas(0.9, 0.999);
  nb::class_<NAdam, Optimizer>(m, "NAdam", "Adam with Nesterov's momentum, Dozat 2016.")
      .def(
          "__init__",
          [](NAdam* made, nb::handle params, double lr, Betas b, double eps, double weight_decay, double momentum_decay,
             bool decoupled, nb::handle) {
            const NAdamOptions o{lr, b.first, b.second, eps, weight_decay, momentum_decay, decoupled};
            new (made) NAdam(groups_of(params, o));
          },
          nb::arg("params"), nb::arg("lr") = 2e-3, nb::arg("betas") = betas, nb::arg("eps") = 1e-8,
          nb::arg("weight_decay") = 0.0, nb::arg("momentum_decay") = 4e-3, nb::arg("decoupled_weight_decay") = false,
          nb::kw_only(), foreach ());
  nb::class_<RAdam, Optimizer>(m, "RAdam", "Adam, rectified while its second moment is uncertain. Liu et al. 2020.")
      .def(
          "__init__",
          [](RAdam* made, nb::handle params, double lr, Betas b, double eps, double weight_decay, bool decoupled,
             nb::handle) {
            const RAdamOptions o{lr, b.first, b.second, eps, weight_decay, decoupled};
            new (made) RAdam(groups_of(params, o));
          },
          nb::arg("params"), nb::arg("lr") = 1e-3, nb::arg("betas") = betas, nb::arg("eps") = 1e-8,
          nb::arg("weight_decay") = 0.0, nb::arg("decoupled_weight_decay") = false, nb::kw_only(), foreach ());
  nb::class_<Adamax, Optimizer>(m, "Adamax", "Adam by the largest gradient, Kingma & Ba 2015.")
      .def(
          "__init__",
          [](Adamax* made, nb::handle params, double lr, Betas b, double eps, double weight_decay, nb::handle) {
            new (made) Adamax(groups_of(params, AdamaxOptions{lr, b.first, b.second, eps, weight_decay}));
          },
          nb::arg("params"), nb::arg("lr") = 2e-3, nb::arg("betas") = betas, nb::arg("eps") = 1e-8,
          nb::arg("weight_decay") = 0.0, nb::kw_only(), foreach ());
  nb::class_<RMSprop, Optimizer>(m, "RMSprop", "Gradients over the root of their mean square, Tieleman & Hinton 2012.")
      .def(
          "__init__",
          [](RMSprop* made, nb::handle params, double lr, double alpha, double eps, double weight_decay,
             double momentum, bool centered, nb::handle) {
            new (made) RMSprop(groups_of(params, RMSpropOptions{lr, alpha, eps, weight_decay, momentum, centered}));
          },
          nb::arg("params"), nb::arg("lr") = 1e-2, nb::arg("alpha") = 0.99, nb::arg("eps") = 1e-8,
          nb::arg("weight_decay") = 0.0, nb::arg("momentum") = 0.0, nb::arg("centered") = false, nb::kw_only(),
          foreach ());
  nb::class_<Adagrad, Optimizer>(m, "Adagrad",
                                 "Gradients over the root of the sum of their squares, Duchi et al. 2011.")
      .def(
          "__init__",
          [](Adagrad* made, nb::handle params, double lr, double lr_decay, double weight_decay, double initial,
             double eps, nb::handle, nb::handle) {
            new (made) Adagrad(groups_of(params, AdagradOptions{lr, lr_decay, weight_decay, initial, eps}));
          },
          nb::arg("params"), nb::arg("lr") = 1e-2, nb::arg("lr_decay") = 0.0, nb::arg("weight_decay") = 0.0,
          nb::arg("initial_accumulator_value") = 0.0, nb::arg("eps") = 1e-10, nb::kw_only(), foreach (), fused());
  nb::class_<Adadelta, Optimizer>(m, "Adadelta", "Zeiler 2012.")
      .def(
          "__init__",
          [](Adadelta* made, nb::handle params, double lr, double rho, double eps, double weight_decay, nb::handle) {
            new (made) Adadelta(groups_of(params, AdadeltaOptions{lr, rho, eps, weight_decay}));
          },
          nb::arg("params"), nb::arg("lr") = 1.0, nb::arg("rho") = 0.9, nb::arg("eps") = 1e-6,
          nb::arg("weight_decay") = 0.0, nb::kw_only(), foreach ());
}

void bind_optimizers(nb::module_& m) {
  using optim::Optimizer;
  nb::class_<Optimizer>(m, "Optimizer", "Updates parameters from their gradients.")
      .def(
          "step",
          [](Optimizer& o, nb::handle closure, const Tensor& grad_scale, const Tensor& found_inf) {
            const nb::object loss = closure.is_none() ? nb::none() : closure();
            const Unlocked unlocked;
            o.step({.grad_scale = grad_scale, .found_inf = found_inf});
            return loss;
          },
          nb::arg("closure") = nb::none(), nb::kw_only(), nb::arg("grad_scale").none() = nb::none(),
          nb::arg("found_inf").none() = nb::none(),
          nb::sig("def step(self, closure: collections.abc.Callable[[], typing.Any] | None = None, *, "
                  "grad_scale: tessera._C.Tensor | None = None, found_inf: tessera._C.Tensor | None = None) "
                  "-> typing.Any"),
          "Updates parameters from their gradients, after `closure`, whose result it returns.")
      .def(
          "zero_grad",
          [](Optimizer& o, bool set_to_none) {
            if (set_to_none) return o.zero_grad();
            for (const Tensor& p : o.parameters())
              if (Tensor grad = p.grad(); grad.defined()) grad.zero_();
          },
          nb::arg("set_to_none") = true, "Drops all gradients, or makes them zero.")
      .def("parameters", nb::overload_cast<>(&Optimizer::parameters, nb::const_), "Of all groups, each once.")
      .def("group_parameters", nb::overload_cast<int>(&Optimizer::parameters, nb::const_), nb::arg("group"),
           "Those of a group.")
      .def_prop_ro(
          "param_groups",
          [](nb::handle self) { return nb::module_::import_("tessera.optim").attr("_param_groups")(self); },
          nb::for_getter(nb::sig("def param_groups(self) -> list[typing.Any]")),
          "The groups of parameters, dicts of their options: \"lr\" and \"weight_decay\" can be set.")
      .def("groups", &Optimizer::groups, "How many groups of parameters there are.")
      .def("lr", &Optimizer::lr, nb::arg("group") = 0, "The rate of a group now.")
      .def("initial_lr", &Optimizer::initial_lr, nb::arg("group") = 0, "The rate of a group's options.")
      .def("weight_decay", &Optimizer::weight_decay, nb::arg("group") = 0, "The weight decay of a group now.")
      .def("set_lr", &Optimizer::set_lr, nb::arg("lr"), nb::arg("group") = 0, "Sets a group's rate from now on.")
      .def("set_weight_decay", &Optimizer::set_weight_decay, nb::arg("weight_decay"), nb::arg("group") = 0,
           "Sets a group's weight decay from now on.")
      .def("momentum", &Optimizer::momentum, nb::arg("group") = 0,
           "A group's momentum or beta1 now; 0 where it has none.")
      .def("set_momentum", &Optimizer::set_momentum, nb::arg("momentum"), nb::arg("group") = 0,
           "Sets a group's momentum, or beta1 of Adam's kin, from now on.")
      .def("scale_lr", &Optimizer::scale_lr, nb::arg("factor"),
           "Sets every rate to `factor` times that of its options.")
      .def("state_dict", &Optimizer::state_dict)
      .def("load_state_dict", &Optimizer::load_state_dict, nb::arg("state_dict"));
  nb::class_<optim::SGD, Optimizer>(m, "SGD", "With (Nesterov) momentum, Sutskever et al. 2013.")
      .def(
          "__init__",
          [](optim::SGD* made, nb::handle params, double lr, double momentum, double dampening, double weight_decay,
             bool nesterov, nb::handle, nb::handle) {
            const optim::SGDOptions options{lr, momentum, dampening, weight_decay, nesterov};
            new (made) optim::SGD(groups_of(params, options));
          },
          nb::arg("params"), nb::arg("lr") = 1e-3, nb::arg("momentum") = 0.0, nb::arg("dampening") = 0.0,
          nb::arg("weight_decay") = 0.0, nb::arg("nesterov") = false, nb::kw_only(), foreach (), fused());
  bind_adam<optim::Adam, optim::AdamOptions>(m, "Adam", 0, "Kingma & Ba 2015; weight decay is added to the gradient.");
  bind_adam<optim::AdamW, optim::AdamWOptions>(m, "AdamW", 0.01,
                                               "Adam with decoupled weight decay, Loshchilov & Hutter 2019.");
}

void bind_scaler(nb::module_& m) {
  using amp::GradScaler;
  nb::class_<GradScaler>(m, "GradScaler", "Scales losses by the largest factor with which gradients do not overflow.")
      .def(
          "__init__",
          [](GradScaler* made, std::variant<double, std::string> device, double init_scale, double growth,
             double backoff, int64_t interval, bool enabled) {
            const auto* number = std::get_if<double>(&device);
            new (made) GradScaler({number ? *number : init_scale, growth, interval, backoff, enabled});
          },
          nb::arg("device") = "cuda", nb::arg("init_scale") = 65536.0, nb::arg("growth_factor") = 2.0,
          nb::arg("backoff_factor") = 0.5, nb::arg("growth_interval") = 2000, nb::arg("enabled") = true,
          "The device changes nothing; a number in its place is init_scale.")
      .def("scale", &GradScaler::scale, nb::arg("loss"))
      .def("unscale_", &GradScaler::unscale_, nb::arg("optimizer"))
      .def(
          "step", [](GradScaler& s, optim::Optimizer& o) { return s.step(o); }, nb::arg("optimizer"))
      .def("update", &GradScaler::update)
      .def("get_scale", &GradScaler::current_scale)
      .def("state_dict", &GradScaler::state_dict)
      .def("load_state_dict", &GradScaler::load_state_dict, nb::arg("state_dict"));
}

}  // namespace

void bind_optim(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("_optim");
  bind_optimizers(m);
  bind_rules(m);
  m.def("constant", &optim::constant, "The factor 1 at every step.");
  m.def("warmup_cosine", &optim::warmup_cosine, nb::arg("warmup"), nb::arg("total"), nb::arg("final_factor") = 0.0,
        "A function of the step for scale_lr(): rises linearly, falls along half a cosine.");
  m.def("step_decay", &optim::step_decay, nb::arg("every"), nb::arg("factor") = 0.1,
        "A function of the step for scale_lr(): multiplies by `factor` after every `every` steps.");
  m.def(
      "grad_norm", [](nb::handle p) { return optim::grad_norm(tensors_of(p)); }, nb::arg("parameters"),
      "The L2 norm of all gradients together, a tensor without dims.");
  m.def(
      "clip_grad_norm_",
      [](nb::handle p, double most) {
        const std::vector<Tensor> parameters = tensors_of(p);
        const Unlocked unlocked;
        return optim::clip_grad_norm_(parameters, most);
      },
      nb::arg("parameters"), nb::arg("max_norm"),
      "Scales gradients so that their norm is at most that; returns the norm before.");
  bind_scaler(parent);
}

}  // namespace tessera::python
