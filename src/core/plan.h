// What a call will run, as data: launches whose arguments are relocatable bytes. A plan is made from how tensors lie,
// and run with their addresses.
#pragma once
#include <cstddef>
#include <memory>
#include <source_location>
#include <span>
#include <string_view>
#include <vector>

#include "core/util/plans_epoch.h"
#include "tessera/tensor.h"

namespace tessera {

struct Kernel;

/// A tensor as kernels see it when they plan: how it lies, and a place that stands for its memory.
class Operand {
 public:
  Operand() = default;
  /// `meta` has no symbols; without strides it lies dense.
  Operand(const TensorMeta& meta, void* place);
  /// How `t` lies, with its memory as the place; absent where it is undefined.
  explicit Operand(const Tensor& t);

  bool defined() const { return defined_; }
  const Shape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }
  int64_t dim() const { return shape_.rank(); }
  int64_t size(int64_t d) const { return shape_[static_cast<size_t>(d < 0 ? d + dim() : d)].value(); }
  int64_t stride(int64_t d) const { return strides_[static_cast<size_t>(d < 0 ? d + dim() : d)]; }
  int64_t numel() const { return numel_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  bool is_contiguous() const { return contiguous_; }
  /// Where the first element lies: for arguments of launches, never to be read while planning.
  void* data_ptr() const { return place_; }
  /// Other dims of the same elements; `offset` in elements from the first one.
  Operand as_strided(const Shape& shape, const Strides& strides, int64_t offset = 0) const;

  /// Rows of a matrix whose gaps, and spare rows up to `storage_bytes`, are kernels' to write to; 0: there are none.
  int64_t padded_rows() const { return spare_.rows; }
  int64_t padded_row_length() const { return spare_.row_length; }
  int64_t storage_bytes() const { return spare_.bytes; }
  /// The layout of a kernel's own in which it lies, of storage_bytes(); null: strides say how it lies.
  const std::string* packing() const { return packing_; }
  /// What it was made of.
  TensorMeta meta() const;

 private:
  struct Spare {
    int64_t rows = 0, row_length = 0, bytes = 0;
  };
  Shape shape_;
  Strides strides_;
  int64_t numel_ = 0;
  void* place_ = nullptr;
  DType dtype_ = Float32;
  Device device_;
  bool defined_ = false, contiguous_ = true;
  Spare spare_;
  const std::string* packing_ = nullptr;
};
std::string describe(const Operand& operand);

/// "src/kernels/cpu/matmul.cpp:31"
std::string text_of(const std::source_location& where);

/// Made by a kernel's `plan`; immutable afterwards, and shared by all calls whose tensors lie alike.
class Plan : public RefCounted {
 public:
  struct Launch {
    std::string_view name;
    std::source_location where;  ///< that plans it
    void (*thunk)(void (*run)(), const void* args, void* executor);
    void (*run)();
    uint32_t at, bytes;        ///< of its arguments
    std::string_view library;  ///< a vendor's that it calls: another version of it wants another plan; empty: none
    size_t version = 0;
    uint32_t zeroes_padding_of = 0;  ///< bits: inputs whose own padding it fills with zeros
  };
  /// A pointer among the arguments: so many bytes behind the first element of a slot.
  struct Relocation {
    uint32_t at, slot;
    int64_t offset;
  };

  // ---- for kernels that plan: nothing is computed yet

