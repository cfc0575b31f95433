// Reductions over any set of dimensions of strided tensors.
//
// A reducer folds elements into a state per result, by vectors in one of two ways: along contiguous elements that
// share a result (fold_run), or down rows of elements that each have their own (fold_rows). The driver brings every
// layout and element type into one of those forms, and merges states in an order that depends on the shapes only,
// so that results do not depend on the number of threads.
//
// Sums of 32-bit floats are kept in float over at most a block and in double between blocks.
#pragma once

#include "../tile.h"
#include "elementwise.h"

TESSERA_TILE_BEGIN

/// Results that a fold_rows serves at once, and the room for their states.
inline constexpr int reduce_columns = 64;
inline constexpr int reduce_state_bytes = 24;
/// Elements a fold takes at a time.
inline constexpr i64 reduce_block = 1024;

/// A reducer in one compute type, as functions; states are packed arrays of `state_bytes` each.
struct Reducer {
  int state_bytes;
  int size;      // bytes of an element of the compute type
  int out_size;  // bytes of a result
  i64 rows;      // that fold_rows takes at a time: few, to walk memory in its order, where merging them is cheap
  void (*start)(void* states, int count);
  /// Folds n contiguous elements, the first of which has index `index` along the reduction, into one state.
  void (*fold_run)(void* state, const void* elements, i64 n, i64 index);
  /// The same for `count` results, whose elements begin `stride` bytes apart, into as many states.
  void (*fold_runs)(void* states, const void* elements, i64 stride, int count, i64 n, i64 index);
  /// Folds `rows` rows of reduce_columns elements, `stride` bytes apart, into as many states.
  void (*fold_rows)(void* states, const void* elements, i64 stride, i64 rows, i64 index);
  void (*merge)(void* into, const void* from, int count);
  /// Results of `count` states over n elements each; `parameter` is the reducer's own.
  void (*finish)(void* results, const void* states, int count, i64 n, double parameter);
};

namespace detail {

template <class T>
TESSERA_HD const T* advance(const T* p, i64 bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(p) + bytes);
}

/// Makes the functions of a Reducer from a struct R with
///   Element, Result, State, rows_at_once
///   State start()
///   void run(State&, const Element*, i64 n, i64 index)
///   void rows(State*, const Element*, i64 stride in bytes, i64 rows, i64 index)
///   void merge(State&, const State&)
///   Result finish(const State&, i64 n, double parameter)
template <class R>
Reducer make_reducer() {
  using State = typename R::State;
  using Element = typename R::Element;
  using Result = typename R::Result;
  static_assert(sizeof(State) <= reduce_state_bytes);
  Reducer r;
  r.state_bytes = sizeof(State);
  r.size = sizeof(Element);
  r.out_size = sizeof(Result);
  r.rows = R::rows_at_once;
  r.start = [](void* states, int count) {
    for (int i = 0; i < count; ++i) static_cast<State*>(states)[i] = R::start();
  };
  r.fold_run = [](void* state, const void* elements, i64 n, i64 index) {
    R::run(*static_cast<State*>(state), static_cast<const Element*>(elements), n, index);
  };
  r.fold_runs = [](void* states, const void* elements, i64 stride, int count, i64 n, i64 index) {
    for (int i = 0; i < count; ++i) {
      R::run(static_cast<State*>(states)[i], advance(static_cast<const Element*>(elements), i * stride), n, index);
    }
  };
  r.fold_rows = [](void* states, const void* elements, i64 stride, i64 rows, i64 index) {
    R::rows(static_cast<State*>(states), static_cast<const Element*>(elements), stride, rows, index);
  };
  r.merge = [](void* into, const void* from, int count) {
    for (int i = 0; i < count; ++i) R::merge(static_cast<State*>(into)[i], static_cast<const State*>(from)[i]);
  };
  r.finish = [](void* results, const void* states, int count, i64 n, double parameter) {
    for (int i = 0; i < count; ++i) {
      static_cast<Result*>(results)[i] = R::finish(static_cast<const State*>(states)[i], n, parameter);
    }
  };
  return r;
}

}  // namespace detail

