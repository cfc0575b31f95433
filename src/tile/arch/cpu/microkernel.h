// Micro-kernels: a small block of C held in registers while k runs. They are ordinary functions, compiled once
// per element type and block shape, whatever the views and the epilogue are; those of float and double in
// microkernel_*.cpp.
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

/// Steps of k that the kernel of packed panels takes at a time: what is done once a round uses ports of
/// multiplications. Others have too many pointers for long rounds.
inline constexpr int round_steps = 8;

/// Memory that a kernel asks for in every round of steps, into the second-level cache; null: there is none.
struct Ahead {
  // Rows that will be read soon, `step` bytes apart from `at` to `last`, each as long as a row of B.
  const char *at = nullptr, *last = nullptr;
  i64 step = 0;
  // A stretch, so many bytes at a time.
  const char* stretch = nullptr;
  i64 stride = 0;

  template <class T>
  static TESSERA_HD Ahead rows(const T* first, i64 pitch, i64 count) {
    const auto* at = reinterpret_cast<const char*>(first);
    const i64 step = pitch * static_cast<i64>(sizeof(T));
    return {at, at + (count - 1) * step, step};
  }
  TESSERA_HD bool any() const { return at != nullptr || stretch != nullptr; }
  /// The same, and instead of what there is none of, a line that is there already.
  TESSERA_HD Ahead or_else(const void* line) const {
    Ahead r = *this;
    if (at == nullptr) r.at = r.last = static_cast<const char*>(line);
    if (stretch == nullptr) r.stretch = static_cast<const char*>(line);
    return r;
  }
  template <int Bytes>
  TESSERA_HD void ask_row() {
    TESSERA_UNROLL
    for (int i = 0; i < Bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
    at = min(at + step, last);
  }
  template <int Bytes>
  TESSERA_HD void ask() {
    ask_row<Bytes>();
    __builtin_prefetch(stretch, 0, 2);
    stretch += stride;
  }
};

namespace detail {

/// c[i * ldc + j] = (or +=) sum over k steps of left[i * distance] * row[j], where left = next(row) moves on by one
/// step, i < R, and j runs over `Vectors` vectors of which the last one has `last` columns that exist. Every round of
/// steps begins with ask(), the last ones only where that has something to ask for.
template <class V, int R, int Vectors, int Round = 4, class Distance, class Next, class Ask>
TESSERA_HD void sum_block(i64 k, Distance distance, const Next& next, bool asks, const Ask& ask, element_t<V>* c,
                          i64 ldc, int last, bool add) {
  constexpr int lanes = lanes_v<V>;
  V sum[R][Vectors];
  TESSERA_UNROLL
  for (int i = 0; i < R; ++i) {
    TESSERA_UNROLL
    for (int j = 0; j < Vectors; ++j) sum[i][j] = V(0);
  }
  const auto one_step = [&]() __attribute__((always_inline)) {
    V row[Vectors];
    const element_t<V>* a = next(row);
    TESSERA_UNROLL
    for (int i = 0; i < R; ++i) {
      const V left(a[i * distance]);
      TESSERA_UNROLL
      for (int j = 0; j < Vectors; ++j) add_product(sum[i][j], left, row[j]);
    }
  };
  const auto rounds = [&](i64 steps) __attribute__((always_inline)) {
    for (; steps > 0; steps -= Round) {
      ask();
      unroll<Round>([&](auto) __attribute__((always_inline)) { one_step(); });
    }
  };
  // C is asked for shortly before it is needed: at the start, a deep block would push it out of the cache again.
  constexpr i64 before = 1536 / (R * Vectors) / Round * Round;  // steps: 768 cycles of multiplication
  const i64 whole = k / Round * Round, early = max<i64>(0, whole - before);
  rounds(early);
  TESSERA_UNROLL
  for (int i = 0; i < R; ++i) {
    __builtin_prefetch(c + i * ldc, 1);
    __builtin_prefetch(c + i * ldc + (Vectors - 1) * lanes + last - 1, 1);
  }
  if (asks) rounds(whole - early);
  TESSERA_UNROLL4
  for (i64 rest = k - (asks ? whole : early); rest > 0; --rest) one_step();
  const auto write = [&](auto get_last, auto put_last) __attribute__((always_inline)) {
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

}  // namespace detail

/// Both factors packed, or B in rows b_step apart: a[k * R + i], b[k * b_step + j].
template <class T>
using OuterKernel = void (*)(i64 k, const T* a, const T* b, i64 b_step, T* c, i64 ldc, int last, bool add,
                             const Ahead& ahead);

// Aligned, since the same loop elsewhere within a line takes 2 % longer.
template <class V, int R, int Vectors>
__attribute__((noinline, aligned(64))) void outer_kernel(i64 k, const element_t<V>* a, const element_t<V>* b,
                                                         i64 b_step, element_t<V>* c, i64 ldc, int last, bool add,
                                                         const Ahead& ahead) {
  const auto next = [&](V(&row)[Vectors]) __attribute__((always_inline)) {
    TESSERA_UNROLL
    for (int j = 0; j < Vectors; ++j) row[j] = load<V>(b + j * lanes_v<V>);
    const auto* left = a;
    a += R;
    b += b_step;
    return left;
  };
  Ahead soon = ahead.or_else(b);
  const auto ask = [&]() __attribute__((always_inline)) { soon.ask<Vectors* static_cast<int>(sizeof(V))>(); };
  detail::sum_block<V, R, Vectors, round_steps>(k, Int<1>{}, next, ahead.any(), ask, c, ldc, last, add);
}

/// The rows of A in place, each contiguous along k: a[i * a_row + k], b[k * b_step + j].
template <class T>
using RowsKernel = void (*)(i64 k, const T* a, i64 a_row, const T* b, i64 b_step, T* c, i64 ldc, int last, bool add,
                            const Ahead& ahead);

template <class V, int R, int Vectors>
__attribute__((noinline)) void rows_kernel(i64 k, const element_t<V>* a, i64 a_row, const element_t<V>* b, i64 b_step,
                                           element_t<V>* c, i64 ldc, int last, bool add, const Ahead& ahead) {
  const auto next = [&](V(&row)[Vectors]) __attribute__((always_inline)) {
    TESSERA_UNROLL
    for (int j = 0; j < Vectors; ++j) row[j] = load<V>(b + j * lanes_v<V>);
    b += b_step;
    return a++;
  };
  Ahead soon = ahead.or_else(b);  // rows only: pointers to rows of A take the registers
  const auto ask = [&]() __attribute__((always_inline)) { soon.ask_row<Vectors* static_cast<int>(sizeof(V))>(); };
  detail::sum_block<V, R, Vectors>(k, a_row, next, ahead.any(), ask, c, ldc, last, add);
}

/// The columns of A in place, a_step apart: a[k * a_step + i], b[k * b_step + j].
template <class T>
using ColumnsKernel = void (*)(i64 k, const T* a, i64 a_step, const T* b, i64 b_step, T* c, i64 ldc, int last,
                               bool add);

template <class V, int R, int Vectors>
__attribute__((noinline)) void columns_kernel(i64 k, const element_t<V>* a, i64 a_step, const element_t<V>* b,
                                              i64 b_step, element_t<V>* c, i64 ldc, int last, bool add) {
  const auto next = [&](V(&row)[Vectors]) __attribute__((always_inline)) {
    TESSERA_UNROLL
    for (int j = 0; j < Vectors; ++j) row[j] = load<V>(b + j * lanes_v<V>);
    const auto* left = a;
    a += a_step;
    b += b_step;
    return left;
  };
  const auto ask = [] {};
  detail::sum_block<V, R, Vectors>(k, Int<1>{}, next, false, ask, c, ldc, last, add);
}

/// A packed, B in place: vector j of step k at b[j] + steps[k], whole.
template <class T>
using PlacedKernel = void (*)(i64 k, const T* a, const T* const* b, const i64* steps, T* c, i64 ldc, bool add);

template <class V, int R, int Vectors>
__attribute__((noinline)) void placed_kernel(i64 k, const element_t<V>* a, const element_t<V>* const* b,
                                             const i64* steps, element_t<V>* c, i64 ldc, bool add) {
  const element_t<V>* first[Vectors];
  for (int j = 0; j < Vectors; ++j) first[j] = b[j];
  const auto next = [&](V(&row)[Vectors]) __attribute__((always_inline)) {
    const i64 distance = *steps++;
    TESSERA_UNROLL
    for (int j = 0; j < Vectors; ++j) row[j] = load<V>(first[j] + distance);
    const auto* left = a;
    a += R;
    return left;
  };
  const auto ask = [] {};
  detail::sum_block<V, R, Vectors>(k, Int<1>{}, next, false, ask, c, ldc, lanes_v<V>, add);
}

/// Up to three rows and several packed panels, `distance` apart, whose columns of C follow each other: as many as few
/// rows need to hide the latency of multiplications.
template <class T>
using PanelsKernel = void (*)(i64 k, const T* a, const T* b, i64 distance, T* c, i64 ldc, bool add);

constexpr TESSERA_HD int panels_at_once(i64 rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

template <class V, int R>
__attribute__((noinline)) void panels_kernel(i64 k, const element_t<V>* a, const element_t<V>* b, i64 distance,
                                             element_t<V>* c, i64 ldc, bool add) {
  constexpr int vectors = panels_at_once(R) * block_vectors;
  const auto next = [&](V(&row)[vectors]) __attribute__((always_inline)) {
    TESSERA_UNROLL
    for (int j = 0; j < vectors; ++j) {
      row[j] = load<V>(b + j / block_vectors * distance + j % block_vectors * lanes_v<V>);
    }
    const auto* left = a;
    a += R;
    b += block_vectors * lanes_v<V>;
    return left;
  };
  const auto ask = [] {};
  detail::sum_block<V, R, vectors>(k, Int<1>{}, next, false, ask, c, ldc, lanes_v<V>, add);
}

namespace detail {

template <class V, int Vectors, int... I>
OuterKernel<element_t<V>> pick_outer(int rows, Seq<I...>) {
  static constexpr OuterKernel<element_t<V>> table[] = {outer_kernel<V, I + 1, Vectors>...};
  return table[rows - 1];
}
template <class V, int Vectors, int... I>
RowsKernel<element_t<V>> pick_rows(int rows, Seq<I...>) {
  static constexpr RowsKernel<element_t<V>> table[] = {rows_kernel<V, I + 1, Vectors>...};
  return table[rows - 1];
}
template <class V, int Vectors, int... I>
ColumnsKernel<element_t<V>> pick_columns(int rows, Seq<I...>) {
  static constexpr ColumnsKernel<element_t<V>> table[] = {columns_kernel<V, I + 1, Vectors>...};
  return table[rows - 1];
}
template <class V, int... I>
PlacedKernel<element_t<V>> pick_placed(int rows, Seq<I...>) {
  static constexpr PlacedKernel<element_t<V>> table[] = {placed_kernel<V, I + 1, block_vectors>...};
  return table[rows - 1];
}

}  // namespace detail

/// The kernels of so many rows, at most block_rows; of 1 or 2 vectors.
template <class V, int Vectors>
OuterKernel<element_t<V>> pick_outer(int rows) {
  return detail::pick_outer<V, Vectors>(rows, make_seq<block_rows>{});
}
template <class V, int Vectors>
RowsKernel<element_t<V>> pick_rows(int rows) {
  return detail::pick_rows<V, Vectors>(rows, make_seq<block_rows>{});
}
template <class V, int Vectors>
ColumnsKernel<element_t<V>> pick_columns(int rows) {
  return detail::pick_columns<V, Vectors>(rows, make_seq<block_rows>{});
}
template <class V>
PlacedKernel<element_t<V>> pick_placed(int rows) {
  return detail::pick_placed<V>(rows, make_seq<block_rows>{});
}
template <class V>
PanelsKernel<element_t<V>> pick_panels(int rows) {
  return rows == 1 ? panels_kernel<V, 1> : rows == 2 ? panels_kernel<V, 2> : panels_kernel<V, 3>;
}
/// The kernel of few rows and more vectors.
template <class V, int R, int Vectors>
OuterKernel<element_t<V>> wide_kernel() {
  return outer_kernel<V, R, Vectors>;
}

// What all products of a type share is in the library, compiled once for each instruction set: half of what a product
// would take to compile.
#if defined(__AVX512F__)
#define TESSERA_ROWS_KERNELS(prefix, T)  // blocks of so many rows leave no registers for pointers
#else
#define TESSERA_ROWS_KERNELS(prefix, T)                 \
  prefix RowsKernel<T> pick_rows<NativeVec<T>, 1>(int); \
  prefix RowsKernel<T> pick_rows<NativeVec<T>, 2>(int);
#endif
#define TESSERA_MICROKERNELS(prefix, T)                       \
  TESSERA_ROWS_KERNELS(prefix, T)                             \
  prefix OuterKernel<T> pick_outer<NativeVec<T>, 1>(int);     \
  prefix OuterKernel<T> pick_outer<NativeVec<T>, 2>(int);     \
  prefix ColumnsKernel<T> pick_columns<NativeVec<T>, 1>(int); \
  prefix ColumnsKernel<T> pick_columns<NativeVec<T>, 2>(int); \
  prefix PlacedKernel<T> pick_placed<NativeVec<T>>(int);      \
  prefix PanelsKernel<T> pick_panels<NativeVec<T>>(int);      \
  prefix OuterKernel<T> wide_kernel<NativeVec<T>, 1, 8>();    \
  prefix OuterKernel<T> wide_kernel<NativeVec<T>, 2, 4>();    \
  prefix OuterKernel<T> wide_kernel<NativeVec<T>, 3, 4>();    \
  prefix OuterKernel<T> wide_kernel<NativeVec<T>, 4, 2>();
#if !TESSERA_GPU_COMPILER
TESSERA_MICROKERNELS(extern template, float)
TESSERA_MICROKERNELS(extern template, double)
#endif

}  // namespace cpu
TESSERA_TILE_END
