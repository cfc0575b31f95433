// How much one tensor may take, where what asks for it is not trusted.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace tessera {

/// While alive, a tensor of this thread that takes more than `bytes` throws OutOfMemoryError. The least of nested ones
/// holds.
class AllocationLimit {
 public:
  explicit AllocationLimit(size_t bytes) : before_(most_) { most_ = std::min(most_, bytes); }
  ~AllocationLimit() { most_ = before_; }
  AllocationLimit(const AllocationLimit&) = delete;
  AllocationLimit& operator=(const AllocationLimit&) = delete;

  static size_t most() { return most_; }

 private:
  static constinit thread_local size_t most_;
  size_t before_;
};

/// Throws OutOfMemoryError where a tensor of so many elements of 8 bytes would: for lists that an operator makes on the
/// host, from sizes that its caller says.
void check_allocation(std::initializer_list<int64_t> sizes);

}  // namespace tessera
