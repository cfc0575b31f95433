// What kernels of recurrent layers take.
#pragma once
#include "common.h"
#include "tessera/parallel.h"

namespace tessera::TESSERA_KERNELS {

/// A step of an LSTM behind its product. All is of one type, f32, f64, f16 or bf16, and contiguous: [batch, hidden],
/// gates [batch, 4 * hidden].
struct LstmArgs {
  long long batch, hidden;
  Scalar type;
  void* gates;  // what goes into them, then what they are
  const void* cell_before;
  void *cell, *output;  // cell may be cell_before
};

/// Its gradient. Without memory: zeros.
struct LstmBackwardArgs {
  long long batch, hidden;
  Scalar type;
  const void *gates, *cell, *cell_before;
  const void* doutput;                      // of the step's result
  const void *dhidden_after, *dcell_after;  // from the step that comes next
  void *dgates, *dcell_before;              // dcell_before may be dcell_after
};

struct RecurrentTable {
  void (*lstm)(const LstmArgs& args, Executor& executor);
  void (*lstm_backward)(const LstmBackwardArgs& args, Executor& executor);
};

#define TESSERA_RECURRENT_TABLE(isa)           \
  namespace isa {                              \
  extern const RecurrentTable recurrent_table; \
  }
TESSERA_RECURRENT_TABLE(baseline)
TESSERA_RECURRENT_TABLE(avx2)
TESSERA_RECURRENT_TABLE(avx512)
#undef TESSERA_RECURRENT_TABLE

}  // namespace tessera::TESSERA_KERNELS
