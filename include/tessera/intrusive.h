// Reference counting inside the object: one allocation per tensor, one atomic per copy, none for the first owner and
// the last.
#pragma once
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace tessera {

struct RefCounted {
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;
  mutable std::atomic<uint32_t> references{0};

 protected:
  ~RefCounted() = default;
};

/// Base of what comes and goes with every call: memory that a thread gave back is what it gets next.
struct Recycled {
  static void* operator new(size_t bytes);
  static void operator delete(void* memory, size_t bytes) noexcept;
};

/// Owning pointer to a RefCounted object. `T` must be destructible through `delete`.
template <class T>
class Ref {
 public:
  Ref() noexcept = default;
  Ref(std::nullptr_t) noexcept {}
  explicit Ref(T* p) noexcept : p_(p) { retain(); }
  Ref(const Ref& o) noexcept : p_(o.p_) { retain(); }
  Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  template <std::derived_from<T> U>
  Ref(Ref<U>&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  ~Ref() { release(); }
  Ref& operator=(Ref o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }

  T* get() const noexcept { return p_; }
  T* operator->() const noexcept { return p_; }
  T& operator*() const noexcept { return *p_; }
  explicit operator bool() const noexcept { return p_ != nullptr; }
  bool unique() const noexcept { return p_ && p_->references.load(std::memory_order_acquire) == 1; }
  friend bool operator==(const Ref& a, const Ref& b) noexcept { return a.p_ == b.p_; }

 private:
  void retain() noexcept {
    if (p_) p_->references.fetch_add(1, std::memory_order_relaxed);
  }
  void release() noexcept {
    if (p_ && (unique() || p_->references.fetch_sub(1, std::memory_order_acq_rel) == 1)) delete p_;
  }
  template <class U>
  friend class Ref;
  template <class U, class... A>
  friend Ref<U> make_ref(A&&... args);
  T* p_ = nullptr;
};

template <class T, class... A>
Ref<T> make_ref(A&&... args) {
  Ref<T> made;
  made.p_ = new T(std::forward<A>(args)...);
  made.p_->references.store(1, std::memory_order_relaxed);  // nobody else knows it yet
  return made;
}

}  // namespace tessera