  /// Workspace, aligned to 64 bytes, on GPUs to 256; null for no bytes.
  void* take(int64_t bytes);
  /// A copy of items that launches read on the host, as the plan's own.
  template <class T>
  T* keep(const T* items, size_t count) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kAlignment);
    if constexpr (std::is_scalar_v<T>) return static_cast<T*>(keep_bytes(items, count * sizeof(T)));
    std::vector<T> plain(items, items + count);
    for (T& item : plain) clear_padding(item);
    return static_cast<T*>(keep_bytes(plain.data(), count * sizeof(T)));
  }
  template <class T>
  T* keep(const T& item) {
    return keep(&item, 1);
  }
  /// run(args, executor) when the plan runs, with real pointers in the place of places.
  template <class Args, class Executor>
  void launch(std::string_view name, void (*run)(const Args&, Executor&), Args args,
              std::source_location where = std::source_location::current()) {
    add(name, where, reinterpret_cast<void (*)()>(run), args, [](void (*fn)(), const void* a, void* e) {
      reinterpret_cast<void (*)(const Args&, Executor&)>(fn)(*static_cast<const Args*>(a), *static_cast<Executor*>(e));
    });
  }
  /// The same of what needs no executor.
  template <class Args>
  void launch(std::string_view name, void (*run)(const Args&), Args args,
              std::source_location where = std::source_location::current()) {
    add(name, where, reinterpret_cast<void (*)()>(run), args, [](void (*fn)(), const void* a, void*) {
      reinterpret_cast<void (*)(const Args&)>(fn)(*static_cast<const Args*>(a));
    });
  }
  /// The last launch calls a vendor's library, of which this version was asked how.
  void calls_library(std::string_view name, size_t version) {
    launches_.back().library = name;
    launches_.back().version = version;
  }
  /// The last launch writes zeros to the padding of these inputs, as bits; their elements stay. Nothing else is ever
  /// written there by one that reads, so that readers on several streams do not disturb each other.
  void zeroes_padding_of(uint32_t inputs) { launches_.back().zeroes_padding_of = inputs; }
  /// An object that arguments refer to, which lives as long as the plan.
  template <class T>
  const T* own(T object) {
    owned_.push_back(std::make_shared<const T>(std::move(object)));
    return static_cast<const T*>(owned_.back().get());
  }

  // ---- for those who run it

  const Kernel* kernel() const { return kernel_; }
  uint32_t slots() const { return slots_; }  ///< inputs and outputs, absent ones too
  /// Of inputs and outputs: what the plan was made for. Absent ones are absent_meta().
  std::span<const TensorMeta> metas() const { return metas_; }
  size_t workspace_bytes() const { return workspace_; }
  std::span<const Launch> launches() const { return launches_; }
  std::span<const Relocation> relocations() const { return relocations_; }
  /// `slots`: addresses of the inputs' first elements, of the outputs', and of the workspace. `executor`: where the
  /// kernels of its device run.
  void run(std::span<void* const> slots, void* executor) const;
  /// A line per launch and one for the workspace.
  std::string describe() const;

 private:
  friend class PlanMaker;
  static constexpr size_t kAlignment = 16;
  // What padding holds from before may be part of a place, and would be taken for a pointer.
  template <class T>
  static void clear_padding([[maybe_unused]] T& item) {
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&item);
#endif
  }
  void* keep_bytes(const void* bytes, size_t count);
  template <class Args>
  void add(std::string_view name, std::source_location where, void (*run)(), Args& args,
           void (*thunk)(void (*)(), const void*, void*)) {
    static_assert(std::is_trivially_copyable_v<Args> && alignof(Args) <= kAlignment);
    clear_padding(args);
    add({name, where, thunk, run, 0, static_cast<uint32_t>(sizeof(Args)), {}}, &args);
  }
  void add(Launch launch, const void* args);

  const Kernel* kernel_ = nullptr;
  size_t workspace_ = 0;
  uint32_t slots_ = 0;  // inputs and outputs; then the workspace, then the plan's own bytes
  int base_ = 0;        // which places stand for slots while it is made
  bool on_cpu_ = false;
  std::vector<TensorMeta> metas_;
  std::vector<Launch> launches_;
  std::vector<Relocation> relocations_;
  std::vector<std::byte> bytes_;
  std::vector<std::shared_ptr<const void>> owned_;
};

/// Makes a plan by asking the kernel twice, with other places each time: what differs in the arguments is a pointer.
class PlanMaker {
 public:
  /// What `alignment` says in a meta is how places are aligned, up to this.
  static constexpr int kMostAlignment = 256;
  /// Which of two bases; slots are numbered as Plan::run has them. They differ in the lowest byte, too, where memory of
  /// that alignment may: a byte beside what padding kept of a place is no pointer either. On CPUs no kernel asks for
  /// more than 64 bytes.
  static void* place(uint32_t slot, int base, int alignment, bool on_cpu = false);

  /// For inputs and outputs that lie so. make(base, plan) has the kernel plan with places of that base. Throws Error
  /// where the kernel plans other launches the second time.
  template <class Make>
  static Ref<Plan> make(const Kernel& kernel, std::vector<TensorMeta> metas, const Make& make) {
    Ref<Plan> plans[2];
    for (int base : {0, 1}) {
      plans[base] = make_ref<Plan>();
      plans[base]->kernel_ = &kernel;
      plans[base]->slots_ = static_cast<uint32_t>(metas.size());
      plans[base]->base_ = base;
      plans[base]->on_cpu_ = true;
      for (const TensorMeta& m : metas) plans[base]->on_cpu_ &= !m.device.is_gpu();
      make(base, *plans[base]);
    }
    plans[0]->metas_ = std::move(metas);
    relocate(*plans[0], *plans[1]);
    return std::move(plans[0]);
  }

 private:
  static void relocate(Plan& plan, const Plan& other);
};

}  // namespace tessera
