// The ceilings of an instruction set: its arithmetic, and a copy through registers.
#pragma once

namespace tessera::cpu_kernels {

struct PeakTable {
  /// Runs independent fused multiply-adds on f32 registers for `rounds` rounds and returns their floating-point
  /// operations; `sink` keeps them from being optimised away.
  double (*multiply_add)(long long rounds, float* sink);
  /// Copies a multiple of 64 bytes with the ordinary loads and stores that kernels use.
  void (*copy)(void* to, const void* from, long long bytes);
};

#define TESSERA_PEAK_TABLE(isa)      \
  namespace isa {                    \
  extern const PeakTable peak_table; \
  }
TESSERA_PEAK_TABLE(baseline)
TESSERA_PEAK_TABLE(avx2)
TESSERA_PEAK_TABLE(avx512)
#undef TESSERA_PEAK_TABLE

}  // namespace tessera::cpu_kernels
