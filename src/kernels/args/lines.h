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

/// The same along two neighbouring dims, the last ones: x [outer, length...] and out [outer, count...].
struct LinePlanesArgs {
  long long outer, length[2], count[2], entries[2];
  Scalar type;
  bool selects;  // every row of both matrices has one entry, of weight 1
  const int *begins[2], *places[2];
  const void *weights[2], *x;
  void* out;
};

struct LinesTable {
  void (*sparse)(const LinesArgs& args, Executor& executor);
  void (*planes)(const LinePlanesArgs& args, Executor& executor);  // of GPUs alone
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
