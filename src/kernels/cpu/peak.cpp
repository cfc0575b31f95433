#include "kernels/cpu/peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "kernels/cpu/isa_select.h"
#include "tessera/error.h"
#include "tessera/parallel.h"

namespace tessera::cpu_kernels {
namespace {

// Giga-units per second of work(), which returns the units it did, on each of the threads at once.
template <class Work>
double rate(int threads, const Work& work) {
  auto begin = std::chrono::steady_clock::now();
  double units = 0;
  executor().parallel(threads, [&](long long, int) {
    double done = work();
    std::atomic_ref(units).fetch_add(done);
  });
  return units / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() * 1e-9;
}

// Additions that wait for each other take a cycle each.
double dependent_additions() {
  constexpr int kRounds = 30000, kChain = 32;
  unsigned long long sum = 1, term = 3;
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 32
    for (int i = 0; i < kChain; ++i) {
      sum += term;
      asm volatile("" : "+r"(sum), "+r"(term));  // keeps the compiler from adding up
    }
  }
  return static_cast<double>(kRounds) * kChain;
}

}  // namespace

int operations_per_cycle() { return 2 * 2 * (isa() == Isa::Avx512 ? 16 : isa() == Isa::Avx2 ? 8 : 4); }

FmaPeak measure_fma_peak(int threads, double seconds) {
  if (threads > executor().threads()) throw Error("measure_fma_peak: more threads than the pool has");
  constexpr long long kRounds = 20000;  // a quarter of a millisecond, which the system interrupts seldom
  FmaPeak best{0, 0};
  auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::duration<double>(seconds)) {
    best.gflops = std::max(best.gflops, rate(threads, [] {
                             alignas(64) float sink[64] = {0.999f, 0.001f};
                             return peak_table().multiply_add(kRounds, sink);
                           }));
    best.clock_ghz = std::max(best.clock_ghz, rate(threads, dependent_additions) / threads);
  }
  return best;
}

void plain_copy(void* to, const void* from, long long bytes) {
  constexpr long long kPart = 1 << 18;
  executor().parallel((bytes + kPart - 1) / kPart, [&](long long i, int) {
    long long begin = i * kPart, end = std::min(bytes, begin + kPart) / 64 * 64;
    peak_table().copy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
  });
}

}  // namespace tessera::cpu_kernels
