// Depthwise convolutions of one tap: products of pixels with one element a channel. Pixels are read and written in the
// order in which they lie, all channels of each, since memory takes longer than the multiplications.
#pragma once

#include "conv_depthwise.h"

TESSERA_TILE_BEGIN
namespace detail {

/// At least a vector of channels.
template <class T>
void multiply_pixel(const T* from, const T* factors, i64 channels, T* to) {
  using V = NativeVec<T>;
  const auto multiply = [&](i64 c) { store(to + c, load<V>(from + c) * load<V>(factors + c)); };
  i64 c = 0;
  for (; c + V::lanes <= channels; c += V::lanes) multiply(c);
  if (c < channels) multiply(channels - V::lanes);
}

/// fn(image, row) of some rows of all images, by several threads.
template <class Fn>
void each_image_row(const ExecutorRef& executor, i64 images, i64 rows, const Fn& fn) {
  const i64 all = images * rows, parts = min(all, executor.threads() == 1 ? 1 : 8 * i64{executor.threads()});
  executor.parallel(parts, [&](i64 index, int) {
    const cpu::Span mine = cpu::part(all, parts, index);
    for (i64 row = mine.begin; row < mine.end; ++row) fn(row / rows, row % rows);
  });
}

/// Adds to the sums of some vectors of channels, of whose last one `last` exist, what so many pixels are.
template <class T, int Vectors>
void add_pixels(i64 count, const T* x, i64 x_step, const T* dy, i64 dy_step, int last, T* sums) {
  using V = NativeVec<T>;
  const auto get = [=](const T* p, int v) __attribute__((always_inline)) {
    return v < Vectors - 1 || last == V::lanes ? load<V>(p + v * V::lanes) : load<V>(p + v * V::lanes, last);
  };
  V sum[Vectors];
  TESSERA_UNROLL
  for (int v = 0; v < Vectors; ++v) sum[v] = get(sums, v);
  for (i64 i = 0; i < count; ++i, x += x_step, dy += dy_step) {
    TESSERA_UNROLL
    for (int v = 0; v < Vectors; ++v) sum[v] = fma(get(x, v), get(dy, v), sum[v]);
  }
  TESSERA_UNROLL
  for (int v = 0; v < Vectors - 1; ++v) store(sums + v * V::lanes, sum[v]);
  T* const end = sums + (Vectors - 1) * V::lanes;
  if (last == V::lanes) {
    store(end, sum[Vectors - 1]);
  } else {
    cpu::store_part(end, sum[Vectors - 1], last);
  }
}

}  // namespace detail

/// The convolution of images (n, h, w, c), of a vector's channels at least, with a factor for each channel; y (n, ho,
/// wo, c) has contiguous channels, too. finish(image, row) is called of rows that are complete.
template <class T, class Finish>
void depthwise_points(const ExecutorRef& executor, const StridedView<const T, 4>& x, const Sweep& h, const Sweep& w,
                      const T* factors, const StridedView<T, 4>& y, const Finish& finish) {
  const i64 channels = x.length(3);
  detail::each_image_row(executor, x.length(0), h.outputs, [&](i64 image, i64 row) {
    const i64 at = h.first_input(row);
    const bool outside = at < 0 || at >= h.length;
    const T* const from = x.data + image * x.stride(0) + at * x.stride(1);
    T* to = y.data + image * y.stride(0) + row * y.stride(1);
    for (i64 j = 0; j < w.outputs; ++j, to += y.stride(2)) {
      const i64 column = w.first_input(j);
      if (outside || column < 0 || column >= w.length) {
        detail::zero_run(to, channels);
      } else {
        detail::multiply_pixel(from + column * x.stride(2), factors, channels, to);
      }
    }
    finish(image, row);
  });
}

/// The gradient of those images, from that of the output.
template <class T>
void depthwise_points_images(const ExecutorRef& executor, const StridedView<const T, 4>& dy, const Sweep& h,
                             const Sweep& w, const T* factors, const StridedView<T, 4>& gx) {
  const i64 channels = gx.length(3);
  detail::each_image_row(executor, gx.length(0), h.length, [&](i64 image, i64 row) {
    T* const to = gx.data + image * gx.stride(0) + row * gx.stride(1);
    const auto zero = [&](i64 begin, i64 end) {
      if (gx.stride(2) == channels) return detail::zero_run(to + begin * channels, (end - begin) * channels);
      for (i64 j = begin; j < end; ++j) detail::zero_run(to + j * gx.stride(2), channels);
    };
    const i64 before = row + h.before, output = before / h.stride;
    i64 next = 0;
    const bool met = before % h.stride == 0 && output < h.outputs;
    const T* from = dy.data + image * dy.stride(0) + output * dy.stride(1);
    for (i64 j = 0; met && j < w.outputs; ++j, from += dy.stride(2)) {
      const i64 column = w.first_input(j);
      if (column < 0 || column >= w.length) continue;
      if (next < column) zero(next, column);
      detail::multiply_pixel(from, factors, channels, to + column * gx.stride(2));
      next = column + 1;
    }
    if (next < w.length) zero(next, w.length);
  });
}

/// The gradient of the factors, which lie a step apart; `memory` has a row of channels for each of the parts.
template <class T>
void depthwise_points_filters(const ExecutorRef& executor, const StridedView<const T, 4>& x, const Sweep& h,
                              const Sweep& w, const StridedView<const T, 4>& dy, T* gw, i64 step, T* memory) {
  using V = NativeVec<T>;
  constexpr i64 most = 4 * V::lanes;  // channels whose sums hide what each waits for
  const i64 channels = x.length(3), rows = x.length(0) * h.outputs;
  const i64 parts = depthwise_parts(x.length(0), h, executor.threads());
  i64 begin = 0, end = w.outputs;  // outputs that see a pixel
  while (begin < end && w.first_input(begin) < 0) ++begin;
  while (begin < end && w.first_input(end - 1) >= w.length) --end;
  const i64 pixels = max<i64>(1, 2048 / channels);  // whose channels stay in the first-level cache
  executor.parallel(parts, [&](i64 index, int) {
    T* const sums = memory + index * channels;
    detail::zero_run(sums, channels);
    const cpu::Span mine = cpu::part(rows, parts, index);
    for (i64 row = mine.begin; row < mine.end; ++row) {
      const i64 image = row / h.outputs, output = row % h.outputs, at = h.first_input(output);
      if (at < 0 || at >= h.length) continue;
      const T* const from = x.data + image * x.stride(0) + at * x.stride(1);
      const T* const of_dy = dy.data + image * dy.stride(0) + output * dy.stride(1);
      for (i64 j = begin; j < end; j += pixels) {
        for (i64 c = 0; c < channels; c += most) {
          const i64 count = min(most, channels - c), vectors = ceil_div(count, i64{V::lanes});
          const auto add = [&](auto n) {
            detail::add_pixels<T, decltype(n)::value>(min(pixels, end - j), from + w.first_input(j) * x.stride(2) + c,
                                                      w.stride * x.stride(2), of_dy + j * dy.stride(2) + c,
                                                      dy.stride(2), static_cast<int>(count - (vectors - 1) * V::lanes),
                                                      sums + c);
          };
          vectors == 1 ? add(Int<1>{}) : vectors == 2 ? add(Int<2>{}) : vectors == 3 ? add(Int<3>{}) : add(Int<4>{});
        }
      }
    }
  });
  for (i64 c = 0; c < channels; ++c) {
    T sum = memory[c];
    for (i64 part = 1; part < parts; ++part) sum += memory[part * channels + c];
    gw[c * step] = sum;
  }
}

TESSERA_TILE_END
