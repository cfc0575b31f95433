// Convolutions in which each channel has a filter of its own, over images whose channels are contiguous: vectors run
// along channels, and a few pixels share what they load of the filters.
#pragma once

#include "conv_direct.h"

TESSERA_TILE_BEGIN

namespace detail {

/// Outputs whose windows lie inside along a dimension.
inline cpu::Span whole_windows(const Sweep& s) {
  const i64 begin = s.before > 0 ? ceil_div(s.before, s.stride) : 0;
  const i64 last = s.length + s.before - (s.taps - 1) * s.dilation - 1;  // the last input where a window may begin
  return {min(begin, s.outputs), last < 0 ? 0 : min(s.outputs, last / s.stride + 1)};
}
/// Outputs that see an input by a tap.
inline cpu::Span seen_by(const Sweep& s, i64 tap) {
  const i64 shift = tap * s.dilation - s.before;  // from an output's place to its input
  const i64 begin = shift < 0 ? ceil_div(-shift, s.stride) : 0, last = s.length - 1 - shift;
  return {begin, last < 0 ? begin : max(begin, min(s.outputs, last / s.stride + 1))};
}

/// Filters (c, r, s) as lines of channels, a line for each tap.
template <class T>
void pack_lines(const StridedView<const T, 3>& w, T* to) {
  for (i64 r = 0; r < w.length(1); ++r) {
    for (i64 s = 0; s < w.length(2); ++s) {
      const T* from = w.data + r * w.stride(1) + s * w.stride(2);
      for (i64 c = 0; c < w.length(0); ++c) *to++ = from[c * w.stride(0)];
    }
  }
}

/// A row of the output of a depthwise convolution.
template <class T>
class DepthwiseRow {
  using V = NativeVec<T>;
  static constexpr int together = 4;  // pixels

 public:
  DepthwiseRow(const StridedView<const T, 4>& x, const Sweep& h, const Sweep& w, const T* filters, i64 row)
      : x_(x),
        h_(h),
        w_(w),
        filters_(filters),
        rows_(h.inside(row % h.outputs)),
        from_(x.data + row / h.outputs * x.stride(0) + h.first_input(row % h.outputs) * x.stride(1)) {}

  template <class Sink>
  void run(const Sink& sink) const {
    const cpu::Span whole = whole_windows(w_);
    for (i64 i = 0; i < w_.outputs;) {
      if (i >= whole.begin && i + together <= whole.end) {
        pixels<together>(i, {0, w_.taps}, sink);
        i += together;
      } else {
        pixels<1>(i, w_.inside(i), sink);
        ++i;
      }
    }
  }

 private:
  template <int Count, class Sink>
  void pixels(i64 first, const cpu::Span& columns, const Sink& sink) const {
    const i64 channels = x_.length(3);
    i64 c = 0;
    for (; c + V::lanes <= channels; c += V::lanes) {
      channels_of<Count>(
          first, columns, sink, c, [](const T* p) { return load<V>(p); }, AllLanes{});
    }
    const int rest = static_cast<int>(channels - c);
    if (rest > 0)
      channels_of<Count>(
          first, columns, sink, c, [=](const T* p) { return load<V>(p, rest); }, rest);
  }
  template <int Count, class Sink, class Load, class Lanes>
  TESSERA_HD void channels_of(i64 first, const cpu::Span& columns, const Sink& sink, i64 c, const Load& get,
                              Lanes lanes) const {
    V sum[Count];
    TESSERA_UNROLL
    for (int i = 0; i < Count; ++i) sum[i] = V(T(0));
    const i64 step = w_.stride * x_.stride(2);
    for (i64 r = rows_.begin; r < rows_.end; ++r) {
      const T* from = from_ + r * h_.dilation * x_.stride(1) +
                      (w_.first_input(first) + columns.begin * w_.dilation) * x_.stride(2) + c;
      const T* filter = filters_ + (r * w_.taps + columns.begin) * x_.length(3) + c;
      for (i64 s = columns.begin; s < columns.end; ++s) {
        const V factor = get(filter);
        TESSERA_UNROLL
        for (int i = 0; i < Count; ++i) sum[i] = fma(get(from + i * step), factor, sum[i]);
        from += w_.dilation * x_.stride(2);
        filter += x_.length(3);
      }
    }
    TESSERA_UNROLL
    for (int i = 0; i < Count; ++i) sink.template row<true>(first + i)(sum[i], c, lanes);
  }

