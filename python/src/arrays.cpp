// Arrays of others: DLPack, Python's buffers, numbers in lists.
#include <nanobind/ndarray.h>

#include "module.h"

namespace tessera::python {
namespace {

using Code = nb::dlpack::dtype_code;

constexpr DType kAll[] = {Bool,   UInt8, Int8,    UInt16,   Int16,   UInt32, Int32,
                          UInt64, Int64, Float16, BFloat16, Float32, Float64};
static_assert(std::size(kAll) == kDTypeCount);

Code code_of(DType dtype) {
  if (dtype == Bool) return Code::Bool;
  if (dtype == BFloat16) return Code::Bfloat;
  if (is_floating(dtype)) return Code::Float;
  return is_unsigned(dtype) ? Code::UInt : Code::Int;
}
nb::dlpack::dtype dlpack_dtype(DType dtype) {
  return {static_cast<uint8_t>(code_of(dtype)), static_cast<uint8_t>(8 * size_of(dtype)), 1};
}

DType dtype_of_array(nb::dlpack::dtype type) {
  for (const DType dtype : kAll)
    if (type == dlpack_dtype(dtype)) return dtype;
  throw Error("from_dlpack: elements of code " + std::to_string(type.code) + " with " + std::to_string(type.bits) +
              " bits are no dtype of tessera");
}

nb::ndarray<> imported(nb::handle source) {
  nb::ndarray<> array;
  if (nb::try_cast(source, array)) return array;
  nb::ndarray<nb::ro> frozen;
  if (nb::try_cast(source, frozen)) throw Error("from_dlpack: the array is read-only; make a copy of it first");
  throw Error("from_dlpack: " + std::string(nb::repr(source.type()).c_str()) +
              " has no elements that DLPack or a buffer could share");
}

}  // namespace

Tensor from_array(nb::handle source, std::optional<DType> dtype) {
  auto array = std::make_unique<nb::ndarray<>>(imported(source));
  if (array->device_type() != nb::device::cpu::value)
    throw Error("from_dlpack: memory of device type " + std::to_string(array->device_type()) +
                " is not taken; only that of the CPU");
  if (!dtype) dtype = dtype_of_array(array->dtype());
  const int64_t size = size_of(*dtype);
  Shape shape;
  Strides strides;
  int64_t low = 0, high = 0;  // elements before and behind the first one
  for (size_t i = 0; i < array->ndim(); ++i) {
    const int64_t n = array->shape(i), stride = array->stride(i);
    shape.push_back(n);
    strides.push_back(stride);
    (stride < 0 ? low : high) += std::max<int64_t>(n - 1, 0) * stride;
  }
  std::byte* const first = static_cast<std::byte*>(array->data_handle()) + array->byte_offset();
  if (reinterpret_cast<uintptr_t>(first) % size)
    throw Error("from_dlpack: elements of " + std::to_string(size) + " bytes do not lie at multiples of that");
  auto storage = make_ref<Storage>();
  storage->data = first + low * size;
  storage->bytes = array->size() ? (high - low + 1) * size : 0;
  storage->owner = array.release();
  storage->release = [](Storage& s) {  // in any thread, and perhaps when there is no Python any more
    const nb::gil_scoped_acquire locked;
    if (locked.is_valid()) delete static_cast<nb::ndarray<>*>(s.owner);
  };
  return as_strided(storage, shape, strides, -low, *dtype);
}

namespace {

// The memory of a tensor for others, who keep the storage alive, and not the tensor: what that refers to may change.
template <class Framework>
nb::ndarray<Framework> exported(const Tensor& t, nb::dlpack::dtype as, const char* op) {
  if (t.device().meta) throw Error(std::string(op) + ": " + describe(t) + " has no memory");
  if (t.is_packed()) throw Error(std::string(op) + ": " + describe(t) + " lies in a layout of some kernel's own");
  if (t.requires_grad()) throw Error(std::string(op) + ": the tensor requires a gradient; use detach() first");
  if (t.device().is_gpu()) throw Error(std::string(op) + ": " + describe(t) + " lies on a GPU; use cpu() first");
  std::vector<size_t> shape;
  for (const Dim d : t.shape()) shape.push_back(d.value());
  void* const data = t.data_ptr();
  const nb::capsule owner(new Ref<Storage>(t.storage()),
                          [](void* p) noexcept { delete static_cast<Ref<Storage>*>(p); });
  return nb::ndarray<Framework>(data, shape.size(), shape.data(), owner, t.strides().data(), as, nb::device::cpu::value,
                                0);
}

// What nested lists hold: a shape, and numbers of one kind.
struct Numbers {
  std::vector<int64_t> shape;
  std::vector<double> values;
  std::vector<int64_t> integers;
  Operand::Kind kind = Operand::kBool;
  bool any = false;

