// How much of a device tensors may hold.
#pragma once
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "core/util/bytes.h"
#include "tessera/error.h"

namespace tessera {

/// A limit on the bytes that an allocator has given out; the allocator's lock is its own.
class MemoryLimit {
 public:
  /// As TESSERA_MEMORY_LIMIT says. Throws Error where that is no number.
  MemoryLimit() {
    const char* const text = std::getenv("TESSERA_MEMORY_LIMIT");
    if (text && *text) set(parse(text));
  }
  /// 0: none.
  void set(int64_t bytes) {
    if (bytes < 0) throw Error(fmt::format("set_memory_limit: {} bytes are less than none", bytes));
    most_ = bytes > 0 ? bytes : kNone;
  }
  /// Throws OutOfMemoryError where `bytes` more than those held are too many.
  void check(size_t bytes, int64_t held, std::string_view device) const {
    if (most_ == kNone || (held <= most_ && bytes <= static_cast<size_t>(most_ - held))) return;
    throw OutOfMemoryError(fmt::format("out of memory on {}: {} asked for, {} held by tensors, {} allowed", device,
                                       describe_bytes(bytes), describe_bytes(static_cast<size_t>(held)),
                                       describe_bytes(static_cast<size_t>(most_))));
  }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  static int64_t parse(std::string_view text) {
    int64_t number = 0;
    const char* const last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, number);
    constexpr std::string_view units = "KMG";
    const size_t unit = end == last ? units.npos : units.find(*end);
    const bool is_known = end == last || (unit != units.npos && end + 1 == last);
    const int shift = unit == units.npos ? 0 : 10 * static_cast<int>(unit + 1);
    if (error != std::errc() || number <= 0 || !is_known || number > kNone >> shift)
      throw Error(fmt::format("TESSERA_MEMORY_LIMIT={} is no number of bytes, such as 800M", text));
    return number << shift;
  }

  int64_t most_ = kNone;
};

}  // namespace tessera
