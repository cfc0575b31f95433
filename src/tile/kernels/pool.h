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

/// The outputs [first, last) along a line of which a tap lies on the image.
struct Outputs {
  i64 first, last;
};
TESSERA_HD Outputs outputs_of(const Window& w, i64 tap) {
  const i64 from = tap * w.dilation - w.pad_low;
  const i64 first = from < 0 ? ceil_div(-from, w.stride) : 0;
  const i64 last = from < w.length ? min(w.output(), (w.length - 1 - from) / w.stride + 1) : 0;
  return {first, max(first, last)};
}
/// Of the taps [first, last) that lie on the image for some output.
struct OutputsOfTaps {
  i64 first, last;
  explicit OutputsOfTaps(const Window& w) : first(taps_at(w, w.output() - 1).first), last(taps_at(w, 0).last) {}
  i64 bytes() const { return max(i64(0), last - first) * static_cast<i64>(sizeof(Outputs)); }
  /// In a place of so many bytes.
  void put(const Window& w, void* place) {
    outputs_ = static_cast<Outputs*>(place);
    for (i64 tap = first; tap < last; ++tap) outputs_[tap - first] = outputs_of(w, tap);
  }
  /// fn(tap, outputs, where the tap lies on the image for the first of them)
  template <class Fn>
  void each(const Window& w, const Fn& fn) const {
    for (i64 tap = first; tap < last; ++tap) {
      const Outputs& on = outputs_[tap - first];
      if (on.first < on.last) fn(tap, on, on.first * w.stride + tap * w.dilation - w.pad_low);
    }
  }

 private:
  Outputs* outputs_ = nullptr;
};

/// fn(step), which is known where it is mostly 1 or 2, so that strips of elements so far apart become vectors.
template <class Fn>
inline void with_step(i64 step, const Fn& fn) {
  if (step == 1) fn(Int<1>{});
  else if (step == 2) fn(Int<2>{});
  else fn(step);
}

/// to[j] = op(to[j], from[j * step]) for j in [0, count).
template <class C, class T, class Step, class Op>
inline void combine_strip(i64 count, C* __restrict to, const T* __restrict from, Step step, const Op& op) {
  for (i64 j = 0; j < count; ++j) to[j] = op(to[j], convert_element<C>(from[j * step]));
}

/// What windows give whose result is op over their elements, whose order does not matter: rows first, as strips of a
/// plane's width, then along these. fn(plane n, c, i, results of a row of windows, thread).
template <class T, class Op, class Fn>
inline void each_row_of_windows(const ExecutorRef& executor, const PoolProblem& p, const StridedView<const T, 4>& x,
                                compute_t<T> start, const Op& op, const Fn& fn) {
  using C = compute_t<T>;
  const i64 width = p.w.length, count = p.w.output();
  executor.parallel(p.images * p.channels, [&](i64 plane, int thread) {
    const i64 n = plane / p.channels, c = plane % p.channels;
    OutputsOfTaps taps(p.w);
    char* const room =
        static_cast<char*>(executor.scratch(thread, taps.bytes() + (width + count) * static_cast<i64>(sizeof(C))));
    taps.put(p.w, room);
    C* const column = reinterpret_cast<C*>(room + taps.bytes());
    C* const result = column + width;
    for (i64 i = 0; i < p.h.output(); ++i) {
      const Taps rows = taps_at(p.h, i);
      for (i64 w = 0; w < width; ++w) column[w] = start;
      for (i64 r = rows.first; r < rows.last; ++r)
        with_step(x.stride(3), [&](auto step) {
          combine_strip(width, column, &x.at(n, c, rows.start + r * p.h.dilation, 0), step, op);
        });
      for (i64 j = 0; j < count; ++j) result[j] = start;
      taps.each(p.w, [&](i64, const Outputs& on, i64 at) {
        with_step(p.w.stride,
                  [&](auto step) { combine_strip(on.last - on.first, result + on.first, column + at, step, op); });
      });
      fn(n, c, i, result);
    }
  });
}

/// What averages along one dim divide by: taps on the image, or also those on the padding.
TESSERA_HD i64 divisor(const PoolProblem& p, const Window& w, const Taps& t) {
  return p.count_padding ? min(t.start + w.filter, w.length + w.pad_high) - t.start : t.last - t.first;
}
TESSERA_HD i64 divisor(const PoolProblem& p, const Taps& rows, const Taps& columns) {
  return divisor(p, p.h, rows) * divisor(p, p.w, columns);
}

