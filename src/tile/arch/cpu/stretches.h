// Micro-kernels that read images in place whose channels lie last. One takes pixels as rows of A, which lie one
// distance apart, and steps of k in stretches that begin anywhere: a row of a window's taps, or a tap, by its channels.
// The other one sums over pixels, for the gradient of filters: these are rows of B, and lie in rows that begin
// anywhere.
#pragma once

#include "microkernel.h"
#include "partial.h"

TESSERA_TILE_BEGIN
namespace cpu {

/// Steps of k: `count` stretches of `length`, whose first steps lie at offsets[i] in each row of A.
struct Stretches {
  i64 count, length;
  const i64* offsets;
};

/// c[i * ldc + j] = sum over steps k of a[i * a_row + k] * b[k][j], where B is a packed panel and j runs over vectors
/// of which the last one has `last` columns that exist. Asks for memory from `ahead` on, some lines every few steps.
template <class T>
using StretchKernel = void (*)(const Stretches& k, const T* a, i64 a_row, const T* b, T* c, i64 ldc, int last,
                               const char* ahead);

/// Steps between two requests of memory ahead, and the lines of each.
inline constexpr int ahead_steps = 4, ahead_lines = 2;

namespace detail {

#if TESSERA_GPU_COMPILER
template <class P>
TESSERA_HD void forget(P&) {}
#else
/// The compiler knows no longer how p was made, and keeps it in a register.
template <class P>
TESSERA_HD void forget(P& p) {
  asm("" : "+r"(p));
}
#endif

/// Keeps v in a register: the compiler would rather load it again for each use, where there are few.
template <class V>
TESSERA_HD void keep([[maybe_unused]] V& v) {
#if defined(__x86_64__) && !TESSERA_GPU_COMPILER
  asm("" : "+v"(v.v));
#endif
}

/// R pointers a distance apart in few registers: each base serves five rows, as x86 adds 1, 2 or 4 times a register.
template <class T, int R>
class Rows {
  static constexpr int per_base = 5, bases = (R + per_base - 1) / per_base;

 public:
  TESSERA_HD Rows(const T* first, i64 distance) : once_(distance * static_cast<i64>(sizeof(T))), thrice_(3 * once_) {
    forget(once_);
    forget(thrice_);
    move_to(first);
  }
  TESSERA_HD void move_to(const T* first) {
    TESSERA_UNROLL
    for (int i = 0; i < bases; ++i) {
      base_[i] = reinterpret_cast<const char*>(first) + i * per_base * once_;
      forget(base_[i]);
    }
  }
  template <int I>
  TESSERA_HD const T* pointer() const {
    constexpr int i = I % per_base;
    return reinterpret_cast<const T*>(base_[I / per_base] + (i == 3 ? thrice_ : i * once_));
  }
  template <int I, int Step>
  TESSERA_HD T at() const {
    return pointer<I>()[Step];
  }
  TESSERA_HD void advance(i64 steps) {
    TESSERA_UNROLL
    for (int i = 0; i < bases; ++i) base_[i] += steps * static_cast<i64>(sizeof(T));
  }

