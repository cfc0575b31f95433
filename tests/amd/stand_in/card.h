// The made-up card: memory that the emulator's process sees at the same addresses, and that process.
#pragma once
#include <map>
#include <mutex>
#include <string>

#include "code.h"

namespace stand_in {

class Card {
 public:
  static constexpr size_t code_bytes = size_t{64} << 20, memory_bytes = size_t{16} << 30;

  Card();

  /// Null where there is not that much. Also what hipHostMalloc gives.
  void* allocate(size_t bytes);
  bool release(void* memory);
  size_t free_bytes();
  /// Whether it is the card's memory, or what hipHostMalloc gave.
  bool has(const void* memory) const { return memory >= base_ && memory < base_ + code_bytes + memory_bytes; }
  /// Room for a code object, for good.
  std::byte* place_code(size_t bytes);

  /// Whether kernels are executed: EMULATOR_HOME names the emulator. Otherwise launches only count.
  static bool executes();
  /// Executes a kernel; returns what went wrong.
  std::string run(const Kernel& kernel, const Shape& shape, const std::vector<std::byte>& arguments);

 private:
  void start();

  std::mutex mutex_;
  int file_;
  std::byte* base_;
  size_t code_used_ = 0;
  std::map<size_t, size_t> holes_;    // offset, bytes
  std::map<void*, size_t> blocks_;    // bytes
  int requests_ = -1, replies_ = -1;  // pipes
};

Card& card();

}  // namespace stand_in
