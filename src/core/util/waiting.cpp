#include "core/util/waiting.h"

#include <mutex>
#include <thread>
#include <utility>

namespace tessera {

constinit std::atomic<bool> detail::call_waits{false};

namespace {

struct Slot {
  std::mutex mutex;  // held while the call runs, so that other threads wait for what it gives
  std::unique_ptr<WaitingCall> call;
  std::thread::id owner;
};
Slot& slot() {
  static auto* slot = new Slot;  // tensors of a device outlive what is destroyed at the end
  return *slot;
}
thread_local bool running = false;

}  // namespace

void detail::run_waiting_call() {
  if (running) return;
  Slot& s = slot();
  const std::lock_guard lock(s.mutex);
  const std::unique_ptr<WaitingCall> call = std::move(s.call);
  struct Running {
    Running() { running = true; }
    ~Running() {
      running = false;
      call_waits.store(false, std::memory_order_release);
    }
  } const now;
  if (call) call->run();
}

void let_wait(std::unique_ptr<WaitingCall> call) {
  Slot& s = slot();
  while (true) {
    settle();
    const std::lock_guard lock(s.mutex);
    if (s.call) continue;  // another thread's, which came between
    s.call = std::move(call);
    s.owner = std::this_thread::get_id();
    detail::call_waits.store(true, std::memory_order_release);
    return;
  }
}

std::unique_ptr<WaitingCall> take_waiting() {
  if (running || !detail::call_waits.load(std::memory_order_acquire)) return nullptr;
  Slot& s = slot();
  const std::lock_guard lock(s.mutex);
  if (!s.call || s.owner != std::this_thread::get_id()) return nullptr;
  detail::call_waits.store(false, std::memory_order_release);
  return std::move(s.call);
}

}  // namespace tessera
