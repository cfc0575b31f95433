// Long work that a program may end: backward, and runs of model files, ask between two nodes whether they are to go on.
#pragma once
#include <atomic>

namespace tessera {

/// Called in the thread that works; what it throws ends the work and is passed on.
using InterruptCheck = void (*)();
/// Null, as at first: nothing is called. For all threads alike.
void set_interrupt_check(InterruptCheck check);

namespace detail {
extern constinit std::atomic<InterruptCheck> interrupt_check;
}
inline void check_interrupt() {
  if (const InterruptCheck check = detail::interrupt_check.load(std::memory_order_relaxed)) check();
}

}  // namespace tessera
