// The convolutions in one type, each instantiated in a translation unit of its own so that they compile side by side.
#pragma once

#include "kernels/args/conv.h"
#include "kernels/shared/epilogue.h"
#include "tile/kernels/conv.h"

namespace tessera::cpu_kernels::TESSERA_ISA::conv {

using namespace tile;

inline ConvShape shape_of(const ConvArgs& a) {
  const auto window = [&](int d) {
    return Window{a.size[d], a.filter[d], a.stride[d], a.dilation[d], a.padding[d], a.padding[d]};
  };
  return {a.images, a.channels, a.filters, a.groups, window(0), window(1)};
}

/// The activation behind a convolution.
struct ConvActivation {
  AnyActivation any;
  float high;  // of ReLU; 0: none
  template <class V>
  TESSERA_HD V operator()(V x) const {
    const V y = any(x);
    if (high == 0) return y;
    const V most(static_cast<tile::element_t<V>>(high));
    return tile::select(y > most, most, y);
  }
};
inline ConvActivation activation_of(const ConvArgs& a) { return {{a.activation}, a.high}; }

/// (n, c, h, w) as (n, h, w, c).
template <class T>
StridedView<T, 4> channels_last(const ConvTensor& t, i64 n, i64 c, i64 h, i64 w) {
  return strided(static_cast<T*>(t.data), {n, h, w, c}, {t.strides[0], t.strides[2], t.strides[3], t.strides[1]});
}
template <class T>
StridedView<T, 4> images(const ConvArgs& a) {
  return channels_last<T>(a.x, a.images, a.channels, a.size[0], a.size[1]);
}
template <class T>
StridedView<T, 4> filters(const ConvArgs& a) {
  return channels_last<T>(a.w, a.filters, a.channels / a.groups, a.filter[0], a.filter[1]);
}
template <class T>
StridedView<T, 4> outputs(const ConvArgs& a, const ConvShape& s) {
  return channels_last<T>(a.y, a.images, a.filters, s.h.output(), s.w.output());
}

/// A 1x1 convolution of dense planes is one of a single image, whose rows are the planes.
inline ConvArgs with_planes_as_rows(ConvArgs a) {
  const ConvShape s = shape_of(a);
  const auto point = [](const Window& d) { return d.filter == 1 && d.stride == 1 && d.pad_low + d.pad_high == 0; };
  const auto dense = [&](const ConvTensor& t) { return t.strides[2] == a.size[1] * t.strides[3]; };
  if (!point(s.h) || !point(s.w) || !dense(a.x) || !dense(a.y) || (a.residual.data && !dense(a.residual))) return a;
  a.size[1] *= a.size[0];
  a.size[0] = a.images, a.images = 1;
  a.x.strides[2] = a.x.strides[0], a.y.strides[2] = a.y.strides[0], a.residual.strides[2] = a.residual.strides[0];
  return a;
}

/// Adds the bias and applies the activation to some filters of a row of sums, whose filters are contiguous.
inline void finish_row(const ConvArgs& a, const StridedView<float, 4>& y, i64 image, i64 row, i64 first, i64 count) {
  using V = NativeVec<float>;
  if (!a.bias && a.activation == Activation::none) return;
  const ConvActivation activation = activation_of(a);
  const float* const bias = a.bias ? static_cast<const float*>(a.bias) + first : nullptr;
  float* to = y.data + image * y.stride(0) + row * y.stride(1) + first;
  const auto finish = [&](i64 i, int n) __attribute__((always_inline)) {
    const V sum = load<V>(to + i, n);
    store(to + i, activation(bias ? sum + load<V>(bias + i, n) : sum), n);
  };
  for (i64 j = 0; j < y.length(2); ++j, to += y.stride(2)) {
    i64 i = 0;
    for (; i + V::lanes <= count; i += V::lanes) finish(i, V::lanes);
    if (i < count) finish(i, static_cast<int>(count - i));
  }
}

/// What is added to a row of the output, from a filter on: [columns, filters], whose filters are contiguous.
inline auto residual_row(const ConvArgs& a, i64 image, i64 row, i64 first, i64 columns, i64 filters) {
  const auto& s = a.residual.strides;
  return strided(static_cast<const float*>(a.residual.data) + image * s[0] + row * s[2] + first,
                 tuple(columns, filters), tuple(i64{s[3]}, Int<1>{}));
}

/// One group of an image (n, h, w, c) as the matrix [channels, positions].
template <class T>
auto planes(const StridedView<T, 4>& v, i64 image, i64 group, i64 channels) {
  return transform(tile::detail::one_group(v, image, group, channels), merge<3>(), merge<0, 1, 2>());
}
/// The same as a strided matrix; the rows of the image must follow each other.
template <class T>
StridedView<T, 2> strided_planes(const StridedView<T, 4>& v, i64 image, i64 group, i64 channels) {
  return strided(v.data + image * v.stride(0) + group * channels * v.stride(3), {channels, v.length(1) * v.length(2)},
                 {v.stride(3), v.stride(2)});
}
template <class T>
bool is_dense(const StridedView<T, 4>& v) {
  return v.length(1) == 1 || v.stride(1) == v.length(2) * v.stride(2);
}

template <class T>
void forward_as(const ConvArgs& args, Executor& pool) {
  const ConvShape s = shape_of(args);
  const auto y = outputs<T>(args, s);
  const i64 k = s.group_filters();
  const T zero = 0;
  const auto column_of = [&](i64 group) {
    const T* bias = args.bias ? static_cast<const T*>(args.bias) + group * k : &zero;
    return strided(bias, tuple(k, s.h.output() * s.w.output()), tuple(i64{args.bias ? 1 : 0}, Int<0>{}));
  };
  const auto run_sink = [&](const auto& sink) {
    conv2d_forward<T>(ExecutorRef(pool), s, images<const T>(args), filters<const T>(args),
                      static_cast<T*>(args.workspace), sink);
  };
  const auto run = [&](auto result, auto activation) {
    run_sink([&](i64 image, i64 group) {
      return store(result(image, group), apply(activation, acc + load(column_of(group))));
    });
  };
  const ConvActivation any = activation_of(args);
  if (args.residual.data) {
    const auto residual = channels_last<const T>(args.residual, args.images, args.filters, s.h.output(), s.w.output());
    return run_sink([&](i64 image, i64 group) {
      return store(planes(y, image, group, k),
                   apply(any, acc + load(column_of(group)) + load(planes(residual, image, group, k))));
    });
  }
  const auto dense = [&](i64 image, i64 group) { return strided_planes(y, image, group, k); };
  if (!is_dense(y)) return run([&](i64 image, i64 group) { return planes(y, image, group, k); }, any);
  if constexpr (is_same_v<T, float>) {
    if (args.activation == Activation::none) return run(dense, FixedActivation<Activation::none>{});
  }
  run(dense, any);
}

template <class T>
void backward_images_as(const ConvArgs& args, Executor& pool) {
  const ExecutorRef executor(pool);
  const ConvShape s = shape_of(args);
  const auto gy = outputs<const T>(args, s);
  const auto w = filters<const T>(args);
  T* const memory = static_cast<T*>(args.workspace);
  const auto gx = images<T>(args);
  const i64 c = s.group_channels();
  if (s.h.stride == 1 && s.w.stride == 1 && is_dense(gx)) {
    return conv2d_backward_images<T>(executor, s, gy, w, memory, [&](i64 image, i64 group, auto&, auto&) {
      return store(strided_planes(gx, image, group, c), acc);
    });
  }
  conv2d_backward_images<T>(executor, s, gy, w, memory, [&](i64 image, i64 group, const Residue& h, const Residue& w) {
    const auto met = residue_positions(tile::detail::one_group(gx, image, group, c), h, w);
    return store(transform(met, merge<3>(), merge<0, 1, 2>()), acc);
  });
}

template <class T>
void backward_filters_as(const ConvArgs& args, Executor& pool) {
  const ConvShape s = shape_of(args);
  const auto gw = filters<T>(args);
  const i64 k = s.group_filters();
  conv2d_backward_filters<T>(ExecutorRef(pool), s, images<const T>(args), outputs<const T>(args, s),
                             static_cast<T*>(args.workspace), [&](i64 group) {
                               return store(
                                   transform(tile::detail::group_filters(gw, group, k), pass(), merge<3, 1, 2>()), acc);
                             });
}

/// The gradient of the images of 3x3 windows as a convolution: of the gradient of the output, by the filters turned
/// round.
inline ConvArgs of_gradient(const ConvArgs& args) {
  ConvArgs r = args;
  const ConvShape s = shape_of(args);
  r.channels = args.filters, r.filters = args.channels;
  r.size[0] = s.h.output(), r.size[1] = s.w.output();
  for (int d = 0; d < 2; ++d) r.padding[d] = 2 - args.padding[d];
  r.x = args.y, r.y = args.x;
  const long long* from = args.w.strides;
  r.w = {static_cast<float*>(args.w.data) + 2 * from[2] + 2 * from[3], {from[1], from[0], -from[2], -from[3]}};
  r.bias = nullptr;
  r.activation = Activation::none;
  r.high = 0;
  r.residual = {};
  return r;
}

i64 winograd_workspace(const ConvArgs& args);
void winograd_forward(const ConvArgs& args, Executor& executor);
void winograd_backward_images(const ConvArgs& args, Executor& executor);

i64 winograd_last_workspace(const ConvArgs& args);
void winograd_last_forward(const ConvArgs& args, Executor& executor);
void winograd_last_backward_images(const ConvArgs& args, Executor& executor);

i64 direct_workspace(const ConvArgs& args);
void direct_forward(const ConvArgs& args, Executor& executor);
void direct_backward_images(const ConvArgs& args, Executor& executor);
i64 direct_filters_workspace(const ConvArgs& args);
void direct_backward_filters(const ConvArgs& args, Executor& executor);

i64 scatter_workspace(const ConvArgs& args);
void scatter_forward(const ConvArgs& args, Executor& executor);
void scatter_backward_images(const ConvArgs& args, Executor& executor);

i64 depthwise_workspace(const ConvArgs& args);
void depthwise_forward(const ConvArgs& args, Executor& executor);
void depthwise_backward_images(const ConvArgs& args, Executor& executor);
i64 depthwise_filters_workspace(const ConvArgs& args);
void depthwise_backward_filters(const ConvArgs& args, Executor& executor);

i64 spread_workspace(const ConvArgs& args);
void spread_forward(const ConvArgs& args, Executor& executor);
void spread_backward_images(const ConvArgs& args, Executor& executor);
i64 spread_filters_workspace(const ConvArgs& args);
void spread_backward_filters(const ConvArgs& args, Executor& executor);

i64 planes_workspace(const ConvArgs& args);
void planes_forward(const ConvArgs& args, Executor& executor);
void planes_backward_images(const ConvArgs& args, Executor& executor);
i64 planes_filters_workspace(const ConvArgs& args);
void planes_backward_filters(const ConvArgs& args, Executor& executor);

#define TESSERA_CONV_OF(prefix, T)                                        \
  prefix template void forward_as<T>(const ConvArgs&, Executor&);         \
  prefix template void backward_images_as<T>(const ConvArgs&, Executor&); \
  prefix template void backward_filters_as<T>(const ConvArgs&, Executor&);

}  // namespace tessera::cpu_kernels::TESSERA_ISA::conv