 private:
  i64 once_, thrice_;
  const char* base_[bases];
};

}  // namespace detail

template <class V, int R, int Vectors>
__attribute__((noinline, aligned(64))) void stretch_kernel(const Stretches& k, const element_t<V>* a, i64 a_row,
                                                           const element_t<V>* b, element_t<V>* c, i64 ldc, int last,
                                                           const char* ahead) {
  using T = element_t<V>;
  constexpr int lanes = lanes_v<V>, width = Vectors * lanes;
  V sum[R][Vectors];
  TESSERA_UNROLL
  for (int i = 0; i < R; ++i) {
    TESSERA_UNROLL
    for (int j = 0; j < Vectors; ++j) sum[i][j] = V(T(0));
  }
  detail::Rows<T, R> rows(a, a_row);
  const auto step = [&](auto at) __attribute__((always_inline)) {
    constexpr int u = decltype(at)::value;
    V row[Vectors];
    TESSERA_UNROLL
    for (int j = 0; j < Vectors; ++j) {
      row[j] = load<V>(b + u * width + j * lanes);
      detail::keep(row[j]);
    }
    unroll<R>([&](auto i) __attribute__((always_inline)) {
      const V left(rows.template at<decltype(i)::value, u>());
      TESSERA_UNROLL
      for (int j = 0; j < Vectors; ++j) add_product(sum[decltype(i)::value][j], left, row[j]);
    });
  };
  const auto advance = [&](i64 steps) __attribute__((always_inline)) {
    rows.advance(steps);
    b += steps * width;
  };
  for (i64 s = 0; s < k.count; ++s) {
    rows.move_to(a + k.offsets[s]);
    i64 left = k.length;
    for (; left >= ahead_steps; left -= ahead_steps) {
      TESSERA_UNROLL
      for (int i = 0; i < ahead_lines; ++i) __builtin_prefetch(ahead + i * 64, 0, 2);
      ahead += ahead_lines * 64;
      unroll<ahead_steps>(step);
      advance(ahead_steps);
    }
    for (; left > 0; --left) {
      step(Int<0>{});
      advance(1);
    }
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

/// Steps of k in rows of `width`: where each begins in A, in units of a_row, and in B. Steps lie a_step apart in A.
struct RowPairs {
  struct Pair {
    i64 a, b;
  };
  i64 count, width, a_step, a_row;
  const Pair* pairs;
};

/// c[i * ldc + j] = (or +=) sum over steps k of a[k * a_step + i] * b[k * b_step + j], for columns j of vectors of
/// which the last one has `last`.
template <class T>
using RowPairsKernel = void (*)(const RowPairs& k, const T* a, const T* b, i64 b_step, T* c, i64 ldc, int last,
                                bool add);

template <class V, int R, int Vectors>
__attribute__((noinline, aligned(64))) void row_pairs_kernel(const RowPairs& k, const element_t<V>* a,
                                                             const element_t<V>* b, i64 b_step, element_t<V>* c,
                                                             i64 ldc, int last, bool add) {
  using T = element_t<V>;
  constexpr int lanes = lanes_v<V>, round = 4;
  V sum[R][Vectors];
  TESSERA_UNROLL
  for (int i = 0; i < R; ++i) {
    TESSERA_UNROLL
    for (int j = 0; j < Vectors; ++j) sum[i][j] = V(T(0));
    __builtin_prefetch(c + i * ldc, 1);
    __builtin_prefetch(c + i * ldc + (Vectors - 1) * lanes + last - 1, 1);
  }
  const auto run = [&](auto get_last) __attribute__((always_inline)) {
    for (i64 s = 0; s < k.count; ++s) {
      const T *left = a + k.pairs[s].a * k.a_row, *right = b + k.pairs[s].b;
      const auto step = [&](auto) __attribute__((always_inline)) {
        V row[Vectors];
        TESSERA_UNROLL
        for (int j = 0; j < Vectors; ++j) {
          row[j] = j < Vectors - 1 ? load<V>(right + j * lanes) : get_last(right + j * lanes);
          detail::keep(row[j]);
        }
        TESSERA_UNROLL
        for (int i = 0; i < R; ++i) {
          const V one(left[i]);
          TESSERA_UNROLL
          for (int j = 0; j < Vectors; ++j) add_product(sum[i][j], one, row[j]);
        }
        left += k.a_step;
        right += b_step;
      };
      i64 rest = k.width;
      for (; rest >= round; rest -= round) unroll<round>(step);
      for (; rest > 0; --rest) step(Int<0>{});
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
        store(to, add ? load<V>(to) + sum[i][j] : sum[i][j]);
      } else {
        store_part(to, add ? load<V>(to, last) + sum[i][j] : sum[i][j], last);
      }
    }
  }
}

namespace detail {

template <class V, int Vectors, int... I>
StretchKernel<element_t<V>> pick_stretch(int rows, Seq<I...>) {
  static constexpr StretchKernel<element_t<V>> table[] = {stretch_kernel<V, I + 1, Vectors>...};
  return table[rows - 1];
}
template <class V, int Vectors, int... I>
RowPairsKernel<element_t<V>> pick_row_pairs(int rows, Seq<I...>) {
  static constexpr RowPairsKernel<element_t<V>> table[] = {row_pairs_kernel<V, I + 1, Vectors>...};
  return table[rows - 1];
}

}  // namespace detail

/// The kernels of so many rows, at most block_rows, and 1 or 2 vectors.
template <class V, int Vectors>
StretchKernel<element_t<V>> pick_stretch(int rows) {
  return detail::pick_stretch<V, Vectors>(rows, make_seq<block_rows>{});
}
template <class V, int Vectors>
RowPairsKernel<element_t<V>> pick_row_pairs(int rows) {
  return detail::pick_row_pairs<V, Vectors>(rows, make_seq<block_rows>{});
}

}  // namespace cpu
TESSERA_TILE_END
