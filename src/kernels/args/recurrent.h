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

/// A step of gated recurrent units behind its product; x, product [batch, 3 * hidden], gates [batch, 4 * hidden] where
/// they are kept.
struct GruArgs {
  long long batch, hidden;
  Scalar type;
  const void *x, *product, *before;
  void *gates, *output;
};
struct GruBackwardArgs {
  long long batch, hidden;
  Scalar type;
  const void *gates, *before, *doutput, *dhidden_after;
  void *dx, *dproduct, *dhidden;  // dhidden: less what comes through the product
};

/// A step without gates behind its product: of `count` elements.
struct RnnArgs {
  long long count;
  Scalar type;
  bool relu;
  void* output;  // what goes into the function, then its result
};
struct RnnBackwardArgs {
  long long count;
  Scalar type;
  bool relu;
  const void *output, *doutput, *dhidden_after;
  void* dx;
};

struct RecurrentTable {
  void (*lstm)(const LstmArgs& args, Executor& executor);
  void (*lstm_backward)(const LstmBackwardArgs& args, Executor& executor);
  void (*gru)(const GruArgs& args, Executor& executor);
  void (*gru_backward)(const GruBackwardArgs& args, Executor& executor);
  void (*rnn)(const RnnArgs& args, Executor& executor);
  void (*rnn_backward)(const RnnBackwardArgs& args, Executor& executor);
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
