#include "tessera/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <set>

#include "core/capture_state.h"
#include "core/element.h"
#include "core/gpu/backend.h"
#include "core/util/waiting.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

// So many rows of f32 and more get spare ones, up to whole fours: products whose sums run down columns want zeros
// there.
constexpr int64_t kFewRows = 128;

// is_row_major() as far as symbols tell.
bool lies_row_major(const Shape& shape, const DimStrides& strides) {
  Dim step = 1;
  for (int64_t i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] == Dim(0)) return true;
    if (!(shape[i] == Dim(1)) && !(strides[i] == step)) return false;
    step = step * shape[i];
  }
  return true;
}

Tensor make(Ref<Storage> storage, const Shape& shape, Strides&& strides, int64_t offset, DType dtype, int64_t numel,
            bool contiguous) {
  auto impl = make_ref<TensorImpl>();
  impl->storage = std::move(storage);
  impl->offset = offset;
  impl->shape = shape;
  impl->numel = numel;
  impl->contiguous = contiguous;
  impl->strides = std::move(strides);
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}
// A tensor without memory, row-major where its strides are, symbol by symbol.
Tensor make_symbolic(Ref<Storage> storage, const Shape& shape, const DimStrides& strides, Dim offset, DType dtype) {
  auto impl = make_ref<TensorImpl>();
  impl->storage = std::move(storage);
  impl->shape = shape;
  impl->numel = shape.is_symbolic() ? -1 : shape.numel().value();
  impl->contiguous = lies_row_major(shape, strides);
  impl->symbolic = std::make_unique<SymbolicLayout>(SymbolicLayout{strides, offset});
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}
// Its storage, too.
Tensor make_symbolic(const Shape& shape, DType dtype, Device device) {
  for (const Dim d : shape)
    if (d.high() < 0) throw Error("empty: negative size in " + to_string(shape));
  if (!device.meta && !is_capturing())
    for (const Dim d : shape) d.value();  // says which has none
  const TensorMeta meta{shape, dtype, device};
  const int64_t most = bytes_of(meta).high();
  Ref<Storage> storage = allocate(most == Dim::kUnbounded ? 0 : static_cast<size_t>(most), device);
  storage->symbolic = true;
  return make_symbolic(std::move(storage), shape, contiguous_dim_strides(shape), 0, dtype);
}

Tensor make(Ref<Storage> storage, const Shape& shape, Strides&& strides, int64_t offset, DType dtype) {
  const bool contiguous = !storage->packing && is_row_major(shape, strides);
  return make(std::move(storage), shape, std::move(strides), offset, dtype, shape.numel().value(), contiguous);
}

int64_t checked_numel(const Shape& shape) {
  for (Dim d : shape)
    if (d.value() < 0) throw Error("empty: negative size in " + to_string(shape));
  return shape.numel().value();
}
size_t checked_bytes(const Shape& shape, DType dtype, int64_t numel) {
  size_t bytes;
  if (__builtin_mul_overflow(static_cast<size_t>(numel), size_of(dtype), &bytes))
    throw OutOfMemoryError("out of memory: " + to_string(shape) + " of " + std::string(name(dtype)));
  return bytes;
}
size_t checked_bytes(const Shape& shape, DType dtype) { return checked_bytes(shape, dtype, checked_numel(shape)); }

}  // namespace

TensorImpl::TensorImpl() = default;
TensorImpl::~TensorImpl() = default;

void Tensor::throw_undefined() { throw Error("the tensor is undefined"); }

int64_t Tensor::size(int64_t dim) const { return shape()[normalize_dim("size", dim, shape())].value(); }
const Strides& Tensor::throw_symbolic() const {
  integers(impl().symbolic->strides);
  impl().symbolic->offset.value();
  throw Error("strides: " + describe(*this) + " lies by symbols");
}
int64_t Tensor::stride(int64_t dim) const {
  dim = normalize_dim("stride", dim, shape());
  return impl().symbolic ? impl().symbolic->strides[dim].value() : impl().strides[dim];
}

