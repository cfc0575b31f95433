// Operators on the bits of integers, per instruction set of the CPU.
#pragma once

#include "common.h"
#include "tessera/parallel.h"

namespace tessera::cpu_kernels {

enum class BitOp : unsigned char { both, either, one, left, right };

/// out = a op b, of one type; operands are broadcast.
struct BitsArgs {
  BitOp op;
  int rank;
  long long lengths[max_rank];
  TensorArg out, a, b;
};

struct BitsTable {
  void (*run)(const BitsArgs& args, Executor& executor);
};
const BitsTable& bits_table();

#define TESSERA_BITS_TABLE(isa)      \
  namespace isa {                    \
  extern const BitsTable bits_table; \
  }
TESSERA_BITS_TABLE(baseline)
TESSERA_BITS_TABLE(avx2)
TESSERA_BITS_TABLE(avx512)
#undef TESSERA_BITS_TABLE

}  // namespace tessera::cpu_kernels
