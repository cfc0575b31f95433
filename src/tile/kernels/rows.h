// Walks along contiguous rows in strips of registers: the loops of normalisation, softmax and losses.
#pragma once

#include "../executor.h"
#include "../tile.h"
#include "loops.h"

TESSERA_TILE_BEGIN

/// Four vectors of the compute type of T.
template <class T>
struct Strip4 {
  static constexpr TESSERA_HD auto layout() {
    return named("n", repeat(4) * vec(native_bytes / static_cast<int>(sizeof(compute_t<T>))));
  }
};
template <class C>
using StripTile = Tile<C, Strip4<C>>;

/// n contiguous elements as a view.
template <class T>
TESSERA_HD auto row_view(T* data, i64 n) {
  return strided(data, tuple(n), tuple(Int<1>{}));
}

/// Folds rows of equal length strip by strip: state = f(state, strips...). Beyond the end rows read as `outside`.
template <class C, class State, class F, class... T>
TESSERA_HD void fold_row(i64 n, State& state, C outside, const F& f, const T*... rows) {
  constexpr i64 step = Strip4<C>::layout().length(0);
  for (i64 i = 0; i < n; i += step) f(state, load_tile<Strip4<C>, C>(row_view(rows, n), {i}, 0, outside)...);
}

/// Stores f(strips...) to a row.
template <class C, class Out, class F, class... T>
TESSERA_HD void map_row(i64 n, Out* out, const F& f, const T*... rows) {
  constexpr i64 step = Strip4<C>::layout().length(0);
  for (i64 i = 0; i < n; i += step) {
    store_tile(row_view(out, n), {i}, map_tile(f, load_tile<Strip4<C>, C>(row_view(rows, n), {i}, 0, C(0))...));
  }
}

/// The sum of f(strips...) over rows; f must give 0 where its inputs are `outside`. Strips are summed in C, so a row
/// should not be longer than some thousands of elements where C is float.
template <class C, class F, class... T>
TESSERA_HD C sum_row(i64 n, C outside, const F& f, const T*... rows) {
  auto total = fill_tile<C, Strip4<C>>(C(0));
  const auto add = [](auto a, auto b) TESSERA_LAMBDA { return a + b; };
  fold_row<C>(
      n, total, outside, [&](auto& s, const auto&... x) TESSERA_LAMBDA { s = map_tile(add, s, map_tile(f, x...)); },
      rows...);
  return reduce_tile<0>(total, add).part[0];
}

/// Two sums in one walk: f(strips...) returns a pair of vectors {first, second}.
template <class V>
struct Pair {
  V first, second;
};
template <class C, class F, class... T>
TESSERA_HD Pair<C> sum_row_pair(i64 n, const F& f, const T*... rows) {
  using S = StripTile<C>;
  Pair<S> total{fill_tile<C, Strip4<C>>(C(0)), fill_tile<C, Strip4<C>>(C(0))};
  fold_row<C>(
      n, total, C(0),
      [&](auto& s, const auto&... x) TESSERA_LAMBDA {
        unroll<S::vectors>([&](auto i) TESSERA_LAMBDA {
          const auto both = f(x.part[i]...);
          s.first.part[i] += both.first;
          s.second.part[i] += both.second;
        });
      },
      rows...);
  const auto add = [](auto a, auto b) TESSERA_LAMBDA { return a + b; };
  return {reduce_tile<0>(total.first, add).part[0], reduce_tile<0>(total.second, add).part[0]};
}

/// exp(x) for x <= 0, as softmax needs it: two thirds of the instructions of exp(). Below e^-87 it is 0.
template <class V>
TESSERA_HD V exp_nonpositive(V x) {
  if constexpr (is_same_v<element_t<V>, float>) {
    using I = rebind_t<V, i32>;
    const V bounded = max(x, V(-87.0f)), shift = V(0x1.8p23f);
    const V shifted = fma(bounded, V(1.44269504f), shift);  // its low bits are round(x / ln 2)
    const V n = shifted - shift;
    const V r = fma(n, V(-1.42860677e-6f), fma(n, V(-0x1.62e4p-1f), bounded));
    V p = fma(r, V(1.381314237e-03f), V(8.369419044e-03f));
    p = fma(r, p, V(4.166845683e-02f));
    p = fma(r, p, V(1.666651479e-01f));
    p = fma(r, p, V(4.999999305e-01f));
    const V y = fma(r * r, p, r) + V(1.0f);
    const V scaled = vec_bits<V>(vec_bits<I>(y) + (vec_bits<I>(shifted) << I(23)));
    return select(x < V(-87.0f), V(0.0f), scaled);
  } else {
    return exp(x);
  }
}

template <class C, class T>
TESSERA_HD C max_row(i64 n, const T* row) {
  const C low = -static_cast<C>(__builtin_inf());
  const auto larger = [](auto a, auto b) TESSERA_LAMBDA { return select(b == b, max(a, b), b); };  // NaN stays
  auto best = fill_tile<C, Strip4<C>>(low);
  fold_row<C>(
      n, best, low, [&](auto& s, const auto& x) TESSERA_LAMBDA { s = map_tile(larger, s, x); }, row);
  return reduce_tile<0>(best, larger).part[0];
}

/// Rows shared among threads: fn(row, thread). `cost` is that of one row.
template <class Fn>
inline void for_rows(const ExecutorRef& executor, i64 rows, i64 cost, const Fn& fn) {
  split_range(executor, rows, cost, 1, [&](i64 begin, i64 end, int thread) TESSERA_LAMBDA {
    for (i64 row = begin; row < end; ++row) fn(row, thread);
  });
}

/// Splits rows into slices by shape alone, so that sums over rows do not depend on the threads: at most 16, of at
/// least 32 rows each.
struct Slices {
  i64 count, length;
  explicit Slices(i64 rows) : count(max(i64(1), min(i64(16), rows / 32))), length(ceil_div(rows, count)) {
    count = max(i64(1), ceil_div(rows, max(i64(1), length)));
  }
};

TESSERA_TILE_END
