// Walks along contiguous rows in strips of registers: the loops of normalisation, softmax and losses.
#pragma once

#include "../executor.h"
#include "../tile.h"
#include "loops.h"

TESSERA_TILE_BEGIN

/// The tile of `Vectors` neighbouring vectors of a row in compute type C.
template <class C, int Vectors>
struct RowLayout {
  static constexpr TESSERA_HD auto layout() {
    return named("n", repeat(Vectors) * vec(native_bytes / static_cast<int>(sizeof(C))));
  }
};
template <class C, int Vectors = 4>
using RowTile = Tile<C, RowLayout<C, Vectors>>;
template <class C>
using RowVec = typename RowTile<C>::V;

namespace detail {

/// The ends of rows are rare and long: on a CPU they stay out of the loops.
#if TESSERA_GPU_COMPILER
#define TESSERA_EDGE TESSERA_HD
#else
#define TESSERA_EDGE __attribute__((noinline))
#endif

template <class V, class T>
TESSERA_EDGE V load_end(const T* p, int count, element_t<V> outside) {
  using I = rebind_t<V, typename SignedOfSize<sizeof(element_t<V>)>::type>;
  return select(iota<I>() < I(static_cast<element_t<I>>(count)), load_first<V>(p, count), V(outside));
}
template <class T, class V>
TESSERA_EDGE void store_end(T* p, V v, int count) {
  store_first(p, v, count);
}
#undef TESSERA_EDGE

}  // namespace detail

/// Where a walk along rows stands: `Vectors` whole vectors from element `at` on, or a last one of `count` elements.
template <class C, int Vectors>
struct RowPart {
  using V = RowVec<C>;
  static constexpr int vectors = Vectors;
  i64 at;
  int count = V::lanes;

  /// The elements of a row, `outside` beyond its end.
  template <class T>
  TESSERA_HD RowTile<C, Vectors> load(const T* row, C outside = C(0)) const {
    RowTile<C, Vectors> t;
    if constexpr (Vectors == 1) {
      t.part[0] = count == V::lanes ? tile::load<V>(row + at) : detail::load_end<V>(row + at, count, outside);
    } else {
      unroll<Vectors>([&](auto i) TESSERA_LAMBDA { t.part[i] = tile::load<V>(row + at + i * V::lanes); });
    }
    return t;
  }
  template <class T>
  TESSERA_HD void store(T* row, const RowTile<C, Vectors>& t) const {
    if constexpr (Vectors == 1) {
      if (count == V::lanes) tile::store(row + at, t.part[0]);
      else detail::store_end(row + at, t.part[0], count);
    } else {
      unroll<Vectors>([&](auto i) TESSERA_LAMBDA { tile::store(row + at + i * V::lanes, t.part[i]); });
    }
  }
  /// Asks for the lines of a row that will be walked next.
  template <class T>
  TESSERA_HD void prefetch([[maybe_unused]] const T* row) const {
#if !TESSERA_GPU_COMPILER
    constexpr int line = 64 / sizeof(T);
    TESSERA_UNROLL
    for (int i = 0; i < Vectors * V::lanes; i += line) __builtin_prefetch(row + at + i);
#endif
  }
};

/// Calls fn(RowPart) along rows of n elements: four vectors at a time, then one.
template <class C, class Fn>
TESSERA_HD void walk_row(i64 n, const Fn& fn) {
  constexpr i64 lanes = RowVec<C>::lanes;
  i64 i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) fn(RowPart<C, 4>{i});
  for (; i < n; i += lanes) fn(RowPart<C, 1>{i, static_cast<int>(min(lanes, n - i))});
}

/// total = op(total, t), vector by vector; t may have fewer of them.
template <class Op, class C, int Vectors>
TESSERA_HD void accumulate(RowTile<C>& total, const Op& op, const Tile<C, RowLayout<C, Vectors>>& t) {
  unroll<Vectors>([&](auto i) TESSERA_LAMBDA { total.part[i] = op(total.part[i], t.part[i]); });
}
/// op over the vectors of a tile, and over all its elements.
template <class Op, class C, int Vectors>
TESSERA_HD RowVec<C> join_vectors(const Tile<C, RowLayout<C, Vectors>>& t, const Op& op) {
  if constexpr (Vectors == 1) return t.part[0];
  else return op(op(t.part[0], t.part[1]), op(t.part[2], t.part[3]));
}
template <class Op, class C>
TESSERA_HD C reduce_row(const RowTile<C>& total, const Op& op) {
  return reduce(join_vectors(total, op), op);
}
template <class C>
TESSERA_HD RowTile<C> fill_row(C value) {
  return fill_tile<C, RowLayout<C, 4>>(value);
}

/// Stores f(vectors...) to a row.
template <class C, class Out, class F, class... T>
TESSERA_HD void map_row(i64 n, Out* out, const F& f, const T*... rows) {
  walk_row<C>(n, [&](auto part) TESSERA_LAMBDA { part.store(out, map_tile(f, part.load(rows)...)); });
}

/// The sum of f(vectors...) over rows; f must give 0 where its inputs are `outside`. The sum is in C, so a row should
/// not be longer than some thousands of elements where C is float.
template <class C, class F, class... T>
TESSERA_HD C sum_row(i64 n, C outside, const F& f, const T*... rows) {
  auto total = fill_row(C(0));
  walk_row<C>(n, [&](auto part) TESSERA_LAMBDA { accumulate(total, Add{}, map_tile(f, part.load(rows, outside)...)); });
  return reduce_row(total, Add{});
}

/// Two sums in one walk: f(vectors...) returns a pair of vectors {first, second}.
template <class V>
struct Pair {
  V first, second;
};
template <class C, class F, class... T>
TESSERA_HD Pair<C> sum_row_pair(i64 n, const F& f, const T*... rows) {
  auto first = fill_row(C(0)), second = first;
  walk_row<C>(n, [&](auto part) TESSERA_LAMBDA {
    const auto add = [&](const auto&... x) TESSERA_LAMBDA {
      unroll<part.vectors>([&](auto i) TESSERA_LAMBDA {
        const auto both = f(x.part[i]...);
        first.part[i] += both.first;
        second.part[i] += both.second;
      });
    };
    add(part.load(rows)...);
  });
  return {reduce_row(first, Add{}), reduce_row(second, Add{})};
}

/// The largest element. A NaN may be passed over: what is computed from it later shows it.
template <class C, class T>
TESSERA_HD C max_row(i64 n, const T* row) {
  const C low = -static_cast<C>(__builtin_inf());
  auto best = fill_row(low);
  const auto larger = [](auto so_far, auto v) TESSERA_LAMBDA { return max(v, so_far); };
  walk_row<C>(n, [&](auto part) TESSERA_LAMBDA { accumulate(best, larger, part.load(row, low)); });
  return reduce_row(best, Max{});
}

/// The smallest and the largest element; a NaN as above.
template <class C>
struct Range {
  C least, largest;
};
template <class C, class T>
TESSERA_HD Range<C> range_row(i64 n, const T* row) {
  const C inside = convert_element<C>(row[0]);
  auto low = fill_row(inside), high = low;
  walk_row<C>(n, [&](auto part) TESSERA_LAMBDA {
    const auto x = part.load(row, inside);
    accumulate(
        low, [](auto so_far, auto v) TESSERA_LAMBDA { return min(v, so_far); }, x);
    accumulate(
        high, [](auto so_far, auto v) TESSERA_LAMBDA { return max(v, so_far); }, x);
  });
  return {reduce_row(low, Min{}), reduce_row(high, Max{})};
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
