// Tensor: a strided, typed view of a storage, with an optional place in an autograd graph.
#pragma once
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/device.h"
#include "tessera/dtype.h"
#include "tessera/enums.h"
#include "tessera/error.h"
#include "tessera/intrusive.h"
#include "tessera/shape.h"

namespace tessera {

/// A block of memory on a device. Several tensors may view one storage.
struct Storage : RefCounted, Recycled {
  void* data = nullptr;
  size_t bytes = 0;
  Device device;
  std::atomic<uint32_t> version{0};      ///< bumped by every in-place write; backward checks it
  void (*release)(Storage&) = nullptr;   ///< gives the memory back
  void* owner = nullptr;                 ///< for `release`
  std::atomic<bool> shown{false};        ///< others have its address, and may write there at any time
  bool symbolic = false;                 ///< has no memory, and its size depends on symbols: `bytes` says nothing
  const std::string* packing = nullptr;  ///< the name of a kernel's own layout (packing.h); null: strides say all
  int64_t rows = 0, row_length = 0;      ///< of the matrix that empty_pitched made here; all else is padding
  ~Storage() {
    if (release) release(*this);
  }
};

/// Memory from the device's caching allocator. Throws OutOfMemoryError.
Ref<Storage> allocate(size_t bytes, Device device);

/// Bytes of tensor memory of a device, as requested (not rounded up).
struct MemoryStats {
  int64_t allocated = 0, peak_allocated = 0;  ///< held by tensors now; most ever since the last reset
  int64_t reserved = 0, peak_reserved = 0;    ///< the same with what the allocator keeps for reuse
};
MemoryStats memory_stats(Device device = cpu());
void reset_peak_memory(Device device = cpu());
/// Returns cached memory to the system.
void empty_cache(Device device = cpu());
/// The most bytes that tensors of a device may hold together: beyond them OutOfMemoryError. 0: what there is. At first
/// the variable TESSERA_MEMORY_LIMIT, of each device: a number of bytes, or of K, M or G. Throws Error below 0.
void set_memory_limit(int64_t bytes, Device device = cpu());

class Tensor;
struct AutogradMeta;

/// Elements of a small integer tensor without memory, in row-major order, where they are known; null where not.
using Elements = std::shared_ptr<const std::vector<Dim>>;

/// What a gradient must fit: a tensor but for how it lies.
struct TensorType {
  Shape shape;
  DType dtype = Float32;
  Device device;
};

/// Shape, type, place and layout of a tensor that may not exist yet. All that is counted may be symbolic.
struct TensorMeta {
  Shape shape;
  DType dtype = Float32;
  Device device;
  DimStrides strides = {};  ///< in elements; empty: row-major without gaps
  int alignment = 0;        ///< of the first element, in bytes: a power of two of at most 256; 0: that of new memory
  int64_t pitch = 0;        ///< of a new tensor: rows begin so many elements apart, with room for spare ones; 0: dense
  int64_t padded_rows = 0;  ///< of a whole storage that empty_pitched made: its rows,
  int64_t padded_row_length = 0, storage_bytes = 0;  ///< their elements, and all of its bytes
  const std::string* packing = nullptr;  ///< packing_named(), of storage_bytes; null: elements lie by their strides
  Elements elements = {};
};

/// The one string of that name, which lives for good; null for an empty one.
const std::string* packing_named(std::string_view name);
/// Strides in elements, also where it lies row-major.
DimStrides strides_of(const TensorMeta& meta);
/// Bytes from its first element to the end of its last; of a pitched one, all of its storage. `.high()` is what a plan
/// of memory must reserve.
Dim bytes_of(const TensorMeta& meta);

/// How a tensor without memory lies that has symbols in its shape, strides or offset.
struct SymbolicLayout {
  DimStrides strides;
  Dim offset;
};

struct TensorImpl : RefCounted, Recycled {
  Ref<Storage> storage;
  int64_t offset = 0;  // elements
  int64_t numel = 0;   // -1: symbolic
  Shape shape;
  Strides strides;  // elements
  DType dtype = Float32;
  bool contiguous = true;
  uint32_t capture = 0, value = 0;  ///< which value of which captured graph this is; see core/capture_state.h
  std::unique_ptr<AutogradMeta> autograd;
  std::unique_ptr<SymbolicLayout> symbolic;  // in the place of strides and offset
  Elements elements;                         // while storage->version is
  uint32_t elements_version = 0;
  TensorImpl();
  ~TensorImpl();
};

using GradHook = std::function<Tensor(const Tensor&)>;

namespace detail {
extern constinit std::atomic<bool> call_waits;  // for the next one: see core/util/waiting.h
void run_waiting_call();
}  // namespace detail

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}

  bool defined() const { return static_cast<bool>(impl_); }
  explicit operator bool() const = delete;  // say defined() or item()

  // What it is.
  const Shape& shape() const { return impl().shape; }
  /// Throws Error where they are symbolic: see meta().
  const Strides& strides() const { return impl().symbolic ? throw_symbolic() : impl().strides; }
  int64_t dim() const { return impl().shape.rank(); }
  /// Size along `dim`; negative counts from the end. Throws Error if out of range.
  int64_t size(int64_t dim) const;
  int64_t stride(int64_t dim) const;
  /// Throws Error where it is symbolic, as shape().numel() may be.
  int64_t numel() const { return impl().numel < 0 ? shape().numel().value() : impl().numel; }
  int64_t offset() const { return impl().offset; }
  DType dtype() const { return impl().dtype; }
  Device device() const { return impl().storage->device; }
  /// Row-major without gaps. Rows of matrices of halves may be padded on GPUs (docs/memory.md): see contiguous().
  /// Never where is_packed().
  bool is_contiguous() const { return impl().contiguous; }
  TensorMeta meta() const;
  /// In ChannelsLast: dense in the order n, h, w, c, which tensors of other than four dims never are.
  bool is_contiguous(MemoryFormat format) const;
  /// Whether it lies in a layout of some kernel's own (packing.h), which few operators read.
  bool is_packed() const { return impl().storage->packing; }
  const Ref<Storage>& storage() const {
    if (detail::call_waits.load(std::memory_order_acquire)) [[unlikely]]
      detail::run_waiting_call();
    return impl().storage;
  }

  // Its elements. `data` addresses the first element; rows may be pitched, so honour strides.
  void* data_ptr() const {
    if (!storage()->shown.load(std::memory_order_relaxed)) impl().storage->shown.store(true, std::memory_order_relaxed);
    return place();
  }
  /// The same for the length of one call: who keeps the address asks for data_ptr().
  void* place() const { return static_cast<std::byte*>(storage()->data) + impl().offset * size_of(impl().dtype); }
  /// Throws Error unless T is the tensor's dtype and the tensor is on the CPU.
  template <class T>
  T* data() const {
    check_access(dtype_of<T>);
    return static_cast<T*>(data_ptr());
  }
  /// The value of a one-element tensor.
  template <class T = double>
  T item() const {
    if constexpr (std::is_same_v<T, int64_t>) return item_int();
    if constexpr (std::is_same_v<T, uint64_t>)  // the bits of a u64, which no double holds
      if (!is_floating(dtype())) return static_cast<T>(item_int());
    return static_cast<T>(item_double());
  }
  /// All elements in row-major order, converted to T.
  template <class T>
  std::vector<T> to_vector() const {
    Tensor t = prepared(dtype_of<T>);
    const T* p = t.data<T>();
    return std::vector<T>(p, p + t.numel());
  }

  // Gradients.
  bool requires_grad() const;
  /// Throws Error for integer tensors and for results of recorded operations.
  Tensor& set_requires_grad(bool on = true);
  bool is_leaf() const;
  /// Accumulated gradient; undefined before the first backward. Later ones add to the same memory, unless they are
  /// differentiated themselves or set_grad() put it there.
  Tensor grad() const;
  void set_grad(Tensor grad) const;
  /// Runs reverse-mode differentiation from here. `gradient` defaults to one for a single element.
  void backward(Tensor gradient = {}, bool retain_graph = false, bool create_graph = false) const;
  /// The same elements outside of the graph.
  Tensor detach() const;
  /// Called with the gradient of this tensor during backward; an undefined result keeps the gradient.
  void register_hook(GradHook hook) const;

  // Views and copies (declared with the other operators in ops.h, here for chaining).
  Tensor reshape(Shape shape) const;
  Tensor transpose(int64_t a, int64_t b) const;
  Tensor permute(const Dims& dims) const;
  Tensor expand(Shape shape) const;
  Tensor slice(int64_t dim, int64_t start, int64_t end, int64_t step = 1) const;
  Tensor select(int64_t dim, int64_t index) const;
  Tensor unsqueeze(int64_t dim) const;
  Tensor squeeze(int64_t dim) const;
  Tensor contiguous() const;
  Tensor clone() const;
  Tensor to(DType dtype) const;
  /// Itself if it is there. Throws Error where it has no memory and the device has.
  Tensor to(Device device) const;
  /// The same elements, lying so in memory; itself if they do. Throws Error for ChannelsLast without four dims.
  Tensor to(MemoryFormat format) const;
  Tensor sum() const;
  Tensor mean() const;

  // In place. Bumps the storage's version; throws Error where autograd could not follow.
  Tensor& copy_(const Tensor& source);
  Tensor& fill_(double value);
  Tensor& zero_() { return fill_(0); }
  Tensor& add_(const Tensor& other, double alpha = 1);
  Tensor& mul_(const Tensor& other);
  Tensor& mul_(double factor);

  const Ref<TensorImpl>& ref() const { return impl_; }
  TensorImpl& impl() const {
    if (!impl_) throw_undefined();
    return *impl_;
  }
  friend bool same(const Tensor& a, const Tensor& b) { return a.impl_ == b.impl_; }

 private:
  [[noreturn]] static void throw_undefined();
  [[noreturn]] const Strides& throw_symbolic() const;
  void check_access(DType wanted) const;
  double item_double() const;
  int64_t item_int() const;
  Tensor prepared(DType dtype) const;  // contiguous, on the CPU, of that dtype
  Ref<TensorImpl> impl_;
};

