// Processors, and how to wait on one.
#pragma once

namespace tessera {

/// Those this process may use: its affinity mask, within the container's quota; at least 1.
int available_processors();

/// Of a loop that spins: lets the other thread of the core work.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tessera
