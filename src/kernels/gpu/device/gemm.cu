// Which kernel computes a product.
#include "gemm.h"

namespace tessera::gpu_kernels {
namespace {

bool supports(const GemmArgs& args) {
  for (const MatrixArg* m : {&args.a, &args.b, &args.c, &args.addend, &args.bias, &args.slope}) {
    if (!m->data) continue;
    const bool narrow = m->type == Scalar::f32 || m->type == Scalar::f16 || m->type == Scalar::bf16;
    if (args.a.type == Scalar::f64 ? m->type != Scalar::f64 : !narrow) return false;
  }
  return true;
}

MatrixArg transposed(MatrixArg m) {
  const auto row = m.row;
  m.row = m.column;
  m.column = row;
  return m;
}

/// c^T = b^T a^T: the same work, with rows and columns of every matrix exchanged.
GemmArgs transposed(const GemmArgs& args) {
  GemmArgs t = args;
  t.m = args.n;
  t.n = args.m;
  t.a = transposed(args.b);
  t.b = transposed(args.a);
  t.c = transposed(args.c);
  t.addend = transposed(args.addend);
  t.bias = transposed(args.bias);
  t.slope = transposed(args.slope);
  return t;
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
  simt_gemm_mixed(args, executor);
}

}  // namespace

GemmTable gemm_table = {supports, run};

}  // namespace tessera::gpu_kernels
