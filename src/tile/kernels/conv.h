// Convolutions as matrix products over views of the images: no column matrix is ever written. An image that has its
// padding in memory makes the windows separable (see arch/cpu/pack.h), so it is copied once, which costs less than one
// of the filter's taps; where each product is one thread's work, just before it, while the second-level cache holds it.
#pragma once

#include "../convolution.h"
#include "gemm.h"

TESSERA_TILE_BEGIN

/// A 2-d convolution of images (n, h, w, channels) with filters (filters, r, s, channels / groups).
struct ConvShape {
  i64 images, channels, filters, groups;
  Window h, w;
  i64 group_channels() const { return channels / groups; }
  i64 group_filters() const { return filters / groups; }
};

/// Elements of a padded copy of images of this size, 0 if there is nothing to pad.
inline i64 padded_size(i64 images, i64 channels, const Window& h, const Window& w) {
  if (h.pad_low + h.pad_high + w.pad_low + w.pad_high == 0) return 0;
  return images * channels * (h.length + h.pad_low + h.pad_high) * (w.length + w.pad_low + w.pad_high);
}

/// Images (n, h, w, c) with zeros round them: a copy in `memory`, of padded_size elements, packed as (n, c, h, w); or
/// the images themselves where there is no padding.
template <class T>
class PaddedImages {
 public:
  PaddedImages(const StridedView<const T, 4>& x, const Window& h, const Window& w, T* memory)
      : from_(x), h_(h), w_(w), memory_(memory), view_(x) {
    const i64 images = x.length(0), channels = x.length(3);
    copies_ = padded_size(images, channels, h, w) > 0;
    const i64 rows = this->rows(), pitch = this->pitch();
    if (copies_) {
      view_ = strided(static_cast<const T*>(memory), {images, rows, pitch, channels},
                      {channels * rows * pitch, pitch, 1, rows * pitch});
    }
  }

  const StridedView<const T, 4>& view() const { return view_; }

  void copy_all(const ExecutorRef& executor) const {
    const i64 channels = from_.length(3);
    if (!copies_) return;
    executor.parallel(from_.length(0) * channels,
                      [&](i64 index, int) { copy_channels(index / channels, index % channels, 1); });
  }
  /// Copies `count` channels of one image.
  void copy_channels(i64 image, i64 first, i64 count) const {
    if (!copies_) return;
    for (i64 c = first; c < first + count; ++c) {
      copy_plane(from_.data + image * from_.stride(0) + c * from_.stride(3),
                 memory_ + (image * from_.length(3) + c) * rows() * pitch());
    }
  }

 private:
  i64 rows() const { return from_.length(1) + h_.pad_low + h_.pad_high; }
  i64 pitch() const { return from_.length(2) + w_.pad_low + w_.pad_high; }

  void copy_plane(const T* from, T* to) const {
    const auto zero = [&](i64 count) {
      for (i64 i = 0; i < count; ++i) *to++ = T(0);
    };
    zero(h_.pad_low * pitch());
    for (i64 i = 0; i < from_.length(1); ++i, from += from_.stride(1)) {
      zero(w_.pad_low);
      if (from_.stride(2) == 1) {
        __builtin_memcpy(to, from, static_cast<unsigned long>(from_.length(2)) * sizeof(T));
      } else {
        for (i64 j = 0; j < from_.length(2); ++j) to[j] = from[j * from_.stride(2)];
      }
      to += from_.length(2);
      zero(w_.pad_high);
    }
    zero(h_.pad_high * pitch());
  }

  StridedView<const T, 4> from_;
  Window h_, w_;
  T* memory_;
  StridedView<const T, 4> view_;
  bool copies_;
};

namespace detail {

/// One image and one group of channels out of (n, h, w, c).
template <class T>
StridedView<T, 4> one_group(const StridedView<T, 4>& x, i64 image, i64 group, i64 channels) {
  return strided(x.data + image * x.stride(0) + group * channels * x.stride(3), {1, x.length(1), x.length(2), channels},
                 {x.stride(0), x.stride(1), x.stride(2), x.stride(3)});
}
/// The filters of one group out of (k, r, s, c).
template <class T>
StridedView<T, 4> group_filters(const StridedView<T, 4>& w, i64 group, i64 filters) {
  return strided(w.data + group * filters * w.stride(0), {filters, w.length(1), w.length(2), w.length(3)},
                 {w.stride(0), w.stride(1), w.stride(2), w.stride(3)});
}
/// The window once its padding lies in memory.
inline Window in_memory(const Window& x) {
  return {x.length + x.pad_low + x.pad_high, x.filter, x.stride, x.dilation, 0, 0};
}
template <class View>
cpu::Separable<View> separable(const View& view, bool in_place = false) {
  return {view, in_place};
}

}  // namespace detail

