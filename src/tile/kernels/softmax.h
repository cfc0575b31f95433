// Softmax, log-softmax and cross-entropy over contiguous rows, with their gradients.
#pragma once

#include "../rows.h"
#include "rows.h"

TESSERA_TILE_BEGIN

/// The shift and the sum of exponentials of a row, so that softmax(x) = exp(x - shift) / sum.
template <class C>
struct RowExponents {
  C shift, sum;
};

namespace detail {

/// The largest element; 0 where that is infinite, so that infinite elements still meet a finite shift.
template <class C>
TESSERA_HD C softmax_shift(C largest) {
  return abs(largest) < static_cast<C>(__builtin_inf()) ? largest : C(0);
}

template <class C, class T>
TESSERA_HD RowExponents<C> row_exponents(i64 n, const T* x) {
  using V = RowVec<C>;
  const C shift = softmax_shift(max_row<C>(n, x));
  const auto term = [=](auto v) TESSERA_LAMBDA { return exp_nonpositive(v - V(shift)); };
  return {shift, sum_row<C>(n, -static_cast<C>(__builtin_inf()), term, x)};
}

/// The range of a row; with a least element only where store_exponentials gains by it.
template <class C>
TESSERA_HD Range<C> exponents_range(i64 n, const C* row) {
  if (is_same_v<C, float> && has_lookup8<RowVec<C>::lanes> && n >= 128) return range_row<C>(n, row);
  return {-static_cast<C>(__builtin_inf()), max_row<C>(n, row)};
}

/// to = exp(from) along a row of this range, times a factor of the row; returns their sum. The row after it comes
/// meanwhile: other walks are too short to wait for it.
template <class C>
TESSERA_HD C store_exponentials(i64 n, C* to, const C* from, const C* next, const Range<C>& range) {
  using V = RowVec<C>;
  const auto store_all = [&](C outside, const auto& exponential) TESSERA_LAMBDA {
    V sum(C(0));
    walk_row<C>(n, [&](auto part) TESSERA_LAMBDA {
      const auto e = map_tile(exponential, part.load(from, outside));
      sum += join_vectors(e, Add{});
      part.store(to, e);
      part.prefetch(next);
    });
    return reduce_sum(sum);
  };
  if constexpr (is_same_v<C, float> && has_lookup8<V::lanes>) {
    using E = ScaledExp<V>;
    if (E::takes(range.least, range.largest)) return store_all(range.largest - E::span, E(range.largest));
  }
  const V shift(softmax_shift(range.largest));
  return store_all(-static_cast<C>(__builtin_inf()), [=](V v) TESSERA_LAMBDA { return exp_nonpositive(v - shift); });
}

}  // namespace detail

/// y = softmax(x) along rows of n elements; y may be x. A row of -inf only gives NaN.
template <class T, class Executor>
void softmax(Executor& executor, i64 rows, i64 n, Rows<T> y, Rows<const T> x) {
  using C = compute_t<T>;
  using V = RowVec<C>;
  split_range(ExecutorRef(executor), rows, n * 8, 1, [&](i64 begin, i64 end, int) {
    if constexpr (is_same_v<T, C>) {  // the exponentials wait in y for their sum
      Range<C> range = detail::exponents_range<C>(n, x[begin]);
      for (i64 r = begin; r < end; ++r) {
        const T* next = x[min(r + 1, end - 1)];
        T* to = y[r];
        const V scale(C(1) / detail::store_exponentials<C>(n, to, x[r], next, range));
        range = detail::exponents_range<C>(n, next);  // while the division takes its time
        map_row<C>(
            n, to, [=](V v) TESSERA_LAMBDA { return v * scale; }, static_cast<const T*>(to));
      }
    } else {  // and are computed twice where T would round them
      for (i64 r = begin; r < end; ++r) {
        const auto e = detail::row_exponents<C>(n, x[r]);
        const V shift(e.shift), scale(C(1) / e.sum);
        map_row<C>(
            n, y[r], [=](V v) TESSERA_LAMBDA { return exp_nonpositive(v - shift) * scale; }, x[r]);
      }
    }
  });
}

/// y = x - log(sum(exp(x))) along rows; y may be x.
template <class T, class Executor>
void log_softmax(Executor& executor, i64 rows, i64 n, Rows<T> y, Rows<const T> x) {
  using C = compute_t<T>;
  using V = RowVec<C>;
  for_rows(ExecutorRef(executor), rows, n * 8, [&](i64 r, int) {
    const auto e = detail::row_exponents<C>(n, x[r]);
    const V shift(e.shift + log(e.sum));
    map_row<C>(
        n, y[r], [=](auto v) TESSERA_LAMBDA { return v - shift; }, x[r]);
  });
}

