// Maxima and averages over windows of images (n, c, h, w), and their gradients. Padding never wins a maximum.
#pragma once

#include "../convolution.h"
#include "../executor.h"
#include "../types.h"

TESSERA_TILE_BEGIN

struct PoolProblem {
  i64 images, channels;
  Window h, w;
  bool count_padding;  // in the divisor of an average
};

namespace detail {

/// The taps [first, last) of a window at output position `o` that lie on the image; tap t reads start + t * dilation.
struct Taps {
  i64 start, first, last;
};
TESSERA_HD Taps taps_at(const Window& w, i64 o) {
  const i64 start = o * w.stride - w.pad_low;
  const i64 first = start < 0 ? ceil_div(-start, w.dilation) : 0;
  return {start, first, start < w.length ? min(w.filter, ceil_div(w.length - start, w.dilation)) : 0};
}

/// fn(row, column, number of the tap) for every element of a window that lies on the image, in row-major order.
template <class F>
TESSERA_HD void each_tap(const PoolProblem& p, const Taps& rows, const Taps& columns, const F& fn) {
  for (i64 r = rows.first; r < rows.last; ++r) {
    for (i64 s = columns.first; s < columns.last; ++s) {
      fn(rows.start + r * p.h.dilation, columns.start + s * p.w.dilation, r * p.w.filter + s);
    }
  }
}

/// fn(image, channel, i, j, taps, taps) for every window; planes are shared among threads. `begin` starts a plane.
template <class Begin, class F>
inline void each_window(const ExecutorRef& executor, const PoolProblem& p, const Begin& begin, const F& fn) {
  executor.parallel(p.images * p.channels, [&](i64 plane, int) {
    const i64 n = plane / p.channels, c = plane % p.channels;
    begin(n, c);
    for (i64 i = 0; i < p.h.output(); ++i) {
      const Taps rows = taps_at(p.h, i);
      for (i64 j = 0; j < p.w.output(); ++j) fn(n, c, i, j, rows, taps_at(p.w, j));
    }
  });
}

/// What an average divides by: taps on the image, or also those on the padding.
TESSERA_HD i64 divisor(const PoolProblem& p, const Taps& rows, const Taps& columns) {
  const auto count = [&](const Window& w, const Taps& t) {
    return p.count_padding ? min(t.start + w.filter, w.length + w.pad_high) - t.start : t.last - t.first;
  };
  return count(p.h, rows) * count(p.w, columns);
}

template <class T>
TESSERA_HD void clear_plane(const StridedView<T, 4>& x, i64 n, i64 c) {
  for (i64 i = 0; i < x.length(2); ++i) {
    for (i64 j = 0; j < x.length(3); ++j) x.at(n, c, i, j) = convert_element<T>(0.f);
  }
}

template <class T, class C>
TESSERA_HD void add_to(T& element, C value) {
  element = convert_element<T>(convert_element<C>(element) + value);
}

}  // namespace detail

/// y = the largest element of each window, NaN before all others; taps, if given, its number among those of the window,
/// row by row, or their count where a window lies on padding only.
template <class T, class P, class Executor>
void max_pool(Executor& executor, const PoolProblem& p, const StridedView<T, 4>& y, const StridedView<P, 4>& taps,
              const StridedView<const T, 4>& x) {
  using C = compute_t<T>;
  const i64 none = p.h.filter * p.w.filter;
  const auto window = [&](i64 n, i64 c, i64 i, i64 j, const detail::Taps& rows, const detail::Taps& columns) {
    C best = -static_cast<C>(__builtin_inf());
    i64 which = none;
    detail::each_tap(p, rows, columns, [&](i64 h, i64 w, i64 tap) {
      const C v = convert_element<C>(x.at(n, c, h, w));
      if (which != none && !(v > best) && v == v) return;
      best = v;
      which = tap;
    });
    y.at(n, c, i, j) = convert_element<T>(best);
    if (taps.data) taps.at(n, c, i, j) = static_cast<P>(which);
  };
  detail::each_window(
      ExecutorRef(executor), p, [](i64, i64) {}, window);
}

/// dx = dy at the places of the maxima, summed, and zero elsewhere.
template <class T, class P, class Executor>
void max_pool_backward(Executor& executor, const PoolProblem& p, const StridedView<T, 4>& dx,
                       const StridedView<const T, 4>& dy, const StridedView<const P, 4>& taps) {
  using C = compute_t<T>;
  detail::each_window(
      ExecutorRef(executor), p, [&](i64 n, i64 c) { detail::clear_plane(dx, n, c); },
      [&](i64 n, i64 c, i64 i, i64 j, const detail::Taps& rows, const detail::Taps& columns) {
        const i64 tap = taps.at(n, c, i, j), r = tap / p.w.filter, s = tap % p.w.filter;
        if (r == p.h.filter) return;
        detail::add_to(dx.at(n, c, rows.start + r * p.h.dilation, columns.start + s * p.w.dilation),
                       convert_element<C>(dy.at(n, c, i, j)));
      });
}

template <class T, class Executor>
void avg_pool(Executor& executor, const PoolProblem& p, const StridedView<T, 4>& y, const StridedView<const T, 4>& x) {
  using C = compute_t<T>;
  const auto window = [&](i64 n, i64 c, i64 i, i64 j, const detail::Taps& rows, const detail::Taps& columns) {
    C total = 0;
    detail::each_tap(p, rows, columns, [&](i64 h, i64 w, i64) { total += convert_element<C>(x.at(n, c, h, w)); });
    y.at(n, c, i, j) = convert_element<T>(total / static_cast<C>(detail::divisor(p, rows, columns)));
  };
  detail::each_window(
      ExecutorRef(executor), p, [](i64, i64) {}, window);
}

template <class T, class Executor>
void avg_pool_backward(Executor& executor, const PoolProblem& p, const StridedView<T, 4>& dx,
                       const StridedView<const T, 4>& dy) {
  using C = compute_t<T>;
  detail::each_window(
      ExecutorRef(executor), p, [&](i64 n, i64 c) { detail::clear_plane(dx, n, c); },
      [&](i64 n, i64 c, i64 i, i64 j, const detail::Taps& rows, const detail::Taps& columns) {
        const C share = convert_element<C>(dy.at(n, c, i, j)) / static_cast<C>(detail::divisor(p, rows, columns));
        detail::each_tap(p, rows, columns, [&](i64 h, i64 w, i64) { detail::add_to(dx.at(n, c, h, w), share); });
      });
}

TESSERA_TILE_END
