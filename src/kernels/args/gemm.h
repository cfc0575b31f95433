// Matrix products per instruction set.
#pragma once

#include "common.h"
#include "tessera/parallel.h"

namespace tessera::TESSERA_KERNELS {

inline constexpr int max_batch_rank = 4;

enum class Activation : unsigned char { none, relu, gelu_tanh, gelu_erf, silu, tanh };

/// A batch of matrices. Strides are in elements and may be zero (broadcast) or negative; element [b..., i, j] lies at
/// sum(b * batch) + i * row + j * column. A null `data` stands for no matrix.
struct MatrixArg {
  void* data;
  Scalar type;
  long long row, column;
  long long batch[max_batch_rank];
};

/// For every batch index: t = alpha * a b + beta * addend + bias; slope = activation'(t); c = activation(t) * factor,
/// where a is [m, k], b is [k, n] and the others are [m, n] (a bias has a row or column stride of 0). row_sums and
/// column_sums get the sums of what c does, before it is rounded to c's type: of each row (their column stride is 0)
/// and of each column (their row stride is 0), always in the same order. All but a, b and c may be missing; addend may
/// be c itself, so that beta = 1 accumulates. Elements are f64 throughout, or each matrix is one of f32, f16 and bf16
/// and all sums are f32.
struct GemmArgs {
  long long m, n, k;
  int batch_rank;
  long long batch[max_batch_rank];
  MatrixArg a, b, c;
  MatrixArg addend, bias, slope, factor, row_sums, column_sums;
  double alpha, beta;
  Activation activation;
  bool tf32;        // f32 operands are rounded to tf32
  void* workspace;  // as many bytes as GemmTable::workspace says; null: none, and no sums of rows or columns
  bool packed;      // b.data are panels that GemmTable::pack made, of f32, for all of the batch
};

/// A matrix [k, n] of f32, and its panels.
struct PanelArgs {
  long long n, k;
  MatrixArg matrix;
  void* panels;
};

struct GemmTable {
  /// Whether the element types fit together, and with tf32 whether there is a kernel that rounds.
  bool (*supports)(const GemmArgs& args);
  void (*run)(const GemmArgs& args, Executor& executor);
  /// Bytes with which few long sums are shared out to more of the processor, and for those of rows and columns.
  long long (*workspace)(const GemmArgs& args, const Executor& executor);
  /// What is left to do where a vendor's library made c: the activation and its slope, or the factor (with gelu_tanh,
  /// its slope there) and the sums of rows and columns; null on CPUs.
  void (*finish)(const GemmArgs& args, Executor& executor);
  long long (*finish_workspace)(const GemmArgs& args);
  // A right side that stays the same may be packed once, for all products of f32; null on GPUs.
  long long panel_columns = 0;  ///< of a panel; 0: products are as quick without
  long long (*panel_bytes)(long long n, long long k) = nullptr;
  void (*pack)(const PanelArgs& args, Executor& executor) = nullptr;
  void (*unpack)(const PanelArgs& args, Executor& executor) = nullptr;
};

#define TESSERA_GEMM_TABLE(isa)      \
  namespace isa {                    \
  extern const GemmTable gemm_table; \
  }
TESSERA_GEMM_TABLE(baseline)
TESSERA_GEMM_TABLE(avx2)
TESSERA_GEMM_TABLE(avx512)
#undef TESSERA_GEMM_TABLE

}  // namespace tessera::TESSERA_KERNELS
