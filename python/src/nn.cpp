// Modules, which Python may extend: an override of forward() is what the library calls, too.
#include <nanobind/trampoline.h>
#include <cmath>
#include <limits>
#include <variant>

#include <nanobind/stl/variant.h>

#include "module.h"
#include "named.h"
#include "tessera/nn_recurrent.h"

namespace tessera::python {
namespace {

// Protected parts of Module, for modules that Python defines.
struct Open : nn::Module {
  static Tensor parameter(nn::Module& m, const std::string& name, const Tensor& value) {
    const bool trained = value.requires_grad();
    (m.*static_cast<Tensor (nn::Module::*)(const std::string&, Tensor)>(&Open::add_parameter))(name, value);
    if (!trained) Tensor(value).set_requires_grad(false);
    return value;
  }
  static Tensor buffer(nn::Module& m, const std::string& name, const Tensor& value, bool saved) {
    return (m.*static_cast<Tensor (nn::Module::*)(const std::string&, Tensor, bool)>(&Open::add_buffer))(name, value,
                                                                                                         saved);
  }
  static Tensor replace(nn::Module& m, const std::string& name, const Tensor& value) {
    return (m.*static_cast<Tensor (nn::Module::*)(const std::string&, Tensor)>(&Open::replace_tensor))(name, value);
  }
  static bool has(const nn::Module& m, const std::string& name) {
    const nn::NamedTensors tensors = own(m);
    return std::any_of(tensors.begin(), tensors.end(), [&](const auto& one) { return one.first == name; });
  }
  static nn::NamedTensors own(const nn::Module& m) {
    return (m.*static_cast<nn::NamedTensors (nn::Module::*)() const>(&Open::own_tensors))();
  }
  static std::vector<std::pair<Tensor, Tensor>> apart(nn::Module& m) {
    return (m.*static_cast<std::vector<std::pair<Tensor, Tensor>> (nn::Module::*)()>(&Open::separate))();
  }
  static void child(nn::Module& m, const std::string& name, std::shared_ptr<nn::Module> module) {
    using Add = nn::Child<nn::Module> (nn::Module::*)(const std::string&, const nn::Child<nn::Module>&);
    (void)(m.*static_cast<Add>(&Open::add<nn::Module>))(name, nn::Child<nn::Module>(std::move(module)));
  }
};

// Those of nested tuples, lists and dicts, in order.
Tensors tensors_of(nb::handle result) {
  if (nb::isinstance<Tensor>(result)) return {nb::cast<Tensor>(result)};
  Tensors out;
  const auto add = [&](nb::handle one) {
    for (Tensor& t : tensors_of(one)) out.push_back(std::move(t));
  };
  if (nb::isinstance<nb::dict>(result)) {
    for (const auto& [key, value] : nb::borrow<nb::dict>(result)) add(value);
  } else if (nb::isinstance<nb::tuple>(result) || nb::isinstance<nb::list>(result)) {
    for (nb::handle one : result) add(one);
  } else {
    throw nb::type_error(("a module takes and gives tensors, and tuples, lists and dicts of them, not " +
                          nb::cast<std::string>(result.type().attr("__name__")))
                             .c_str());
  }
  return out;
}

nb::object one_or_all(const Tensors& out) { return out.size() == 1 ? nb::cast(out[0]) : nb::cast(out); }

// A module where Python may keep it, however long its place lives.
std::shared_ptr<nn::Module> shared(const nn::Child<nn::Module>& child) {
  auto place = std::make_shared<nn::Child<nn::Module>>(child);
  return std::shared_ptr<nn::Module>(place, &place->module());
}

nb::list listed(const nn::NamedModules& modules) {
  nb::list out;
  for (const auto& [name, child] : modules) out.append(nb::make_tuple(name, nb::cast(shared(child))));
  return out;
}

nb::object wrapped(const nn::Module& module) {
  return nb::cast(const_cast<nn::Module&>(module), nb::rv_policy::reference);
}

// A hook of Python, which modules of the library call with tensors, and modules of Python with what they are given.
struct PythonPreHook {
  nb::object function;
  bool with_keywords;

  std::pair<nb::object, nb::object> arguments(nb::handle self, nb::object given, nb::object keywords) const {
    const nb::object found = with_keywords ? function(self, given, keywords) : function(self, given);
    if (found.is_none()) return {given, keywords};
    if (with_keywords) return nb::cast<std::pair<nb::object, nb::object>>(found);
    return {nb::isinstance<nb::tuple>(found) ? found : nb::object(nb::make_tuple(found)), keywords};
  }
  std::optional<Tensors> operator()(const nn::Module& module, const Tensors& in) const {
    const nb::gil_scoped_acquire locked;
    return tensors_of(arguments(wrapped(module), nb::tuple(nb::cast(in)), nb::dict()).first);
  }
};
struct PythonHook {
  nb::object function;
  bool with_keywords;