/// The outputs whose windows lie on the image whole.
inline Outputs whole_windows(const Window& w) {
  const i64 first = min(w.output(), ceil_div(w.pad_low, w.stride)), room = w.length - w.dilation * (w.filter - 1) - 1;
  return {first, max(first, room < -w.pad_low ? 0 : min(w.output(), (room + w.pad_low) / w.stride + 1))};
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

/// Larger elements replace those of a strip and their numbers, and NaN replaces all.
template <class C, class I, class T, class Step>
inline void take_larger(i64 count, C* __restrict best, I* __restrict which, I number, I none, const T* __restrict from,
                        Step step) {
  for (i64 j = 0; j < count; ++j) {
    const C v = convert_element<C>(from[j * step]);
    const bool wins = (v > best[j]) | (v != v) | (which[j] == none);
    best[j] = wins ? v : best[j];
    which[j] = wins ? number : which[j];
  }
}

/// With numbers of type I.
template <class I, class T, class P>
inline void max_pool_with_taps(const ExecutorRef& executor, const PoolProblem& p, const StridedView<T, 4>& y,
                               const StridedView<P, 4>& taps, const StridedView<const T, 4>& x) {
  using C = compute_t<T>;
  const i64 count = p.w.output();
  const I none = static_cast<I>(p.h.filter * p.w.filter);
  executor.parallel(p.images * p.channels, [&](i64 plane, int thread) {
    const i64 n = plane / p.channels, c = plane % p.channels;
    OutputsOfTaps columns(p.w);
    char* const room =
        static_cast<char*>(executor.scratch(thread, columns.bytes() + count * static_cast<i64>(sizeof(C) + sizeof(I))));
    columns.put(p.w, room);
    C* const best = reinterpret_cast<C*>(room + columns.bytes());
    I* const which = reinterpret_cast<I*>(best + count);
    for (i64 i = 0; i < p.h.output(); ++i) {
      const Taps rows = taps_at(p.h, i);
      for (i64 j = 0; j < count; ++j) best[j] = -static_cast<C>(__builtin_inf()), which[j] = none;
      for (i64 r = rows.first; r < rows.last; ++r)
        columns.each(p.w, [&](i64 s, const Outputs& on, i64 at) {
          with_step(p.w.stride * x.stride(3), [&](auto step) {
            take_larger(on.last - on.first, best + on.first, which + on.first, static_cast<I>(r * p.w.filter + s), none,
                        &x.at(n, c, rows.start + r * p.h.dilation, at), step);
          });
        });
      for (i64 j = 0; j < count; ++j) {
        y.at(n, c, i, j) = convert_element<T>(best[j]);
        taps.at(n, c, i, j) = static_cast<P>(which[j]);
      }
    }
  });
}

}  // namespace detail

/// y = the largest element of each window, NaN before all others; taps, if given, its number among those of the window,
/// row by row, or their count where a window lies on padding only.
template <class T, class P, class Executor>
void max_pool(Executor& executor, const PoolProblem& p, const StridedView<T, 4>& y, const StridedView<P, 4>& taps,
              const StridedView<const T, 4>& x) {
  using C = compute_t<T>;
  const ExecutorRef threads(executor);
  if (taps.data) {
    constexpr i64 most = 0x7fffffff;
    if (p.h.filter * p.w.filter < most) detail::max_pool_with_taps<i32, T>(threads, p, y, taps, x);
    else detail::max_pool_with_taps<i64, T>(threads, p, y, taps, x);
    return;
  }
  const auto larger = [](C best, C v) { return ((v > best) | (v != v)) ? v : best; };
  detail::each_row_of_windows<T>(threads, p, x, -static_cast<C>(__builtin_inf()), larger,
                                 [&](i64 n, i64 c, i64 i, const C* best) {
                                   for (i64 j = 0; j < p.w.output(); ++j)
                                     y.at(n, c, i, j) = convert_element<T>(best[j]);
                                 });
}

