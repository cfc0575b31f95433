// Sizes that a captured function leaves open: they stand for integers wherever the library takes dims.
#include <utility>

#include "module.h"

namespace tessera::python {
namespace {

thread_local bool was_read = false;

[[noreturn]] int64_t refuse(const OpenSize& size) {
  was_read = true;
  if (!size.dim.counted_by().empty())
    throw Error("the size " + size.dim.to_string() + " depends on values, and is read as a number");
  throw Error("the size " + size.dim.to_string() + " is open, and is read as a number");
}

using OfDims = Dim (*)(Dim, Dim);

// A dim beside integers and dims; beside floats and tensors it is a tensor, as `of_tensors` in Python's operator.
void define(nb::class_<OpenSize>& made, const char* name, const char* reversed, OfDims of_dims,
            const char* of_tensors) {
  const auto call = [=](const OpenSize& a, nb::handle b, bool turned) -> nb::object {
    Dim dim;
    if (of_dims && read_dim(b, dim)) return nb::cast(turned ? of_dims(dim, a.dim) : of_dims(a.dim, dim));
    Operand other;
    if (!read_operand(b, other)) return nb::borrow(Py_NotImplemented);
    Operand size;
    size.kind = Operand::kInt, size.size = a.dim;
    const nb::object x = nb::cast(beside(of_dims ? size : real(size), other)),
                     y = nb::cast(beside(other, {.tensor = nb::cast<Tensor>(x)}));
    return nb::module_::import_("operator").attr(of_tensors)(turned ? y : x, turned ? x : y);
  };
  made.def(
      name, [call](const OpenSize& a, nb::handle b) { return call(a, b, false); }, nb::is_operator());
  made.def(
      reversed, [call](const OpenSize& a, nb::handle b) { return call(a, b, true); }, nb::is_operator());
}

// Whether a - b is in a range of numbers: known, or asked of what has no answer yet.
void compare(nb::class_<OpenSize>& made, const char* name, bool (*holds)(int64_t low, int64_t high),
             bool (*fails)(int64_t low, int64_t high)) {
  made.def(
      name,
      [holds, fails](const OpenSize& a, Dim b) {
        const Dim rest = a.dim - b;
        const int64_t low = rest.low(), high = rest.high();
        return holds(low, high) || (!fails(low, high) && refuse(a));
      },
      nb::is_operator());
}

}  // namespace

bool read_dim(nb::handle source, Dim& out) noexcept {
  if (nb::isinstance<OpenSize>(source)) {
    out = nb::inst_ptr<OpenSize>(source)->dim;
    return true;
  }
  if (!PyIndex_Check(source.ptr())) return false;
  const nb::object index = nb::steal(PyNumber_Index(source.ptr()));
  const int64_t number = index.is_valid() ? PyLong_AsLongLong(index.ptr()) : 0;
  const bool good = !PyErr_Occurred() && number >= -Dim::kUnbounded / 2;
  if (!good) PyErr_Clear();
  else out = number;
  return good;
}

bool open_size_was_read() { return std::exchange(was_read, false); }

Tensor size_tensor(Dim size, DType dtype, Device device) {
  // A view of one number, which takes no memory, has the size.
  const Tensor numbers = expand(full({}, 0, Float32, device), {size});
  return cast(reshape(shape_of(numbers), {}), dtype);
}

void bind_open_size(nb::module_& m) {
  nb::class_<OpenSize> made(
      m, "OpenSize",
      "A size that a captured module leaves open, and what is computed of it. Functions take it for "
      "a size. What a number alone can say, such as whether it is 1, it refuses.");
  define(
      made, "__add__", "__radd__", [](Dim a, Dim b) { return a + b; }, "add");
  define(
      made, "__sub__", "__rsub__", [](Dim a, Dim b) { return a - b; }, "sub");
  define(
      made, "__mul__", "__rmul__", [](Dim a, Dim b) { return a * b; }, "mul");
  define(
      made, "__floordiv__", "__rfloordiv__", [](Dim a, Dim b) { return a / b; }, "floordiv");
  define(
      made, "__mod__", "__rmod__", [](Dim a, Dim b) { return a - a / b * b; }, "mod");
  define(made, "__truediv__", "__rtruediv__", nullptr, "truediv");
  define(made, "__pow__", "__rpow__", nullptr, "pow");
  using Bound = int64_t;
  compare(
      made, "__lt__", [](Bound, Bound high) { return high < 0; }, [](Bound low, Bound) { return low >= 0; });
  compare(
      made, "__le__", [](Bound, Bound high) { return high <= 0; }, [](Bound low, Bound) { return low > 0; });
  compare(
      made, "__gt__", [](Bound low, Bound) { return low > 0; }, [](Bound, Bound high) { return high <= 0; });
  compare(
      made, "__ge__", [](Bound low, Bound) { return low >= 0; }, [](Bound, Bound high) { return high < 0; });
  made.def(
          "__eq__",
          [](const OpenSize& a, nb::handle b) {
            Dim other;
            if (!read_dim(b, other)) return false;
            const Dim rest = a.dim - other;
            return rest == Dim(0) || (rest.low() <= 0 && rest.high() >= 0 && refuse(a));
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const OpenSize& a) { return nb::hash(nb::str(a.dim.to_string().c_str())); })
      .def("__neg__", [](const OpenSize& a) { return Dim(0) - a.dim; })
      .def("__bool__", [](const OpenSize& a) { return a.dim.low() > 0 || refuse(a); })
      .def("__index__", &refuse)
      .def("__int__", &refuse)
      .def("__float__", [](const OpenSize& a) { return static_cast<double>(refuse(a)); })
      .def("__str__", [](const OpenSize& a) { return a.dim.to_string(); })
      .def("__repr__", [](const OpenSize& a) { return a.dim.to_string(); });
}

}  // namespace tessera::python