  nb::object result(nb::handle self, nb::handle given, nb::handle keywords, nb::object out) const {
    const nb::object found = with_keywords ? function(self, given, keywords, out) : function(self, given, out);
    return found.is_none() ? out : found;
  }
  std::optional<Tensors> operator()(const nn::Module& module, const Tensors& in, const Tensors& out) const {
    const nb::gil_scoped_acquire locked;
    return tensors_of(result(wrapped(module), nb::tuple(nb::cast(in)), nb::dict(), one_or_all(out)));
  }
};

// A call of a module from Python, with its hooks.
nb::object call_with_hooks(nb::handle self, const nn::Module& module, nb::object given, nb::object keywords) {
  for (const auto& [number, hook] : std::map(module.forward_pre_hooks())) {
    if (const auto* of_python = hook.target<PythonPreHook>())
      std::tie(given, keywords) = of_python->arguments(self, given, keywords);
    else if (const auto found = hook(module, tensors_of(given))) given = nb::tuple(nb::cast(*found));
  }
  nb::object out = self.attr("forward")(*nb::borrow<nb::args>(given), **nb::borrow<nb::kwargs>(keywords));
  for (const auto& [number, hook] : std::map(module.forward_hooks())) {
    if (const auto* of_python = hook.target<PythonHook>()) out = of_python->result(self, given, keywords, out);
    else if (const auto found = hook(module, tensors_of(given), tensors_of(out))) out = one_or_all(*found);
  }
  return out;
}

// An M whose forward() Python may override; `own`, if there is one, is what it does otherwise.
template <class M>
struct Overridable : M {
  NB_TRAMPOLINE(M);
  std::function<Tensors(const M&, const Tensors&)> own;
  // A module of its own, but for its children.
  Overridable(const M& other, std::vector<std::pair<Tensor, Tensor>>& tensors) : M(other) {
    if (const auto* made_here = dynamic_cast<const Overridable*>(&other)) own = made_here->own;
    tensors = Open::apart(*this);
  }
  Tensors plain(const Tensors& in) const { return own ? own(*this, in) : M::forward(in); }
  Tensors forward(const Tensors& in) const override {
    {
      const nb::gil_scoped_acquire locked;
      const nb::detail::ticket ticket(nb_trampoline, "forward", nb::detail::str_hash("forward"), false);
      if (ticket.key.is_valid()) {
        nb::list arguments;
        for (const Tensor& t : in) arguments.append(t);
        return tensors_of(nb_trampoline.base().attr(ticket.key)(*arguments));
      }
    }
    return plain(in);
  }
};

template <class M>
nb::object forward(const M& module, const nb::args& arguments) {
  Tensors in = tensors_of(arguments);
  Tensors out;
  {
    const Unlocked unlocked;
    // An override of Python that calls super().forward() is not to be called again. Models of C++ have no class here.
    const auto* made_here = dynamic_cast<const Overridable<M>*>(&module);
    out = made_here ? made_here->plain(in) : module.forward(in);
  }
  return one_or_all(out);
}

// Copies of modules, which Python fills with copies of their children. `members(module)` are pointers to tensors.
template <class M, class Class, class Members>
void copyable(Class& made, const Members& members) {
  made.def("_copy_to", [members](const M& from, nb::handle to) {
    if (typeid(from) != typeid(Overridable<M>) && typeid(from) != typeid(M))
      throw nb::type_error("modules that the library makes of others are not copied; state_dict() is");
    std::vector<std::pair<Tensor, Tensor>> tensors;
    auto* copy = new (nb::inst_ptr<M>(to)) Overridable<M>(from, tensors);
    nb::inst_set_state(to, true, true);
    for (Tensor* member : members(static_cast<M&>(*copy)))
      for (const auto& [old, fresh] : tensors)
        if (same(old, *member)) {
          *member = fresh;
          break;
        }
  });
}

// A member that is a parameter. Setting it to that of another module ties the two.
template <class M, class Class>
void parameter(Class& made, const char* name, Tensor M::*member) {
  made.def_prop_rw(
      name, [member](const M& l) { return l.*member; },
      [member, name](M& l, const Tensor& value) {
        if (!(l.*member).defined()) throw Error(std::string(name) + ": the module was made without one");
        l.*member = value;
        // One that was taken away is computed anew for each call; packed copies of the last one go.
        const bool computed = !Open::has(l, name);
        if (computed) Open::buffer(l, name, value, false);
        Open::replace(l, name, computed ? Tensor() : value);
      },
      nb::arg("value"));
}

template <class M>
auto layer(nb::module_& m, const char* name, const char* doc) {
  nb::class_<M, nn::Module, Overridable<M>> made(m, name, nb::dynamic_attr(), doc);
  made.def("forward", &forward<M>, nb::sig("def forward(self, *args: tessera._C.Tensor | None) -> typing.Any"));
  if constexpr (requires(M & l) { l.weight; }) parameter(made, "weight", &M::weight);
  if constexpr (requires(M & l) { l.bias; }) parameter(made, "bias", &M::bias);
  if constexpr (requires(M & l) { l.eps; }) made.def_rw("eps", &M::eps);
  if constexpr (!std::is_same_v<M, nn::MultiheadAttention> && !std::is_same_v<M, nn::TransformerBlock>)
    copyable<M>(made, [](M& l) {
      std::vector<Tensor*> out;
      if constexpr (requires { l.weight; }) out.push_back(&l.weight);
      if constexpr (requires { l.bias; }) out.push_back(&l.bias);
      if constexpr (requires { l.running_mean; }) out.insert(out.end(), {&l.running_mean, &l.running_var});
      return out;
    });
  return made;
}

void bind_module(nb::module_& m) {
  using nn::Module;
  nb::class_<Module, Overridable<Module>> made(m, "Module", nb::dynamic_attr(), nb::is_weak_referenceable(),
                                               "Base of all layers and models; forward() says what one does.");
  copyable<Module>(made, [](Module&) { return std::vector<Tensor*>(); });
  made.def(nb::init<>())
      .def("forward", &forward<Module>,
           nb::sig("def forward(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any"))
      .def(
          "__call__",
          [](nb::handle self, const nb::args& arguments, const nb::kwargs& keywords) {
            const Module& module = object_of<Module>(self);
            const NamedScope scope(module.name());
            if (module.has_hooks()) return call_with_hooks(self, module, arguments, keywords);
            return nb::object(self.attr("forward")(*arguments, **keywords));
          },
          nb::sig("def __call__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any"))
      .def("parameters", &Module::parameters, "Every parameter once, in the order of registration.")
      .def("named_parameters", &Module::named_parameters)
      .def("named_buffers", &Module::named_buffers)
      .def("parameter_count", &Module::parameter_count)
      .def("named_children", [](const Module& self) { return listed(self.children()); })
      .def("children",
           [](const Module& self) {
             nb::list out;
             for (const auto& [name, child] : self.children()) out.append(nb::cast(shared(child)));
             return out;
           })
      .def("named_modules", [](const Module& self) { return listed(self.named_modules()); })
      .def(
          "get_submodule", [](const Module& self, const std::string& path) { return shared(self.child(path)); },
          nb::arg("target"))
      .def(
          "_replace",
          [](Module& self, const std::string& path, std::shared_ptr<Module> module, bool any_shapes) {
            self.replace(path, nn::Child<Module>(std::move(module)), {.any_shapes = any_shapes});
          },
          nb::arg("path"), nb::arg("module").none(), nb::arg("any_shapes") = false)
      .def(
          "_register_forward_pre_hook",
          [](Module& self, nb::object hook, bool with_keywords) {
            return self.register_forward_pre_hook(PythonPreHook{std::move(hook), with_keywords});
          },
          nb::arg("hook"), nb::arg("with_kwargs"))
      .def(
          "_register_forward_hook",
          [](Module& self, nb::object hook, bool with_keywords) {
            return self.register_forward_hook(PythonHook{std::move(hook), with_keywords});
          },
          nb::arg("hook"), nb::arg("with_kwargs"))
      .def("_remove_hook", &Module::remove_hook, nb::arg("number"))
      .def_prop_ro("name", &Module::name)
      .def("pack", &Module::pack, nb::call_guard<Unlocked>(),
           "Lets calls in evaluation use weights as kernels want them, until train().")
      .def(
          "train",
          [](nb::handle self, bool on) {
            object_of<Module>(self).train(on);
            return nb::borrow(self);
          },
          nb::arg("mode") = true, nb::sig("def train(self, mode: bool = True) -> typing.Self"),
          "Chooses between training and evaluation for this module and all below.")
      .def(
          "eval",
          [](nb::handle self) {
            object_of<Module>(self).eval();
            return nb::borrow(self);
          },
          nb::sig("def eval(self) -> typing.Self"), "train(False).")
      .def_prop_ro("training", &Module::training)
      .def("zero_grad", &Module::zero_grad)
      .def(
          "_to",
          [](Module& self, const std::optional<DType>& dtype, const std::optional<std::string>& device) {
            const Unlocked unlocked;
            if (dtype) self.to(*dtype);
            if (device) self.to(parse_device(*device));
          },
          nb::arg("dtype") = nb::none(), nb::arg("device") = nb::none())
      .def(
          "channels_last", [](Module& self) { self.to(ChannelsLast); },
          "Lays the filters of convolutions so in memory.")
      .def("state_dict", &Module::state_dict, "Parameters and buffers, each once under its first name; no copies.")
      .def("load_state_dict", &Module::load_state_dict, nb::arg("state_dict"), nb::arg("strict") = true,
           nb::call_guard<Unlocked>())
      .def("_add_parameter", &Open::parameter, nb::arg("name"), nb::arg("value"))
      .def("_add_buffer", &Open::buffer, nb::arg("name"), nb::arg("value"), nb::arg("persistent"))
      .def("_replace_tensor", &Open::replace, nb::arg("name"), nb::arg("value").none())
      .def("_own_tensors",
           [](const Module& self) {
             nb::list out;
             for (const auto& [name, t] : Open::own(self))
               out.append(nb::make_tuple(name, t, reinterpret_cast<uintptr_t>(t.ref().get())));
             return out;
           })
      .def("add_module", &Open::child, nb::arg("name"), nb::arg("module"));
}

auto generator() { return nb::arg("generator").none() = nb::none(); }

const Tensor& sole(const Tensors& in) {
  if (in.size() != 1) throw Error("a module takes one tensor, not " + std::to_string(in.size()));
  return in[0];
}

// How many rows and columns of zeros a convolution sees around its images, as PyTorch counts them.
std::array<int64_t, 2> rows_around(const std::variant<std::string, std::array<int64_t, 2>>& padding,
                                   const std::array<int64_t, 2>& kernel, const std::array<int64_t, 2>& stride,
                                   const std::array<int64_t, 2>& dilation) {
  if (const auto* each = std::get_if<1>(&padding)) return {2 * (*each)[0], 2 * (*each)[1]};
  const std::string& name = std::get<0>(padding);
  if (name == "valid") return {0, 0};
  if (name != "same") throw Error("Conv2d: padding '" + name + "' is none of: valid, same");
  if (stride[0] != 1 || stride[1] != 1) throw Error("Conv2d: padding 'same' takes no stride");
  return {dilation[0] * (kernel[0] - 1), dilation[1] * (kernel[1] - 1)};
}

Padding padding_of(const std::string& mode) {
  if (mode == "zeros") return Padding::Constant;
  if (mode == "reflect") return Padding::Reflect;
  if (mode == "replicate") return Padding::Edge;
  if (mode == "circular") return Padding::Wrap;
  throw Error("Conv2d: padding_mode '" + mode + "' is none of: zeros, reflect, replicate, circular");
}

auto padded_convolution(std::array<int64_t, 2> low, std::array<int64_t, 2> high, Padding mode) {
  return [=](const nn::Conv2d& conv, const Tensors& in) -> Tensors {
    return {conv2d(pad(sole(in), {0, 0, low[0], low[1]}, {0, 0, high[0], high[1]}, mode), conv.weight, conv.bias,
                   conv.options)};
  };
}

// What `forward` gives, written to its input; where backward may want that as it was, `forward` gets a copy.
template <class Forward>
Tensors in_place(const Tensors& in, bool wants_input, const Forward& forward) {
  const bool copied = wants_input && grad_enabled() && sole(in).requires_grad();
  const Tensors out = forward(copied ? Tensors{in[0].clone()} : in);
  return {Tensor(sole(in)).copy_(out[0])};
}

// Functions of elements. Where they work in place, the input has the result, too.
template <class M>
void activation(nb::module_& m, const char* name, const char* doc) {
  layer<M>(m, name, doc)
      .def(
          "__init__",
          [](M* l, bool inplace) {
            auto* made = new (l) Overridable<M>();
            if (!inplace) return;
            made->own = [](const M& module, const Tensors& in) {
              return in_place(in, !std::is_same_v<M, nn::ReLU>, [&](const Tensors& x) { return module.M::forward(x); });
            };
          },
          nb::arg("inplace") = false);
}

void bind_elementwise(nb::module_& m) {
  layer<nn::Dropout>(m, "Dropout", "Active in training only.")
      .def(
          "__init__",
          [](nn::Dropout* l, double p, bool inplace) {
            auto* made = new (l) Overridable<nn::Dropout>(p);
            if (!inplace) return;
            made->own = [](const nn::Dropout& d, const Tensors& in) {
              return in_place(in, false, [&](const Tensors& x) { return d.Dropout::forward(x); });
            };
          },
          nb::arg("p") = 0.5, nb::arg("inplace") = false)
      .def_rw("p", &nn::Dropout::p);
  activation<nn::ReLU>(m, "ReLU", "max(x, 0).");
  activation<nn::ReLU6>(m, "ReLU6", "min(max(x, 0), 6).");
  activation<nn::SiLU>(m, "SiLU", "x sigmoid(x).");
  layer<nn::GELU>(m, "GELU", "x Phi(x).")
      .def(
          "__init__",
          [](nn::GELU* l, const std::string& approximate) {
            auto* made = new (l) Overridable<nn::GELU>();
            if (approximate == "none") return;
            if (approximate != "tanh") throw Error("GELU: approximate '" + approximate + "' is none of: none, tanh");
            made->own = [](const nn::GELU&, const Tensors& in) -> Tensors { return {gelu_tanh(sole(in))}; };
          },
          nb::arg("approximate") = "none");
  layer<nn::Tanh>(m, "Tanh", "tanh(x).").def(nb::init<>());
  layer<nn::Sigmoid>(m, "Sigmoid", "1 / (1 + exp(-x)).").def(nb::init<>());
  layer<nn::Flatten>(m, "Flatten", "Some dims as one, by default all but the first.")
      .def(
          "__init__",
          [](nn::Flatten* l, int first, int last) {
            auto* made = new (l) Overridable<nn::Flatten>();
            made->own = [=](const nn::Flatten&, const Tensors& in) -> Tensors {
              return {flatten(sole(in), first, last)};
            };
          },
          nb::arg("start_dim") = 1, nb::arg("end_dim") = -1);
}

// The momentum of estimates that are means over all batches; a buffer counts these.
constexpr double kOfAllBatches = std::numeric_limits<double>::quiet_NaN();

void average_all(nn::BatchNorm2d& norm) {
  auto* made = dynamic_cast<Overridable<nn::BatchNorm2d>*>(&norm);
  if (!made) throw Error("BatchNorm2d: momentum None is not there for a layer that the library has made");
  if (!norm.running_mean.defined() || made->own) return;
  Open::buffer(norm, "num_batches_tracked", zeros({}, Int64), true);
  made->own = [](const nn::BatchNorm2d& norm, const Tensors& in) {
    if (!norm.training() || !std::isnan(norm.momentum)) return norm.BatchNorm2d::forward(in);
    for (const auto& [name, count] : Open::own(norm))
      if (name == "num_batches_tracked") {
        nn::BatchNorm2d once = norm;
        const double seen = static_cast<double>(count.item<int64_t>()) + 1;
        Tensor(count).fill_(seen);
        once.momentum = 1 / seen;
        return once.BatchNorm2d::forward(in);
      }
    throw Error("BatchNorm2d: num_batches_tracked was taken away");
  };
}

void bind_layers(nb::module_& m) {
  layer<nn::Linear>(m, "Linear", "x [..., in] -> x weight^T + bias [..., out].")
      .def(
          "__init__",
          [](nn::Linear* l, int64_t in, int64_t out, bool bias, Generator* g) {
            new (l) Overridable<nn::Linear>(in, out, bias, generator_or_default(g));
          },
          nb::arg("in_features"), nb::arg("out_features"), nb::arg("bias") = true, generator())
      .def_prop_ro("in_features", [](const nn::Linear& l) { return l.weight.size(1); })
      .def_prop_ro("out_features", [](const nn::Linear& l) { return l.weight.size(0); });
  layer<nn::Embedding>(m, "Embedding", "index [...] -> rows [..., width].")
      .def(
          "__init__",
          [](nn::Embedding* l, int64_t count, int64_t width, std::optional<int64_t> padding, Generator* g) {
            auto* made = new (l) Overridable<nn::Embedding>(count, width, generator_or_default(g));
            if (!padding) return;
            if (*padding < -count || *padding >= count) throw Error("Embedding: padding_idx is no row");
            const int64_t row = (*padding + count) % count;
            select(made->weight.detach(), 0, row).fill_(0);
            made->own = [row](const nn::Embedding& e, const Tensors& in) -> Tensors {
              return {embedding(sole(in), e.weight, row)};
            };
          },
          nb::arg("num_embeddings"), nb::arg("embedding_dim"), nb::arg("padding_idx") = nb::none(), generator(),
          "Row `padding_idx` is zero and gets no gradient.")
      .def_prop_ro("num_embeddings", [](const nn::Embedding& l) { return l.weight.size(0); })
      .def_prop_ro("embedding_dim", [](const nn::Embedding& l) { return l.weight.size(1); });
  using Pair = std::array<int64_t, 2>;
  const Pair one{1, 1}, none{0, 0};
  layer<nn::Conv2d>(m, "Conv2d", "x [n, in, h, w] -> [n, out, h', w'].")
      .def(
          "__init__",
          [](nn::Conv2d* l, int64_t in, int64_t out, Pair kernel, Pair stride, std::variant<std::string, Pair> padding,
             Pair dilation, int64_t groups, bool bias, const std::string& mode, Generator* g) {
            Conv2dOptions options{.groups = groups};
            const Pair total = rows_around(padding, kernel, stride, dilation);
            const Pair low{total[0] / 2, total[1] / 2}, high{total[0] - low[0], total[1] - low[1]};
            const bool plain = mode == "zeros" && low == high;
            copy_array(stride, options.stride), copy_array(dilation, options.dilation);
            copy_array(plain ? low : Pair{0, 0}, options.padding);
            const nn::Kernel2d taps(kernel[0], kernel[1]);
            auto* made = new (l) Overridable<nn::Conv2d>(in, out, taps, options, bias, generator_or_default(g));
            if (!plain) made->own = padded_convolution(low, high, padding_of(mode));
          },
          nb::arg("in_channels"), nb::arg("out_channels"), nb::arg("kernel_size"), nb::arg("stride") = one,
          nb::arg("padding") = none, nb::arg("dilation") = one, nb::arg("groups") = 1, nb::arg("bias") = true,
          nb::arg("padding_mode") = "zeros", generator())
      .def_prop_ro("in_channels", [](const nn::Conv2d& l) { return l.weight.size(1) * l.options.groups; })
      .def_prop_ro("out_channels", [](const nn::Conv2d& l) { return l.weight.size(0); });
  layer<nn::ConvTranspose2d>(m, "ConvTranspose2d", "x [n, in, h, w] -> [n, out, h', w'].")
      .def(
          "__init__",
          [](nn::ConvTranspose2d* l, int64_t in, int64_t out, Pair kernel, Pair stride, Pair padding,
             Pair output_padding, int64_t groups, bool bias, Pair dilation, Generator* g) {
            ConvTranspose2dOptions options{.groups = groups};
            copy_array(stride, options.stride), copy_array(padding, options.padding),
                copy_array(dilation, options.dilation);
            copy_array(output_padding, options.output_padding);
            const nn::Kernel2d taps(kernel[0], kernel[1]);
            new (l) Overridable<nn::ConvTranspose2d>(in, out, taps, options, bias, generator_or_default(g));
          },
          nb::arg("in_channels"), nb::arg("out_channels"), nb::arg("kernel_size"), nb::arg("stride") = one,
          nb::arg("padding") = none, nb::arg("output_padding") = none, nb::arg("groups") = 1, nb::arg("bias") = true,
          nb::arg("dilation") = one, generator());
  layer<nn::LayerNorm>(m, "LayerNorm", "x [..., width] normalised over the last dim.")
      .def(
          "__init__",
          [](nn::LayerNorm* l, std::variant<int64_t, std::vector<int64_t>> shape, double eps, bool affine, bool bias) {
            const auto* one = std::get_if<int64_t>(&shape);
            new (l) Overridable<nn::LayerNorm>(one ? Shape{*one} : Shape(std::get<1>(shape)), affine, bias, eps);
          },
          nb::arg("normalized_shape"), nb::arg("eps") = 1e-5, nb::arg("elementwise_affine") = true,
          nb::arg("bias") = true);
  layer<nn::RMSNorm>(m, "RMSNorm", "x [..., width] divided by its root mean square over the last dim.")
      .def(nb::init<int64_t, double>(), nb::arg("normalized_shape"), nb::arg("eps") = 1e-5);
  layer<nn::BatchNorm2d>(m, "BatchNorm2d", "x [n, channels, h, w] normalised over each channel.")
      .def(
          "__init__",
          [](nn::BatchNorm2d* l, int64_t features, double eps, std::optional<double> momentum, bool affine,
             bool tracks) {
            new (l) Overridable<nn::BatchNorm2d>(features, momentum.value_or(kOfAllBatches), eps, affine, tracks);
            if (!momentum) average_all(*l);
          },
          nb::arg("num_features"), nb::arg("eps") = 1e-5, nb::arg("momentum").none() = 0.1, nb::arg("affine") = true,
          nb::arg("track_running_stats") = true)
      .def_ro("num_features", &nn::BatchNorm2d::channels)
      .def_prop_rw(
          "momentum",
          [](const nn::BatchNorm2d& l) {
            return std::isnan(l.momentum) ? std::nullopt : std::optional<double>(l.momentum);
          },
          [](nn::BatchNorm2d& l, std::optional<double> value) {
            l.momentum = value.value_or(kOfAllBatches);
            if (!value) average_all(l);
          },
          nb::arg("value").none())
      .def_prop_ro("running_mean", [](const nn::BatchNorm2d& l) { return l.running_mean; })
      .def_prop_ro("running_var", [](const nn::BatchNorm2d& l) { return l.running_var; });
  layer<nn::GroupNorm>(m, "GroupNorm", "x [n, channels, ...] normalised over each of some groups of channels.")
      .def(nb::init<int64_t, int64_t, double>(), nb::arg("num_groups"), nb::arg("num_channels"), nb::arg("eps") = 1e-5);
  bind_elementwise(m);
}

// x and states, one or a tuple of them -> the output and the states, in the form of PyTorch.
template <class M>
nb::object forward_recurrent(const M& module, const Tensor& x, nb::handle states, const Tensor& lengths) {
  Tensors in{x};
  if (!states.is_none())
    for (Tensor& t : tensors_of(states)) in.push_back(std::move(t));
  if (lengths.defined()) {
    while (in.size() < (std::is_same_v<M, nn::LSTM> ? 3 : 2)) in.push_back({});
    in.push_back(lengths);
  }
  Tensors out;
  {
    const Unlocked unlocked;
    out = module.M::forward(in);
  }
  if (out.size() == 2) return nb::make_tuple(out[0], out[1]);
  return nb::make_tuple(out[0], nb::make_tuple(out[1], out[2]));
}

template <class M>
nb::class_<M, nn::Module, Overridable<M>> recurrent(nb::module_& m, const char* name, const char* doc) {
  nb::class_<M, nn::Module, Overridable<M>> made(m, name, nb::dynamic_attr(), doc);
  made.def(
      "forward", &forward_recurrent<M>, nb::arg("input"), nb::arg("states") = nb::none(),
      nb::arg("lengths").none() = nb::none(),
      nb::sig("def forward(self, input: typing.Any, states: typing.Any = None, lengths: tessera._C.Tensor | None = "
              "None) -> typing.Any"),
      "The output, and the states behind the last step, or behind as many steps as each sequence has.");
  made.def_prop_ro("input_size", [](const M& l) { return l.config.in; })
      .def_prop_ro("hidden_size", [](const M& l) { return l.config.hidden; })
      .def_prop_ro("num_layers", [](const M& l) { return l.config.layers; })
      .def_prop_ro("batch_first", [](const M& l) { return l.config.batch_first; })
      .def_prop_ro("bidirectional", [](const M& l) { return l.config.bidirectional; })
      .def(
          "flatten_parameters", [](const M&) {}, "Nothing: weights lie as they are wanted.");
  copyable<M>(made, [](M& l) {
    std::vector<Tensor*> out;
    for (auto& w : l.weights) out.insert(out.end(), {&w.weight_ih, &w.weight_hh, &w.bias_ih, &w.bias_hh});
    return out;
  });
  return made;
}

template <class M>
void bind_gated(nb::module_& m, const char* name, const char* doc) {
  recurrent<M>(m, name, doc)
      .def(
          "__init__",
          [](M* made, int64_t in, int64_t hidden, int64_t layers, bool bias, bool batch_first, double dropout,
             bool bidirectional, Generator* g) {
            const nn::RecurrentConfig config{in, hidden, layers, bias, batch_first, dropout, bidirectional};
            new (made) Overridable<M>(config, generator_or_default(g));
          },
          nb::arg("input_size"), nb::arg("hidden_size"), nb::arg("num_layers") = 1, nb::arg("bias") = true,
          nb::arg("batch_first") = false, nb::arg("dropout") = 0.0, nb::arg("bidirectional") = false, generator());
}

void bind_recurrent(nb::module_& m) {
  bind_gated<nn::LSTM>(m, "LSTM",
                       "x [steps, batch, in] and (h, c) [layers * d, batch, hidden] -> output [steps, batch, d * "
                       "hidden], (h, c). Hochreiter & Schmidhuber 1997.");
  bind_gated<nn::GRU>(m, "GRU",
                      "x [steps, batch, in] and h [layers * d, batch, hidden] -> output [steps, batch, d * hidden], h. "
                      "Cho et al. 2014.");
  recurrent<nn::RNN>(m, "RNN",
                     "x [steps, batch, in] and h [layers * d, batch, hidden] -> output [steps, batch, d * hidden], h. "
                     "Elman 1990.")
      .def(
          "__init__",
          [](nn::RNN* made, int64_t in, int64_t hidden, int64_t layers, const std::string& nonlinearity, bool bias,
             bool batch_first, double dropout, bool bidirectional, Generator* g) {
            if (nonlinearity != "tanh" && nonlinearity != "relu")
              throw Error("RNN: nonlinearity '" + nonlinearity + "' is none of: tanh, relu");
            const nn::RecurrentConfig config{in, hidden, layers, bias, batch_first, dropout, bidirectional};
            new (made) Overridable<nn::RNN>(config, nonlinearity == "relu", generator_or_default(g));
          },
          nb::arg("input_size"), nb::arg("hidden_size"), nb::arg("num_layers") = 1, nb::arg("nonlinearity") = "tanh",
          nb::arg("bias") = true, nb::arg("batch_first") = false, nb::arg("dropout") = 0.0,
          nb::arg("bidirectional") = false, generator());
}

// What Sequential takes: modules, and functions of one tensor.
void append(nn::Sequential& to, nb::handle part) {
  if (nb::isinstance<nn::Module>(part)) to.append(nn::Child<nn::Module>(nb::cast<std::shared_ptr<nn::Module>>(part)));
  else to.append(nn::Function(nb::cast<std::function<Tensor(const Tensor&)>>(part)));
}

void bind_blocks(nb::module_& m) {
  using nn::Sequential;
  layer<Sequential>(m, "Sequential", "Its parts, modules or functions of one tensor, in turn.")
      .def("__init__",
           [](Sequential* s, const nb::args& parts) {
             new (s) Overridable<Sequential>();
             if (parts.size() == 1 && nb::isinstance<nb::dict>(parts[0])) {
               for (const auto& [name, part] : nb::borrow<nb::dict>(parts[0]))
                 Open::child(*s, nb::cast<std::string>(name), nb::cast<std::shared_ptr<nn::Module>>(part));
               return;
             }
             for (nb::handle part : parts) append(*s, part);
           })
      .def(
          "append",
          [](nb::handle self, nb::handle part) {
            append(object_of<Sequential>(self), part);
            return nb::borrow(self);
          },
          nb::arg("module"), nb::sig("def append(self, module: typing.Any) -> typing.Self"))
      .def("__len__", &Sequential::size)
      .def("__getitem__", [](const Sequential& s, int64_t i) {
        const int64_t n = static_cast<int64_t>(s.size());
        if (i < -n || i >= n) throw nb::index_error(("Sequential has " + std::to_string(n) + " parts").c_str());
        return shared(s[i < 0 ? i + n : i]);
      });
  layer<nn::MultiheadAttention>(
      m, "SelfAttention",
      "Self-attention of x [batch, tokens, width]; takes x, a mask and a residual. `alibi` is the "
      "largest exponent of ALiBi's slopes, 8 as in its paper, or 0: none.")
      .def(
          "__init__",
          [](nn::MultiheadAttention* l, int64_t width, int64_t heads, bool bias, bool causal, double dropout,
             double alibi, Generator* g) {
            new (l) Overridable<nn::MultiheadAttention>(
                nn::AttentionConfig{
                    .width = width, .heads = heads, .bias = bias, .causal = causal, .dropout = dropout, .alibi = alibi},
                generator_or_default(g));
          },
          nb::arg("width"), nb::arg("heads"), nb::arg("bias") = true, nb::arg("causal") = false,
          nb::arg("dropout") = 0.0, nb::arg("alibi") = 0.0, generator());
  layer<nn::TransformerBlock>(
      m, "TransformerBlock",
      "x += attention(norm1(x)); x += down(act(up(norm2(x)))); takes x and a mask. `alibi` as in "
      "SelfAttention.")
      .def(
          "__init__",
          [](nn::TransformerBlock* l, int64_t width, int64_t heads, int64_t hidden, bool bias, bool causal,
             double dropout, Activation activation, double alibi, Generator* g) {
            new (l) Overridable<nn::TransformerBlock>(nn::TransformerConfig{.width = width,
                                                                            .heads = heads,
                                                                            .hidden = hidden,
                                                                            .bias = bias,
                                                                            .causal = causal,
                                                                            .dropout = dropout,
                                                                            .activation = activation,
                                                                            .alibi = alibi},
                                                      generator_or_default(g));
          },
          nb::arg("width"), nb::arg("heads"), nb::arg("hidden") = 0, nb::arg("bias") = true, nb::arg("causal") = false,
          nb::arg("dropout") = 0.0, nb::arg("activation") = Activation::GeluErf, nb::arg("alibi") = 0.0, generator());
}

void bind_init(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("_init", "Fill a tensor in place, outside of any graph.");
  using namespace nn::init;
  m.def("constant_", &constant_, nb::arg("tensor"), nb::arg("val"), "Fills with one number.");
  const auto drawn = [&](const char* name, void (*fill)(Tensor, double, double, Generator&), const char* a,
                         const char* b, double first, double second, const char* doc) {
    m.def(
        name, [fill](const Tensor& t, double x, double y, Generator* g) { fill(t, x, y, generator_or_default(g)); },
        nb::arg("tensor"), nb::arg(a) = first, nb::arg(b) = second, generator(), doc);
  };
  drawn("normal_", &normal_, "mean", "std", 0, 1, "Fills with numbers of a normal distribution.");
  drawn("uniform_", &uniform_, "a", "b", 0, 1, "Fills with numbers that are uniform in [a, b).");
  m.def(
      "trunc_normal_",
      [](const Tensor& t, double mean, double std, double cut, Generator* g) {
        trunc_normal_(t, mean, std, cut, generator_or_default(g));
      },
      nb::arg("tensor"), nb::arg("mean") = 0.0, nb::arg("std") = 1.0, nb::arg("cut") = 2.0, generator(),
      "Fills with numbers of a normal distribution that lie within `cut` standard deviations.");
  const auto gained = [&](const char* name, void (*fill)(Tensor, double, Generator&), double gain, const char* doc) {
    m.def(
        name, [fill](const Tensor& t, double g, Generator* from) { fill(t, g, generator_or_default(from)); },
        nb::arg("tensor"), nb::arg("gain") = gain, generator(), doc);
  };
  gained("xavier_uniform_", &xavier_uniform_, 1, "Uniform, with variance 2 gain² / (fan_in + fan_out). Glorot 2010.");
  gained("xavier_normal_", &xavier_normal_, 1, "Normal, with variance 2 gain² / (fan_in + fan_out). Glorot 2010.");
  gained("kaiming_uniform_", &kaiming_uniform_, 1.4142135623730951,
         "Uniform, with variance gain² / fan_in. He et al. 2015.");
  gained("kaiming_normal_", &kaiming_normal_, 1.4142135623730951,
         "Normal, with variance gain² / fan_in. He et al. 2015.");
}

}  // namespace

void bind_nn(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("_nn");
  bind_module(m);
  bind_layers(m);
  bind_recurrent(m);
  bind_blocks(m);
  bind_init(m);
}

}  // namespace tessera::python
