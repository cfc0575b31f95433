// A layer of a recurrent net in one direction as one kernel.
#pragma once
#include "kernels/args/common.h"

namespace tessera::gpu_kernels {

enum class CellKind : unsigned char { rnn, gru, lstm };

struct SequenceShape {
  long long steps, batch, hidden;
  Scalar type;
  CellKind cell;
  bool reverse, relu;
};

/// As the operators have it, all dense; what is null is not wanted, or zeros.
struct SequenceArgs {
  SequenceShape shape;
  const void *x, *weight, *bias, *hidden, *cell;
  void *output, *last_cell, *cells, *gates;
};
struct SequenceBackwardArgs {
  SequenceShape shape;
  const void *weight, *hidden, *cell, *output, *cells, *gates, *doutput, *dlast_cell;
  void *dx, *dproduct, *dhidden, *dcell;
};

/// By blocks that hold the hidden state's weight throughout and tell each other the state: on Hopper.
struct SequenceTable {
  bool (*is_there)();  ///< whether the device has what that needs
  bool (*takes)(const SequenceShape& shape);
  void (*run)(const SequenceArgs& args, Executor& executor);
  void (*run_backward)(const SequenceBackwardArgs& args, Executor& executor);
};

}  // namespace tessera::gpu_kernels
