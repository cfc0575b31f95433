// Arrays of others: DLPack, Python's buffers, numbers in lists.
#include <nanobind/ndarray.h>

#include "module.h"
#include "tessera/foreign.h"
#include "tessera/ops.h"

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

// DLPack's numbers of kinds of devices: of the CPU, CUDA and ROCm.
constexpr int kCpu = 1, kCuda = 2, kRocm = 10;
int kind_of(Device device) {
  return device.type == DeviceType::CPU ? kCpu : device.type == DeviceType::CUDA ? kCuda : kRocm;
}
Device device_of(int kind, int index) {
  if (kind == kCpu) return cpu();
  if (kind == kCuda) return cuda(index);
  if (kind == kRocm) return hip(index);
  throw Error("from_dlpack: memory of device type " + std::to_string(kind) +
              " is not taken; only that of the CPU, CUDA and ROCm");
}

// What an array hands out once this thread's stream waits for what was queued on it. Null where it knows no streams.
nb::object capsule_on_stream(nb::handle source) {
  if (!nb::hasattr(source, "__dlpack_device__")) return {};
  const auto [kind, index] = nb::cast<std::pair<int, int>>(source.attr("__dlpack_device__")());
  const Device device = device_of(kind, index);
  if (!device.is_card()) return {};
  const auto stream = reinterpret_cast<uintptr_t>(foreign::handle_of(current_stream(device)));
  try {
    return source.attr("__dlpack__")(nb::arg("stream") = stream, nb::arg("max_version") = nb::make_tuple(1, 1));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return source.attr("__dlpack__")(nb::arg("stream") = stream);  // of before DLPack 1.0
}

nb::ndarray<> imported(nb::handle source) {
  if (PyCapsule_CheckExact(source.ptr())) {
    const char* const name = PyCapsule_GetName(source.ptr());
    if (!name) PyErr_Clear();
    if (name && std::string_view(name).starts_with("used_dltensor"))
      throw Error("from_dlpack: the capsule has been consumed; each is taken once");
  }
  const nb::object capsule = capsule_on_stream(source);
  if (capsule.is_valid()) source = capsule;
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
  const Device device = device_of(array->device_type(), array->device_id());
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
  const size_t bytes = array->size() ? (high - low + 1) * size : 0;
  // Perhaps let go when there is no Python any more.
  const Ref<Storage> storage = foreign::adopt(first + low * size, bytes, device, [kept = array.release()] {
    const nb::gil_scoped_acquire locked;
    if (locked.is_valid()) delete kept;
  });
  return as_strided(storage, shape, strides, -low, *dtype);
}

namespace {

void check_has_memory(const Tensor& t, const char* op) {
  if (t.device().meta) throw Error(std::string(op) + ": " + describe(t) + " has no memory");
  if (t.is_packed()) throw Error(std::string(op) + ": " + describe(t) + " lies in a layout of some kernel's own");
  if (t.requires_grad()) throw Error(std::string(op) + ": the tensor requires a gradient; use detach() first");
}

// The memory of a tensor for others, who keep what `owner` does, and not the tensor: what that refers to may change.
template <class Framework>
nb::ndarray<Framework> exported(const Tensor& t, nb::dlpack::dtype as, const nb::object& owner) {
  std::vector<size_t> shape;
  for (const Dim d : t.shape()) shape.push_back(d.value());
  return nb::ndarray<Framework>(t.data_ptr(), shape.size(), shape.data(), owner, t.strides().data(), as,
                                kind_of(t.device()), t.device().index);
}

nb::ndarray<nb::numpy> numpy(const Tensor& t) {
  check_has_memory(t, "numpy");
  if (t.device().is_gpu()) throw Error("numpy: " + describe(t) + " lies on a GPU; use cpu() first");
  const nb::capsule owner(new Ref<Storage>(t.storage()),
                          [](void* p) noexcept { delete static_cast<Ref<Storage>*>(p); });
  const nb::dlpack::dtype bits{static_cast<uint8_t>(Code::UInt), 16, 1};  // of bf16, which NumPy lacks
  return exported<nb::numpy>(t, t.dtype() == BFloat16 ? bits : dlpack_dtype(t.dtype()), owner);
}

// The stream that a consumer names, by the protocol's rules; nothing for -1, which says that it waits by itself.
std::optional<foreign::StreamHandle> stream_named(nb::handle stream, Device device) {
  if (stream.is_none()) return foreign::default_stream(device);
  const auto number = nb::cast<int64_t>(stream);
  if (number == -1) return {};
  const bool vague = device.type == DeviceType::CUDA ? number == 0 : number == 1 || number == 2;
  if (number < 0 || vague)
    throw Error("__dlpack__: " + std::to_string(number) + " names no stream of " + to_string(device));
  return reinterpret_cast<foreign::StreamHandle>(static_cast<uintptr_t>(number));
}

nb::object dlpack(const Tensor& t, nb::handle stream, nb::handle max_version,
                  std::optional<std::pair<int, int>> dl_device, std::optional<bool> copy) {
  check_has_memory(t, "__dlpack__");
  const auto own = std::pair<int, int>(kind_of(t.device()), t.device().index);
  const std::pair<int, int> wanted = dl_device.value_or(own);
  const bool leaves = wanted != own;
  if (leaves && (wanted != std::pair(kCpu, 0) || copy == false))
    throw nb::buffer_error(("__dlpack__: " + describe(t) + " is not shared with device type " +
                            std::to_string(wanted.first) + ", number " + std::to_string(wanted.second))
                               .c_str());
  const Tensor x = [&] {
    const Unlocked unlocked;
    return leaves ? t.to(cpu()) : copy.value_or(false) ? t.clone() : t;
  }();
  std::optional<foreign::StreamHandle> theirs;
  if (x.device().is_card()) {
    theirs = stream_named(stream, x.device());
    if (theirs) foreign::wait(*theirs, current_stream(x.device()));
  }
  const nb::capsule owner(new foreign::Loan(x.storage(), theirs), [](void* p) noexcept {
    const Unlocked unlocked;  // it may wait for a GPU
    delete static_cast<foreign::Loan*>(p);
  });
  const auto array = nb::cast(exported<nb::array_api>(x, dlpack_dtype(x.dtype()), owner));
  return array.attr("__dlpack__")(nb::arg("max_version") = max_version);
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
      if (depth > 64) throw Error("tensor: lists are nested more than 64 deep");  // or in themselves
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

// Whole numbers are still what they were as integers of a narrower dtype.
void require_fit(const Tensor& numbers, const Tensor& cast) {
  if (is_floating(cast.dtype()) || cast.dtype() == Bool) return;
  const Tensor given = numbers.to(Float64), made = cast.to(Float64);
  if (made.device().meta) return;  // no number, while a function is captured
  const std::vector<double> before = given.to_vector<double>(), after = made.to_vector<double>();
  for (size_t i = 0; i < before.size(); ++i)
    if (before[i] != after[i])
      throw Error("tensor: " + std::to_string(static_cast<int64_t>(before[i])) + " does not fit " +
                  std::string(name(cast.dtype())));
}

Tensor tensor_of(nb::handle data, std::optional<DType> dtype, Device device) {
  Numbers numbers;
  numbers.read(data, 0);
  const Shape shape{std::span<const int64_t>(numbers.shape)};
  if (!numbers.any) return empty(shape, dtype.value_or(Float32), device);
  const bool floating = numbers.kind == Operand::kFloat;
  Tensor made = empty_host(shape, floating ? Float64 : Int64);
  if (floating) std::copy(numbers.values.begin(), numbers.values.end(), made.data<double>());
  else std::copy(numbers.integers.begin(), numbers.integers.end(), made.data<int64_t>());
  const Tensor cast = made.to(dtype.value_or(floating ? Float32 : numbers.kind == Operand::kInt ? Int64 : Bool));
  require_fit(floating ? trunc(made) : made, cast);
  return cast.to(device);
}

}  // namespace

void bind_arrays(nb::module_& m, nb::class_<Tensor>& tensor) {
  m.def("_from_array", &from_array, nb::arg("array"), nb::arg("dtype") = nb::none());
  m.def("_tensor_of", &tensor_of, nb::arg("data"), nb::arg("dtype") = nb::none(),
        nb::arg("device").none() = nb::none());
  tensor.def("_numpy", &numpy);
  tensor.def("__dlpack__", &dlpack, nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
             nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
             nb::sig("def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, "
                     "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> typing.Any"),
             "A capsule on the tensor's memory, after which `stream` of the consumer waits for what is queued here.");
  tensor.def(
      "__dlpack_device__", [](const Tensor& t) { return std::pair(kind_of(t.device()), int{t.device().index}); },
      "DLPack's number of the kind of device, and the device's own.");
}

}  // namespace tessera::python
