#include "internal.h"
#include "plane_norm.h"
#include "tile/kernels/line_norm.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

using namespace tile;

namespace {

template <class T>
Planes<T> planes_of(const PlanesArg& arg) {
  return {static_cast<T*>(arg.data), arg.batch_stride, arg.channel_stride};
}

}  // namespace

void group_norm(const GroupNormArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    tile::group_norm<T>(executor, {a.batch, a.channels, a.size}, a.groups, planes_of<T>(a.y), planes_of<const T>(a.x),
                        static_cast<const T*>(a.weight), static_cast<const T*>(a.bias), static_cast<C*>(a.mean),
                        static_cast<C*>(a.rstd), a.eps);
  });
}

void group_norm_backward(const GroupNormBackwardArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    tile::group_norm_backward<T>(executor, {a.batch, a.channels, a.size}, a.groups, planes_of<T>(a.dx),
                                 static_cast<T*>(a.dweight), static_cast<T*>(a.dbias), planes_of<const T>(a.dy),
                                 planes_of<const T>(a.x), static_cast<const T*>(a.weight),
                                 static_cast<const C*>(a.mean), static_cast<const C*>(a.rstd), a.workspace);
  });
}

long long group_norm_backward_workspace(long long batch, long long channels) {
  return plane_norm_workspace({batch, channels, 1});
}

long long plane_parts_workspace(long long, long long) { return 0; }
long long batch_norm_workspace(long long channels, long long elements) {
  return line_norm_workspace({elements, channels});
}

void batch_norm(const BatchNormArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    const PlaneShape shape{a.batch, a.channels, a.size};
    const auto y = planes_of<T>(a.y);
    const auto x = planes_of<const T>(a.x);
    const auto *weight = static_cast<const T*>(a.weight), *bias = static_cast<const T*>(a.bias);
    auto *mean = static_cast<C*>(a.running_mean), *variance = static_cast<C*>(a.running_variance);
    const NormRelu relu{a.relu, a.high};
    if (a.lines) {
      const LineShape lines(a.batch * a.size, a.channels);
      const NormLines<T> t{y.data, x.data, static_cast<const T*>(a.residual.data)};
      if (a.training) {
        line_norm_training<T>(executor, lines, t, weight, bias, {mean, variance, a.momentum}, static_cast<C*>(a.mean),
                              static_cast<C*>(a.rstd), a.eps, a.workspace, relu);
      } else {
        line_norm_inference<T>(executor, lines, t, weight, bias, mean, variance, a.eps, relu);
      }
    } else if (a.training) {
      tile::batch_norm_training<T>(executor, shape, y, x, weight, bias, {mean, variance, a.momentum},
                                   static_cast<C*>(a.mean), static_cast<C*>(a.rstd), a.eps, relu);
    } else {
      tile::batch_norm_inference<T>(executor, shape, y, x, weight, bias, mean, variance, a.eps, relu);
    }
  });
}

void batch_norm_backward(const BatchNormBackwardArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    if (a.lines) {
      return line_norm_backward<T>(
          executor, {a.batch * a.size, a.channels}, a.training,
          {static_cast<T*>(a.dx.data), static_cast<T*>(a.dresidual.data), static_cast<const T*>(a.dy.data),
           static_cast<const T*>(a.x.data), static_cast<const T*>(a.y.data)},
          static_cast<T*>(a.dweight), static_cast<T*>(a.dbias), static_cast<const T*>(a.weight),
          static_cast<const C*>(a.mean), static_cast<const C*>(a.rstd), a.workspace, {a.relu, a.high},
          static_cast<const T*>(a.bias));
    }
    tile::batch_norm_backward<T>(
        executor, {a.batch, a.channels, a.size}, a.training, planes_of<T>(a.dx), static_cast<T*>(a.dweight),
        static_cast<T*>(a.dbias), planes_of<const T>(a.dy), planes_of<const T>(a.x), static_cast<const T*>(a.weight),
        static_cast<const C*>(a.mean), static_cast<const C*>(a.rstd), {a.relu, a.high}, static_cast<const T*>(a.bias));
  });
}

void move_estimates(const EstimatesArgs& a, Executor&) {
  const auto move = [&]<class T>(T* estimate, const void* to) {
    for (long long i = 0; i < a.channels; ++i)
      estimate[i] += static_cast<T>(a.momentum) * (static_cast<const T*>(to)[i] - estimate[i]);
  };
  if (a.type == Scalar::f64) {
    move(static_cast<double*>(a.mean), a.batch_mean);
    move(static_cast<double*>(a.variance), a.batch_variance);
  } else {
    move(static_cast<float*>(a.mean), a.batch_mean);
    move(static_cast<float*>(a.variance), a.batch_variance);
  }
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
