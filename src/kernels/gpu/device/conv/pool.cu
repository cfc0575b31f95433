// Pooling of images with any strides, in f64, and of more elements than dense_pool.cu counts. Gradients are gathered:
// each place of the input asks which windows saw it, so that no order is left to chance.
#include "tile/kernels/pool.h"

#include "conv.h"

namespace tessera::gpu_kernels {
namespace {

using tile::PoolProblem;
using tile::StridedView;
using tile::Window;

PoolProblem problem(const PoolArgs& a) {
  const auto window = [&](int d) {
    return Window{a.size[d], a.window[d], a.stride[d], a.dilation[d], a.padding[d], a.padding[d]};
  };
  return {a.images, a.channels, window(0), window(1), a.count_padding};
}

template <class T>
StridedView<T, 4> view(const PoolArgs& a, const TensorArg& t, i64 height, i64 width) {
  return tile::strided(static_cast<T*>(t.data), {i64{a.images}, i64{a.channels}, height, width},
                       {i64{t.strides[0]}, i64{t.strides[1]}, i64{t.strides[2]}, i64{t.strides[3]}});
}

struct Place {
  i64 n, c, h, w;
};
/// Element `index` of (n, c, h, w), which are counted in row-major order.
TESSERA_DEVICE Place place_at(i64 index, i64 channels, i64 height, i64 width) {
  const Division column = divide(index, width), row = divide(column.quotient, height);
  const Division plane = divide(row.quotient, channels);
  return {plane.quotient, plane.rest, row.rest, column.rest};
}

/// fn(output position) for the windows that see `at`.
template <class F>
TESSERA_DEVICE void each_seer(const Window& w, i64 at, const F& fn) {
  const i64 end = at + w.pad_low, begin = end - w.dilation * (w.filter - 1);  // where such windows start, padded
  const i64 first = begin > 0 ? tile::ceil_div(begin, w.stride) : 0;
  const i64 last = tile::min(divide(end, w.stride).quotient, w.output() - 1);
  for (i64 output = first; output <= last; ++output)
    if (w.dilation == 1 || divide(end - output * w.stride, w.dilation).rest == 0) fn(output);
}

/// Which tap of each window is its maximum: u8 or i64.
struct TapsArg {
  StridedView<u8, 4> narrow;
  StridedView<i64, 4> wide;  // data is null in one of them