  void read(nb::handle item, size_t depth) {
    if (nb::isinstance<nb::list>(item) || nb::isinstance<nb::tuple>(item)) {
      const int64_t n = static_cast<int64_t>(nb::len(item));
      if (!any && depth == shape.size()) shape.push_back(n);
      if (depth >= shape.size() || shape[depth] != n) throw Error("tensor: nested lists are not of one length");
      for (nb::handle part : item) read(part, depth + 1);
      return;
    }
    Operand number;
    if (!read_operand(item, number))
      throw Error("tensor: " + std::string(nb::repr(item.type()).c_str()) + " is no number");
    if (number.kind == Operand::kTensor) {
      const Tensor& t = number.tensor;
      number.kind = t.dtype() == Bool ? Operand::kBool : is_floating(t.dtype()) ? Operand::kFloat : Operand::kInt;
      if (number.kind != Operand::kFloat) number.integer = t.item<int64_t>();
      number.number = t.item();
    }
    if (depth != shape.size()) throw Error("tensor: nested lists are not of one length");
    any = true;
    kind = std::max(kind, number.kind);
    values.push_back(number.number);
    integers.push_back(number.integer);
  }
};

Tensor tensor_of(nb::handle data, std::optional<DType> dtype, Device device) {
  Numbers numbers;
  numbers.read(data, 0);
  const Shape shape{std::span<const int64_t>(numbers.shape)};
  if (!numbers.any) return empty(shape, dtype.value_or(Float32), device);
  const bool floating = numbers.kind == Operand::kFloat;
  Tensor made = empty_host(shape, floating ? Float64 : Int64);
  if (floating) std::copy(numbers.values.begin(), numbers.values.end(), made.data<double>());
  else std::copy(numbers.integers.begin(), numbers.integers.end(), made.data<int64_t>());
  return made.to(dtype.value_or(floating ? Float32 : numbers.kind == Operand::kInt ? Int64 : Bool)).to(device);
}

}  // namespace

void bind_arrays(nb::module_& m, nb::class_<Tensor>& tensor) {
  m.def("_from_array", &from_array, nb::arg("array"), nb::arg("dtype") = nb::none());
  m.def("_tensor_of", &tensor_of, nb::arg("data"), nb::arg("dtype") = nb::none(),
        nb::arg("device").none() = nb::none());
  // Of bf16, which NumPy lacks, the bits.
  tensor.def("_numpy", [](const Tensor& t) {
    const nb::dlpack::dtype bits{static_cast<uint8_t>(Code::UInt), 16, 1};
    return exported<nb::numpy>(t, t.dtype() == BFloat16 ? bits : dlpack_dtype(t.dtype()), "numpy");
  });
  tensor.def("__dlpack__", [](const Tensor& t, const nb::kwargs& asked) {
    return nb::cast(exported<nb::array_api>(t, dlpack_dtype(t.dtype()), "__dlpack__")).attr("__dlpack__")(**asked);
  });
  tensor.def("__dlpack_device__", [](const Tensor& t) {
    const int type = t.device().type == DeviceType::CPU ? 1 : t.device().type == DeviceType::CUDA ? 2 : 10;
    return nb::make_tuple(type, static_cast<int>(t.device().index));
  });
}

}  // namespace tessera::python