/// dx = y (dy - sum(dy y)) for y = softmax(x); dx may be dy.
template <class T, class Executor>
void softmax_backward(Executor& executor, i64 rows, i64 n, Rows<T> dx, Rows<const T> dy, Rows<const T> y) {
  using C = compute_t<T>;
  using V = RowVec<C>;
  for_rows(ExecutorRef(executor), rows, n * 4, [&](i64 r, int) {
    const V sum(sum_row<C>(
        n, C(0), [](auto g, auto p) TESSERA_LAMBDA { return g * p; }, dy[r], y[r]));
    map_row<C>(
        n, dx[r], [=](auto g, auto p) TESSERA_LAMBDA { return p * (g - sum); }, dy[r], y[r]);
  });
}

/// dx = dy - exp(y) sum(dy) for y = log_softmax(x); dx may be dy.
template <class T, class Executor>
void log_softmax_backward(Executor& executor, i64 rows, i64 n, Rows<T> dx, Rows<const T> dy, Rows<const T> y) {
  using C = compute_t<T>;
  using V = RowVec<C>;
  for_rows(ExecutorRef(executor), rows, n * 8, [&](i64 r, int) {
    const V sum(sum_row<C>(
        n, C(0), [](auto g) TESSERA_LAMBDA { return g; }, dy[r]));
    map_row<C>(
        n, dx[r], [=](auto g, auto l) TESSERA_LAMBDA { return g - exp_nonpositive(l) * sum; }, dy[r], y[r]);
  });
}

/// Classes, smoothing and what counts as no target, of a cross-entropy over rows of logits.
struct CrossEntropyProblem {
  i64 rows, classes;
  i64 ignore_index;        // rows with this target have loss and gradient 0
  double label_smoothing;  // share of the target's weight that is spread over all classes
};

/// The first row whose target is neither a class nor ignored, or -1.
inline i64 invalid_target(const CrossEntropyProblem& problem, const i64* targets) {
  for (i64 r = 0; r < problem.rows; ++r) {
    const bool is_class = targets[r] >= 0 && targets[r] < problem.classes;
    if (!is_class && targets[r] != problem.ignore_index) return r;
  }
  return -1;
}

/// How many targets are not ignored.
inline i64 counted_targets(i64 rows, const i64* targets, i64 ignore_index) {
  i64 count = 0;
  for (i64 r = 0; r < rows; ++r) count += targets[r] != ignore_index;
  return count;
}

/// losses[r] = -sum over classes of q log(softmax(logits)), where q is 1 - smoothing at the target plus
/// smoothing / classes everywhere (Szegedy et al., arXiv:1512.00567); lse[r] = log(sum(exp(logits))) for the backward.
/// Targets must be valid.
template <class T, class Executor>
void cross_entropy(Executor& executor, const CrossEntropyProblem& problem, Rows<const T> logits, const i64* targets,
                   compute_t<T>* losses, compute_t<T>* lse) {
  using C = compute_t<T>;
  const i64 n = problem.classes;
  const C smoothing = static_cast<C>(problem.label_smoothing);
  for_rows(ExecutorRef(executor), problem.rows, n * 8, [&](i64 r, int) {
    const T* x = logits[r];
    const auto e = detail::row_exponents<C>(n, x);
    lse[r] = e.shift + log(e.sum);
    if (targets[r] == problem.ignore_index) {
      losses[r] = C(0);
      return;
    }
    losses[r] = (C(1) - smoothing) * (lse[r] - convert_element<C>(x[targets[r]]));
    if (smoothing > C(0)) {
      const C mean = sum_row<C>(
                         n, C(0), [](auto v) TESSERA_LAMBDA { return v; }, x) /
                     static_cast<C>(n);
      losses[r] += smoothing * (lse[r] - mean);
    }
  });
}

/// dlogits = scale[r] * (softmax(logits) - q), in place where dlogits is logits. scale holds one factor per row, or
/// one for all when scale_step is 0.
template <class T, class Executor>
void cross_entropy_backward(Executor& executor, const CrossEntropyProblem& problem, Rows<T> dlogits,
                            Rows<const T> logits, const i64* targets, const compute_t<T>* lse,
                            const compute_t<T>* scale, i64 scale_step) {
  using C = compute_t<T>;
  using V = RowVec<C>;
  const i64 n = problem.classes;
  const C smoothing = static_cast<C>(problem.label_smoothing), spread_share = smoothing / static_cast<C>(n);
  for_rows(ExecutorRef(executor), problem.rows, n * 8, [&](i64 r, int) {
    const C factor = targets[r] == problem.ignore_index ? C(0) : scale[r * scale_step];
    const V shift(lse[r]), by(factor), everywhere(spread_share);
    if (factor == C(0)) {  // also where the logits are infinite
      map_row<C>(
          n, dlogits[r], [](auto) TESSERA_LAMBDA { return V(C(0)); }, logits[r]);
      return;
    }
    const C at_target = exp(convert_element<C>(logits[r][targets[r]]) - lse[r]);
    map_row<C>(
        n, dlogits[r], [=](auto v) TESSERA_LAMBDA { return (exp_nonpositive(v - shift) - everywhere) * by; },
        logits[r]);
    dlogits[r][targets[r]] = convert_element<T>((at_target - spread_share - (C(1) - smoothing)) * factor);
  });
}

TESSERA_TILE_END
