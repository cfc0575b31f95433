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
  const auto add = [](auto a, auto b) { return a + b; };
  fold_row<C>(
      n, total, outside, [&](auto& s, const auto&... x) { s = map_tile(add, s, map_tile(f, x...)); }, rows...);
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
      [&](auto& s, const auto&... x) {
        unroll<S::vectors>([&](auto i) {
          const auto both = f(x.part[i]...);
          s.first.part[i] += both.first;
          s.second.part[i] += both.second;
        });
      },
      rows...);
  const auto add = [](auto a, auto b) { return a + b; };
  return {reduce_tile<0>(total.first, add).part[0], reduce_tile<0>(total.second, add).part[0]};
}

template <class C, class T>
TESSERA_HD C max_row(i64 n, const T* row) {
  const C low = -static_cast<C>(__builtin_inf());
  const auto larger = [](auto a, auto b) { return select(b == b, max(a, b), b); };  // NaN stays
  auto best = fill_tile<C, Strip4<C>>(low);
  fold_row<C>(
      n, best, low, [&](auto& s, const auto& x) { s = map_tile(larger, s, x); }, row);
  return reduce_tile<0>(best, larger).part[0];
}

/// Rows shared among threads: fn(row, thread). `cost` is that of one row.
template <class Fn>
inline void for_rows(const ExecutorRef& executor, i64 rows, i64 cost, const Fn& fn) {
  split_range(executor, rows, cost, 1, [&](i64 begin, i64 end, int thread) {
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
