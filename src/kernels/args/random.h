// Random numbers per instruction set: functions of seed, first block and position alone.
#pragma once

#include "common.h"
#include "tessera/parallel.h"

namespace tessera::TESSERA_KERNELS {

/// One word of 32 bits per number, two where the type is f64 or an integer.
enum class RandomOp : unsigned char {
  uniform /* [low, high) */,
  normal /* mean, deviation: Box & Muller 1958 */,
  integers /* [low, high) */
};

/// Fills `count` contiguous elements; a and b are the parameters of the op.
struct RandomArgs {
  RandomOp op;
  unsigned long long seed, block;
  long long count;
  void* out;
  Scalar type;
  double a, b;
};

/// out = in / (1 - p) where a word is at least p, else 0; contiguous, one word per element.
struct DropoutArgs {
  unsigned long long seed, block;
  long long count;
  const void* in;
  void* out;
  Scalar type;
  double p;
};

struct RandomTable {
  void (*generate)(const RandomArgs& args, Executor& executor);
  void (*dropout)(const DropoutArgs& args, Executor& executor);
};

#define TESSERA_RANDOM_TABLE(isa)        \
  namespace isa {                        \
  extern const RandomTable random_table; \
  }
TESSERA_RANDOM_TABLE(baseline)
TESSERA_RANDOM_TABLE(avx2)
TESSERA_RANDOM_TABLE(avx512)
#undef TESSERA_RANDOM_TABLE

}  // namespace tessera::TESSERA_KERNELS
