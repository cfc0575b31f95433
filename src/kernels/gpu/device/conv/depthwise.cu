// Convolutions of every channel by itself: 3x3 windows padded by 1 at the speed of memory, all others a vector a
// thread.
#include "tile/arch/gpu/depthwise.h"

#include "kernels/gpu/device/runtime/gpu.h"

namespace tessera::gpu_kernels {
namespace {

using tile::AnyDepthwise;
using tile::DenseWindows;
using tile::Depthwise;
using tile::DepthwiseParts;
using tile::InVectors;
using tile::InWholeRows;

constexpr int threads = tile::depthwise_block;
/// How many blocks registers must suffice for; vectors of floats take most.
template <class Layout, class T>
constexpr int resident = Layout::V == 4 && sizeof(T) == 4 ? 3 : 4;

// ---- 3x3 windows padded by 1

template <int Stride, class Layout, class T>
TESSERA_KERNEL(threads, (resident<Layout, T>))
void forward_kernel(const Depthwise p, T* y, const T* x, const T* w, const T* bias) {
  const i64 thread = first_index();
  if (thread >= p.threads) return;
  if constexpr (Stride == 1) tile::depthwise_steps_of_1<Layout>(p, static_cast<int>(thread), y, x, w, bias);
  else tile::depthwise_steps_of_2<Layout>(p, static_cast<int>(thread), y, x, w, bias);
}
template <class Layout, class T>
TESSERA_KERNEL(threads, (resident<Layout, T>))
void images_kernel(const Depthwise p, T* dx, const T* dy, const T* w) {
  if (const i64 thread = first_index(); thread < p.threads)
    tile::depthwise_images_of_2<Layout>(p, static_cast<int>(thread), dx, dy, w);
}
template <int Stride, class Layout, class T>
TESSERA_KERNEL(threads, (resident<Layout, T> - 1))
void filters_kernel(const Depthwise p, const DepthwiseParts parts, float* partial, const T* x, const T* dy) {
  __shared__ __attribute__((aligned(16))) float room[tile::filter_sums_room<Layout::V>];
  tile::depthwise_filter_sums<Stride, Layout>(p, parts, partial, x, dy, room);
}
template <class T>
TESSERA_KERNEL(256)
void join_kernel(const float* partial, int parts, int taps, int channels, T* dw) {
  __shared__ __attribute__((aligned(16))) float room[256];
  tile::join_filter_sums(partial, parts, taps, channels, dw, room);
}

// ---- others

template <int V, class T>
TESSERA_KERNEL(256)
void window_kernel(const AnyDepthwise p, T* y, const T* x, const T* w, const T* bias) {
  if (const i64 thread = first_index(); thread < p.windows.threads)
    tile::depthwise_window<V>(p, static_cast<int>(thread), y, x, w, bias);
}
template <int V, class T>
TESSERA_KERNEL(256)
void place_kernel(const AnyDepthwise p, T* dx, const T* dy, const T* w) {
  if (const i64 thread = first_index(); thread < p.windows.threads)
    tile::depthwise_place<V>(p, static_cast<int>(thread), dx, dy, w);
}
template <int V, class T>
TESSERA_KERNEL(256)
void taps_kernel(const AnyDepthwise p, int parts, float* partial, const T* x, const T* dy) {
  tile::depthwise_tap_sums<V>(p, parts, first_index(), partial, x, dy);
}

template <bool dense, class T>
TESSERA_KERNEL(tile::plane_taps_block)
void plane_taps_kernel(const AnyDepthwise p, const DenseWindows runs, int parts, T* dw, const T* x, const T* dy) {
  tile::depthwise_plane_taps<dense>(p, runs, parts, dw, x, dy);
}

// ---- launches

bool is_three(const DepthwiseArgs& a) {
  bool is = a.multiplier == 1 && a.stride[0] == a.stride[1] && (a.stride[0] == 1 || a.stride[0] == 2);
  for (int d = 0; d < 2; ++d) is = is && a.filter[d] == 3 && a.padding[d] == 1 && a.dilation[d] == 1;
  return is;
}
template <class... P>
bool are_aligned(int bytes, const P*... p) {
  return ((reinterpret_cast<size_t>(p) % bytes == 0) && ...);
}

/// fn(Type<T>, T* x, T* w, T* y)
template <class Fn>
void with_type(const DepthwiseArgs& a, const Fn& fn) {
  const auto of = [&](auto type) {
    using T = typename decltype(type)::type;
    fn(type, static_cast<T*>(a.x), static_cast<T*>(a.w), static_cast<T*>(a.y));
  };
  switch (a.type) {
    case Scalar::f32:
      return of(Type<float>{});
    case Scalar::f16:
      return of(Type<f16>{});
    case Scalar::bf16:
      return of(Type<bf16>{});
    default:
      throw_unsupported("a depthwise convolution in this dtype");
  }
}

/// Four channels, or four columns, at once.
template <class T>
bool takes_vectors(const DepthwiseArgs& a) {
  const i64 along = a.channels_last ? a.channels : a.size[1];
  return along % 4 == 0 && are_aligned(4 * sizeof(T), a.x, a.w, a.y, a.bias);
}
/// fn(Layout, Depthwise)
template <class T, class Fn>
void with_layout(const DepthwiseArgs& a, const Fn& fn) {
  const bool vectors = takes_vectors<T>(a);
  const Depthwise p(a.images, a.channels, a.size[0], a.size[1], static_cast<int>(a.stride[0]), a.channels_last,
                    vectors && a.channels_last ? 4 : 1);
  if (vectors && a.channels_last) fn(InVectors<4>{}, p);
  else if (vectors) fn(InWholeRows{}, p);
  else fn(InVectors<1>{}, p);
}
/// fn(Int<V>, AnyDepthwise). `channels`: of images, or of results.
template <class T, class Fn>
void with_windows(const DepthwiseArgs& a, i64 channels, const Fn& fn) {
  const auto window = [&](int d) {
    return tile::ImageWindow::of(a.size[d], a.filter[d], a.stride[d], a.dilation[d], a.padding[d]);
  };
  const auto of = [&](auto vector) {
    constexpr int V = decltype(vector)::value;
    const DenseWindows windows(window(0), window(1), a.channels_last ? a.images : a.images * channels,
                               a.channels_last ? channels / V : 1, false);
    fn(vector, AnyDepthwise(windows, channels, !a.channels_last, a.multiplier));
  };
  if (a.channels_last && takes_vectors<T>(a)) of(tile::Int<4>{});
  else of(tile::Int<1>{});
}

void forward(const DepthwiseArgs& a, Executor& executor) {
  with_type(a, [&](auto type, auto x, auto w, auto y) {
    using T = typename decltype(type)::type;
    const T* const bias = static_cast<const T*>(a.bias);
    if (!is_three(a))
      return with_windows<T>(a, a.channels * a.multiplier, [&](auto vector, const AnyDepthwise& any) {
        AnyDepthwise p = any;
        p.windows = any.windows.over_results();
        launch("depthwise", window_kernel<decltype(vector)::value, T>, tile::ceil_div<i64>(p.windows.threads, 256), 256,
               0, executor, p, y, x, w, bias);
      });
    with_layout<T>(a, [&](auto layout, const Depthwise& p) {
      using Layout = decltype(layout);
      const auto kernel = a.stride[0] == 1 ? forward_kernel<1, Layout, T> : forward_kernel<2, Layout, T>;
      launch("depthwise", kernel, tile::ceil_div(p.threads, threads), threads, 0, executor, p, y, x, w, bias);
    });
  });
}

void backward_images(const DepthwiseArgs& a, Executor& executor) {
  with_type(a, [&](auto type, auto dx, auto w, auto dy) {
    using T = typename decltype(type)::type;
    if (!is_three(a))
      return with_windows<T>(a, a.channels, [&](auto vector, const AnyDepthwise& any) {
        AnyDepthwise p = any;
        p.windows = any.windows.over_images();
        launch("depthwise", place_kernel<decltype(vector)::value, T>, tile::ceil_div<i64>(p.windows.threads, 256), 256,
               0, executor, p, dx, dy, w);
      });
    with_layout<T>(a, [&](auto layout, const Depthwise& of) {
      using Layout = decltype(layout);
      Depthwise p = of;
      const i64 blocks = tile::ceil_div(p.threads, threads);
      if (a.stride[0] == 2)
        return launch("depthwise", images_kernel<Layout, T>, blocks, threads, 0, executor, p, dx, dy, w);
      p.flipped = true;
      launch("depthwise", forward_kernel<1, Layout, T>, blocks, threads, 0, executor, p, dx, dy, w,
             static_cast<const T*>(nullptr));
    });
  });
}

/// Of the images: as many blocks as an H100 holds at once, the same on every card.
DepthwiseParts parts_of(const Depthwise& p, bool channels_last) {
  return DepthwiseParts::of(p, channels_last, channels_last ? 396 : 1056);
}
int parts_of(const AnyDepthwise& p, int vector) {
  const i64 taps = p.windows.h.filter * static_cast<i64>(p.windows.w.filter), sums = p.channels / vector * taps;
  const i64 rows = p.windows.outer / (p.planes ? p.channels : 1) * static_cast<i64>(p.windows.h.output);
  return static_cast<int>(tile::max<i64>(1, tile::min<i64>(tile::min<i64>(rows, 1024), (1 << 17) / sums)));
}
void cut_for_filters(Depthwise& p) { p.cut(p.out_height, 14, 1 << 30); }

/// dw from the sums of parts.
template <class T>
void join(const DepthwiseArgs& a, int parts, T* dw, Executor& executor) {
  const int taps = static_cast<int>(a.filter[0] * a.filter[1]), channels = static_cast<int>(a.channels);
  launch("depthwise", join_kernel<T>, static_cast<i64>(taps) * tile::ceil_div(channels, 32), 256, 0, executor,
         static_cast<const float*>(a.workspace), parts, taps, channels, dw);
}
template <class T>
void plane_taps(const DepthwiseArgs& a, const AnyDepthwise& p, T* dw, const T* x, const T* dy, Executor& executor) {
  const tile::ImageWindow& w = p.windows.w;
  const auto kernel = w.stride == 1 && w.dilation == 1 ? plane_taps_kernel<true, T> : plane_taps_kernel<false, T>;
  const int parts = tile::plane_taps_parts(p);
  launch("depthwise", kernel, a.channels * a.multiplier * a.filter[0] * parts, tile::plane_taps_block, 0, executor, p,
         tile::plane_taps_runs(p), parts, dw, x, dy);
}
void backward_filters(const DepthwiseArgs& a, Executor& executor) {
  with_type(a, [&](auto type, auto x, auto dw, auto dy) {
    using T = typename decltype(type)::type;
    float* const partial = static_cast<float*>(a.workspace);
    if (!is_three(a))
      return with_windows<T>(a, a.channels, [&](auto vector, const AnyDepthwise& p) {
        if (p.planes) return plane_taps(a, p, dw, x, dy, executor);
        constexpr int V = decltype(vector)::value;
        const int parts = parts_of(p, V);
        const i64 work = a.channels / V * a.filter[0] * a.filter[1] * parts;
        launch("depthwise", taps_kernel<V, T>, tile::ceil_div<i64>(work, 256), 256, 0, executor, p, parts, partial, x,
               dy);
        join(a, parts, dw, executor);
      });
    with_layout<T>(a, [&](auto layout, const Depthwise& of) {
      using Layout = decltype(layout);
      Depthwise p = of;
      cut_for_filters(p);
      const DepthwiseParts parts = parts_of(p, a.channels_last);
      const auto kernel = a.stride[0] == 1 ? filters_kernel<1, Layout, T> : filters_kernel<2, Layout, T>;
      launch("depthwise", kernel, parts.blocks(), threads, 0, executor, p, parts, partial, x, dy);
      join(a, parts.parts, dw, executor);
    });
  });
}

long long filters_workspace(const DepthwiseArgs& a) {
  i64 parts = 1;
  with_type(a, [&](auto type, auto, auto, auto) {
    using T = typename decltype(type)::type;
    if (!is_three(a)) {
      with_windows<T>(a, a.channels, [&](auto vector, const AnyDepthwise& p) {
        parts = p.planes ? 0 : parts_of(p, decltype(vector)::value);
      });
      return;
    }
    with_layout<T>(a, [&](auto, const Depthwise& of) {
      Depthwise p = of;
      cut_for_filters(p);
      parts = parts_of(p, a.channels_last).parts;
    });
  });
  return parts * a.filter[0] * a.filter[1] * a.channels * static_cast<i64>(sizeof(float));
}

}  // namespace

DepthwiseTable depthwise_table = {is_three, filters_workspace, forward, backward_images, backward_filters};

}  // namespace tessera::gpu_kernels
