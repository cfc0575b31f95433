// What kernels of sparse matrices along a dim take.
#pragma once
#include "common.h"
#include "tessera/parallel.h"

namespace tessera::TESSERA_KERNELS {

/// out[o, i, j] = the sum over begins[i] <= t < begins[i + 1] of weights[t] x[o, places[t], j]. x [outer, length,
/// inner] and out [outer, count, inner] are contiguous and of one type, f32, f64, f16 or bf16; weights are f64 for f64,
/// and else f32. Places that do not exist count as 0.
struct LinesArgs {
  long long outer, length, count, inner, entries;
  Scalar type;
  const int *begins, *places;
  const void *weights, *x;
  void* out;
};

struct LinesTable {
  void (*sparse)(const LinesArgs& args, Executor& executor);
};

#define TESSERA_LINES_TABLE(isa)       \
  namespace isa {                      \
  extern const LinesTable lines_table; \
  }
TESSERA_LINES_TABLE(baseline)
TESSERA_LINES_TABLE(avx2)
TESSERA_LINES_TABLE(avx512)
#undef TESSERA_LINES_TABLE

}  // namespace tessera::TESSERA_KERNELS
