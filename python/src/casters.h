// How the library's types are passed to and from Python.
#pragma once
#include <algorithm>
#include <array>

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "tessera/onnx.h"
#include "tessera/tessera.h"

namespace nb = nanobind;

namespace tessera::python {

/// Lets other threads of Python run while the library does.
using Unlocked = nb::gil_scoped_release;

/// A size of a captured function that is no number yet.
struct OpenSize {
  Dim dim;
};

/// A tensor, an array, or a number or an open size that takes the dtype of the tensor beside it, as in PyTorch.
struct Operand {
  enum Kind { kTensor, kBool, kInt, kFloat } kind = kTensor;
  Tensor tensor;
  double number = 0;
  int64_t integer = 0;
  Dim size = 0;  // an open one in place of the integer
  /// Whether it is a number by which operators take a floating-point tensor without making a tensor of it.
  bool is_factor_of(const Operand& other) const {
    return kind != kTensor && kind != kBool && !size.is_symbolic() && other.kind == kTensor &&
           is_floating(other.tensor.dtype());
  }
};
/// `operand` as a tensor that goes with `other`.
Tensor beside(const Operand& operand, const Operand& other);

/// An operand of true division, which makes no integers: -3 beside a u8 stays -3.
inline Operand real(Operand operand) {
  if (operand.kind == Operand::kInt) operand.kind = Operand::kFloat;
  return operand;
}

/// The C++ object behind one of Python. Throws TypeError where a class of Python did not let it be made.
template <class T>
T& object_of(nb::handle self) {
  if (!nb::inst_ready(self)) throw nb::type_error("super().__init__() was not called");
  return *nb::inst_ptr<T>(self);
}

inline Generator& generator_or_default(Generator* generator) { return generator ? *generator : default_generator(); }

template <class T, size_t N>
std::array<T, N> array_of(const T (&values)[N]) {
  return std::to_array(values);
}
template <class T, size_t N>
void copy_array(const std::array<T, N>& values, T (&out)[N]) {
  std::copy(values.begin(), values.end(), out);
}

/// "float32", "f32", "torch.float32". Throws Error.
DType dtype_named(std::string_view name);
/// Integers of a sequence, or one alone. False, without an error, where `source` is neither.
bool read_integers(nb::handle source, std::vector<int64_t>& out) noexcept;
/// Sizes of a tuple or a list, of which some may be open.
bool read_dims(nb::handle source, Shape& out) noexcept;
/// An integer or an open size. False, without an error, where `source` is neither.
bool read_dim(nb::handle source, Dim& out) noexcept;
/// A size as a tensor without dims.
Tensor size_tensor(Dim size, DType dtype, Device device);
bool read_operand(nb::handle source, Operand& out) noexcept;
/// A string of Python. False, without an error, where `source` is none, or one that UTF-8 cannot say.
bool read_text(nb::handle source, std::string& out) noexcept;
/// What tessera.as_tensor makes of lists and arrays. Throws what that raises.
nb::object as_tensor(nb::handle source);

}  // namespace tessera::python

namespace nanobind::detail {

/// None is an undefined tensor.
template <>
struct type_caster<tessera::Tensor> : type_caster_base<tessera::Tensor> {
  using Base = type_caster_base<tessera::Tensor>;
  bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
    absent_ = source.is_none();
    return absent_ || Base::from_python(source, flags, cleanup);
  }
  template <class T>
  static handle from_cpp(T&& value, rv_policy policy, cleanup_list* cleanup) noexcept {
    if constexpr (is_pointer_v<T>) {
      if (!value || !value->defined()) return none().release();
    } else {
      if (!value.defined()) return none().release();
    }
    return Base::from_cpp(std::forward<T>(value), policy, cleanup);
  }
  template <class T>
  bool can_cast() const noexcept {
    return absent_ || Base::template can_cast<T>();
  }
  operator tessera::Tensor*() { return absent_ ? &undefined_ : Base::operator tessera::Tensor*(); }
  operator tessera::Tensor&() { return *operator tessera::Tensor*(); }
  operator tessera::Tensor&&() { return std::move(*operator tessera::Tensor*()); }

 private:
  bool absent_ = false;
  tessera::Tensor undefined_;
};