  StridedView<const T, 4> x_;
  Sweep h_, w_;
  const T* filters_;
  cpu::Span rows_;  // taps inside of the image
  const T* from_;
};

}  // namespace detail

/// The convolution of each channel of images (n, h, w, c) with its line of packed filters; sink(image, row) is the
/// epilogue over [columns of that row of the output, channels], whose columns are contiguous.
template <class T, class MakeSink>
void conv2d_depthwise(const ExecutorRef& executor, const StridedView<const T, 4>& x, const Sweep& h, const Sweep& w,
                      const T* filters, const MakeSink& sink) {
  const i64 rows = x.length(0) * h.outputs, parts = min(rows, 8 * i64{executor.threads()});
  executor.parallel(parts, [&](i64 index, int) {
    const cpu::Span part = cpu::part(rows, parts, index);
    for (i64 row = part.begin; row < part.end; ++row) {
      detail::DepthwiseRow<T>(x, h, w, filters, row).run(sink(row / h.outputs, row % h.outputs));
    }
  });
}

/// Parts of the rows of outputs whose sums depthwise_filters keeps apart.
inline i64 depthwise_parts(i64 images, const Sweep& h, i64 threads) {
  return max<i64>(1, min(images * h.outputs, threads));
}

/// The gradient gw (c, r, s) of the filters, from images and the gradient of the output (n, ho, wo, c), both of
/// contiguous channels; `memory` has lines of channels for all taps and each of the parts.
template <class T>
void depthwise_filters(const ExecutorRef& executor, const StridedView<const T, 4>& x, const Sweep& h, const Sweep& w,
                       const StridedView<const T, 4>& dy, const StridedView<T, 3>& gw, T* memory) {
  using V = NativeVec<T>;
  const i64 channels = x.length(3), size = h.taps * w.taps * channels, rows = x.length(0) * h.outputs;
  const i64 parts = depthwise_parts(x.length(0), h, executor.threads());
  const auto add_row = [&](i64 row, T* to) {
    const i64 image = row / h.outputs, i = row % h.outputs;
    const cpu::Span taps = h.inside(i);
    for (i64 r = taps.begin; r < taps.end; ++r) {
      const T* const from = x.data + image * x.stride(0) + (h.first_input(i) + r * h.dilation) * x.stride(1);
      const T* const of_dy = dy.data + image * dy.stride(0) + i * dy.stride(1);
      for (i64 s = 0; s < w.taps; ++s) {
        const cpu::Span seen = detail::seen_by(w, s);
        const i64 step = w.stride * x.stride(2), count = seen.size();
        const T* const a = from + (w.first_input(seen.begin) + s * w.dilation) * x.stride(2);
        const T* const b = of_dy + seen.begin * dy.stride(2);
        T* const line = to + (r * w.taps + s) * channels;
        const auto sum = [&](i64 c, auto get, auto put) {
          V part[4] = {V(T(0)), V(T(0)), V(T(0)), V(T(0))};
          i64 j = 0;
          const auto add = [&](V& to, i64 j) { to = fma(get(a + j * step + c), get(b + j * dy.stride(2) + c), to); };
          for (; j + 4 <= count; j += 4) unroll<4>([&](auto k) { add(part[k], j + k); });
          for (; j < count; ++j) add(part[0], j);
          put(line + c, get(line + c) + ((part[0] + part[1]) + (part[2] + part[3])));
        };
        i64 c = 0;
        for (; c + V::lanes <= channels; c += V::lanes) {
          sum(
              c, [](const T* p) { return load<V>(p); }, [](T* p, V v) { store(p, v); });
        }
        const int rest = static_cast<int>(channels - c);
        if (rest > 0)
          sum(
              c, [=](const T* p) { return load<V>(p, rest); }, [=](T* p, V v) { store(p, v, rest); });
      }
    }
  };
  executor.parallel(parts, [&](i64 index, int) {
    T* const to = memory + index * size;
    for (i64 i = 0; i < size; ++i) to[i] = T(0);
    const cpu::Span part = cpu::part(rows, parts, index);
    for (i64 row = part.begin; row < part.end; ++row) add_row(row, to);
  });
  for (i64 tap = 0, at = 0; tap < h.taps * w.taps; ++tap) {
    for (i64 c = 0; c < channels; ++c, ++at) {
      T total = memory[at];
      for (i64 part = 1; part < parts; ++part) total += memory[part * size + at];
      gw.data[c * gw.stride(0) + tap / w.taps * gw.stride(1) + tap % w.taps * gw.stride(2)] = total;
    }
  }
}

TESSERA_TILE_END
