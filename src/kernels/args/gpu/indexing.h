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

enum class ScatterCombine { sum, product, largest, smallest };

/// Combines `length` elements of the source with each line of the output, in order; the strides are those of lines.
struct ScatterArgs {
  const char* op;
  ScatterCombine combine;
  int rank;
  long long lengths[max_rank];  // of lines
  TensorArg out, index, source;
  long long length, out_step, index_step, source_step, bound;
  bool in_any_order;  // sums of f32 or f64
};

/// Writes each element of the source to its place; of several the last one stays. Without writers all are alike.
struct OverwriteArgs {
  const char* op;
  int rank;
  long long lengths[max_rank];            // of the index
  TensorArg out, writers, index, source;  // out, writers: without strides along the dim of places
  long long out_step, writer_step, bound;
  long long count;  // of writers: an unsigned number of 8 bytes for each element of the output, without gaps
};

struct ScatterTable {
  void (*combine)(const ScatterArgs& args, Executor& executor);
  void (*overwrite)(const OverwriteArgs& args, Executor& executor);
};

inline constexpr int nonzero_tile = 2048;  // elements

/// The places of elements that are not zero.
struct NonzeroArgs {
  int rank;
  long long lengths[max_rank];
  TensorArg x;
  long long tiles, most;  // most: rows of the output
  long long* counts;      // of each tile; then their running sums
  long long *out, out_row, out_column;
};

struct NonzeroTable {
  void (*count)(const NonzeroArgs& args, Executor& executor);
  void (*write)(const NonzeroArgs& args, Executor& executor);
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

enum class BitOp { both, either, one, left, right };  // and, or, exclusive or; shifts

struct BitsArgs {
  BitOp op;
  int rank;
  long long lengths[max_rank];
  TensorArg out, a, b;  // of one type
};
struct BitsTable {
  void (*run)(const BitsArgs& args, Executor& executor);
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
const ScatterTable& scatter_table();
const NonzeroTable& nonzero_table();
const BitsTable& bits_table();
const CreationTable& creation_table();

}  // namespace tessera::gpu_kernels