/// Reducers that fold f(x) by an associative op without regard to order: F has
///   V first<V>()                 the neutral vector
///   V fold(V sum, V x)           for vectors and scalars
///   V join(V a, V b)
/// and the state is a Wide scalar, in which blocks are joined.
template <class F, class T, class Wide>
struct FoldReducer {
  using Element = T;
  using Result = T;
  using State = Wide;
  static constexpr int lanes = native_bytes / static_cast<int>(sizeof(T));
  static constexpr i64 rows_at_once = 16;
  using V = Vec<T, lanes>;

  static State start() { return F::template first<State>(); }
  static void merge(State& a, const State& b) { a = F::join(a, b); }
  static Result finish(const State& s, i64 n, double parameter) {
    return static_cast<Result>(F::finish(s, n, parameter));
  }

  static void run(State& state, const T* p, i64 n, i64) {
    for (; n > 0; n -= reduce_block, p += reduce_block) block(state, p, min(n, reduce_block));
  }
  static void block(State& state, const T* p, i64 n) {
    constexpr int ways = 4;
    V sum[ways];
    for (V& s : sum) s = F::template first<V>();
    i64 i = 0;
    for (; i + ways * lanes <= n; i += ways * lanes) {
      unroll<ways>([&](auto k) { sum[k] = F::fold(sum[k], load<V>(p + i + k * lanes)); });
    }
    for (; i + lanes <= n; i += lanes) sum[0] = F::fold(sum[0], load<V>(p + i));
    if constexpr (is_same_v<T, float> || is_same_v<T, double>) {
      if (0 < i && i < n) {  // what is left of a row; fewer than a vector are folded in their order
        using I = rebind_t<V, typename SignedOfSize<sizeof(T)>::type>;
        const auto is_there = iota<I>() < I(static_cast<element_t<I>>(n - i));
        sum[1] = select(is_there, F::fold(sum[1], load<V>(p + i, static_cast<int>(n - i))), sum[1]);
        i = n;
      }
    }
    const V all = F::join(F::join(sum[0], sum[1]), F::join(sum[2], sum[3]));
    T rest = reduce(all, [](auto a, auto b) { return F::join(a, b); });
    for (; i < n; ++i) rest = F::fold(rest, p[i]);
    state = F::join(state, static_cast<State>(rest));
  }

  static void rows(State* states, const T* p, i64 stride, i64 rows, i64) {
    constexpr int ways = min(8, reduce_columns / lanes);
    for (int column = 0; column < reduce_columns; column += ways * lanes) {
      V sum[ways];
      for (V& s : sum) s = F::template first<V>();
      const T* q = p + column;
      for (i64 r = 0; r < rows; ++r, q = detail::advance(q, stride)) {
        // What lies to the right is folded next, and strides hide it from the processor.
        unroll<ways * lanes * sizeof(T) / 64>(
            [&](auto k) { __builtin_prefetch(q + reduce_columns + k * 64 / sizeof(T)); });
        unroll<ways>([&](auto k) { sum[k] = F::fold(sum[k], load<V>(q + k * lanes)); });
      }
      T lane[ways * lanes];
      unroll<ways>([&](auto k) { store(lane + k * lanes, sum[k]); });
      for (int i = 0; i < ways * lanes; ++i) {
        states[column + i] = F::join(states[column + i], static_cast<State>(lane[i]));
      }
    }
  }
};

namespace detail {
struct FinishAsIs {
  template <class S>
  static S finish(S s, i64, double) {
    return s;
  }
};
}  // namespace detail

