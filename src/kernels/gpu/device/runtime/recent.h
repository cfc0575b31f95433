// What was made for the last calls: plans of the vendors' libraries, which take long to make.
#pragma once
#include <iterator>
#include <list>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>

namespace tessera::gpu_kernels {

/// The bytes of a plain struct, whose padding must be zero, as a key.
template <class T>
std::string_view bytes_of(const T& key) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(&key), sizeof key};
}

/// Where in a unit of 16 bytes a pointer lies, as a pointer that is not null: algorithms differ by alignment only.
inline void* alignment_key(const void* p) {
  return p ? reinterpret_cast<void*>((reinterpret_cast<size_t>(p) & 15) + 1) : nullptr;
}
/// The largest power of two up to 16 that divides the address.
inline unsigned alignment_of(const void* p) {
  unsigned bytes = 16;
  while (reinterpret_cast<size_t>(p) % bytes) bytes /= 2;
  return bytes;
}

/// Values by key, of which the least recently used goes when there are too many. A value with `kept` stays as long
/// as it has it.
template <class Value>
class Recent {
 public:
  explicit Recent(size_t most) : most_(most) {}

  /// The value of a key, made at first: make(value) on a new one. What it throws leaves nothing behind.
  template <class Make>
  Value& at(std::string_view key, const Make& make) {
    if (auto found = places_.find(key); found != places_.end()) {
      items_.splice(items_.begin(), items_, found->second);
      return found->second->value;
    }
    items_.emplace_front(key);
    try {
      make(items_.front().value);
    } catch (...) {
      items_.pop_front();
      throw;
    }
    places_.emplace(items_.front().key, items_.begin());
    while (places_.size() > most_ && drop_oldest()) {
    }
    return items_.front().value;
  }

 private:
  struct Item {
    explicit Item(std::string_view key) : key(key) {}
    std::string key;
    Value value{};
  };

  bool drop_oldest() {
    for (auto item = std::prev(items_.end()); item != items_.begin(); --item) {
      if (item->value.kept) continue;
      places_.erase(item->key);
      items_.erase(item);
      return true;
    }
    return false;
  }

  size_t most_;
  std::list<Item> items_;  // the last used first
  std::unordered_map<std::string_view, typename std::list<Item>::iterator> places_;
};

}  // namespace tessera::gpu_kernels