using Tensors = SmallVector<Tensor, 4>;

// Creation. Every function throws OutOfMemoryError where memory does not suffice.
Tensor empty(const Shape& shape, DType dtype = Float32, Device device = default_device());
/// How many rows empty_pitched makes room for: large f32 matrices have spare ones, up to whole fours.
int64_t rows_with_spare(int64_t rows, DType dtype);
/// Rows whose leading dimension is `pitch` elements (>= the last size); the rest of each row is kernels' to write to.
Tensor empty_pitched(const Shape& shape, int64_t pitch, DType dtype = Float32, Device device = default_device());
/// Memory of the host to be written at once, also while a function is captured, which then closes over it.
Tensor empty_host(const Shape& shape, DType dtype);
Tensor full(const Shape& shape, double value, DType dtype = Float32, Device device = default_device());
Tensor zeros(const Shape& shape, DType dtype = Float32, Device device = default_device());
Tensor ones(const Shape& shape, DType dtype = Float32, Device device = default_device());
/// start, start + step, ... below end.
Tensor arange(double start, double end, double step = 1, DType dtype = Int64, Device device = default_device());
/// A copy of `values`, whose count must be the shape's. Throws Error otherwise.
template <class T>
Tensor tensor(const std::vector<T>& values, const Shape& shape);
/// Views memory that `owner` keeps alive, such as a mapped file. Row-major.
Tensor from_memory(void* data, const Shape& shape, DType dtype, std::shared_ptr<void> owner);
/// A view on `storage`: the one place where strides are checked against the storage's bounds. Throws Error outside.
Tensor as_strided(const Ref<Storage>& storage, const Shape& shape, const Strides& strides, int64_t offset, DType dtype);
/// The same, where a storage without memory may be viewed by symbols; these are not checked.
Tensor as_strided_dims(const Ref<Storage>& storage, const Shape& shape, const DimStrides& strides, Dim offset,
                       DType dtype);

/// The power of two by which its first element is aligned, up to that of new memory: 64 bytes, 256 on GPUs.
int alignment_bits(const Tensor& tensor);

/// "f32[4, 3] on cpu", "f32[768, 3072] on cpu packed for gemm.b.avx512.f32.32"
std::string describe(const Tensor& tensor);
std::string describe(const TensorMeta& meta);
std::string describe(const TensorType& type);
/// Elements in nested brackets, long dimensions shortened.
std::string to_string(const Tensor& tensor);

template <class T>
Tensor tensor(const std::vector<T>& values, const Shape& shape) {
  Tensor out = empty_host(shape, dtype_of<T>);
  if (out.numel() != static_cast<int64_t>(values.size()))
    throw Error("tensor: " + std::to_string(values.size()) + " values for shape " + to_string(shape));
  if constexpr (std::is_same_v<T, bool>) std::copy(values.begin(), values.end(), out.data<bool>());
  else if (!values.empty()) std::memcpy(out.data_ptr(), values.data(), values.size() * sizeof(T));
  return out.to(default_device());
}

}  // namespace tessera
