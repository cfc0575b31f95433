// What every GEMM asks of its arguments first, for each instruction set and for GPUs.
#pragma once

#include "epilogue.h"

namespace tessera::TESSERA_ISA_KERNELS {

/// Elements are f64 throughout, or each of f32, f16 and bf16.
inline bool types_fit(const GemmArgs& args) {
  const MatrixArg* const all[] = {&args.a,     &args.b,      &args.c,        &args.addend,     &args.bias,
                                  &args.slope, &args.factor, &args.row_sums, &args.column_sums};
  for (const MatrixArg* m : all) {
    if (!m->data) continue;
    const bool narrow = m->type == Scalar::f32 || m->type == Scalar::f16 || m->type == Scalar::bf16;
    if (args.a.type == Scalar::f64 ? m->type != Scalar::f64 : !narrow) return false;
  }
  return true;
}

inline MatrixArg transposed(MatrixArg m) {
  const auto row = m.row;
  m.row = m.column;
  m.column = row;
  return m;
}

/// c^T = b^T a^T: the same work, with rows and columns of every matrix exchanged.
inline GemmArgs transposed(const GemmArgs& args) {
  GemmArgs t = args;
  t.m = args.n;
  t.n = args.m;
  t.a = transposed(args.b);
  t.b = transposed(args.a);
  t.c = transposed(args.c);
  t.addend = transposed(args.addend);
  t.bias = transposed(args.bias);
  t.slope = transposed(args.slope);
  t.factor = transposed(args.factor);
  t.row_sums = transposed(args.column_sums);
  t.column_sums = transposed(args.row_sums);
  return t;
}

}  // namespace tessera::TESSERA_ISA_KERNELS
