// Micro-kernels in which each lane has a filter of its own: sums over taps of vectors by vectors. One slides a window
// along neighbours, which it loads once for all taps that see them; the other one reads taps wherever they lie.
#pragma once

#include "places.h"

TESSERA_TILE_BEGIN
namespace cpu {

/// Results of a block, and taps of a sliding one.
inline constexpr int lane_results = 8, slide_taps = 7;

/// Rows of taps and of neighbours, of which those from `begin` on and before `end` exist.
struct SlideRows {
  i64 count, x_row, f_row, x_step, f_step;
  int begin, end;
};

/// to[i * to_step + lane] = (or +=) sum over rows r and taps s of x[r * x_row + (i + s) * x_step + lane] *
/// f[r * f_row + s * f_step + lane], and the same of further groups of results, whose neighbours exist.
template <class T>
using SlideKernel = void (*)(const SlideRows& rows, i64 groups, const T* x, const T* f, T* to, i64 to_step, bool add);

template <class V, int Results, int Taps>
__attribute__((noinline, aligned(64))) void slide_kernel(const SlideRows& rows, i64 groups, const element_t<V>* x,
                                                         const element_t<V>* f, element_t<V>* to, i64 to_step,
                                                         bool add) {
  using T = element_t<V>;
  constexpr int parts = min(sum_parts(Results), Taps), seen = Results + Taps - 1;
  const auto run = [&](auto exists) __attribute__((always_inline)) {
    V sum[parts][Results];
    TESSERA_UNROLL
    for (int p = 0; p < parts; ++p) {
      TESSERA_UNROLL
      for (int i = 0; i < Results; ++i) sum[p][i] = V(T(0));
    }
    const T *row = x, *factors = f;
    for (i64 r = 0; r < rows.count; ++r, row += rows.x_row, factors += rows.f_row) {
      V factor[Taps];
      TESSERA_UNROLL
      for (int s = 0; s < Taps; ++s) factor[s] = load<V>(factors + s * rows.f_step);
      const T* at = row;
      unroll<seen>([&](auto place) __attribute__((always_inline)) {
        constexpr int u = decltype(place)::value;
        if (exists(u)) {
          const V v = load<V>(at);
          unroll<Taps>([&](auto tap) __attribute__((always_inline)) {
            constexpr int s = decltype(tap)::value, i = u - s;
            if constexpr (i >= 0 && i < Results) sum[s % parts][i] = fma(v, factor[s], sum[s % parts][i]);
          });
        }
        at += rows.x_step;
      });
    }
    TESSERA_UNROLL
    for (int i = 0; i < Results; ++i) {
      TESSERA_UNROLL
      for (int p = 1; p < parts; ++p) sum[0][i] += sum[p][i];
      T* const result = to + i * to_step;
      store(result, add ? load<V>(result) + sum[0][i] : sum[0][i]);
    }
  };
  if (rows.begin > 0 || rows.end < seen) {
    run([&](int u) __attribute__((always_inline)) { return u >= rows.begin && u < rows.end; });
    --groups;
    x += Results * rows.x_step, to += Results * to_step;
  }
  for (; groups > 0; --groups, x += Results * rows.x_step, to += Results * to_step) {
    run([](int) __attribute__((always_inline)) { return true; });
  }
}

/// Factors that a block of sums shares, and how many rows of taps it has at most.
inline constexpr int slide_factors = 4, slide_sums_taps = 8;
constexpr TESSERA_HD int slide_sums_rows(int taps) {
  return min(7, max(1, (vector_registers - 2 - slide_factors) / taps));
}

/// So many places along a row, of which those from `begin` on and before `end` exist.
struct SlideSums {
  i64 count, x_row, x_step, f_step, to_row, begin, end;
};

/// to[r * to_row + s * lanes + lane] += sum over i of x[r * x_row + (i + s) * x_step + lane] * f[i * f_step + lane]:
/// all sums stay in registers along the row.
template <class T>
using SlideSumsKernel = void (*)(const SlideSums& k, const T* x, const T* f, T* to);

template <class V, int Rows, int Taps>
__attribute__((noinline, aligned(64))) void slide_sums_kernel(const SlideSums& k, const element_t<V>* x,
                                                              const element_t<V>* f, element_t<V>* to) {
  using T = element_t<V>;
  V sum[Rows][Taps];
  TESSERA_UNROLL
  for (int r = 0; r < Rows; ++r) {
    TESSERA_UNROLL
    for (int s = 0; s < Taps; ++s) sum[r][s] = load<V>(to + r * k.to_row + s * V::lanes);
  }
  const T* factor_at = f;
  const auto add = [&](auto factors, auto exists) __attribute__((always_inline)) {
    constexpr int n = decltype(factors)::value;
    V factor[n];
    TESSERA_UNROLL
    for (int i = 0; i < n; ++i, factor_at += k.f_step) factor[i] = load<V>(factor_at);
    const T* row = x;
    unroll<Rows>([&](auto index) __attribute__((always_inline)) {
      constexpr int r = decltype(index)::value;
      const T* at = row;
      unroll<n + Taps - 1>([&](auto place) __attribute__((always_inline)) {
        constexpr int u = decltype(place)::value;
        if (exists(u)) {
          const V v = load<V>(at);
          unroll<Taps>([&](auto tap) __attribute__((always_inline)) {
            constexpr int s = decltype(tap)::value, i = u - s;
            if constexpr (i >= 0 && i < n) sum[r][s] = fma(v, factor[i], sum[r][s]);
          });
        }
        at += k.x_step;
      });
      row += k.x_row;
    });
    x += n * k.x_step;
  };
  for (i64 i = 0; i < k.count;) {
    const i64 whole = i >= k.begin ? min(k.count, k.end - Taps + 1) : 0;  // the first one beyond whole windows
    for (; i + slide_factors <= whole; i += slide_factors) add(Int<slide_factors>{}, [](int) { return true; });
    for (; i < whole; ++i) add(Int<1>{}, [](int) { return true; });
    if (i < k.count) {
      add(
          Int<1>{}, [&](int u) __attribute__((always_inline)) { return i + u >= k.begin && i + u < k.end; });
      ++i;
    }
  }
  TESSERA_UNROLL
  for (int r = 0; r < Rows; ++r) {
    TESSERA_UNROLL
    for (int s = 0; s < Taps; ++s) store(to + r * k.to_row + s * V::lanes, sum[r][s]);
  }
}

/// to[i * to_step + lane] = sum over steps k of x[offsets[k] + i * x_step + lane] * f[k * lanes + lane], of which the
/// first `last` lanes exist.
template <class T>
using LanesKernel = void (*)(i64 steps, const T* x, i64 x_step, const i64* offsets, const T* f, T* to, i64 to_step,
                             int last);

template <class V, int Results>
__attribute__((noinline, aligned(64))) void lanes_kernel(i64 steps, const element_t<V>* x, i64 x_step,
                                                         const i64* offsets, const element_t<V>* f, element_t<V>* to,
                                                         i64 to_step, int last) {
  using T = element_t<V>;
  constexpr int parts = sum_parts(Results);
  V sum[parts][Results];
  TESSERA_UNROLL
  for (int p = 0; p < parts; ++p) {
    TESSERA_UNROLL
    for (int i = 0; i < Results; ++i) sum[p][i] = V(T(0));
  }
  const auto run = [&](auto get) __attribute__((always_inline)) {
    const auto add = [&](i64 k, auto part) __attribute__((always_inline)) {
      const T* at = x + offsets[k];
      const V factor = load<V>(f + k * V::lanes);
      TESSERA_UNROLL
      for (int i = 0; i < Results; ++i, at += x_step) {
        V& to = sum[decltype(part)::value][i];
        to = fma(get(at), factor, to);
      }
    };
    i64 k = 0;
    for (; k + parts <= steps; k += parts) {
      unroll<parts>([&](auto p) __attribute__((always_inline)) { add(k + decltype(p)::value, p); });
    }
    if constexpr (parts > 1) {
      for (; k < steps; ++k) add(k, Int<0>{});
    }
  };
  if (last == V::lanes) {
    run([](const T* p) { return load<V>(p); });
  } else {
    run([=](const T* p) { return load<V>(p, last); });
  }
  TESSERA_UNROLL
  for (int i = 0; i < Results; ++i) {
    TESSERA_UNROLL
    for (int p = 1; p < parts; ++p) sum[0][i] += sum[p][i];
    if (last == V::lanes) {
      store(to + i * to_step, sum[0][i]);
    } else {
      store_part(to + i * to_step, sum[0][i], last);
    }
  }
}

namespace detail {

template <class V, int Taps, int... I>
SlideSumsKernel<element_t<V>> slide_sums_of(int rows, Seq<I...>) {
  static constexpr SlideSumsKernel<element_t<V>> table[] = {slide_sums_kernel<V, I + 1, Taps>...};
  return table[rows - 1];
}
template <class V, int... I>
SlideSumsKernel<element_t<V>> pick_slide_sums(int rows, int taps, Seq<I...>) {
  using Pick = SlideSumsKernel<element_t<V>> (*)(int);
  static constexpr Pick table[] = {
      [](int n) { return slide_sums_of<V, I + 1>(n, make_seq<slide_sums_rows(I + 1)>{}); }...};
  return table[taps - 1](rows);
}
template <class V, int Results, int... I>
SlideKernel<element_t<V>> slide_of(int taps, Seq<I...>) {
  static constexpr SlideKernel<element_t<V>> table[] = {slide_kernel<V, Results, I + 1>...};
  return table[taps - 1];
}
template <class V, int... I>
SlideKernel<element_t<V>> pick_slide(int results, int taps, Seq<I...>) {
  using Pick = SlideKernel<element_t<V>> (*)(int);
  static constexpr Pick table[] = {[](int n) { return slide_of<V, I + 1>(n, make_seq<slide_taps>{}); }...};
  return table[results - 1](taps);
}
template <class V, int... I>
LanesKernel<element_t<V>> pick_lanes(int results, Seq<I...>) {
  static constexpr LanesKernel<element_t<V>> table[] = {lanes_kernel<V, I + 1>...};
  return table[results - 1];
}

}  // namespace detail

/// The kernels of so many results, at most lane_results, and of at most slide_taps.
template <class V>
SlideKernel<element_t<V>> pick_slide(int results, int taps) {
  return detail::pick_slide<V>(results, taps, make_seq<lane_results>{});
}
/// Of at most slide_sums_rows(taps) rows of at most slide_sums_taps.
template <class V>
SlideSumsKernel<element_t<V>> pick_slide_sums(int rows, int taps) {
  return detail::pick_slide_sums<V>(rows, taps, make_seq<slide_sums_taps>{});
}
template <class V>
LanesKernel<element_t<V>> pick_lanes(int results) {
  return detail::pick_lanes<V>(results, make_seq<lane_results>{});
}

}  // namespace cpu
TESSERA_TILE_END
