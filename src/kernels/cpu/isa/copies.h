// What of the elementwise table computes nothing.
#pragma once

#include "internal.h"
#include "kernels/args/elementwise.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

void copy(const CopyArgs& args, Executor& executor);
void triangle(const TriangleArgs& args, Executor& executor);

inline void set_strides(tile::LoopNest& loops, int k, const TensorArg& tensor) {
  for (int d = 0; d < loops.rank; ++d) loops.strides[k][d] = tensor.strides[d] * size_of(tensor.type);
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
