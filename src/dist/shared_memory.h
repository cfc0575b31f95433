// Memory that several ranks see, and waiting in it: ranks are threads of a process or processes of a host.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace tessera::dist {

/// Zeroed memory without a name. Pages count once they are touched, so that a mapping may be larger than the machine.
class SharedMemory {
 public:
  /// Throws Error where the system gives none.
  static SharedMemory create(size_t bytes);
  /// The mapping behind a file descriptor, which another process created and this one inherited. Throws Error.
  static SharedMemory open(int fd);
  SharedMemory(SharedMemory&&) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  /// To be inherited; closed by exec unless inherit() was called.
  int fd() const { return fd_; }
  void inherit() const;

 private:
  SharedMemory(int fd, char* data, size_t bytes) : fd_(fd), data_(data), bytes_(bytes) {}
  int fd_;
  char* data_;
  size_t bytes_;
};

/// Copies to memory that another processor reads next, past this one's caches: lines that others hold need not be
/// fetched first. What follows it is ordered behind it.
void copy_to_others(char* to, const char* from, size_t bytes);

/// A number in shared memory that ranks wait for: it only grows, modulo 2^32.
struct alignas(64) Counter {
  std::atomic<uint32_t> value{0}, sleepers{0};
  static_assert(std::atomic<uint32_t>::is_always_lock_free);

  /// Everything written before is seen by whoever waits for it.
  void advance_to(uint32_t next);
  bool reached(uint32_t target) const {
    return static_cast<int32_t>(value.load(std::memory_order_acquire) - target) >= 0;
  }
  /// Spins for a moment, gives the processor away, then sleeps; at once where others need the processor. `look` is
  /// called while it sleeps, some ten times a second, and may throw.
  void wait_for(uint32_t target, bool is_crowded, const std::function<void()>& look);
};

}  // namespace tessera::dist