// clang-format off
struct SumFold : detail::FinishAsIs {
  template <class V> static TESSERA_HD V first() { return V(0); }
  template <class V> static TESSERA_HD V fold(V s, V x) { return s + x; }
  template <class V> static TESSERA_HD V join(V a, V b) { return a + b; }
};
struct MeanFold : SumFold {
  template <class S> static S finish(S s, i64 n, double) { return s / static_cast<S>(n); }
};
struct ProductFold : detail::FinishAsIs {
  template <class V> static TESSERA_HD V first() { return V(1); }
  template <class V> static TESSERA_HD V fold(V s, V x) { return s * x; }
  template <class V> static TESSERA_HD V join(V a, V b) { return a * b; }
};
struct MaxFold : detail::FinishAsIs {
  template <class V> static TESSERA_HD V first() {
    using T = element_t<V>;
    if constexpr (static_cast<T>(0.5) != 0) return V(-static_cast<T>(__builtin_inf()));
    else return V(sizeof(T) == 8 ? static_cast<T>(-0x7fffffffffffffff - 1) : static_cast<T>(-0x7fffffff - 1));
  }
  template <class V> static TESSERA_HD V join(V a, V b) { return select(b == b, max(a, b), b); }
  template <class V> static TESSERA_HD V fold(V s, V x) { return join(s, x); }
};
struct MinFold : detail::FinishAsIs {
  template <class V> static TESSERA_HD V first() {
    using T = element_t<V>;
    if constexpr (static_cast<T>(0.5) != 0) return V(static_cast<T>(__builtin_inf()));
    else return V(sizeof(T) == 8 ? static_cast<T>(0x7fffffffffffffff) : static_cast<T>(0x7fffffff));
  }
  template <class V> static TESSERA_HD V join(V a, V b) { return select(b == b, min(a, b), b); }
  template <class V> static TESSERA_HD V fold(V s, V x) { return join(s, x); }
};
struct AnyFold : detail::FinishAsIs {
  template <class V> static TESSERA_HD V first() { return V(0); }
  template <class V> static TESSERA_HD V fold(V s, V x) { return select(x != V(0), V(1), s); }
  template <class V> static TESSERA_HD V join(V a, V b) { return max(a, b); }
};
struct AllFold : detail::FinishAsIs {
  template <class V> static TESSERA_HD V first() { return V(1); }
  template <class V> static TESSERA_HD V fold(V s, V x) { return select(x != V(0), s, V(0)); }
  template <class V> static TESSERA_HD V join(V a, V b) { return min(a, b); }
};
/// Sum of squares; NormFold is its root.
struct SquaresFold : detail::FinishAsIs {
  template <class V> static TESSERA_HD V first() { return V(0); }
  template <class V> static TESSERA_HD V fold(V s, V x) { return fma(x, x, s); }
  template <class V> static TESSERA_HD V join(V a, V b) { return a + b; }
};
struct NormFold : SquaresFold {
  static double finish(double s, i64, double) { return sqrt(s); }
};
struct AbsSumFold : detail::FinishAsIs {
  template <class V> static TESSERA_HD V first() { return V(0); }
  template <class V> static TESSERA_HD V fold(V s, V x) { return s + abs(x); }
  template <class V> static TESSERA_HD V join(V a, V b) { return a + b; }
};
struct AbsMaxFold : detail::FinishAsIs {
  template <class V> static TESSERA_HD V first() { return V(0); }
  template <class V> static TESSERA_HD V join(V a, V b) { return select(b == b, max(a, b), b); }
  template <class V> static TESSERA_HD V fold(V s, V x) { return join(s, abs(x)); }
};
// clang-format on

/// Mean and variance. The parameter of finish() is the correction: the sum of squared deviations is divided by
/// n - correction. Blocks are reduced in two passes and merged as Moments are.
template <class T, bool Root>
struct VarianceReducer {
  using Element = T;
  using Result = T;
  using State = Moments<double>;
  static constexpr int lanes = native_bytes / static_cast<int>(sizeof(T));
  static constexpr i64 rows_at_once = 64;
  using V = Vec<T, lanes>;

  static State start() { return {0, 0, 0}; }
  static void merge(State& a, const State& b) { a = tile::merge(a, b); }
  static Result finish(const State& s, i64 n, double correction) {
    const double variance = s.squares / max(0.0, static_cast<double>(n) - correction);
    return static_cast<Result>(Root ? sqrt(variance) : variance);
  }