  TESSERA_DEVICE i64 at(const Place& o) const {
    return wide.data ? wide.at(o.n, o.c, o.h, o.w) : narrow.at(o.n, o.c, o.h, o.w);
  }
  TESSERA_DEVICE void set(const Place& o, i64 tap) const {
    if (wide.data) wide.at(o.n, o.c, o.h, o.w) = tap;
    else if (narrow.data) narrow.at(o.n, o.c, o.h, o.w) = static_cast<u8>(tap);
  }
};
TapsArg taps_of(const PoolArgs& a, const PoolProblem& p) {
  TapsArg taps{view<u8>(a, a.taps, p.h.output(), p.w.output()), view<i64>(a, a.taps, p.h.output(), p.w.output())};
  if (a.taps.type == Scalar::i64) taps.narrow.data = nullptr;
  else taps.wide.data = nullptr;
  return taps;
}

template <class T>
TESSERA_KERNEL(256)
void max_kernel(const PoolProblem p, StridedView<T, 4> y, const TapsArg taps, StridedView<const T, 4> x) {
  using C = tile::compute_t<T>;
  const i64 height = p.h.output(), width = p.w.output(), total = p.images * p.channels * height * width;
  const i64 none = p.h.filter * p.w.filter;
  for (i64 index = first_index(); index < total; index += index_step()) {
    const Place o = place_at(index, p.channels, height, width);
    C best = -static_cast<C>(__builtin_inf());
    i64 which = none;
    const auto add = [&](i64 h, i64 w, i64 tap) {
      const C v = tile::convert_element<C>(x.at(o.n, o.c, h, w));
      if (which != none && !(v > best) && v == v) return;
      best = v;
      which = tap;
    };
    tile::detail::each_tap(p, tile::detail::taps_at(p.h, o.h), tile::detail::taps_at(p.w, o.w), add);
    y.at(o.n, o.c, o.h, o.w) = tile::convert_element<T>(best);
    taps.set(o, which);
  }
}

template <class T>
TESSERA_KERNEL(256)
void average_kernel(const PoolProblem p, StridedView<T, 4> y, StridedView<const T, 4> x) {
  using C = tile::compute_t<T>;
  const i64 height = p.h.output(), width = p.w.output(), total = p.images * p.channels * height * width;
  for (i64 index = first_index(); index < total; index += index_step()) {
    const Place o = place_at(index, p.channels, height, width);
    const auto rows = tile::detail::taps_at(p.h, o.h), columns = tile::detail::taps_at(p.w, o.w);
    C sum(0);
    tile::detail::each_tap(p, rows, columns,
                           [&](i64 h, i64 w, i64) { sum += tile::convert_element<C>(x.at(o.n, o.c, h, w)); });
    y.at(o.n, o.c, o.h, o.w) = tile::convert_element<T>(sum / static_cast<C>(tile::detail::divisor(p, rows, columns)));
  }
}

/// dx = the sum of share(window, place) over the windows that see the place.
template <class T, class Share>
TESSERA_DEVICE void gather(const PoolProblem& p, const StridedView<T, 4>& dx, const Share& share) {
  using C = tile::compute_t<T>;
  const i64 height = p.h.length, width = p.w.length, total = p.images * p.channels * height * width;
  for (i64 index = first_index(); index < total; index += index_step()) {
    const Place at = place_at(index, p.channels, height, width);
    C sum(0);
    each_seer(p.h, at.h, [&](i64 i) {
      each_seer(p.w, at.w, [&](i64 j) { sum += share(Place{at.n, at.c, i, j}, at); });
    });
    dx.at(at.n, at.c, at.h, at.w) = tile::convert_element<T>(sum);
  }
}

template <class T>
TESSERA_KERNEL(256)
void max_backward_kernel(const PoolProblem p, StridedView<T, 4> dx, StridedView<const T, 4> dy, const TapsArg taps) {
  using C = tile::compute_t<T>;
  gather(p, dx, [&](const Place& window, const Place& at) {
    const Division tap = divide(taps.at(window), p.w.filter);
    const bool here = window.h * p.h.stride - p.h.pad_low + tap.quotient * p.h.dilation == at.h &&
                      window.w * p.w.stride - p.w.pad_low + tap.rest * p.w.dilation == at.w;
    return here ? tile::convert_element<C>(dy.at(window.n, window.c, window.h, window.w)) : C(0);
  });
}

template <class T>
TESSERA_KERNEL(256)
void average_backward_kernel(const PoolProblem p, StridedView<T, 4> dx, StridedView<const T, 4> dy) {
  using C = tile::compute_t<T>;
  gather(p, dx, [&](const Place& window, const Place&) {
    const auto rows = tile::detail::taps_at(p.h, window.h), columns = tile::detail::taps_at(p.w, window.w);
    return tile::convert_element<C>(dy.at(window.n, window.c, window.h, window.w)) /
           static_cast<C>(tile::detail::divisor(p, rows, columns));
  });
}

template <class T>
StridedView<const T, 4> read_only(const StridedView<T, 4>& v) {
  return {v.data, v.desc};
}
i64 inputs(const PoolProblem& p) { return p.images * p.channels * p.h.length * p.w.length; }
i64 outputs(const PoolProblem& p) { return p.images * p.channels * p.h.output() * p.w.output(); }

/// fn(Type<T>, problem, x, y)
template <class Fn>
void with_views(const PoolArgs& a, const Fn& fn) {
  const PoolProblem p = problem(a);
  with_float(a.x.type, [&](auto type) {
    using T = typename decltype(type)::type;
    fn(type, p, view<T>(a, a.x, a.size[0], a.size[1]), view<T>(a, a.y, p.h.output(), p.w.output()));
  });
}

void max(const PoolArgs& a, Executor& executor) {
  with_views(a, [&](auto type, const PoolProblem& p, const auto& x, const auto& y) {
    using T = typename decltype(type)::type;
    launch("pooling", max_kernel<T>, grid_for(outputs(p), 256, executor), 256, 0, executor, p, y, taps_of(a, p),
           read_only(x));
  });
}
void max_backward(const PoolArgs& a, Executor& executor) {
  with_views(a, [&](auto type, const PoolProblem& p, const auto& x, const auto& y) {
    using T = typename decltype(type)::type;
    launch("pooling", max_backward_kernel<T>, grid_for(inputs(p), 256, executor), 256, 0, executor, p, x, read_only(y),
           taps_of(a, p));
  });
}
void average(const PoolArgs& a, Executor& executor) {
  with_views(a, [&](auto type, const PoolProblem& p, const auto& x, const auto& y) {
    using T = typename decltype(type)::type;
    launch("pooling", average_kernel<T>, grid_for(outputs(p), 256, executor), 256, 0, executor, p, y, read_only(x));
  });
}
void average_backward(const PoolArgs& a, Executor& executor) {
  with_views(a, [&](auto type, const PoolProblem& p, const auto& x, const auto& y) {
    using T = typename decltype(type)::type;
    launch("pooling", average_backward_kernel<T>, grid_for(inputs(p), 256, executor), 256, 0, executor, p, x,
           read_only(y));
  });
}

}  // namespace

PoolTable pool_table = {max, max_backward, average, average_backward};

}  // namespace tessera::gpu_kernels
