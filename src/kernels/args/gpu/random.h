// What random kernels of a GPU take. Seed and first block are read on the device: a captured call draws anew in each
// replay.
#pragma once

#include "kernels/args/random.h"

namespace tessera::gpu_kernels {

/// Where a stream of words begins.
struct StreamArg {
  const long long *seed, *block;
};

struct DrawArgs {
  RandomOp op;
  StreamArg stream;
  long long count;
  void* out;
  Scalar type;
  double a, b;
  long long length = 0, gap = 0;  // of rows of `out`, elements between them; of integers: none
};

/// As DropoutArgs.
struct DropArgs {
  StreamArg stream;
  long long count;
  const void* in;
  void* out;
  Scalar type;
  double p;
  long long length = 0, in_gap = 0, out_gap = 0;  // of rows, elements between them
};

struct MultinomialArgs {
  const char* op;
  StreamArg stream;
  const void* weights;
  Scalar type;
  long long rows, n, row_step, step, samples;
  bool replacement;
  double* workspace;  // [rows, n]
  long long* out;     // [rows, samples]
};

struct DrawTable {
  void (*draw)(const DrawArgs& args, Executor& executor);
  void (*drop)(const DropArgs& args, Executor& executor);
  void (*multinomial)(const MultinomialArgs& args, Executor& executor);
};
const DrawTable& draw_table();

}  // namespace tessera::gpu_kernels
