// A micro-kernel for planes of one channel and one filter: vectors run along places of a row, and rows of outputs share
// what they load, as each row of places is seen by one tap of every one of them.
#pragma once

#include "places.h"

TESSERA_TILE_BEGIN
namespace cpu {

/// Rows of outputs of a block, and vectors of places that so many rows have at most.
inline constexpr int window_rows = 4;
constexpr TESSERA_HD int window_vectors(int rows) { return min(8, (vector_registers - 1) / (rows + 1)); }

/// Taps in `rows` rows of `columns`. Every `phases`-th row of taps sees the next row of places, `row` elements on; the
/// taps of the first row of each phase lie at offsets[phase * columns + column].
struct WindowTaps {
  i64 rows, columns, phases, row;
  const i64* offsets;

  i64 of_phase(i64 phase) const { return (rows - phase + phases - 1) / phases; }
};

/// c[i * ldc + j] = sum over taps of f[tap] * b[i * row + place of the tap + j], for i < R and j along vectors of which
/// the last one has `last` places that exist. Each phase has at least R - 1 rows of taps.
template <class T>
using WindowKernel = void (*)(const WindowTaps& taps, const T* f, const T* b, T* c, i64 ldc, int last);

template <class V, int R, int Vectors>
__attribute__((noinline, aligned(64))) void window_kernel(const WindowTaps& taps, const element_t<V>* f,
                                                          const element_t<V>* b, element_t<V>* c, i64 ldc, int last) {
  using T = element_t<V>;
  constexpr int lanes = lanes_v<V>;
  V sum[R][Vectors];
  TESSERA_UNROLL
  for (int i = 0; i < R; ++i) {
    TESSERA_UNROLL
    for (int j = 0; j < Vectors; ++j) sum[i][j] = V(T(0));
  }
  const i64 f_row = taps.phases * taps.columns;
  const auto run = [&](auto get_last) __attribute__((always_inline)) {
    // A row of places, which outputs First to End see; `factors` are those of the first output's row of taps.
    const auto see = [&](const T* at, const T* factors, const i64* offsets, auto first, auto end)
        __attribute__((always_inline)) {
      for (i64 s = 0; s < taps.columns; ++s) {
        const T* const from = at + offsets[s];
        V row[Vectors];
        TESSERA_UNROLL
        for (int j = 0; j < Vectors - 1; ++j) row[j] = load<V>(from + j * lanes);
        row[Vectors - 1] = get_last(from + (Vectors - 1) * lanes);
        TESSERA_UNROLL
        for (int i = decltype(first)::value; i < decltype(end)::value; ++i) {
          const V factor(factors[s - i * f_row]);
          TESSERA_UNROLL
          for (int j = 0; j < Vectors; ++j) add_product(sum[i][j], factor, row[j]);
        }
      }
    };
    for (i64 p = 0; p < taps.phases; ++p) {
      const i64 count = taps.of_phase(p);
      const T *at = b, *factors = f + p * taps.columns;
      const i64* const offsets = taps.offsets + p * taps.columns;
      const auto next = [&] { at += taps.row, factors += f_row; };
      unroll<R - 1>([&](auto q) __attribute__((always_inline)) {
        see(at, factors, offsets, Int<0>{}, Int<decltype(q)::value + 1>{});
        next();
      });
      for (i64 q = R - 1; q < count; ++q, next()) see(at, factors, offsets, Int<0>{}, Int<R>{});
      unroll<R - 1>([&](auto q) __attribute__((always_inline)) {
        see(at, factors, offsets, Int<decltype(q)::value + 1>{}, Int<R>{});
        next();
      });
    }
  };
  if (last == lanes) {
    run([](const T* p) { return load<V>(p); });
  } else {
    run([=](const T* p) { return load<V>(p, last); });
  }
  TESSERA_UNROLL
  for (int i = 0; i < R; ++i) {
    TESSERA_UNROLL
    for (int j = 0; j < Vectors; ++j) {
      T* const to = c + i * ldc + j * lanes;
      if (j < Vectors - 1 || last == lanes) {
        store(to, sum[i][j]);
      } else {
        store_part(to, sum[i][j], last);
      }
    }
  }
}

namespace detail {

template <class V, int R, int... I>
WindowKernel<element_t<V>> pick_window(int vectors, Seq<I...>) {
  static constexpr WindowKernel<element_t<V>> table[] = {window_kernel<V, R, I + 1>...};
  return table[vectors - 1];
}

}  // namespace detail

/// The kernel of so many rows and vectors, at most window_rows and window_vectors(rows).
template <class V>
WindowKernel<element_t<V>> pick_window(int rows, int vectors) {
  if (rows == 1) return detail::pick_window<V, 1>(vectors, make_seq<window_vectors(1)>{});
  if (rows == 2) return detail::pick_window<V, 2>(vectors, make_seq<window_vectors(2)>{});
  if (rows == 3) return detail::pick_window<V, 3>(vectors, make_seq<window_vectors(3)>{});
  return detail::pick_window<V, 4>(vectors, make_seq<window_vectors(4)>{});
}

}  // namespace cpu
TESSERA_TILE_END