bool Tensor::is_contiguous(MemoryFormat format) const {
  if (format == Contiguous) return is_contiguous();
  if (dim() != 4) return false;
  if (impl().symbolic) {
    const DimStrides& s = impl().symbolic->strides;
    const auto last = [](const auto& list) {
      return std::remove_cvref_t<decltype(list)>{list[0], list[2], list[3], list[1]};
    };
    return lies_row_major(last(shape()), last(s));
  }
  int64_t step = 1;
  for (int64_t d : {1, 3, 2, 0}) {
    if (size(d) != 1 && stride(d) != step) return false;
    step *= size(d);
  }
  return true;
}

void Tensor::check_access(DType wanted) const {
  if (dtype() != wanted) throw Error(fmt::format("data: {} read as {}", describe(*this), name(wanted)));
  if (device().meta) throw Error("data: " + describe(*this) + " has no memory");
  if (device().type != DeviceType::CPU) throw Error("data: " + describe(*this) + " is not in host memory");
  if (storage()->packing)
    throw Error("data: " + describe(*this) + " has no plain elements; contiguous() gives the plain tensor");
}

namespace {
template <class R>
R only_element(const Tensor& t) {
  if (t.numel() != 1) throw Error("item: " + describe(t) + " has not exactly one element");
  if (t.device().meta) throw Error("item: " + describe(t) + " has no memory, so its value cannot be read");
  alignas(8) std::byte copy[8];
  if (t.device().is_gpu()) gpu::read(copy, t);
  const void* p = t.device().is_gpu() ? copy : t.place();
  return with_element_type(t.dtype(), [&]<class T>(T*) { return static_cast<R>(*static_cast<const T*>(p)); });
}
}  // namespace

double Tensor::item_double() const { return only_element<double>(*this); }
int64_t Tensor::item_int() const { return only_element<int64_t>(*this); }

Tensor empty(const Shape& shape, DType dtype, Device device) {
  if (shape.is_symbolic()) return make_symbolic(shape, dtype, device);
  const int64_t numel = checked_numel(shape);
  return make(allocate(checked_bytes(shape, dtype, numel), device), shape, contiguous_strides(shape), 0, dtype, numel,
              true);
}

Tensor empty_host(const Shape& shape, DType dtype) {
  PauseCapture pause;
  return empty(shape, dtype, cpu());
}

int64_t rows_with_spare(int64_t rows, DType dtype) {
  return dtype != Float32 || rows < kFewRows ? rows : (rows + 3) / 4 * 4;
}

Tensor empty_pitched(const Shape& shape, int64_t pitch, DType dtype, Device device) {
  if (shape.empty() || pitch < shape.back().value())
    throw Error(fmt::format("empty_pitched: pitch {} is less than the rows of {}", pitch, to_string(shape)));
  Shape padded = shape;
  padded.back() = pitch;
  const int64_t length = shape.back().value(), rows = checked_numel(shape) / std::max<int64_t>(length, 1);
  const Shape whole = {rows_with_spare(rows, dtype), pitch};
  Ref<Storage> storage = allocate(checked_bytes(whole, dtype), device);
  storage->rows = rows;
  storage->row_length = length;
  return make(std::move(storage), shape, contiguous_strides(padded), 0, dtype);
}

Tensor from_memory(void* data, const Shape& shape, DType dtype, std::shared_ptr<void> owner) {
  auto storage = make_ref<Storage>();
  storage->data = data;
  storage->bytes = checked_bytes(shape, dtype);
  storage->owner = new std::shared_ptr<void>(std::move(owner));
  storage->release = [](Storage& s) { delete static_cast<std::shared_ptr<void>*>(s.owner); };
  storage->shown = true;
  return make(std::move(storage), shape, contiguous_strides(shape), 0, dtype);
}

Tensor as_strided(const Ref<Storage>& storage, const Shape& shape, const Strides& strides, int64_t offset,
                  DType dtype) {
  int64_t low = offset, high = offset;
  bool overflow = false, none = false;
  for (size_t i = 0; i < shape.size(); ++i) {
    int64_t extent = 0, n = shape[i].value();
    none |= n == 0;
    overflow |= n < 0 || __builtin_mul_overflow(std::max<int64_t>(n - 1, 0), strides[i], &extent);
    int64_t& end = extent < 0 ? low : high;
    overflow |= __builtin_add_overflow(end, extent, &end);
  }
  const bool outside = !none && !storage->symbolic && static_cast<size_t>(high) >= storage->bytes / size_of(dtype);
  if (overflow || low < 0 || outside)
    throw Error(fmt::format("as_strided: shape {} with strides [{}] at {} leaves a storage of {} bytes",
                            to_string(shape), fmt::join(strides, ", "), offset, storage->bytes));
  return make(storage, shape, Strides(strides), offset, dtype);
}