/// y = convolution of x (n, h, w, c) with the filters (k, r, s, c / groups); `memory` holds padded_size elements.
/// sink(image, group) is the epilogue over [filters of the group, output positions].
template <class T, class MakeSink>
void conv2d_forward(const ExecutorRef& executor, const ConvShape& shape, const StridedView<const T, 4>& x,
                    const StridedView<const T, 4>& filters, T* memory, const MakeSink& sink) {
  const Window h = detail::in_memory(shape.h), w = detail::in_memory(shape.w);
  const i64 channels = shape.group_channels(), count = shape.images * shape.groups;
  const PaddedImages<T> padded(x, shape.h, shape.w, memory);
  const bool copy_late = cpu::one_thread_each(executor, count);
  if (!copy_late) padded.copy_all(executor);
  batched_gemm(executor, count, [&](i64 index) {
    const i64 image = index / shape.groups, group = index % shape.groups;
    if (copy_late) padded.copy_channels(image, group * channels, channels);
    // k as (c, r, s): the taps of a channel lie in the same few lines.
    const auto a = detail::separable(
        transform(detail::group_filters(filters, group, shape.group_filters()), pass(), merge<3, 1, 2>()));
    const auto taps = convolution_taps(detail::one_group(padded.view(), image, group, channels), h, w);
    const auto b = detail::separable(transform(taps, merge<5, 1, 3>(), merge<0, 2, 4>()), h.filter * w.filter > 1);
    const auto epilogue = sink(image, group);
    return GemmProblem<decltype(a), decltype(b), decltype(epilogue)>{a, b, epilogue};
  });
}

/// The gradient of the filters, handed to sink(group) as [filters of the group, (c, r, s)]; `memory` as in
/// conv2d_forward.
template <class T, class MakeSink>
void conv2d_backward_filters(const ExecutorRef& executor, const ConvShape& shape, const StridedView<const T, 4>& x,
                             const StridedView<const T, 4>& grad_output, T* memory, const MakeSink& sink) {
  const PaddedImages<T> padded(x, shape.h, shape.w, memory);
  padded.copy_all(executor);
  const Window h = detail::in_memory(shape.h), w = detail::in_memory(shape.w);
  const auto part = [&](const StridedView<const T, 4>& v, i64 group, i64 channels) {
    return strided(v.data + group * channels * v.stride(3), {v.length(0), v.length(1), v.length(2), channels},
                   {v.stride(0), v.stride(1), v.stride(2), v.stride(3)});
  };
  batched_gemm(executor, shape.groups, [&](i64 group) {
    const auto a =
        detail::separable(transform(part(grad_output, group, shape.group_filters()), merge<3>(), merge<0, 1, 2>()));
    const auto taps = convolution_taps(part(padded.view(), group, shape.group_channels()), h, w);
    const auto b = detail::separable(transform(taps, merge<0, 2, 4>(), merge<5, 1, 3>()));
    const auto epilogue = sink(group);
    return GemmProblem<decltype(a), decltype(b), decltype(epilogue)>{a, b, epilogue};
  });
}

/// Zeros that backward-data needs round the output's gradient so that every window lies inside, in one dimension.
inline Window backward_padding(const Window& window) {
  Window p{window.output(), 1, 1, 1, 0, 0};
  for (i64 first = 0; first < window.stride; ++first) {
    const Residue r = residue(window, first);
    if (r.taps == 0 || r.count == 0) continue;
    p.pad_low = max(p.pad_low, r.output_step * (r.taps - 1) - r.output);
    p.pad_high = max(p.pad_high, r.output + r.count - r.outputs);
  }
  return p;
}

/// The gradient of the images, one product per residue of the strides; `memory` holds padded_size elements for
/// grad_output (n, ho, wo, k) and backward_padding. sink(image, group, rows, columns) is the epilogue over [channels of
/// the group, positions (th, tw) of the two residues]; a residue that meets no tap has products over an empty sum.
template <class T, class MakeSink>
void conv2d_backward_images(const ExecutorRef& executor, const ConvShape& shape,
                            const StridedView<const T, 4>& grad_output, const StridedView<const T, 4>& filters,
                            T* memory, const MakeSink& sink) {
  const auto window = [](const Residue& r, i64 pad) {
    return affine(tuple(r.taps, r.count), tuple(-r.output_step, Int<1>{}), r.taps > 0 ? r.output + pad : 0);
  };
  const Window pad_h = backward_padding(shape.h), pad_w = backward_padding(shape.w);
  const i64 filters_each = shape.group_filters(), count = shape.images * shape.groups;
  const PaddedImages<T> padded(grad_output, pad_h, pad_w, memory);
  const bool copy_late = shape.h.stride * shape.w.stride == 1 && cpu::one_thread_each(executor, count);
  if (!copy_late) padded.copy_all(executor);
  for (i64 first_h = 0; first_h < shape.h.stride; ++first_h) {
    for (i64 first_w = 0; first_w < shape.w.stride; ++first_w) {
      const Residue h = residue(shape.h, first_h), w = residue(shape.w, first_w);
      if (h.count == 0 || w.count == 0) continue;
      batched_gemm(executor, count, [&](i64 index) {
        const i64 image = index / shape.groups, group = index % shape.groups;
        if (copy_late) padded.copy_channels(image, group * filters_each, filters_each);
        const auto met = residue_weights(detail::group_filters(filters, group, filters_each), h, w);
        const auto a = detail::separable(transform(met, merge<3>(), merge<0, 1, 2>()));
        const auto taps = transform(detail::one_group(padded.view(), image, group, filters_each), pass(),
                                    window(h, pad_h.pad_low), window(w, pad_w.pad_low), pass());
        const auto b = detail::separable(transform(taps, merge<5, 1, 3>(), merge<0, 2, 4>()), h.taps * w.taps > 1);
        const auto epilogue = sink(image, group, h, w);
        return GemmProblem<decltype(a), decltype(b), decltype(epilogue)>{a, b, epilogue};
      });
    }
  }
}

TESSERA_TILE_END
