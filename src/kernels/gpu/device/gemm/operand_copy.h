// Copies of operands that a product's kernels cannot read as they lie.
#pragma once
#include "kernels/args/gemm.h"
#include "kernels/gpu/device/elementwise/loops.h"

namespace tessera::gpu_kernels {

/// An operand on its way to where kernels can read it: 16-byte aligned rows, padded with zeros.
struct OperandCopy {
  MatrixArg from;  // no data: it stays
  i64 rows, columns, pitch;
  i64 batch[max_batch_rank];  // 1 where all indices share it
  TESSERA_HD i64 count() const {
    i64 count = 1;
    for (const i64 length : batch) count *= length;
    return count;
  }
  i64 bytes() const { return from.data ? count() * rows * pitch * size_of(from.type) : 0; }
};
/// Replaces the operand by its copy, whose place in the workspace is not known yet. The batch has all its dims.
OperandCopy copied(const GemmArgs& args, MatrixArg& m, i64 rows, i64 columns);
/// Copies to `to`, from a multiple of 16 bytes on, where `m` is then; gives what is left behind it.
void* run_copy(const OperandCopy& copy, MatrixArg& m, void* to, Executor& executor);

/// Gives the batch all max_batch_rank dims.
void widen_batch(GemmArgs& args);

}  // namespace tessera::gpu_kernels
