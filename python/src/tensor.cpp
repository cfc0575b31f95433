// Tensor: what it is, its gradient, its operators.
#include "module.h"

namespace tessera::python {
namespace {

using Binary = Tensor (*)(const Operand&, const Operand&);

template <Tensor (*op)(Tensor, Tensor)>
Tensor binary(const Operand& a, const Operand& b) {
  return op(beside(a, b), beside(b, a));
}
template <Tensor (*op)(const Tensor&, const Tensor&)>
Tensor by_reference(const Operand& a, const Operand& b) {
  return op(beside(a, b), beside(b, a));
}
Tensor quotient(const Operand& a, const Operand& b) { return div(beside(real(a), b), beside(real(b), a)); }
Tensor plus(const Operand& a, const Operand& b) {
  if (b.is_factor_of(a)) return add(a.tensor, b.number);
  return add(beside(a, b), beside(b, a));
}
Tensor minus(const Operand& a, const Operand& b) {
  if (b.is_factor_of(a)) return add(a.tensor, -b.number);
  return sub(beside(a, b), beside(b, a));
}
Tensor times(const Operand& a, const Operand& b) {
  if (b.is_factor_of(a)) return mul(a.tensor, b.number);
  return mul(beside(a, b), beside(b, a));
}
Tensor power(const Operand& a, const Operand& b) {
  if (b.is_factor_of(a)) return pow(a.tensor, b.number);
  return pow(beside(a, b), beside(b, a));
}

// x + y, and y + x where y is no tensor.
void define_binary(nb::class_<Tensor>& tensor, const char* name, const char* reversed, Binary op) {
  tensor.def(
      name,
      [op](const Operand& a, const Operand& b) {
        const Unlocked unlocked;
        return op(a, b);
      },
      nb::is_operator());
  if (!reversed) return;
  tensor.def(
      reversed,
      [op](const Operand& a, const Operand& b) {
        const Unlocked unlocked;
        return op(b, a);
      },
      nb::is_operator());
}

void define_operators(nb::class_<Tensor>& tensor) {
  define_binary(tensor, "__add__", "__radd__", plus);
  define_binary(tensor, "__sub__", "__rsub__", minus);
  define_binary(tensor, "__mul__", "__rmul__", times);
  define_binary(tensor, "__truediv__", "__rtruediv__", quotient);
  define_binary(tensor, "__floordiv__", "__rfloordiv__", binary<floor_div>);
  define_binary(tensor, "__mod__", "__rmod__", binary<remainder>);
  define_binary(tensor, "__pow__", "__rpow__", power);
  define_binary(tensor, "__eq__", nullptr, binary<eq>);
  define_binary(tensor, "__ne__", nullptr, binary<ne>);
  define_binary(tensor, "__lt__", nullptr, binary<lt>);
  define_binary(tensor, "__le__", nullptr, binary<le>);
  define_binary(tensor, "__gt__", nullptr, binary<gt>);
  define_binary(tensor, "__ge__", nullptr, binary<ge>);
  define_binary(tensor, "__and__", "__rand__", by_reference<bitwise_and>);
  define_binary(tensor, "__or__", "__ror__", by_reference<bitwise_or>);
  define_binary(tensor, "__xor__", "__rxor__", by_reference<bitwise_xor>);
  define_binary(tensor, "__lshift__", "__rlshift__", by_reference<left_shift>);
  define_binary(tensor, "__rshift__", "__rrshift__", by_reference<right_shift>);
  define_binary(tensor, "__matmul__", "__rmatmul__", by_reference<matmul>);
  tensor.def("__invert__", [](const Tensor& x) { return x.dtype() == Bool ? logical_not(x) : bitwise_not(x); })
      .def("__neg__", [](const Tensor& x) { return neg(x); })
      .def("__pos__", [](const Tensor& x) { return x; })
      .def("__abs__", [](const Tensor& x) { return abs(x); });
}

// In place; Python binds the name to what these return.
Tensor& assign(Tensor& to, const Tensor& value) {
  const Unlocked unlocked;
  return to.copy_(value);
}

void define_in_place(nb::class_<Tensor>& tensor) {
  tensor
      .def(
          "copy_", [](Tensor& t, const Operand& source) { return assign(t, beside(source, {.tensor = t})); },
          nb::arg("source"), "Writes the elements of `source`, which broadcasts, in place.")
      .def(
          "fill_", [](Tensor& t, double value) { return t.fill_(value); }, nb::arg("value"))
      .def("zero_", [](Tensor& t) { return t.zero_(); })
      .def(
          "add_",
          [](Tensor& t, const Operand& other, double alpha) { return t.add_(beside(other, {.tensor = t}), alpha); },
          nb::arg("other"), nb::kw_only(), nb::arg("alpha") = 1.0, nb::call_guard<Unlocked>())
      .def(
          "sub_",
          [](Tensor& t, const Operand& other, double alpha) { return t.add_(beside(other, {.tensor = t}), -alpha); },
          nb::arg("other"), nb::kw_only(), nb::arg("alpha") = 1.0, nb::call_guard<Unlocked>())
      .def(
          "mul_", [](Tensor& t, const Operand& other) { return t.mul_(beside(other, {.tensor = t})); },
          nb::arg("other"), nb::call_guard<Unlocked>())
      .def(
          "__iadd__", [](Tensor& t, const Operand& other) { return t.add_(beside(other, {.tensor = t})); },
          nb::is_operator(), nb::call_guard<Unlocked>())
      .def(
          "__isub__", [](Tensor& t, const Operand& other) { return t.add_(beside(other, {.tensor = t}), -1); },
          nb::is_operator(), nb::call_guard<Unlocked>())
      .def(
          "__imul__", [](Tensor& t, const Operand& other) { return t.mul_(beside(other, {.tensor = t})); },
          nb::is_operator(), nb::call_guard<Unlocked>());
}

nb::object item(const Tensor& t) {
  if (t.dtype() == Bool) return nb::cast(t.item<int64_t>() != 0);
  if (is_floating(t.dtype())) return nb::cast(t.item());
  return nb::cast(t.item<int64_t>());
}

void define_values(nb::class_<Tensor>& tensor) {
  tensor
      .def("item", &item, nb::sig("def item(self) -> float"),
           "The value of a one-element tensor: a bool, an int or a float.")
      .def("__bool__", [](const Tensor& t) { return t.item() != 0; })
      .def("__float__", [](const Tensor& t) { return t.item(); })
      .def("__int__",
           [](const Tensor& t) { return is_floating(t.dtype()) ? static_cast<int64_t>(t.item()) : t.item<int64_t>(); })
      .def("__index__",
           [](const Tensor& t) {
             if (is_floating(t.dtype())) throw nb::type_error("a floating-point tensor is no index");
             return t.item<int64_t>();
           })
      .def("__len__",
           [](const Tensor& t) {
             if (t.dim() == 0) throw nb::type_error("a tensor without dims has no length");
             return t.shape()[0];
           })
      .def("__hash__", [](const Tensor& t) { return reinterpret_cast<size_t>(t.ref().get()) >> 4; })
      .def("__repr__",
           [](const Tensor& t) {
             if (t.device().meta || t.is_packed()) return "tensor(" + describe(t) + ")";
             return "tensor(" + to_string(t.detach()) + ", " + describe(t) +
                    (t.requires_grad() ? ", requires_grad)" : ")");
           })
      .def("tolist", [](const Tensor& t) {
        const auto nested = [](auto&& self, const Tensor& part) -> nb::object {
          if (part.dim() == 0) return item(part);
          nb::list out;
          for (int64_t i = 0; i < part.size(0); ++i) out.append(self(self, part.select(0, i)));
          return out;
        };
        return nested(nested, t.detach().to(cpu()));
      });
}

void define_gradients(nb::class_<Tensor>& tensor) {
  tensor.def_prop_rw("requires_grad", &Tensor::requires_grad, [](Tensor& t, bool on) { t.set_requires_grad(on); })
      .def(
          "requires_grad_", [](Tensor& t, bool on) { return t.set_requires_grad(on); }, nb::arg("requires_grad") = true)
      .def_prop_ro("is_leaf", &Tensor::is_leaf)
      .def_prop_rw(
          "grad", &Tensor::grad, [](const Tensor& t, const Tensor& grad) { t.set_grad(grad); },
          nb::for_setter(nb::arg("grad").none()), "The accumulated gradient, or None.")
      .def("backward", &Tensor::backward, nb::arg("gradient").none() = nb::none(), nb::arg("retain_graph") = false,
           nb::arg("create_graph") = false, nb::call_guard<Unlocked>(),
           "Differentiates from here. `gradient` defaults to one for a single element.")
      .def("detach", &Tensor::detach, "The same elements outside of the graph.")
      .def(
          "register_hook",
          [](const Tensor& t, std::function<Tensor(const Tensor&)> hook) { t.register_hook(std::move(hook)); },
          nb::arg("hook"), "Called with the gradient during backward; what it returns, unless None, takes its place.");
}

// to(), with what it is given in any order: a dtype, a device, another tensor.
Tensor to_any(const Tensor& t, const std::optional<DType>& dtype, const std::optional<std::string>& device) {
  Tensor out = t;
  if (dtype) out = out.to(*dtype);
  if (device) out = out.to(parse_device(*device));
  return out;
}

Tensor turned(const Tensor& t) {
  Dims order;
  for (int64_t d = t.dim(); d-- > 0;) order.push_back(d);
  return permute(t, order);
}

void define_shape(nb::class_<Tensor>& tensor) {
  tensor.def_prop_ro("shape", &Tensor::shape)
      .def_prop_ro("dtype", &Tensor::dtype)
      .def_prop_ro("device", &Tensor::device)
      .def_prop_ro("ndim", &Tensor::dim)
      .def_prop_ro("T", &turned, "The dims in the reverse order.")
      .def_prop_ro("H", &turned)
      .def_prop_ro(
          "mT", [](const Tensor& t) { return t.transpose(-2, -1); }, "The last two dims exchanged.")
      .def_prop_ro("mH", [](const Tensor& t) { return t.transpose(-2, -1); })
      .def("dim", &Tensor::dim)
      .def("numel", [](const Tensor& t) { return t.shape().numel(); })
      .def("size", [](const Tensor& t) { return t.shape(); })
      .def(
          "size", [](const Tensor& t, int64_t dim) { return t.shape()[normalize_dim("size", dim, t.shape())]; },
          nb::arg("dim"))
      .def("stride",
           [](const Tensor& t) {
             nb::list out;
             for (const int64_t s : t.strides()) out.append(s);
             return nb::tuple(out);
           })
      .def("stride", &Tensor::stride, nb::arg("dim"))
      .def("storage_offset", &Tensor::offset)
      .def("element_size", [](const Tensor& t) { return size_of(t.dtype()); })
      .def_prop_ro("itemsize", [](const Tensor& t) { return size_of(t.dtype()); })
      .def_prop_ro("nbytes", [](const Tensor& t) { return t.numel() * static_cast<int64_t>(size_of(t.dtype())); })
      .def_prop_ro("is_cuda", [](const Tensor& t) { return t.device().type == DeviceType::CUDA; })
      .def_prop_ro(
          "is_meta", [](const Tensor& t) { return t.device().meta; }, "Whether it has no memory.")
      .def("data_ptr", [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data_ptr()); })
      .def("is_contiguous", [](const Tensor& t) { return t.is_contiguous(); })
      .def("is_floating_point", [](const Tensor& t) { return is_floating(t.dtype()); })
      .def(
          "is_same", [](const Tensor& a, const Tensor& b) { return same(a, b); }, nb::arg("other"),
          "Whether both are handles of one tensor.")
      .def("_to", &to_any, nb::arg("dtype") = nb::none(), nb::arg("device") = nb::none(), nb::call_guard<Unlocked>())
      .def(
          "channels_last", [](const Tensor& t) { return t.to(ChannelsLast); }, nb::call_guard<Unlocked>(),
          "The same elements, lying in memory in the order n, h, w, c.");
}

void define_creation(nb::module_& m) {
  const auto dtype = [] { return nb::arg("dtype") = Float32; };
  const auto device = [] { return nb::arg("device").none() = nb::none(); };
  m.def("empty", &empty, nb::arg("size"), dtype(), device(), nb::call_guard<Unlocked>(),
        "A tensor of that size whose elements are not set.");
  m.def("full", &full, nb::arg("size"), nb::arg("fill_value"), dtype(), device(), nb::call_guard<Unlocked>(),
        "A tensor of that size filled with a number.");
  m.def("arange", &arange, nb::arg("start"), nb::arg("end"), nb::arg("step") = 1.0, nb::arg("dtype") = Int64, device(),
        nb::call_guard<Unlocked>(), "[n]: start, start + step, ... below end.");
  m.def(
      "memory_allocated", [](Device d) { return memory_stats(d).allocated; }, nb::arg("device").none() = nb::none(),
      "Bytes that tensors hold now.");
  m.def(
      "max_memory_allocated", [](Device d) { return memory_stats(d).peak_allocated; },
      nb::arg("device").none() = nb::none(), "The most bytes that tensors held since the last reset.");
  m.def("reset_peak_memory", &reset_peak_memory, nb::arg("device").none() = nb::none(),
        "Lets max_memory_allocated() begin anew.");
}

}  // namespace

void bind_scaled(nb::module_& m, nb::class_<Tensor>& tensor) {
  const auto scaled = [&](const char* name, Binary op, const char* doc) {
    const auto call = [op](const Operand& a, const Operand& b, double alpha) {
      const Unlocked unlocked;
      return op(a, {.tensor = mul(beside(b, a), alpha)});
    };
    function_and_method(m, tensor, name, call, nb::arg("input"), nb::arg("other"), nb::kw_only(), nb::arg("alpha"),
                        doc);
  };
  scaled("add", plus, "input + alpha * other");
  scaled("sub", minus, "input - alpha * other");
}

void bind_tensor(nb::module_& m, nb::class_<Tensor>& tensor) {
  tensor.def(nb::init<const Tensor&>(), nb::arg("other"), "Another handle of the same tensor.");
  define_operators(tensor);
  define_in_place(tensor);
  define_values(tensor);
  define_gradients(tensor);
  define_shape(tensor);
  define_creation(m);
}

}  // namespace tessera::python
