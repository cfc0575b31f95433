// Micro-kernels: a small block of C held in registers while k runs. They are ordinary functions, compiled once
// per element type and block shape, whatever the views and the epilogue are.
#pragma once

#include "../../numbers.h"
#include "../../vec.h"

TESSERA_TILE_BEGIN
namespace cpu {

/// Register block of the outer-product kernel: rows x vectors of C, leaving registers for a row of B and a
/// broadcast element of A.
#if defined(__AVX512F__)
inline constexpr int block_rows = 14;
#else
inline constexpr int block_rows = 6;
#endif
inline constexpr int block_vectors = 2;

/// Columns of C per register block.
template <class T>
inline constexpr int block_columns = block_vectors* NativeVec<T>::lanes;

/// c[i * ldc + j] = (or +=) sum over k of a[k * R + i] * b[k * b_step + j], where i < R and j runs over
/// `Vectors` vectors of which the last one has `last` columns that exist.
template <class T>
using OuterKernel = void (*)(i64 k, const T* a, const T* b, i64 b_step, T* c, i64 ldc, int last, bool add);

template <class V, int R, int Vectors>
__attribute__((noinline)) void outer_kernel(i64 k, const element_t<V>* a, const element_t<V>* b, i64 b_step,
                                            element_t<V>* c, i64 ldc, int last, bool add) {
  constexpr int lanes = lanes_v<V>;
  V sum[R][Vectors];
  TESSERA_UNROLL
  for (int i = 0; i < R; ++i) {
    TESSERA_UNROLL
    for (int j = 0; j < Vectors; ++j) sum[i][j] = V(0);
  }
  TESSERA_UNROLL4
  for (i64 step = 0; step < k; ++step) {
    V row[Vectors];
    TESSERA_UNROLL
    for (int j = 0; j < Vectors; ++j) row[j] = load<V>(b + j * lanes);
    TESSERA_UNROLL
    for (int i = 0; i < R; ++i) {
      const V left(a[i]);
      TESSERA_UNROLL
      for (int j = 0; j < Vectors; ++j) sum[i][j] = fma(left, row[j], sum[i][j]);
    }
    a += R;
    b += b_step;
  }
  const auto write = [&](auto get_last, auto put_last) {
    TESSERA_UNROLL
    for (int i = 0; i < R; ++i) {
      element_t<V>* to = c + i * ldc;
      TESSERA_UNROLL
      for (int j = 0; j < Vectors; ++j, to += lanes) {
        const bool is_last = j == Vectors - 1;
        if (add) sum[i][j] += is_last ? get_last(to) : load<V>(to);
        if (is_last) {
          put_last(to, sum[i][j]);
        } else {
          store(to, sum[i][j]);
        }
      }
    }
  };
  if (last == lanes) {
    write([](auto* p) { return load<V>(p); }, [](auto* p, V v) { store(p, v); });
  } else {
    write([=](auto* p) { return load<V>(p, last); }, [=](auto* p, V v) { store(p, v, last); });
  }
}

template <class V, int Vectors, int... I>
OuterKernel<element_t<V>> pick_outer(int rows, Seq<I...>) {
  static constexpr OuterKernel<element_t<V>> table[] = {outer_kernel<V, I + 1, Vectors>...};
  return table[rows - 1];
}

}  // namespace cpu
TESSERA_TILE_END
