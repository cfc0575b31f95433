// Pooling of images whose channels are contiguous: vectors run along channels. Gradients are collected, for each pixel
// from the windows that lie on it, so that threads share pixels and none is written twice.
#pragma once

#include "pool.h"
#include "rows.h"

TESSERA_TILE_BEGIN

namespace detail {

/// fn(image, row) for the rows of all images, which threads share; `cost` is that of one row.
template <class Fn>
void each_row(const ExecutorRef& executor, i64 images, i64 rows, i64 cost, const Fn& fn) {
  for_rows(executor, images * rows, cost, [&](i64 i, int) { fn(i / rows, i % rows); });
}
inline i64 row_cost(const PoolProblem& p) { return p.w.output() * p.channels * p.h.filter * p.w.filter; }

/// The outputs [first, last) whose windows may lie on an input.
struct Covering {
  i64 first, last;
};
inline Covering covering(const Window& w, i64 at) {
  const i64 from = at + w.pad_low - (w.filter - 1) * w.dilation;
  return {from > 0 ? ceil_div(from, w.stride) : 0, min(w.output(), (at + w.pad_low) / w.stride + 1)};
}
/// Which tap of the window of an output reads an input that lies inside of it; -1: it is between two taps.
inline i64 tap_on(const Window& w, i64 output, i64 at) {
  const i64 from = at + w.pad_low - output * w.stride;
  return from % w.dilation == 0 ? from / w.dilation : -1;
}

/// dx = the sum of part(RowPart, n, i, j, number of the tap) over the windows (i, j) that lie on a pixel.
template <class T, class Part>
void collect_windows(const ExecutorRef& executor, const PoolProblem& p, const StridedView<T, 4>& dx, const Part& part) {
  using C = compute_t<T>;
  each_row(executor, p.images, p.h.length, row_cost(p), [&](i64 n, i64 h) {
    const Covering rows = covering(p.h, h);
    for (i64 w = 0; w < p.w.length; ++w) {
      const Covering columns = covering(p.w, w);
      walk_row<C>(p.channels, [&](auto at) {
        auto sum = fill_tile<C, RowLayout<C, decltype(at)::vectors>>(C(0));
        for (i64 i = rows.first; i < rows.last; ++i) {
          const i64 r = tap_on(p.h, i, h);
          if (r < 0) continue;
          for (i64 j = columns.first; j < columns.last; ++j) {
            const i64 s = tap_on(p.w, j, w);
            if (s >= 0) sum = map_tile(Add{}, sum, part(at, n, i, j, r * p.w.filter + s));
          }
        }
        at.store(&dx.at(n, 0, h, w), sum);
      });
    }
  });
}

}  // namespace detail

/// max_pool.
template <class T, class P>
void max_pool_last(const ExecutorRef& executor, const PoolProblem& p, const StridedView<T, 4>& y,
                   const StridedView<P, 4>& taps, const StridedView<const T, 4>& x) {
  using C = compute_t<T>;
  using V = RowVec<C>;
  const V none(static_cast<C>(p.h.filter * p.w.filter));
  detail::each_row(executor, p.images, p.h.output(), detail::row_cost(p), [&](i64 n, i64 i) {
    const detail::Taps rows = detail::taps_at(p.h, i);
    for (i64 j = 0; j < p.w.output(); ++j) {
      const detail::Taps columns = detail::taps_at(p.w, j);
      walk_row<C>(p.channels, [&](auto part) {
        constexpr int vectors = decltype(part)::vectors;
        auto best = fill_tile<C, RowLayout<C, vectors>>(-static_cast<C>(__builtin_inf()));
        auto which = fill_tile<C, RowLayout<C, vectors>>(static_cast<C>(p.h.filter * p.w.filter));
        detail::each_tap(p, rows, columns, [&](i64 h, i64 w, i64 tap) {
          const auto v = part.load(&x.at(n, 0, h, w));
          const V number(static_cast<C>(tap));
          unroll<vectors>([&](auto k) {
            const auto wins = (v.part[k] > best.part[k]) | (v.part[k] != v.part[k]) | (which.part[k] == none);
            best.part[k] = select(wins, v.part[k], best.part[k]);
            which.part[k] = select(wins, number, which.part[k]);
          });
        });
        part.store(&y.at(n, 0, i, j), best);
        if (taps.data) part.store(&taps.at(n, 0, i, j), which);
      });
    }
  });
}

/// max_pool_backward.
template <class T, class P>
void max_pool_last_backward(const ExecutorRef& executor, const PoolProblem& p, const StridedView<T, 4>& dx,
                            const StridedView<const T, 4>& dy, const StridedView<const P, 4>& taps) {
  using C = compute_t<T>;
  using V = RowVec<C>;
  detail::collect_windows<T>(executor, p, dx, [&](const auto& at, i64 n, i64 i, i64 j, i64 tap) {
    const V number(static_cast<C>(tap));
    return map_tile([=](V g, V t) { return select(t == number, g, V(C(0))); }, at.load(&dy.at(n, 0, i, j)),
                    at.load(&taps.at(n, 0, i, j)));
  });
}

template <class T>
void avg_pool_last(const ExecutorRef& executor, const PoolProblem& p, const StridedView<T, 4>& y,
                   const StridedView<const T, 4>& x) {
  using C = compute_t<T>;
  using V = RowVec<C>;
  detail::each_row(executor, p.images, p.h.output(), detail::row_cost(p), [&](i64 n, i64 i) {
    const detail::Taps rows = detail::taps_at(p.h, i);
    for (i64 j = 0; j < p.w.output(); ++j) {
      const detail::Taps columns = detail::taps_at(p.w, j);
      const V count(static_cast<C>(detail::divisor(p, rows, columns)));
      walk_row<C>(p.channels, [&](auto part) {
        auto sum = fill_tile<C, RowLayout<C, decltype(part)::vectors>>(C(0));
        detail::each_tap(p, rows, columns,
                         [&](i64 h, i64 w, i64) { sum = map_tile(Add{}, sum, part.load(&x.at(n, 0, h, w))); });
        part.store(&y.at(n, 0, i, j), map_tile([=](V v) { return v / count; }, sum));
      });
    }
  });
}

template <class T>
void avg_pool_last_backward(const ExecutorRef& executor, const PoolProblem& p, const StridedView<T, 4>& dx,
                            const StridedView<const T, 4>& dy) {
  using C = compute_t<T>;
  using V = RowVec<C>;
  detail::collect_windows<T>(executor, p, dx, [&](const auto& at, i64 n, i64 i, i64 j, i64) {
    const V count(static_cast<C>(detail::divisor(p, detail::taps_at(p.h, i), detail::taps_at(p.w, j))));
    return map_tile([=](V g) { return g / count; }, at.load(&dy.at(n, 0, i, j)));
  });
}

TESSERA_TILE_END