template <>
struct type_caster<tessera::Tensors> : list_caster<tessera::Tensors, tessera::Tensor> {
  static constexpr auto Name = io_name("collections.abc.Sequence", "tuple") + const_name("[") +
                               make_caster<tessera::Tensor>::Name + io_name("", ", ...") + const_name("]");
  template <class T>
  static handle from_cpp(T&& tensors, rv_policy policy, cleanup_list* cleanup) noexcept {
    object list = steal(list_caster::from_cpp(std::forward<T>(tensors), policy, cleanup));
    return list.is_valid() ? PyList_AsTuple(list.ptr()) : nullptr;
  }
};

template <>
struct type_caster<tessera::python::Operand> {
  NB_TYPE_CASTER(tessera::python::Operand, make_caster<tessera::Tensor>::Name + const_name(" | float"))
  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    return tessera::python::read_operand(source, value);
  }
};

/// An integer stands for a list of one; None for an empty one.
template <>
struct type_caster<tessera::Dims> {
  NB_TYPE_CASTER(tessera::Dims, const_name("int | collections.abc.Sequence[int]"))
  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    std::vector<int64_t> numbers;
    if (!source.is_none() && !tessera::python::read_integers(source, numbers)) return false;
    value = tessera::Dims(numbers);
    return true;
  }
  static handle from_cpp(const tessera::Dims& dims, rv_policy, cleanup_list*) noexcept {
    list out;
    for (const int64_t d : dims) out.append(d);
    return PyList_AsTuple(out.ptr());
  }
};

/// A number is an integer of Python.
template <>
struct type_caster<tessera::Dim> {
  NB_TYPE_CASTER(tessera::Dim, const_name("int"))
  bool from_python(handle source, uint32_t, cleanup_list*) noexcept { return tessera::python::read_dim(source, value); }
  static handle from_cpp(tessera::Dim dim, rv_policy, cleanup_list*) noexcept {
    if (!dim.is_symbolic()) return PyLong_FromLongLong(dim.value());
    return cast(tessera::python::OpenSize{dim}).release();
  }
};

/// An integer that is no size throws when it is converted, as names do below.
template <>
struct type_caster<tessera::Shape> {
  using Value = tessera::Shape;
  static constexpr auto Name = const_name("tuple[int, ...]");
  template <class>
  using Cast = Value;
  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    numbers_.clear();
    dims_.clear();
    if (tessera::python::read_integers(source, numbers_)) return true;
    return tessera::python::read_dims(source, dims_);
  }
  static handle from_cpp(const tessera::Shape& shape, rv_policy, cleanup_list*) noexcept {
    list out;
    for (const tessera::Dim d : shape) out.append(d);
    return PyList_AsTuple(out.ptr());
  }
  template <class T>
  bool can_cast() const noexcept {
    try {
      (void)tessera::Shape(std::span<const int64_t>(numbers_));
      return true;
    } catch (const tessera::Error&) {
      return false;
    }
  }
  explicit operator tessera::Shape() {
    return dims_.empty() ? tessera::Shape(std::span<const int64_t>(numbers_)) : dims_;
  }

 private:
  std::vector<int64_t> numbers_;
  tessera::Shape dims_;  // where some of them are open
};

/// Pairs of numbers: one stands for both.
template <>
struct type_caster<std::array<int64_t, 2>> {
  using Pair = std::array<int64_t, 2>;
  NB_TYPE_CASTER(Pair, const_name("int | tuple[int, int]"))
  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    std::vector<int64_t> numbers;
    if (!tessera::python::read_integers(source, numbers) || numbers.empty() || numbers.size() > 2) return false;
    value = {numbers.front(), numbers.back()};
    return true;
  }
  static handle from_cpp(const Pair& pair, rv_policy, cleanup_list*) noexcept {
    return make_tuple(pair[0], pair[1]).release();
  }
};

// Names are looked up when they are converted; one that is none throws what the library says, where the dispatcher lets
// it.

