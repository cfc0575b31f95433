// What the processor can do at most, to measure kernels against.
#pragma once

namespace tessera::cpu_kernels {

/// f32 GFLOP/s of fused multiply-adds from registers on that many threads: the best of a few tenths of a second.
/// Throws Error if the pool has fewer threads.
double measure_fma_peak(int threads);

/// Copies on all threads by a plain loop over registers: ordinary stores, neither memcpy nor stores that pass by the
/// caches. The last bytes % 64 are left out.
void plain_copy(void* to, const void* from, long long bytes);

}  // namespace tessera::cpu_kernels
