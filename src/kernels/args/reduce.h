// Reductions, scans and selections per instruction set.
#pragma once

#include "common.h"
#include "tessera/parallel.h"

namespace tessera::TESSERA_KERNELS {

/// Parameters in brackets. Results of argmax and argmin are indices (i64) into the reduced dimensions in row-major
/// order; those of any and all are 0 or 1.
enum class ReduceOp : unsigned char {
  sum,
  mean,
  prod,
  max,
  min,
  any,
  all,
  argmax,
  argmin,
  // floating point only
  variance /* [correction] */,
  std /* [correction] */,
  norm,
  squares,
  abs_sum,
  abs_max,
  logsumexp,
  count
};

/// Reduces `in` over the dimensions that are marked; `out` has the same rank, its strides there are ignored.
/// compute is f64, f32 or i64.
struct ReduceArgs {
  ReduceOp op;
  Scalar compute;
  int rank;
  long long lengths[max_rank];  // of the input
  bool reduced[max_rank];
  TensorArg in, out;
  double parameter;
  void* workspace = nullptr;  // reduce's workspace(); without it few results of many elements take longer
};

/// Running sums along dimension `dim`; computed in f64, or in i64 for integers.
struct CumsumArgs {
  int rank;
  int dim;
  long long lengths[max_rank];
  TensorArg in, out;
  void* workspace;  // cumsum_workspace bytes
};

/// The k largest (or smallest) elements along `dim` in order, with their indices (i64); NaN counts as largest, and of
/// equals the first comes first. Indices without memory: all values, the smallest first, are all that is wanted.
struct TopkArgs {
  int rank;
  int dim;
  long long lengths[max_rank];  // of the input; outputs have length k along dim
  long long k;
  bool largest;
  TensorArg in, values, indices;
  void* workspace;  // topk_workspace bytes
};

struct ReduceTable {
  bool (*supports)(ReduceOp op, Scalar compute);
  void (*reduce)(const ReduceArgs& args, Executor& executor);
  long long (*workspace)(const ReduceArgs& args);  // bytes
  void (*cumsum)(const CumsumArgs& args, Executor& executor);
  long long (*cumsum_workspace)(const CumsumArgs& args);  // bytes
  void (*topk)(const TopkArgs& args, Executor& executor);
  long long (*topk_workspace)(const TopkArgs& args);  // bytes
};

#define TESSERA_REDUCE_TABLE(isa)        \
  namespace isa {                        \
  extern const ReduceTable reduce_table; \
  }
TESSERA_REDUCE_TABLE(baseline)
TESSERA_REDUCE_TABLE(avx2)
TESSERA_REDUCE_TABLE(avx512)
#undef TESSERA_REDUCE_TABLE

}  // namespace tessera::TESSERA_KERNELS
