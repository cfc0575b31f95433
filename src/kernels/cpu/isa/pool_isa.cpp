#include "kernels/args/pool.h"

#include "internal.h"
#include "tile/kernels/pool_last.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using namespace tile;

PoolProblem problem(const PoolArgs& a) {
  const auto window = [&](int d) {
    return Window{a.size[d], a.window[d], a.stride[d], a.dilation[d], a.padding[d], a.padding[d]};
  };
  return {a.images, a.channels, window(0), window(1), a.count_padding};
}

template <class T>
StridedView<T, 4> view(const PoolArgs& a, const TensorArg& t, i64 height, i64 width) {
  return strided(static_cast<T*>(t.data), {i64{a.images}, i64{a.channels}, height, width},
                 {i64{t.strides[0]}, i64{t.strides[1]}, i64{t.strides[2]}, i64{t.strides[3]}});
}

/// fn(problem, x, y) with x of type X and y of type Y, each const where it is read.
template <class X, class Y, class Fn>
void with_views(const PoolArgs& a, const Fn& fn) {
  const PoolProblem p = problem(a);
  fn(p, view<X>(a, a.x, a.size[0], a.size[1]), view<Y>(a, a.y, p.h.output(), p.w.output()));
}

/// fn(taps), of one of their two types.
template <class Fn>
void with_taps(const PoolArgs& a, const PoolProblem& p, const Fn& fn) {
  if (a.taps.type == Scalar::i64) fn(view<i64>(a, a.taps, p.h.output(), p.w.output()));
  else fn(view<u8>(a, a.taps, p.h.output(), p.w.output()));
}

template <class P>
StridedView<const P, 4> read_only(const StridedView<P, 4>& v) {
  return {v.data, v.desc};
}

void max(const PoolArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  with_float(a.x.type, [&](auto type) {
    using T = typename decltype(type)::type;
    with_views<const T, T>(a, [&](auto& p, auto x, auto y) {
      with_taps(a, p, [&](auto taps) {
        if (a.channels_last) max_pool_last<T>(executor, p, y, taps, x);
        else max_pool<T>(executor, p, y, taps, x);
      });
    });
  });
}

void max_backward(const PoolArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  with_float(a.x.type, [&](auto type) {
    using T = typename decltype(type)::type;
    with_views<T, const T>(a, [&](auto& p, auto x, auto y) {
      with_taps(a, p, [&](auto taps) {
        if (a.channels_last) max_pool_last_backward<T>(executor, p, x, y, read_only(taps));
        else max_pool_backward<T>(executor, p, x, y, read_only(taps));
      });
    });
  });
}

void average(const PoolArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  with_float(a.x.type, [&](auto type) {
    using T = typename decltype(type)::type;
    with_views<const T, T>(a, [&](auto& p, auto x, auto y) {
      if (a.channels_last) avg_pool_last<T>(executor, p, y, x);
      else avg_pool<T>(executor, p, y, x);
    });
  });
}

void average_backward(const PoolArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  with_float(a.x.type, [&](auto type) {
    using T = typename decltype(type)::type;
    with_views<T, const T>(a, [&](auto& p, auto x, auto y) {
      if (a.channels_last) avg_pool_last_backward<T>(executor, p, x, y);
      else avg_pool_backward<T>(executor, p, x, y);
    });
  });
}

}  // namespace

const PoolTable pool_table{max, max_backward, average, average_backward};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
