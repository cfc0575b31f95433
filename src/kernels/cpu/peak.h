// What the processor can do at most, to measure kernels against.
#pragma once

namespace tessera::cpu_kernels {

/// What a core does in a cycle: two units of multiply-adds on vectors of the instruction set in use.
int operations_per_cycle();

/// The arithmetic ceiling of some threads.
struct FmaPeak {
  double gflops;     // f32, fused multiply-adds from registers, all threads together
  double clock_ghz;  // of one core, by a chain of dependent additions on the same threads, in turns
  /// The part of operations_per_cycle() on all cores.
  double share(int threads) const { return gflops / (operations_per_cycle() * clock_ghz * threads); }
};

/// The ceiling of what ran between two probes: their mean.
inline FmaPeak between(const FmaPeak& before, const FmaPeak& after) {
  return {(before.gflops + after.gflops) / 2, (before.clock_ghz + after.clock_ghz) / 2};
}

/// Seconds of a probe beside what it is compared with: the clock may be another 20 ms later.
inline constexpr double brief_probe = 0.004;

/// The best that some of the threads reach within so many seconds. Throws Error if the pool has fewer threads.
FmaPeak measure_fma_peak(int threads, double seconds = 0.4);

/// Copies on all threads by a plain loop over registers: ordinary stores, neither memcpy nor stores that pass by the
/// caches. The last bytes % 64 are left out.
void plain_copy(void* to, const void* from, long long bytes);

}  // namespace tessera::cpu_kernels