/// dx = dy at the places of the maxima, summed, and zero elsewhere.
template <class T, class P, class Executor>
void max_pool_backward(Executor& executor, const PoolProblem& p, const StridedView<T, 4>& dx,
                       const StridedView<const T, 4>& dy, const StridedView<const P, 4>& taps) {
  using C = compute_t<T>;
  constexpr i64 few = 256;
  const i64 count = p.h.filter * p.w.filter;
  const auto offset_of = [&](i64 tap) {
    return tap / p.w.filter * p.h.dilation * dx.stride(2) + tap % p.w.filter * p.w.dilation * dx.stride(3);
  };
  i64 offsets[few];  // no divisions where taps are few
  for (i64 tap = 0; tap < min(few, count); ++tap) offsets[tap] = offset_of(tap);
  ExecutorRef(executor).parallel(p.images * p.channels, [&](i64 plane, int) {
    const i64 n = plane / p.channels, c = plane % p.channels;
    detail::clear_plane(dx, n, c);
    for (i64 i = 0; i < p.h.output(); ++i) {
      T* const row = &dx.at(n, c, 0, 0) + (i * p.h.stride - p.h.pad_low) * dx.stride(2) - p.w.pad_low * dx.stride(3);
      for (i64 j = 0; j < p.w.output(); ++j) {
        const i64 tap = static_cast<i64>(taps.at(n, c, i, j));
        if (tap >= count) continue;
        const i64 offset = count <= few ? offsets[tap] : offset_of(tap);
        detail::add_to(row[j * p.w.stride * dx.stride(3) + offset], convert_element<C>(dy.at(n, c, i, j)));
      }
    }
  });
}

template <class T, class Executor>
void avg_pool(Executor& executor, const PoolProblem& p, const StridedView<T, 4>& y, const StridedView<const T, 4>& x) {
  using C = compute_t<T>;
  const i64 count = p.w.output();
  detail::each_row_of_windows<T>(
      ExecutorRef(executor), p, x, C(0), [](C sum, C v) { return sum + v; },
      [&](i64 n, i64 c, i64 i, const C* sum) {
        const i64 down = detail::divisor(p, p.h, detail::taps_at(p.h, i));
        const detail::Outputs whole = detail::whole_windows(p.w);
        const auto put = [&](i64 j, i64 across) {
          y.at(n, c, i, j) = convert_element<T>(sum[j] / static_cast<C>(down * across));
        };
        for (i64 j = 0; j < whole.first; ++j) put(j, detail::divisor(p, p.w, detail::taps_at(p.w, j)));
        for (i64 j = whole.first; j < whole.last; ++j) put(j, p.w.filter);
        for (i64 j = whole.last; j < count; ++j) put(j, detail::divisor(p, p.w, detail::taps_at(p.w, j)));
      });
}

/// Shares of a row of windows are added up along it, and then to the rows on which they lie.
template <class T, class Executor>
void avg_pool_backward(Executor& executor, const PoolProblem& p, const StridedView<T, 4>& dx,
                       const StridedView<const T, 4>& dy) {
  using C = compute_t<T>;
  const ExecutorRef threads(executor);
  const i64 width = p.w.length, count = p.w.output();
  const auto add = [](C sum, C v) { return sum + v; };
  threads.parallel(p.images * p.channels, [&](i64 plane, int thread) {
    const i64 n = plane / p.channels, c = plane % p.channels;
    detail::OutputsOfTaps taps(p.w);
    char* const room = static_cast<char*>(
        threads.scratch(thread, taps.bytes() + (count + width * (1 + p.h.length)) * static_cast<i64>(sizeof(C))));
    taps.put(p.w, room);
    C* const share = reinterpret_cast<C*>(room + taps.bytes());
    C* const line = share + count;
    C* const sums = line + width;
    const detail::Outputs whole = detail::whole_windows(p.w);
    for (i64 k = 0; k < width * p.h.length; ++k) sums[k] = C(0);
    for (i64 i = 0; i < p.h.output(); ++i) {
      const detail::Taps rows = detail::taps_at(p.h, i);
      const i64 down = detail::divisor(p, p.h, rows);
      for (i64 j = 0; j < count; ++j) {
        const bool is_whole = j >= whole.first && j < whole.last;
        const i64 across = is_whole ? p.w.filter : detail::divisor(p, p.w, detail::taps_at(p.w, j));
        share[j] = convert_element<C>(dy.at(n, c, i, j)) / static_cast<C>(down * across);
      }
      for (i64 w = 0; w < width; ++w) line[w] = C(0);
      taps.each(p.w, [&](i64, const detail::Outputs& on, i64 at) {
        for (i64 j = on.first; j < on.last; ++j) line[at + (j - on.first) * p.w.stride] += share[j];
      });
      for (i64 r = rows.first; r < rows.last; ++r)
        detail::combine_strip(width, sums + (rows.start + r * p.h.dilation) * width, line, Int<1>{}, add);
    }
    for (i64 h = 0; h < p.h.length; ++h)
      for (i64 w = 0; w < width; ++w) dx.at(n, c, h, w) = convert_element<T>(sums[h * width + w]);
  });
}

TESSERA_TILE_END
