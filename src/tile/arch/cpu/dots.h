// A micro-kernel of few filters and many steps: its lanes are steps, so that none is idle for want of filters, and are
// added up at the end.
#pragma once

#include "places.h"
#include "stretches.h"

TESSERA_TILE_BEGIN
namespace cpu {

/// Filters that dots are faster for, and pixels of a block of so many filters.
inline constexpr int dots_filters = vector_registers == 32 ? 8 : 6;
constexpr TESSERA_HD int dots_rows(int filters) { return min(12, (vector_registers - 2) / (filters + 1)); }

/// c[i * ldc + j] = sum over steps k of a[i * a_row + k] * b[j * b_row + k].
template <class T>
using DotsKernel = void (*)(const Stretches& k, const T* a, i64 a_row, const T* b, i64 b_row, T* c, i64 ldc);

template <class V, int R, int Filters>
__attribute__((noinline, aligned(64))) void dots_kernel(const Stretches& k, const element_t<V>* a, i64 a_row,
                                                        const element_t<V>* b, i64 b_row, element_t<V>* c, i64 ldc) {
  using T = element_t<V>;
  constexpr int lanes = lanes_v<V>;
  V sum[R][Filters];
  TESSERA_UNROLL
  for (int i = 0; i < R; ++i) {
    TESSERA_UNROLL
    for (int j = 0; j < Filters; ++j) sum[i][j] = V(T(0));
  }
  detail::Rows<T, R> rows(a, a_row);
  for (i64 s = 0; s < k.count; ++s) {
    rows.move_to(a + k.offsets[s]);
    const auto add = [&](auto get) __attribute__((always_inline)) {
      V left[R];
      unroll<R>([&](auto i) __attribute__((always_inline)) {
        left[decltype(i)::value] = get(rows.template pointer<decltype(i)::value>());
        detail::keep(left[decltype(i)::value]);
      });
      TESSERA_UNROLL
      for (int j = 0; j < Filters; ++j) {
        const V right = get(b + j * b_row);
        TESSERA_UNROLL
        for (int i = 0; i < R; ++i) add_product(sum[i][j], left[i], right);
      }
    };
    i64 left = k.length;
    for (; left >= lanes; left -= lanes, b += lanes, rows.advance(lanes)) add([](const T* p) { return load<V>(p); });
    if (left > 0) add([n = static_cast<int>(left)](const T* p) { return load<V>(p, n); });
    b += left;
  }
  TESSERA_UNROLL
  for (int i = 0; i < R; ++i) {
    TESSERA_UNROLL
    for (int j = 0; j < Filters; ++j) c[i * ldc + j] = reduce_sum(sum[i][j]);
  }
}

namespace detail {

template <class V, int Filters, int... I>
DotsKernel<element_t<V>> pick_dots(int rows, Seq<I...>) {
  static constexpr DotsKernel<element_t<V>> table[] = {dots_kernel<V, I + 1, Filters>...};
  return table[rows - 1];
}
template <class V, int... J>
DotsKernel<element_t<V>> pick_dots_of(int rows, int filters, Seq<J...>) {
  using Pick = DotsKernel<element_t<V>> (*)(int);
  static constexpr Pick table[] = {[](int r) { return pick_dots<V, J + 1>(r, make_seq<dots_rows(J + 1)>{}); }...};
  return table[filters - 1](rows);
}

}  // namespace detail

/// The kernel of so many rows, at most dots_rows(filters), and filters, at most dots_filters.
template <class V>
DotsKernel<element_t<V>> pick_dots(int rows, int filters) {
  return detail::pick_dots_of<V>(rows, filters, make_seq<dots_filters>{});
}

}  // namespace cpu
TESSERA_TILE_END