/// tessera.float32, or its name.
template <>
struct type_caster<tessera::DType> {
  using Value = tessera::DType;
  static constexpr auto Name = const_name<tessera::DType>() + const_name(" | str");
  template <class>
  using Cast = Value;
  bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
    is_text_ = isinstance<str>(source);
    if (is_text_) return tessera::python::read_text(source, text_);
    int64_t number;
    if (!NB_CALL(enum_from_python)(NB_CTX_C(cleanup), &typeid(tessera::DType), source.ptr(), &number, flags))
      return false;
    dtype_ = static_cast<tessera::DType>(number);
    return true;
  }
  static handle from_cpp(tessera::DType dtype, rv_policy, cleanup_list* cleanup) noexcept {
    return NB_CALL(enum_from_cpp)(NB_CTX_C(cleanup), &typeid(tessera::DType), static_cast<int64_t>(dtype));
  }
  template <class T>
  bool can_cast() const noexcept {
    try {
      if (is_text_) (void)tessera::python::dtype_named(text_);
      return true;
    } catch (const tessera::Error&) {
      return false;
    }
  }
  explicit operator tessera::DType() { return is_text_ ? tessera::python::dtype_named(text_) : dtype_; }

 private:
  tessera::DType dtype_ = tessera::Float32;
  bool is_text_ = false;
  std::string text_;
};

/// tessera.device("cuda:0"), or its name; None is the default one.
template <>
struct type_caster<tessera::Device> : type_caster_base<tessera::Device> {
  using Base = type_caster_base<tessera::Device>;
  static constexpr auto Name = const_name<tessera::Device>() + io_name(" | str", "");
  enum Kind { kObject, kText, kDefault };
  bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
    kind_ = source.is_none() ? kDefault : isinstance<str>(source) ? kText : kObject;
    if (kind_ == kText) return tessera::python::read_text(source, text_);
    return kind_ != kObject || Base::from_python(source, flags, cleanup);
  }
  template <class T>
  bool can_cast() const noexcept {
    return kind_ != kObject || Base::template can_cast<T>();
  }
  operator tessera::Device*() {
    if (kind_ == kObject) return Base::operator tessera::Device*();
    made_ = kind_ == kText ? tessera::parse_device(text_) : tessera::default_device();
    return &made_;
  }
  operator tessera::Device&() { return *operator tessera::Device*(); }
  operator tessera::Device&&() { return std::move(*operator tessera::Device*()); }

 private:
  Kind kind_ = kObject;
  std::string text_;
  tessera::Device made_;
};

/// A choice by its name.
template <class Enum, class Names>
struct named_caster {
  using Value = Enum;
  static constexpr auto Name = const_name("str");
  template <class>
  using Cast = Value;
  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    return tessera::python::read_text(source, text_);
  }
  static handle from_cpp(Enum choice, rv_policy, cleanup_list*) noexcept {
    return PyUnicode_FromString(Names::all[static_cast<size_t>(choice)]);
  }
  template <class T>
  bool can_cast() const noexcept {
    return std::find(std::begin(Names::all), std::end(Names::all), text_) != std::end(Names::all);
  }
  explicit operator Enum() const {
    const auto found = std::find(std::begin(Names::all), std::end(Names::all), text_);
    if (found != std::end(Names::all)) return static_cast<Enum>(found - std::begin(Names::all));
    std::string all;
    for (const char* name : Names::all) all += (all.empty() ? "" : ", ") + std::string(name);
    throw tessera::Error(std::string(Names::what) + ": '" + text_ + "' is none of: " + all);
  }

 private:
  std::string text_;
};

}  // namespace nanobind::detail

namespace tessera::python {

/// A dict of names and values in turn.
template <class... Pairs>
nb::dict keywords(const Pairs&... pairs) {
  nb::dict out;
  const auto put = [&](auto&& self, const char* name, const auto& value, const auto&... rest) -> void {
    out[name] = nb::cast(value);
    if constexpr (sizeof...(rest) > 0) self(self, rest...);
  };
  put(put, pairs...);
  return out;
}

/// A function of a tensor, which is also a method of Tensor.
template <class F, class... Extra>
void function_and_method(nb::module_& m, nb::class_<Tensor>& tensor, const char* name, F function, const nb::arg& self,
                         const Extra&... extra) {
  m.def(name, function, self, extra...);
  tensor.def(name, function, extra...);
}

}  // namespace tessera::python
