#include "tessera/interrupt.h"

namespace tessera {

constinit std::atomic<InterruptCheck> detail::interrupt_check{nullptr};
void set_interrupt_check(InterruptCheck check) { detail::interrupt_check.store(check, std::memory_order_relaxed); }

}  // namespace tessera
