#pragma once
#include <atomic>
#include <thread>

namespace tessera {

/// A mutex for what is mostly over in a few instructions: one atomic to take it, none to give it back. Who waits
/// yields.
class SpinLock {
 public:
  void lock() {
    while (taken_.exchange(true, std::memory_order_acquire))
      while (taken_.load(std::memory_order_relaxed)) std::this_thread::yield();
  }
  void unlock() { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

}  // namespace tessera