  static void run(State& state, const T* p, i64 n, i64 index) {
    for (; n > 0; n -= reduce_block, p += reduce_block) {
      const i64 m = min(n, reduce_block);
      double sum = 0, squares = 0;
      FoldReducer<SumFold, T, double>::block(sum, p, m);
      const T mean = static_cast<T>(sum / static_cast<double>(m));
      V total[2] = {V(0), V(0)};
      i64 i = 0;
      const auto deviation = [&](i64 at) { return load<V>(p + at) - V(mean); };
      for (; i + 2 * lanes <= m; i += 2 * lanes) {
        const V a = deviation(i), b = deviation(i + lanes);
        total[0] = fma(a, a, total[0]);
        total[1] = fma(b, b, total[1]);
      }
      squares = static_cast<double>(reduce_sum(total[0] + total[1]));
      for (; i < m; ++i) squares += static_cast<double>(p[i] - mean) * static_cast<double>(p[i] - mean);
      // the mean in T is off by a rounding, which the deviations from it contain once per element
      const double off = sum / static_cast<double>(m) - static_cast<double>(mean);
      merge(state,
            {sum / static_cast<double>(m), squares - off * off * static_cast<double>(m), static_cast<double>(m)});
    }
    (void)index;
  }

  static void rows(State* states, const T* p, i64 stride, i64 rows, i64) {
    constexpr int ways = min(2, reduce_columns / lanes);
    for (int column = 0; column < reduce_columns; column += ways * lanes) {
      V mean[ways], squares[ways];
      for (int k = 0; k < ways; ++k) mean[k] = squares[k] = V(0);
      const T* q = p + column;
      for (i64 r = 0; r < rows; ++r, q = detail::advance(q, stride)) {  // Welford, Technometrics 4 (1962)
        const V share(T(1) / static_cast<T>(r + 1));
        unroll<ways>([&](auto k) {
          const V x = load<V>(q + k * lanes), delta = x - mean[k];
          mean[k] = fma(delta, share, mean[k]);
          squares[k] = fma(delta, x - mean[k], squares[k]);
        });
      }
      for (int i = 0; i < ways * lanes; ++i) {
        merge(states[column + i], {static_cast<double>(mean[i / lanes][i % lanes]),
                                   static_cast<double>(squares[i / lanes][i % lanes]), static_cast<double>(rows)});
      }
    }
  }
};

/// Index of the largest (or smallest) element, the first of equals; NaN wins.
template <class T, bool Largest>
struct ArgReducer {
  struct State {
    T value;
    i64 index;
  };
  using Element = T;
  using Result = i64;
  static constexpr int lanes = native_bytes / static_cast<int>(sizeof(T));
  static constexpr i64 rows_at_once = 64;
  using V = Vec<T, lanes>;
  using Fold = conditional_t<Largest, MaxFold, MinFold>;

  static State start() { return {Fold::template first<T>(), -1}; }
  static bool better(T a, T b) { return Largest ? a > b : a < b; }
  static void merge(State& a, const State& b) {
    if (b.index < 0) return;
    const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
    const bool takes = a.index < 0 || (b_is_nan && !a_is_nan) || (!a_is_nan && better(b.value, a.value));
    const bool ties = a.index >= 0 && b.index < a.index && (a.value == b.value || (a_is_nan && b_is_nan));
    if (takes || ties) a = b;
  }
  static Result finish(const State& s, i64, double) { return s.index; }

