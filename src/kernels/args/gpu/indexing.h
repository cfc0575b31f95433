// What indexing and creation kernels of a GPU take.
#pragma once

#include "kernels/args/common.h"

namespace tessera::gpu_kernels {

/// out[i] = x[i, index[i] steps on]; x and index repeat along dims where their strides are zero.
struct TakeArgs {
  const char* op;
  int rank;
  long long lengths[max_rank];
  TensorArg out, x, index;
  long long step, bound;
};

/// Adds `length` elements of the source to each line of the output, in order; the strides are those of lines.
struct ScatterAddArgs {
  const char* op;
  int rank;
  long long lengths[max_rank];  // of lines
  TensorArg out, index, source;
  long long length, out_step, index_step, source_step, bound;
};

/// Each of `rows` rows of the output is the sum of those rows of `x` that its number in `index` names.
struct SumRowsArgs {
  const char* op;
  int rank;
  long long lengths[max_rank];  // of the index
  TensorArg index, x;           // x: of its rows
  long long count, rows, width, step;
  void* out;
  long long out_row, out_step;
  bool adds;        // to what out holds
  void* workspace;  // as large as `sum_rows_bytes` says
};

struct OneHotArgs {
  const char* op;
  int rank;
  long long lengths[max_rank];  // of the index
  TensorArg index;
  long long classes;
  long long* out;  // contiguous
};

struct IndexTable {
  void (*take)(const TakeArgs& args, Executor& executor);
  void (*scatter_add)(const ScatterAddArgs& args, Executor& executor);
  long long (*sum_rows_bytes)(long long count, long long rows);
  void (*sum_rows)(const SumRowsArgs& args, Executor& executor);
  void (*one_hot)(const OneHotArgs& args, Executor& executor);
};

/// out[i] = start + i * step, contiguous.
struct RangeArgs {
  long long count;
  void* out;
  Scalar type;
  double start, step;
};

struct CreationTable {
  void (*range)(const RangeArgs& args, Executor& executor);
};

const IndexTable& index_table();
const CreationTable& creation_table();

}  // namespace tessera::gpu_kernels
