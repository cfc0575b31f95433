#include "peak.h"

#include "tile/vec.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

double multiply_add(long long rounds, float* sink) {
  using V = tile::NativeVec<float>;
  constexpr int kChains = 12;  // more than latency times ports, fewer than registers
  constexpr int kRepeat = 8;
  V sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = V(static_cast<float>(i) * 0.01f);
  const V factor(sink[0]), term(sink[1]);  // unknown to the compiler
  for (long long r = 0; r < rounds; ++r) {
    TESSERA_UNROLL
    for (int k = 0; k < kRepeat; ++k) {
      TESSERA_UNROLL
      for (int i = 0; i < kChains; ++i) sum[i] = tile::fma(sum[i], factor, term);
    }
  }
  for (int i = 1; i < kChains; ++i) sum[0] = sum[0] + sum[i];
  tile::store(sink, sum[0]);
  return 2.0 * V::lanes * kChains * kRepeat * static_cast<double>(rounds);
}

}  // namespace

extern const PeakTable peak_table;
const PeakTable peak_table{multiply_add};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