  /// The best value by vectors, then its place.
  static void run(State& state, const T* p, i64 n, i64 index) {
    for (i64 at = 0; at < n; at += reduce_block) {
      const i64 m = min(n - at, reduce_block);
      T best = Fold::template first<T>();
      FoldReducer<Fold, T, T>::block(best, p + at, m);
      if (state.index >= 0 && best == best && !better(best, state.value)) continue;
      i64 i = 0;
      while (i + lanes <= m && !any(load<V>(p + at + i) == V(best))) i += lanes;
      if (best != best) i = 0;  // which nothing equals
      while (p[at + i] != best && !(best != best && p[at + i] != p[at + i])) ++i;
      merge(state, {best, index + at + i});
    }
  }
  /// Columns by vectors. They have seen the same rows, so that all have an index or none.
  static void rows(State* states, const T* p, i64 stride, i64 rows, i64 index) {
    using I = rebind_t<V, typename SignedOfSize<sizeof(T)>::type>;
    using E = element_t<I>;
    constexpr int ways = min(4, reduce_columns / lanes);
    for (int column = 0; column < reduce_columns; column += ways * lanes) {
      const bool first = states[column].index < 0;
      const T* q = p + column;
      V best[ways];
      I place[ways];
      T values[ways * lanes];
      for (int i = 0; i < ways * lanes; ++i) values[i] = first ? q[i] : states[column + i].value;
      unroll<ways>([&](auto k) { best[k] = load<V>(values + k * lanes), place[k] = I(E(first ? 0 : -1)); });
      for (i64 r = 0; r < rows; ++r, q = detail::advance(q, stride)) {
        const I row(static_cast<E>(r));
        unroll<ways>([&](auto k) {
          const V v = load<V>(q + k * lanes);
          auto takes = Largest ? v > best[k] : v < best[k];
          if constexpr (!is_same_v<T, i64>) takes = takes | ((v != v) & (best[k] == best[k]));
          best[k] = select(takes, v, best[k]);
          place[k] = select(takes, row, place[k]);
        });
      }
      for (int i = 0; i < ways * lanes; ++i)
        if (const E at = place[i / lanes][i % lanes]; at >= 0)
          states[column + i] = {best[i / lanes][i % lanes], index + at};
    }
  }
};

/// log(sum(exp(x))), shifted by the largest element seen.
template <class T>
struct LogSumExpReducer {
  struct State {
    double largest, sum;
  };
  using Element = T;
  using Result = T;
  static constexpr int lanes = native_bytes / static_cast<int>(sizeof(T));
  static constexpr i64 rows_at_once = 64;
  using V = Vec<T, lanes>;

  static State start() { return {-__builtin_inf(), 0}; }
  static void merge(State& a, const State& b) {
    if (!(b.largest <= a.largest)) {  // NaN included
      const double scale = a.largest > -__builtin_inf() ? libm::exp(a.largest - b.largest) : 0;
      a = {b.largest, (a.sum > 0 ? a.sum * scale : 0) + b.sum};
    } else if (b.sum > 0) {
      a.sum += a.largest < __builtin_inf() ? b.sum * libm::exp(b.largest - a.largest) : b.sum;
    }
  }
  static Result finish(const State& s, i64, double) {
    if (!(s.largest > -__builtin_inf() && s.largest < __builtin_inf())) return static_cast<T>(s.largest);
    return static_cast<T>(s.largest + libm::log(s.sum));
  }

  static void run(State& state, const T* p, i64 n, i64) {
    for (; n > 0; n -= reduce_block, p += reduce_block) {
      const i64 m = min(n, reduce_block);
      T largest = MaxFold::template first<T>();
      FoldReducer<MaxFold, T, T>::block(largest, p, m);
      if (!(largest > -static_cast<T>(__builtin_inf()) && largest < static_cast<T>(__builtin_inf()))) {
        merge(state, {static_cast<double>(largest), largest > 0 ? 1.0 : 0.0});
        continue;
      }
      V sum(0);
      i64 i = 0;
      for (; i + lanes <= m; i += lanes) sum += exp(load<V>(p + i) - V(largest));
      T total = reduce_sum(sum);
      for (; i < m; ++i) total += exp(p[i] - largest);
      merge(state, {static_cast<double>(largest), static_cast<double>(total)});
    }
  }
  static void rows(State* states, const T* p, i64 stride, i64 rows, i64) {
    for (int column = 0; column < reduce_columns; column += lanes) {
      const V low = MaxFold::template first<V>(), high = -low;
      V largest = low, sum(0);
      for (i64 r = 0; r < rows; ++r) largest = MaxFold::fold(largest, load<V>(detail::advance(p + column, r * stride)));
      const auto finite = (largest > low) & (largest < high);
      const V shift = select(finite, largest, V(0));
      for (i64 r = 0; r < rows; ++r) sum += exp(load<V>(detail::advance(p + column, r * stride)) - shift);
      for (int i = 0; i < lanes; ++i) {
        const double top = static_cast<double>(largest[i]);
        merge(states[column + i], {top, finite[i] ? static_cast<double>(sum[i]) : top > 0 ? 1.0 : 0.0});
      }
    }
  }
};

