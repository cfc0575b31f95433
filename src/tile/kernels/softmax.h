// Softmax, log-softmax and cross-entropy over contiguous rows, with their gradients.
#pragma once

#include "rows.h"

TESSERA_TILE_BEGIN

/// Matrices whose rows are contiguous and `pitch` elements apart.
template <class T>
struct Rows {
  T* data;
  i64 pitch;
  TESSERA_HD T* operator[](i64 row) const { return data + row * pitch; }
};

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
  using V = typename StripTile<C>::V;
  const C shift = softmax_shift(max_row<C>(n, x));
  const auto term = [=](auto v) TESSERA_LAMBDA { return exp_nonpositive(v - V(shift)); };
  return {shift, sum_row<C>(n, -static_cast<C>(__builtin_inf()), term, x)};
}

}  // namespace detail

/// y = softmax(x) along rows of n elements; y may be x. A row of -inf only gives NaN.
template <class T, class Executor>
void softmax(Executor& executor, i64 rows, i64 n, Rows<T> y, Rows<const T> x) {
  using C = compute_t<T>;
  using V = typename StripTile<C>::V;
  for_rows(ExecutorRef(executor), rows, n * 8, [&](i64 r, int) {
    if constexpr (is_same_v<T, C>) {  // the exponentials wait in y for their sum
      const C shift = detail::softmax_shift(max_row<C>(n, x[r]));
      auto total = fill_tile<C, Strip4<C>>(C(0));
      constexpr i64 step = Strip4<C>::layout().length(0);
      const auto add = [](auto a, auto b) TESSERA_LAMBDA { return a + b; };
      for (i64 i = 0; i < n; i += step) {
        const auto t = load_tile<Strip4<C>, C>(row_view(x[r], n), {i}, 0, -static_cast<C>(__builtin_inf()));
        const auto e = map_tile([=](auto v) TESSERA_LAMBDA { return exp_nonpositive(v - V(shift)); }, t);
        total = map_tile(add, total, e);
        store_tile(row_view(y[r], n), {i}, e);
      }
      const V scale(C(1) / reduce_tile<0>(total, add).part[0]);
      map_row<C>(
          n, y[r], [=](auto v) TESSERA_LAMBDA { return v * scale; }, static_cast<const T*>(y[r]));
    } else {  // and are computed twice where T would round them
      const auto e = detail::row_exponents<C>(n, x[r]);
      const V shift(e.shift), scale(C(1) / e.sum);
      map_row<C>(
          n, y[r], [=](auto v) TESSERA_LAMBDA { return exp_nonpositive(v - shift) * scale; }, x[r]);
    }
  });
}

/// y = x - log(sum(exp(x))) along rows; y may be x.
template <class T, class Executor>
void log_softmax(Executor& executor, i64 rows, i64 n, Rows<T> y, Rows<const T> x) {
  using C = compute_t<T>;
  using V = typename StripTile<C>::V;
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
  using V = typename StripTile<C>::V;
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
  using V = typename StripTile<C>::V;
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
  using V = typename StripTile<C>::V;
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