Tensor as_strided_dims(const Ref<Storage>& storage, const Shape& shape, const DimStrides& strides, Dim offset,
                       DType dtype) {
  const auto is_symbolic = [](Dim d) { return d.is_symbolic(); };
  if (!offset.is_symbolic() && !shape.is_symbolic() && std::none_of(strides.begin(), strides.end(), is_symbolic))
    return as_strided(storage, shape, integers(strides), offset.value(), dtype);
  if (!storage->symbolic && !storage->device.meta)
    throw Error(fmt::format("as_strided: shape {} has symbols, and its storage memory", to_string(shape)));
  return make_symbolic(storage, shape, strides, offset, dtype);
}

Tensor Tensor::detach() const {
  settle();
  const auto symbolic = impl().symbolic.get();
  Tensor plain = symbolic ? make_symbolic(storage(), shape(), symbolic->strides, symbolic->offset, dtype())
                          : make(storage(), shape(), Strides(strides()), offset(), dtype(), numel(), is_contiguous());
  plain.impl().capture = impl().capture;
  plain.impl().value = impl().value;
  plain.impl().elements = impl().elements;
  plain.impl().elements_version = impl().elements_version;
  return plain;
}

int alignment_bits(const Tensor& t) {
  const int most = t.device().is_gpu() ? 8 : 6;  // that of new memory
  return std::min(std::countr_zero(reinterpret_cast<uintptr_t>(t.place())), most);
}

TensorMeta Tensor::meta() const {
  const TensorImpl& t = impl();
  TensorMeta meta{t.shape, t.dtype, t.storage->device};
  if (!t.contiguous) {
    if (t.symbolic) meta.strides = t.symbolic->strides;
    else meta.strides = dims_of(t.strides);
  }
  if (!t.storage->device.meta) meta.alignment = 1 << alignment_bits(*this);
  if (t.elements && t.elements_version == t.storage->version.load(std::memory_order_relaxed))
    meta.elements = t.elements;
  if (t.storage->rows && t.offset == 0) {
    meta.padded_rows = t.storage->rows;
    meta.padded_row_length = t.storage->row_length;
    meta.storage_bytes = static_cast<int64_t>(t.storage->bytes);
  }
  if (t.storage->packing) {
    meta.packing = t.storage->packing;
    meta.storage_bytes = static_cast<int64_t>(t.storage->bytes);
  }
  return meta;
}

const std::string* packing_named(std::string_view name) {
  static std::mutex mutex;
  static auto* names = new std::set<std::string, std::less<>>;
  if (name.empty()) return nullptr;
  std::lock_guard lock(mutex);
  const auto known = names->find(name);
  return known != names->end() ? &*known : &*names->emplace(name).first;
}

DimStrides strides_of(const TensorMeta& meta) {
  return meta.strides.empty() ? contiguous_dim_strides(meta.shape) : meta.strides;
}

Dim bytes_of(const TensorMeta& meta) {
  const auto bytes = static_cast<int64_t>(size_of(meta.dtype));
  const Dim numel = meta.shape.numel();
  if (meta.packing) return meta.storage_bytes;
  if (numel == Dim(0)) return 0;
  if (meta.pitch) return Dim(rows_with_spare((numel / meta.shape.back()).value(), meta.dtype)) * meta.pitch * bytes;
  if (meta.strides.empty()) return numel * bytes;
  Dim last = 0;
  for (size_t d = 0; d < meta.shape.size(); ++d) last = last + (meta.shape[d] - 1) * meta.strides[d];
  return (last + 1) * bytes;
}

std::string describe(const TensorMeta& meta) {
  return fmt::format("{}{} on {}{}{}", name(meta.dtype), to_string(meta.shape), to_string(meta.device),
                     meta.packing ? " packed for " : "", meta.packing ? *meta.packing : "");
}
std::string describe(const TensorType& type) { return describe(TensorMeta{type.shape, type.dtype, type.device}); }
std::string describe(const Tensor& tensor) { return tensor.defined() ? describe(tensor.meta()) : "undefined"; }

}  // namespace tessera