/// A reduction: the loops over results (operand 0 the input, operand 1 the output) and, for each, the loops over its
/// elements (operand 0 the input).
struct ReducePlan {
  LoopNest results, elements;
  const void* in;
  void* out;
  int in_size;      // bytes of an element in memory
  bool same;        // the input is of the compute type
  bool ordered;     // the reducer wants indices in the order of the loops
  ConvertFn load;   // input to compute type
  ConvertFn store;  // result to output
  Reducer reducer;
  double parameter;
};

namespace detail {

class ReduceRunner {
 public:
  ReduceRunner(ReducePlan& plan, const ExecutorRef& executor) : plan_(plan), executor_(executor) {
    arrange(plan.results, false);
    arrange(plan.elements, plan.ordered);
    const LoopNest& results = plan.results;
    const i64 result_step = magnitude(results.strides[0][results.rank - 1]);
    const i64 element_step = magnitude(plan.elements.strides[0][plan.elements.rank - 1]);
    columns_ = results.lengths[results.rank - 1];
    by_rows_ = columns_ >= 16 && result_step < element_step;
    groups_ = by_rows_ ? ceil_div(columns_, i64(reduce_columns)) : 1;
    elements_ = plan.elements.total();
    in_runs_ = !by_rows_ && plan.same && plan.elements.rank == 1 && plan.elements.strides[0][0] == plan.in_size;
  }

  void operator()() {
    const i64 results = plan_.results.total();
    if (results == 0) return;
    const i64 units = by_rows_ ? results / columns_ * groups_ : results;
    constexpr i64 room = 1 << 16, worth_a_slice = 1 << 16;
    i64 slices = 1;
    if (units < 16) slices = min(results * elements_ / worth_a_slice, room / (results * plan_.reducer.state_bytes));
    if (slices > 1) {
      alignas(64) char states[room];
      reduce_in_slices(states, units, min(slices, i64(64)));
    } else {
      split_range(executor_, units, elements_ * (by_rows_ ? reduce_columns : 1), 1, [&](i64 begin, i64 end, int) {
        for_segments(begin, end, [&](const Segment& segment) {
          alignas(64) char states[max_groups * reduce_columns * reduce_state_bytes];
          plan_.reducer.start(states, states_of(segment));
          fold(segment, 0, elements_, states);
          finish(segment, states);
        });
      });
    }
  }

 private:
  static constexpr i64 max_groups = 16;
  static i64 magnitude(i64 x) { return x < 0 ? -x : x; }

  static void arrange(LoopNest& loops, bool ordered) {
    if (!ordered) sort_loops(loops, 0, loops.rank);
    join_loops(loops);
    if (loops.rank > 0) return;
    loops.rank = 1;
    loops.lengths[0] = 1;
    for (int k = 0; k < loops.operands; ++k) loops.strides[k][0] = 0;
  }

  /// Results that are folded together: `count` neighbours from `first` on.
  struct Segment {
    i64 first, count;
  };
  int states_of(const Segment& s) const {
    return static_cast<int>(by_rows_ ? round_up(s.count, i64(reduce_columns)) : s.count);
  }

  template <class Fn>
  void for_segments(i64 begin, i64 end, const Fn& fn) {
    if (!by_rows_) {
      for (i64 i = begin, n = 0; i < end; i += n) {
        n = in_runs_ ? min(min(end - i, columns_ - i % columns_), max_groups * reduce_columns) : 1;
        fn(Segment{i, n});
      }
      return;
    }
    for (i64 i = begin; i < end;) {
      const i64 outer = i / groups_, group = i % groups_;
      const i64 n = min(min(end - i, groups_ - group), max_groups);
      const i64 column = group * reduce_columns;
      fn(Segment{outer * columns_ + column, min(n * reduce_columns, columns_ - column)});
      i += n;
    }
  }

