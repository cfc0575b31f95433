// Which kernel computes a product.
#include "gemm.h"
#include "kernels/cpu/isa/gemm_transpose.h"

namespace tessera::gpu_kernels {
namespace {

// ---- matrix cores

/// How an operand of 16-bit elements lies: contiguous along its rows, or transposed along its columns.
struct Lie {
  bool fits = false, transposed = false, aligned = false;
};

bool is_aligned(const GemmArgs& args, const MatrixArg& m, i64 contiguous, i64 pitch) {
#if defined(__HIP__)
  const bool whole = contiguous % 8 == 0;
#else
  const bool whole = contiguous >= 8;  // cp.async fills the end of a line with zeros
#endif
  bool all = whole && pitch % 8 == 0 && reinterpret_cast<size_t>(m.data) % 16 == 0;
  for (int d = 0; d < max_batch_rank; ++d) all = all && (args.batch[d] == 1 || m.batch[d] % 8 == 0);
  return all;
}

/// The pitch of a single row is of no account, and becomes 0.
Lie lie_of(const GemmArgs& args, MatrixArg& m, i64 rows, i64 columns) {
  if (rows == 1) m.row = m.column == 1 ? 0 : 1;
  if (columns == 1) m.column = m.row == 1 ? 0 : 1;
  Lie lie;
  lie.transposed = m.column != 1;
  lie.fits = m.column == 1 || m.row == 1;
  lie.aligned = lie.transposed ? is_aligned(args, m, rows, m.column) : is_aligned(args, m, columns, m.row);
  return lie;
}

bool takes_matrix_cores(const GemmArgs& args) {
  const bool halves = args.a.type == args.b.type && (args.a.type == Scalar::f16 || args.a.type == Scalar::bf16);
  constexpr i64 most = (i64{1} << 31) - 1024;
  if (!halves || args.m > most || args.n > most || args.k > most) return false;
  return tile::ceil_div<i64>(args.m, 64) * tile::ceil_div<i64>(args.n, 64) <=
         most / tile::max<i64>(batch_count(args), 1);
}

using MmaGemm = void (*)(const GemmArgs& args, bool aligned, Executor& executor);
constexpr MmaGemm f16_gemms[2][2] = {{mma_gemm_f16_nn, mma_gemm_f16_nt}, {mma_gemm_f16_tn, mma_gemm_f16_tt}};
constexpr MmaGemm bf16_gemms[2][2] = {{mma_gemm_bf16_nn, mma_gemm_bf16_nt}, {mma_gemm_bf16_tn, mma_gemm_bf16_tt}};

/// Whether the matrix cores took it.
bool run_on_matrix_cores(GemmArgs args, Executor& executor) {
  if (!takes_matrix_cores(args)) return false;
  const Lie a = lie_of(args, args.a, args.m, args.k), b = lie_of(args, args.b, args.k, args.n);
  if (!a.fits || !b.fits) return false;
  const auto& gemms = args.a.type == Scalar::f16 ? f16_gemms : bf16_gemms;
  gemms[a.transposed][b.transposed](args, a.aligned && b.aligned, executor);
  return true;
}

void run(const GemmArgs& given, Executor& executor) {
  // Neighbouring threads write neighbouring columns: a column-major result is computed as its transpose.
  const bool turn = given.c.column != 1 && given.c.row == 1 && given.n > 1;
  GemmArgs args = turn ? transposed(given) : given;
  for (int d = args.batch_rank; d < max_batch_rank; ++d) {
    args.batch[d] = 1;
    for (MatrixArg* m : {&args.a, &args.b, &args.c, &args.addend, &args.bias, &args.slope}) m->batch[d] = 0;
  }
  args.batch_rank = max_batch_rank;
  if (args.a.type == Scalar::f64) return simt_gemm_f64(args, executor);
  if (args.a.type == Scalar::f32 && args.b.type == Scalar::f32) return simt_gemm_f32(args, executor);
  if (!run_on_matrix_cores(args, executor)) simt_gemm_mixed(args, executor);
}

}  // namespace

GemmTable gemm_table = {types_fit, run};

}  // namespace tessera::gpu_kernels
