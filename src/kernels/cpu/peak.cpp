#include "kernels/cpu/peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "kernels/cpu/isa_select.h"
#include "tessera/error.h"
#include "tessera/parallel.h"

namespace tessera::cpu_kernels {

double measure_fma_peak(int threads) {
  if (threads > executor().threads()) throw Error("measure_fma_peak: more threads than the pool has");
  constexpr long long kRounds = 400000;  // about 10 ms
  double best = 0;
  auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(300)) {
    auto begin = std::chrono::steady_clock::now();
    double flops = 0;
    executor().parallel(threads, [&](long long, int) {
      alignas(64) float sink[64] = {0.999f, 0.001f};
      double done = peak_table().multiply_add(kRounds, sink);
      std::atomic_ref(flops).fetch_add(done);
    });
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, flops / seconds * 1e-9);
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