  /// Slices of the elements, each with states of its own, merged in order.
  void reduce_in_slices(char* states, i64 units, i64 slices) {
    const i64 each = ceil_div(elements_, slices), state = plan_.reducer.state_bytes;
    i64 padded = 0;
    for_segments(0, units, [&](const Segment& s) { padded += states_of(s); });
    slices = min(slices, max(i64(1), (1 << 16) / (padded * state)));
    slices = ceil_div(elements_, max(each, ceil_div(elements_, slices)));
    const i64 length = ceil_div(elements_, slices);
    executor_.parallel(slices, [&](i64 slice, int) {
      char* mine = states + slice * padded * state;
      plan_.reducer.start(mine, static_cast<int>(padded));
      for_segments(0, units, [&](const Segment& s) {
        fold(s, min(elements_, slice * length), min(elements_, (slice + 1) * length), mine);
        mine += states_of(s) * state;
      });
    });
    for (i64 slice = 1; slice < slices; ++slice) {
      plan_.reducer.merge(states, states + slice * padded * state, static_cast<int>(padded));
    }
    for_segments(0, units, [&](const Segment& s) {
      finish(s, states);
      states += states_of(s) * state;
    });
  }

  const char* input(const LoopWalk& result) const { return static_cast<const char*>(plan_.in) + result.offset[0]; }

  void fold(const Segment& segment, i64 begin, i64 end, char* states) {
    if (begin >= end) return;
    const char* base = input(LoopWalk(plan_.results, segment.first));
    if (by_rows_) fold_columns(base, segment.count, begin, end, states);
    else if (in_runs_)
      plan_.reducer.fold_runs(states, base + begin * plan_.in_size, plan_.results.strides[0][plan_.results.rank - 1],
                              static_cast<int>(segment.count), end - begin, begin);
    else fold_one(base, begin, end, states);
  }

  /// One result: runs of contiguous elements, or blocks gathered from what is not.
  void fold_one(const char* base, i64 begin, i64 end, char* state) {
    const LoopNest& loops = plan_.elements;
    const i64 stride = loops.strides[0][loops.rank - 1];
    const bool contiguous = plan_.same && stride == plan_.in_size;
    LoopWalk walk(loops, begin);
    for (i64 at = begin, n = 0; at < end; at += n) {
      n = min(walk.run(loops), end - at);
      if (contiguous && (n >= strip_unit || n == end - at)) {
        plan_.reducer.fold_run(state, base + walk.offset[0], n, at);
        walk.advance(loops, n);
        continue;
      }
      alignas(64) char buffer[reduce_block * 8];
      n = min(end - at, reduce_block);
      for (i64 done = 0, m = 0; done < n; done += m) {
        m = min(walk.run(loops), n - done);
        plan_.load(buffer + done * plan_.reducer.size, plan_.reducer.size, base + walk.offset[0], stride, m);
        walk.advance(loops, m);
      }
      plan_.reducer.fold_run(state, buffer, n, at);
    }
  }

  /// Neighbouring results: rows of elements, in place or gathered, a few rows at a time over all columns.
  void fold_columns(const char* base, i64 columns, i64 begin, i64 end, char* states) {
    const LoopNest& loops = plan_.elements;
    const i64 step = plan_.results.strides[0][plan_.results.rank - 1];
    LoopWalk walk(loops, begin);
    for (i64 at = begin, n = 0; at < end; at += n) {
      const i64 run = min(walk.run(loops), end - at);
      const bool in_place = plan_.same && step == plan_.in_size && run >= min(end - at, gathered_rows);
      n = min(in_place ? run : end - at, plan_.reducer.rows);
      LoopWalk after = walk;
      for (i64 c = 0; c < columns; c += reduce_columns) {
        const i64 width = min(columns - c, i64(reduce_columns));
        char* group = states + c * plan_.reducer.state_bytes;
        after = walk;
        if (in_place && width == reduce_columns) {
          const i64 row_stride = loops.strides[0][loops.rank - 1];
          plan_.reducer.fold_rows(group, base + walk.offset[0] + c * step, row_stride, n, at);
          after.advance(loops, n);
        } else {
          gather_rows(base + c * step, step, width, after, n, at, group);
        }
      }
      walk = after;
    }
  }

  static constexpr i64 gathered_rows = 16;

