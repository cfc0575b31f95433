// Micro-kernels whose vectors run along places of planes, which they read where they lie. A step is a channel at a tap:
// all places see it at one distance from their own. One computes places of a few filters; the other one sums over
// places, for the gradient of filters.
#pragma once

#include "microkernel.h"
#include "partial.h"

TESSERA_TILE_BEGIN
namespace cpu {

#if defined(__AVX512F__)
inline constexpr int vector_registers = 32, places_rows = 8;
#else
inline constexpr int vector_registers = 16, places_rows = 6;
#endif
inline constexpr int sums_rows = 4;

/// Parts in which each of so many sums is kept, as few of them would wait for each other's multiplications.
constexpr TESSERA_HD int sum_parts(int sums) { return sums >= 6 ? 1 : sums >= 3 ? 2 : 4; }

/// Vectors of places that a block of so many filters has at most.
constexpr TESSERA_HD int places_vectors(int rows) { return min(8, (vector_registers - 1) / (rows + 1)); }
/// Steps whose sums with so many filters fit into registers.
constexpr TESSERA_HD int sums_steps(int rows) { return min(12, (vector_registers - 1 - rows) / rows); }

/// c[i * ldc + j] = sum over steps k of a[k * R + i] * b[offsets[k] + j], where j runs over vectors of which the last
/// one has `last` places that exist.
template <class T>
using PlacesKernel = void (*)(i64 steps, const T* a, const T* b, const i64* offsets, T* c, i64 ldc, int last);

template <class V, int R, int Vectors>
__attribute__((noinline, aligned(64))) void places_kernel(i64 steps, const element_t<V>* a, const element_t<V>* b,
                                                          const i64* offsets, element_t<V>* c, i64 ldc, int last) {
  using T = element_t<V>;
  constexpr int lanes = lanes_v<V>;
  constexpr int parts = sum_parts(R * Vectors);
  V sum[parts][R][Vectors];
  TESSERA_UNROLL
  for (int p = 0; p < parts; ++p) {
    TESSERA_UNROLL
    for (int i = 0; i < R; ++i) {
      TESSERA_UNROLL
      for (int j = 0; j < Vectors; ++j) sum[p][i][j] = V(T(0));
    }
  }
  const auto run = [&](auto get_last) __attribute__((always_inline)) {
    const auto step = [&](i64 k, auto part) __attribute__((always_inline)) {
      const T* const at = b + offsets[k];
      V row[Vectors];
      TESSERA_UNROLL
      for (int j = 0; j < Vectors - 1; ++j) row[j] = load<V>(at + j * lanes);
      row[Vectors - 1] = get_last(at + (Vectors - 1) * lanes);
      TESSERA_UNROLL
      for (int i = 0; i < R; ++i) {
        const V left(a[k * R + i]);
        TESSERA_UNROLL
        for (int j = 0; j < Vectors; ++j) add_product(sum[decltype(part)::value][i][j], left, row[j]);
      }
    };
    i64 k = 0;
    for (; k + parts <= steps; k += parts) {
      unroll<parts>([&](auto p) __attribute__((always_inline)) { step(k + decltype(p)::value, p); });
    }
    if constexpr (parts > 1) {
      for (; k < steps; ++k) step(k, Int<0>{});
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
      TESSERA_UNROLL
      for (int p = 1; p < parts; ++p) sum[0][i][j] += sum[p][i][j];
      T* const to = c + i * ldc + j * lanes;
      if (j < Vectors - 1 || last == lanes) {
        store(to, sum[0][i][j]);
      } else {
        store_part(to, sum[0][i][j], last);
      }
    }
  }
}

/// So many rows of places, a distance apart in either factor.
struct PlaceRows {
  i64 count, length, a_row, b_row;
};

/// Lanes of the vector sums[i * lds + k] += a[i * a_pitch + j] * b[offsets[k] + j] for places j of all rows, i < R and
/// k < Steps.
template <class T>
using SumsKernel = void (*)(const PlaceRows& rows, const T* a, i64 a_pitch, const T* b, const i64* offsets, T* sums,
                            i64 lds);

template <class V, int R, int Steps>
__attribute__((noinline, aligned(64))) void sums_kernel(const PlaceRows& rows, const element_t<V>* a, i64 a_pitch,
                                                        const element_t<V>* b, const i64* offsets, element_t<V>* sums,
                                                        i64 lds) {
  using T = element_t<V>;
  constexpr int lanes = lanes_v<V>, parts = sum_parts(R * Steps);
  V sum[parts][R][Steps];
  TESSERA_UNROLL
  for (int p = 0; p < parts; ++p) {
    TESSERA_UNROLL
    for (int i = 0; i < R; ++i) {
      TESSERA_UNROLL
      for (int k = 0; k < Steps; ++k) sum[p][i][k] = V(T(0));
    }
  }
  for (i64 row = 0; row < rows.count; ++row, a += rows.a_row, b += rows.b_row) {
    const auto add = [&](i64 j, auto part, auto get) __attribute__((always_inline)) {
      V left[R];
      TESSERA_UNROLL
      for (int i = 0; i < R; ++i) left[i] = get(a + i * a_pitch + j);
      TESSERA_UNROLL
      for (int k = 0; k < Steps; ++k) {
        const V right = get(b + offsets[k] + j);
        TESSERA_UNROLL
        for (int i = 0; i < R; ++i) add_product(sum[decltype(part)::value][i][k], left[i], right);
      }
    };
    const auto whole = [](const T* p) { return load<V>(p); };
    i64 j = 0;
    for (; j + parts * lanes <= rows.length; j += parts * lanes) {
      unroll<parts>([&](auto p) __attribute__((always_inline)) { add(j + decltype(p)::value * lanes, p, whole); });
    }
    if constexpr (parts > 1) {
      for (; j + lanes <= rows.length; j += lanes) add(j, Int<0>{}, whole);
    }
    if (const int rest = static_cast<int>(rows.length - j); rest > 0) {
      add(j, Int<parts - 1>{}, [=](const T* p) { return load<V>(p, rest); });
    }
  }
  TESSERA_UNROLL
  for (int i = 0; i < R; ++i) {
    TESSERA_UNROLL
    for (int k = 0; k < Steps; ++k) {
      T* const to = sums + (i * lds + k) * lanes;
      V total = sum[0][i][k];
      TESSERA_UNROLL
      for (int p = 1; p < parts; ++p) total += sum[p][i][k];
      store(to, load<V>(to) + total);
    }
  }
}

namespace detail {

template <class V, int R, int... I>
PlacesKernel<element_t<V>> places_of(int vectors, Seq<I...>) {
  static constexpr PlacesKernel<element_t<V>> table[] = {places_kernel<V, R, I + 1>...};
  return table[vectors - 1];
}
template <class V, int... I>
PlacesKernel<element_t<V>> pick_places(int rows, int vectors, Seq<I...>) {
  using Pick = PlacesKernel<element_t<V>> (*)(int);
  static constexpr Pick table[] = {[](int n) { return places_of<V, I + 1>(n, make_seq<places_vectors(I + 1)>{}); }...};
  return table[rows - 1](vectors);
}
template <class V, int R, int... I>
SumsKernel<element_t<V>> sums_of(int steps, Seq<I...>) {
  static constexpr SumsKernel<element_t<V>> table[] = {sums_kernel<V, R, I + 1>...};
  return table[steps - 1];
}
template <class V, int... I>
SumsKernel<element_t<V>> pick_sums(int rows, int steps, Seq<I...>) {
  using Pick = SumsKernel<element_t<V>> (*)(int);
  static constexpr Pick table[] = {[](int n) { return sums_of<V, I + 1>(n, make_seq<sums_steps(I + 1)>{}); }...};
  return table[rows - 1](steps);
}

}  // namespace detail

/// The kernels of so many filters, at most places_rows, by at most places_vectors(rows); of at most sums_rows by
/// sums_steps(rows).
template <class V>
PlacesKernel<element_t<V>> pick_places(int rows, int vectors) {
  return detail::pick_places<V>(rows, vectors, make_seq<places_rows>{});
}
template <class V>
SumsKernel<element_t<V>> pick_sums(int rows, int steps) {
  return detail::pick_sums<V>(rows, steps, make_seq<sums_rows>{});
}

}  // namespace cpu
TESSERA_TILE_END
