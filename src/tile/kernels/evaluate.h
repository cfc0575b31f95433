// Expressions over whole matrices: elementwise maps, and reductions of every row, fused with whatever computes the
// elements and with whatever becomes of the results.
//
//   auto mean = strided(means, {rows, n}, {1, 0});  // a number per row
//   fold_rows<MeanFold>(executor, load(x), store(mean, acc));
//   map(executor, store(y, load(x) - load(mean)));
//
// Here `acc` is the result of the reduction; expr.h has the rest of the language. The views may be any views: what
// is a row is theirs to say.
#pragma once

#include "../expr.h"
#include "loops.h"
#include "reduce.h"

TESSERA_TILE_BEGIN

namespace detail {

struct NoView {};
template <class... V>
struct FirstView {
  using type = NoView;
};
template <class V, class... More>
struct FirstView<V, More...> {
  using type = V;
};
template <class... More>
struct FirstView<NoView, More...> : FirstView<More...> {};

/// The first view of an expression: the shape and the element type of the others are its.
template <class E>
struct ViewOf {
  using type = NoView;
};
template <class V>
struct ViewOf<Load<V>> {
  using type = V;
};
template <class V, class E, bool Add>
struct ViewOf<Store<V, E, Add>> {
  using type = V;
};
template <class F, class... E>
struct ViewOf<Apply<F, E...>> : FirstView<typename ViewOf<E>::type...> {};
template <class A, class B>
struct ViewOf<Also<A, B>> : FirstView<typename ViewOf<A>::type, typename ViewOf<B>::type> {};

/// What a matrix expression is computed in.
template <class E>
using expression_t = compute_t<remove_cvref_t<typename ViewOf<E>::type::Element>>;

struct MatrixShape {
  i64 rows, columns;
};
template <class E>
MatrixShape shape_of(const E& e) {
  static_assert(!is_same_v<typename ViewOf<E>::type, NoView>, "an expression over a matrix names a view");
  MatrixShape shape{-1, -1};
  e.views([&](const auto& view) {
    if (shape.rows < 0) shape = {view.length(0), view.length(1)};
  });
  return shape;
}

/// fn(Int<1>) if the rows of all views are contiguous elements, fn(Int<0>) otherwise.
template <class E, class Fn>
void with_row_kind(const E& e, const Fn& fn) {
  bool unit = true;
  e.views([&](const auto& view) { unit = unit && has_unit_columns(view); });
  if (unit) fn(Int<1>{});
  else fn(Int<0>{});
}

/// Folds columns [begin, end) of a row of an expression.
template <class Fold, class T, class Row>
T fold_columns(const Row& row, i64 begin, i64 end) {
  using V = NativeVec<T>;
  constexpr int ways = 4;
  V sum[ways];
  unroll<ways>([&](auto i) { sum[i] = Fold::template first<V>(); });
  const auto value = [&](i64 n, auto lanes) __attribute__((always_inline)) { return row(V(T(0)), n, lanes); };
  i64 n = begin;
  for (; n + ways * V::lanes <= end; n += ways * V::lanes) {
    unroll<ways>([&](auto i) __attribute__((always_inline)) {
      sum[i] = Fold::fold(sum[i], value(n + i * V::lanes, AllLanes{}));
    });
  }
  for (; n < end; n += V::lanes) {
    const int lanes = static_cast<int>(min<i64>(V::lanes, end - n));
    using I = rebind_t<V, typename SignedOfSize<sizeof(T)>::type>;
    const auto exists = iota<I>() < I(static_cast<element_t<I>>(lanes));
    sum[0] = select(exists, Fold::fold(sum[0], value(n, lanes)), sum[0]);
  }
  const V all = Fold::join(Fold::join(sum[0], sum[1]), Fold::join(sum[2], sum[3]));
  return reduce(all, [](auto a, auto b) { return Fold::join(a, b); });
}

}  // namespace detail

/// Evaluates an expression at every element of its first view; what it stores is the result:
/// map(executor, store(y, relu(load(x)))).
template <Expression E>
void map(const ExecutorRef& executor, const E& e) {
  using V = NativeVec<detail::expression_t<E>>;
  const auto shape = detail::shape_of(e);
  detail::with_row_kind(e, [&](auto unit) {
    split_range(executor, shape.rows, shape.columns, 1, [&](i64 begin, i64 end, int) {
      for (i64 m = begin; m < end; ++m) {
        const auto row = e.template row<(unit > 0)>(m);
        i64 n = 0;
        for (; n + V::lanes <= shape.columns; n += V::lanes) row(V(0), n, AllLanes{});
        if (n < shape.columns) row(V(0), n, static_cast<int>(shape.columns - n));
      }
    });
  });
}

/// Reduces an expression along every row with a Fold of reduce.h (SumFold, MeanFold, MaxFold, ...) and evaluates
/// `result` once per row, in column 0, with `acc` standing for what came out. The order of summation depends on the
/// length of the row alone.
template <class Fold, Expression E, Expression Result>
void fold_rows(const ExecutorRef& executor, const E& e, const Result& result) {
  using T = detail::expression_t<E>;
  const auto shape = detail::shape_of(e);
  detail::with_row_kind(e, [&](auto unit) {
    split_range(executor, shape.rows, shape.columns, 1, [&](i64 begin, i64 end, int) {
      for (i64 m = begin; m < end; ++m) {
        const auto row = e.template row<(unit > 0)>(m);
        double state = Fold::template first<double>();
        for (i64 n = 0; n < shape.columns; n += reduce_block) {
          const T part = detail::fold_columns<Fold, T>(row, n, min(shape.columns, n + reduce_block));
          state = Fold::join(state, static_cast<double>(part));
        }
        result.row(m)(static_cast<T>(Fold::finish(state, shape.columns, 0.0)), 0, AllLanes{});
      }
    });
  });
}

TESSERA_TILE_END
