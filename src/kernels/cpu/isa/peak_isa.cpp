#include "kernels/args/peak.h"

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

void copy(void* to, const void* from, long long bytes) {
  using V = tile::NativeVec<float>;
  auto* t = static_cast<float*>(to);
  auto* f = static_cast<const float*>(from);
  constexpr int kLine = 64 / sizeof(float);
  for (long long i = 0; i < bytes / 4; i += kLine) {
    V line[kLine / V::lanes];
    TESSERA_UNROLL
    for (int k = 0; k < kLine / V::lanes; ++k) line[k] = tile::load<V>(f + i + k * V::lanes);
    TESSERA_UNROLL
    for (int k = 0; k < kLine / V::lanes; ++k) tile::store(t + i + k * V::lanes, line[k]);
  }
}

}  // namespace

extern const PeakTable peak_table;
const PeakTable peak_table{multiply_add, copy};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
