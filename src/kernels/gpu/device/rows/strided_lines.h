// Lines along one dim of several operands, whatever their strides and types.
#pragma once
#include "rows.h"

namespace tessera::gpu_kernels {

/// Lines along a dim of N operands: where they begin, and the step along each.
template <int N>
struct StridedLines {
  Nest<N> starts;
  i64 length;
  i64 step[N];
  void* data[N];
  Scalar type[N];
  int bytes;  // of an element of the first operand
};

template <int N, class Args>
StridedLines<N> lines_of(const Args& args, const TensorArg* const (&operand)[N]) {
  StridedLines<N> lines{};
  lines.length = args.lengths[args.dim];
  lines.bytes = static_cast<int>(size_of(operand[0]->type));
  for (int k = 0; k < N; ++k) {
    lines.step[k] = operand[k]->strides[args.dim];
    lines.data[k] = operand[k]->data;
    lines.type[k] = operand[k]->type;
  }
  for (int d = 0; d < args.rank; ++d) {
    if (d == args.dim) continue;
    i64 step[N];
    for (int k = 0; k < N; ++k) step[k] = operand[k]->strides[d];
    lines.starts.add(args.lengths[d], step);
  }
  return lines;
}

inline bool is_floating(Scalar type) { return type >= Scalar::f16; }

}  // namespace tessera::gpu_kernels
