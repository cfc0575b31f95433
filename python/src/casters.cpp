#include "casters.h"

namespace tessera::python {

Tensor beside(const Operand& operand, const Operand& other) {
  if (operand.kind == Operand::kTensor) return operand.tensor;
  DType dtype = operand.kind == Operand::kFloat ? Float32 : operand.kind == Operand::kInt ? Int64 : Bool;
  Device device = default_device();
  if (other.kind == Operand::kTensor) {
    const DType beside = other.tensor.dtype();
    if (is_floating(beside) || operand.kind == Operand::kBool || (operand.kind == Operand::kInt && beside != Bool))
      dtype = beside;
    device = other.tensor.device();
  }
  if (operand.size.is_symbolic()) return size_tensor(operand.size, dtype, device);
  if (dtype != Int64) return full({}, operand.number, dtype, device);
  Tensor exact = empty_host({}, Int64);
  *exact.data<int64_t>() = operand.integer;
  return exact.to(device);
}

DType dtype_named(std::string_view name) {
  static constexpr std::pair<std::string_view, DType> kLong[] = {
      {"uint8", UInt8},     {"int8", Int8},         {"int32", Int32},     {"int64", Int64},
      {"uint16", UInt16},   {"int16", Int16},       {"uint32", UInt32},   {"uint64", UInt64},
      {"float16", Float16}, {"bfloat16", BFloat16}, {"float32", Float32}, {"float64", Float64}};
  if (name.starts_with("torch.")) name.remove_prefix(6);
  for (const auto& [text, dtype] : kLong)
    if (name == text) return dtype;
  return parse_dtype(name);
}

nb::object as_tensor(nb::handle source) { return nb::module_::import_("tessera").attr("as_tensor")(source); }

// An array of NumPy with dims. False, without an error, where it is none or has no dtype of ours.
static bool read_array(nb::handle source, Operand& out) noexcept {
  try {
    if (!nb::hasattr(source, "__array_interface__")) return false;
    out.kind = Operand::kTensor;
    out.tensor = *nb::inst_ptr<Tensor>(as_tensor(source));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool read_operand(nb::handle source, Operand& out) noexcept {
  PyObject* const p = source.ptr();
  if (nb::isinstance<Tensor>(source)) {
    if (!nb::inst_ready(source)) return false;
    out.kind = Operand::kTensor;
    out.tensor = *nb::inst_ptr<Tensor>(source);
    return true;
  }
  if (nb::isinstance<OpenSize>(source)) {
    out.kind = Operand::kInt;
    out.size = nb::inst_ptr<OpenSize>(source)->dim;
    return true;
  }
  if (PyBool_Check(p)) {
    out.kind = Operand::kBool;
    out.number = static_cast<double>(out.integer = p == Py_True);
    return true;
  }
  if (PyFloat_Check(p)) {
    out.kind = Operand::kFloat;
    out.number = PyFloat_AsDouble(p);
    return true;
  }
  if (!PyLong_Check(p) && PyObject_Size(p) >= 0) return read_array(source, out);  // arrays, strings, lists
  PyErr_Clear();
  if (PyIndex_Check(p)) {
    const nb::object index = nb::steal(PyNumber_Index(p));
    if (index.is_valid()) {
      out.kind = Operand::kInt;
      out.integer = PyLong_AsLongLong(index.ptr());
      out.number = static_cast<double>(out.integer);
      if (!PyErr_Occurred()) return true;
    }
    PyErr_Clear();
    return false;
  }
  if (!PyNumber_Check(p)) return false;
  out.kind = Operand::kFloat;
  out.number = PyFloat_AsDouble(p);
  if (!PyErr_Occurred()) return true;
  PyErr_Clear();
  return false;
}

bool read_text(nb::handle source, std::string& out) noexcept {
  if (!PyUnicode_Check(source.ptr())) return false;
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(source.ptr(), &size);
  if (text) out.assign(text, static_cast<size_t>(size));
  else PyErr_Clear();
  return text;
}

bool read_integers(nb::handle source, std::vector<int64_t>& out) noexcept {
  const auto read = [&](PyObject* p) {
    if (!PyIndex_Check(p)) return false;
    const nb::object index = nb::steal(PyNumber_Index(p));
    if (!index.is_valid()) return false;
    out.push_back(PyLong_AsLongLong(index.ptr()));
    return !PyErr_Occurred();
  };
  bool good = true;
  if (PyTuple_Check(source.ptr()) || PyList_Check(source.ptr())) {
    // By place and up to the first that is none: no iterator goes on beside an error, and __index__ may shorten a list.
    for (Py_ssize_t i = 0; good && i < PySequence_Size(source.ptr()); ++i) {
      const nb::object item = nb::steal(PySequence_GetItem(source.ptr(), i));
      good = item.is_valid() && read(item.ptr());
    }
  } else {
    good = read(source.ptr());
  }
  if (!good) PyErr_Clear();
  return good;
}

bool read_dims(nb::handle source, Shape& out) noexcept {
  out.clear();
  Dim alone;
  if (read_dim(source, alone)) {
    out.push_back(alone);
    return true;
  }
  if (!PyTuple_Check(source.ptr()) && !PyList_Check(source.ptr())) return false;
  bool good = true;
  for (Py_ssize_t i = 0; good && i < PySequence_Size(source.ptr()); ++i) {
    const nb::object item = nb::steal(PySequence_GetItem(source.ptr(), i));
    if ((good = item.is_valid() && read_dim(item, alone))) out.push_back(alone);
  }
  if (!good) PyErr_Clear();
  return good;
}

}  // namespace tessera::python
