// A matrix product whose kernel is written and compiled at run time: what the host passes, and what the few lines of
// the kernel are made of.
#pragma once
#include "../../view.h"

TESSERA_TILE_BEGIN

struct FusedGemmArgs {
  struct Matrix {
    const void* data;
    i64 row, column;  // strides in elements
  };
  static constexpr int max_addends = 16;
  Matrix a, b, y;
  int m, n, k;
  Matrix d[max_addends];
};

/// A stride as a type where it is known to be 0 or 1: stride_of<1>(x) is Int<1>, stride_of<any_stride>(x) is x.
inline constexpr int any_stride = -1;
template <int Known>
TESSERA_HD auto stride_of([[maybe_unused]] i64 stride) {
  if constexpr (Known == any_stride) return stride;
  else return Int<Known>{};
}

/// A matrix with the shape of the result, of which the strides are known as far as Row and Column say. Lanes > 1: so
/// many neighbours in a row, counted from the first column, are aligned to their size, as the compiler then knows.
template <class T, int Row, int Column, int Lanes>
TESSERA_HD auto result_matrix(const FusedGemmArgs& args, const FusedGemmArgs::Matrix& m) {
  void* memory = __builtin_assume_aligned(const_cast<void*>(m.data), Column == 1 ? Lanes * sizeof(T) : sizeof(T));
  const i64 row = Column == 1 ? m.row / Lanes * Lanes : m.row;
  return strided(static_cast<T*>(memory), tuple(i64{args.m}, i64{args.n}),
                 tuple(stride_of<Row>(row), stride_of<Column>(m.column)));
}

TESSERA_TILE_END
