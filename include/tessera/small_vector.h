// A vector with room for N elements inside the object: shapes, strides and argument lists never touch the heap.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>

namespace tessera {

/// An item of a braced list of handles, which is copied, or moved, once: those of a std::initializer_list are copies
/// already, and copies of handles are counted.
template <class T>
class Lent {
 public:
  Lent() = default;
  Lent(const T& item) : item_(const_cast<T*>(&item)) {}
  Lent(T&& item) : item_(&item), given_(true) {}
  T take() const { return !item_ ? T() : given_ ? std::move(*item_) : *item_; }

 private:
  T* item_ = nullptr;  // null: a default one
  bool given_ = false;
};

template <class T, int N>
class SmallVector {
  static constexpr bool lends =
      sizeof(T) == sizeof(void*) && !std::is_trivially_copyable_v<T> && !std::is_aggregate_v<T>;

 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  SmallVector() noexcept {}
  explicit SmallVector(size_t n, const T& value = T()) { resize(n, value); }
  SmallVector(std::initializer_list<T> items) requires(!lends) { append(items.begin(), items.end()); }
  SmallVector(std::initializer_list<Lent<T>> items) requires(lends) {
    reserve(items.size());
    for (const Lent<T>& item : items) emplace_back(item.take());
  }
  template <std::input_iterator It>
  SmallVector(It first, It last) {
    append(first, last);
  }
  SmallVector(const SmallVector& o) {
    if (!copy_inline(o)) append(o.begin(), o.end());
  }
  SmallVector(SmallVector&& o) noexcept { steal(o); }
  ~SmallVector() { release(); }

  SmallVector& operator=(const SmallVector& o) {
    if (this != &o) {
      clear();
      append(o.begin(), o.end());
    }
    return *this;
  }
  SmallVector& operator=(SmallVector&& o) noexcept {
    if (this != &o) {
      release();
      steal(o);
    }
    return *this;
  }

  T* begin() noexcept { return data_; }
  T* end() noexcept { return data_ + size_; }
  const T* begin() const noexcept { return data_; }
  const T* end() const noexcept { return data_ + size_; }
  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  T& operator[](size_t i) noexcept { return data_[i]; }
  const T& operator[](size_t i) const noexcept { return data_[i]; }
  T& front() noexcept { return data_[0]; }
  const T& front() const noexcept { return data_[0]; }
  T& back() noexcept { return data_[size_ - 1]; }
  const T& back() const noexcept { return data_[size_ - 1]; }

  void push_back(T value) { emplace_back(std::move(value)); }
  template <class... A>
  T& emplace_back(A&&... args) {
    if (size_ == capacity_) grow(size_ + 1);
    return *std::construct_at(data_ + size_++, std::forward<A>(args)...);
  }
  /// n more items, whose values are the caller's to set.
  T* extend(size_t n) requires(std::is_trivially_copyable_v<T>) {
    reserve(size_ + n);
    T* const first = data_ + size_;
    size_ += n;
    return first;
  }
  void pop_back() { std::destroy_at(data_ + --size_); }
  void clear() noexcept {
    std::destroy_n(data_, size_);
    size_ = 0;
  }
  void reserve(size_t n) {
    if (n > capacity_) grow(n);
  }
  void resize(size_t n, const T& value = T()) {
    reserve(n);
    while (size_ > n) pop_back();
    for (; size_ < n; ++size_) std::construct_at(data_ + size_, value);
  }
  template <class It>
  void append(It first, It last) {
    if constexpr (std::forward_iterator<It>) {
      reserve(size_ + static_cast<size_t>(std::distance(first, last)));
      for (; first != last; ++first) std::construct_at(data_ + size_++, *first);
    } else {
      for (; first != last; ++first) emplace_back(*first);
    }
  }
  T* insert(const T* position, T value) {
    size_t i = position - data_;
    push_back(std::move(value));
    std::rotate(data_ + i, data_ + size_ - 1, data_ + size_);
    return data_ + i;
  }
  T* erase(const T* position) {
    T* p = data_ + (position - data_);
    std::move(p + 1, end(), p);
    pop_back();
    return p;
  }

  friend bool operator==(const SmallVector& a, const SmallVector& b) {
    return a.size_ == b.size_ && std::equal(a.begin(), a.end(), b.begin());
  }

 private:
  T* inline_data() noexcept { return reinterpret_cast<T*>(inline_); }
  const T* inline_data() const noexcept { return reinterpret_cast<const T*>(inline_); }
  // A few plain elements: all of their places at once, whatever is in the last ones.
  bool copy_inline(const SmallVector& o) noexcept {
    if constexpr (std::is_trivially_copyable_v<T> && sizeof(inline_) <= 64) {
      if (o.data_ != o.inline_data()) return false;
      std::memcpy(inline_, o.inline_, sizeof inline_);
      size_ = o.size_;
      return true;
    }
    return false;
  }
  void grow(size_t at_least) {
    size_t capacity = std::max<size_t>(at_least, 2 * capacity_);
    T* fresh = std::allocator<T>().allocate(capacity);
    std::uninitialized_move_n(data_, size_, fresh);
    std::destroy_n(data_, size_);
    if (data_ != inline_data()) std::allocator<T>().deallocate(data_, capacity_);
    data_ = fresh;
    capacity_ = capacity;
  }
  void release() noexcept {
    std::destroy_n(data_, size_);
    if (data_ != inline_data()) std::allocator<T>().deallocate(data_, capacity_);
    data_ = inline_data();
    size_ = 0;
    capacity_ = N;
  }
  void steal(SmallVector& o) noexcept {
    if (o.data_ != o.inline_data()) {
      data_ = std::exchange(o.data_, o.inline_data());
      size_ = std::exchange(o.size_, 0);
      capacity_ = std::exchange(o.capacity_, N);
    } else if (copy_inline(o)) {
      o.size_ = 0;
    } else {
      std::uninitialized_move_n(o.data_, o.size_, data_);
      size_ = o.size_;
      o.clear();
    }
  }

  alignas(T) std::byte inline_[N * sizeof(T)];
  T* data_ = inline_data();
  size_t size_ = 0;
  size_t capacity_ = N;
};

}  // namespace tessera
