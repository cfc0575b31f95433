#include "kernels/args/pool.h"

#include "internal.h"
#include "tile/kernels/pool.h"

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

/// fn(problem, x, y, places) with x of type X and y of type Y, each const where it is read.
template <class X, class Y, class P, class Fn>
void with_views(const PoolArgs& a, const Fn& fn) {
  const PoolProblem p = problem(a);
  const i64 rows = p.h.output(), columns = p.w.output();
  fn(p, view<X>(a, a.x, a.size[0], a.size[1]), view<Y>(a, a.y, rows, columns), view<P>(a, a.places, rows, columns));
}

void max(const PoolArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  with_float(a.x.type, [&](auto type) {
    using T = typename decltype(type)::type;
    with_views<const T, T, i64>(a,
                                [&](auto& p, auto x, auto y, auto places) { max_pool<T>(executor, p, y, places, x); });
  });
}

void max_backward(const PoolArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  with_float(a.x.type, [&](auto type) {
    using T = typename decltype(type)::type;
    with_views<T, const T, const i64>(
        a, [&](auto& p, auto x, auto y, auto places) { max_pool_backward<T>(executor, p, x, y, places); });
  });
}

void average(const PoolArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  with_float(a.x.type, [&](auto type) {
    using T = typename decltype(type)::type;
    with_views<const T, T, i64>(a, [&](auto& p, auto x, auto y, auto) { avg_pool<T>(executor, p, y, x); });
  });
}

void average_backward(const PoolArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  with_float(a.x.type, [&](auto type) {
    using T = typename decltype(type)::type;
    with_views<T, const T, i64>(a, [&](auto& p, auto x, auto y, auto) { avg_pool_backward<T>(executor, p, x, y); });
  });
}

}  // namespace

const PoolTable pool_table{max, max_backward, average, average_backward};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