  void gather_rows(const char* base, i64 step, i64 width, LoopWalk& walk, i64 n, i64 index, char* states) {
    const int size = plan_.reducer.size;
    const i64 pitch = i64(reduce_columns) * size;
    alignas(64) char buffer[gathered_rows * reduce_columns * 8];
    if (width < reduce_columns) __builtin_memset(buffer, 0, sizeof buffer);
    for (i64 at = 0, m = 0; at < n; at += m) {
      m = min(n - at, gathered_rows);
      for (i64 r = 0; r < m; ++r) {
        plan_.load(buffer + r * pitch, size, base + walk.offset[0], step, width);
        walk.advance(plan_.elements, 1);
      }
      plan_.reducer.fold_rows(states, buffer, pitch, m, index + at);
    }
  }

  void finish(const Segment& segment, const char* states) {
    const LoopWalk walk(plan_.results, segment.first);
    const i64 stride = plan_.results.strides[1][plan_.results.rank - 1];
    char* out = static_cast<char*>(plan_.out) + walk.offset[1];
    for (i64 i = 0; i < segment.count; i += reduce_columns) {
      alignas(64) char results[reduce_columns * 8];
      const i64 n = min(segment.count - i, i64(reduce_columns));
      plan_.reducer.finish(results, states + i * plan_.reducer.state_bytes, static_cast<int>(n), elements_,
                           plan_.parameter);
      plan_.store(out + i * stride, stride, results, plan_.reducer.out_size, n);
    }
  }

  ReducePlan& plan_;
  const ExecutorRef& executor_;
  i64 columns_, groups_, elements_;
  bool by_rows_;  // neighbouring results lie side by side
  bool in_runs_;  // the elements of a result do
};

}  // namespace detail

/// Runs a reduction.
inline void run_reduce(ReducePlan& plan, const ExecutorRef& executor) { detail::ReduceRunner(plan, executor)(); }

/// The reducers by name in compute type T (float, double or i64), e.g. reducer<SumFold, float>().
template <class Fold, class T>
Reducer reducer() {
  using Wide = conditional_t<is_same_v<T, i64>, i64, double>;
  return detail::make_reducer<FoldReducer<Fold, T, Wide>>();
}
template <class T>
Reducer variance_reducer() {
  return detail::make_reducer<VarianceReducer<T, false>>();
}
template <class T>
Reducer std_reducer() {
  return detail::make_reducer<VarianceReducer<T, true>>();
}
template <class T, bool Largest>
Reducer arg_reducer() {
  return detail::make_reducer<ArgReducer<T, Largest>>();
}
template <class T>
Reducer logsumexp_reducer() {
  return detail::make_reducer<LogSumExpReducer<T>>();
}

/// Reduces view `in` over the dimensions where `out`, of the same rank, has length 1. Out holds results of the
/// reducer's Result type or what converts from it.
template <class Result, class Executor, class Out, class In>
void reduce_view(Executor& executor, const Reducer& reducer, const Out& out, const In& in, double parameter = 0,
                 bool ordered = false) {
  static_assert(Out::is_strided && In::is_strided && Out::rank == In::rank, "reduce_view: strided views of one rank");
  using T = remove_cvref_t<typename In::Element>;
  using O = typename Out::Element;
  ReducePlan plan;
  plan.results.operands = 2;
  plan.elements.operands = 1;
  for (int d = 0; d < In::rank; ++d) {
    const bool reduced = out.length(d) == 1;
    LoopNest& loops = reduced ? plan.elements : plan.results;
    loops.lengths[loops.rank] = in.length(d);
    loops.strides[0][loops.rank] = in.stride(d) * static_cast<i64>(sizeof(T));
    if (!reduced) loops.strides[1][loops.rank] = out.stride(d) * static_cast<i64>(sizeof(O));
    ++loops.rank;
  }
  plan.in = in.data;
  plan.out = out.data;
  plan.in_size = sizeof(T);
  plan.same = is_same_v<T, compute_t<T>>;
  plan.ordered = ordered;
  plan.load = convert_run<compute_t<T>, T>;
  plan.store = convert_run<O, Result>;
  plan.reducer = reducer;
  plan.parameter = parameter;
  run_reduce(plan, ExecutorRef(executor));
}

TESSERA_TILE_END
