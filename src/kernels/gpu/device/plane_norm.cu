// Group and batch norm: a block for each set of planes that share their statistics, those of a group in one image or
// those of a channel in all images.
#include "norm.h"

namespace tessera::gpu_kernels {

using tile::compute_t;
using tile::convert_element;

namespace {

inline constexpr int plane_threads = 512;

/// Sets of planes: set i is number i / inner of the first kind and i % inner of the second.
struct PlaneSets {
  i64 sets, inner, planes, size;  // planes of each set, elements of each plane
  i64 channels_of_set;            // by which a set's first channel lies behind that of the previous; its planes are
  bool over_batch;                // those of images, or else of neighbouring channels

  TESSERA_DEVICE i64 image(i64 set) const { return over_batch ? 0 : set / inner; }
  TESSERA_DEVICE i64 channel(i64 set) const { return (over_batch ? set : set % inner) * channels_of_set; }
  TESSERA_DEVICE i64 channel(i64 set, i64 plane) const { return channel(set) + (over_batch ? 0 : plane); }
  TESSERA_DEVICE double count() const { return static_cast<double>(planes) * static_cast<double>(size); }
};

template <class T>
struct Planes {
  T* data;
  i64 batch_stride, channel_stride;
  TESSERA_DEVICE T* at(const PlaneSets& s, i64 set, i64 plane) const {
    return data + (s.image(set) + (s.over_batch ? plane : 0)) * batch_stride + s.channel(set, plane) * channel_stride;
  }
};
template <class T>
Planes<T> planes_of(const PlanesArg& arg) {
  return {static_cast<T*>(arg.data), arg.batch_stride, arg.channel_stride};
}

/// fn(plane, first element) for this thread's packs of a set.
template <int width, class Fn>
TESSERA_DEVICE void for_plane_packs(const PlaneSets& s, const Fn& fn) {
  const i64 each = s.size / width, all = s.planes * each;
  for (i64 p = tile::thread_in_block(); p < all; p += plane_threads) {
    const i64 plane = tile::quotient(p, each);
    fn(plane, (p - plane * each) * width);
  }
}
template <class T, int width>
TESSERA_DEVICE Lanes<compute_t<T>, T, width> load_pack(const T* p) {
  return Lanes<compute_t<T>, T, width>(*reinterpret_cast<const Pack<T, width>*>(p));
}

PlaneSets groups_of(i64 batch, i64 channels, i64 size, i64 groups) {
  return {batch * groups, groups, channels / groups, size, channels / groups, false};
}
PlaneSets channels_of(i64 batch, i64 channels, i64 size) { return {channels, channels, batch, size, 1, true}; }

/// Whether packs of `width` elements lie within planes at multiples of their size.
template <class... P>
bool takes_packs(int width, int bytes, i64 size, const P&... planes) {
  const auto fits = [&](const PlanesArg& p) {
    return !p.data || (reinterpret_cast<size_t>(p.data) % (width * bytes) == 0 && p.batch_stride % width == 0 &&
                       p.channel_stride % width == 0);
  };
  return size % width == 0 && (fits(planes) && ...);
}

// ---- forward

template <class T>
struct PlaneNormWork {
  PlaneSets sets;
  Planes<T> y;
  Planes<const T> x;
  const T *weight, *bias;
  compute_t<T>*mean, *rstd;
  compute_t<T>*running_mean, *running_variance;  // of batch norm
  double momentum, eps;
  bool given;  // the running estimates are used instead of the batch's
};

template <class C>
TESSERA_DEVICE void move(C* estimate, i64 i, double value, double momentum) {
  if (estimate) estimate[i] = static_cast<C>((1 - momentum) * static_cast<double>(estimate[i]) + momentum * value);
}

/// Mean and reciprocal deviation of a set, in two passes; one thread keeps them.
template <class T, int width>
TESSERA_DEVICE Sums<compute_t<T>> statistics(const PlaneNormWork<T>& work, i64 set) {
  using C = compute_t<T>;
  const PlaneSets& s = work.sets;
  if (work.given) {
    const double variance = static_cast<double>(work.running_variance[set]);
    return {work.running_mean[set], static_cast<C>(1 / tile::sqrt(variance + work.eps))};
  }
  C sum = C(0), squares = C(0);
  for_plane_packs<width>(s, [&](i64 plane, i64 i) {
    const auto v = load_pack<T, width>(work.x.at(s, set, plane) + i);
    tile::unroll<width>([&](auto j) { sum += v[j]; });
  });
  const double mean = join_block<plane_threads>(static_cast<double>(sum), Plus{}) / s.count();
  const C centre = static_cast<C>(mean);
  for_plane_packs<width>(s, [&](i64 plane, i64 i) {
    const auto v = load_pack<T, width>(work.x.at(s, set, plane) + i);
    tile::unroll<width>([&](auto j) { squares = tile::fma(v[j] - centre, v[j] - centre, squares); });
  });
  const double total = join_block<plane_threads>(static_cast<double>(squares), Plus{});
  const C rstd = static_cast<C>(1 / tile::sqrt(total / s.count() + work.eps));
  if (tile::thread_in_block() == 0) {
    work.mean[set] = centre;
    work.rstd[set] = rstd;
    move(work.running_mean, set, mean, work.momentum);
    move(work.running_variance, set, total / tile::max(1.0, s.count() - 1), work.momentum);
  }
  return {centre, rstd};
}

template <class T, int width>
TESSERA_KERNEL(plane_threads)
void plane_norm_kernel(const PlaneNormWork<T> work) {
  using C = compute_t<T>;
  const PlaneSets& s = work.sets;
  const i64 set = tile::block_in_grid();
  const Sums<C> mean_rstd = statistics<T, width>(work, set);
  for_plane_packs<width>(s, [&](i64 plane, i64 i) {
    const i64 c = s.channel(set, plane);
    const C scale = mean_rstd.second * entry(work.weight, c, C(1));
    const C shift = entry(work.bias, c, C(0)) - mean_rstd.first * scale;
    const auto v = load_pack<T, width>(work.x.at(s, set, plane) + i);
    Pack<T, width> out;
    tile::unroll<width>([&](auto j) { out.lane[j] = convert_element<T>(tile::fma(v[j], scale, shift)); });
    *reinterpret_cast<Pack<T, width>*>(work.y.at(s, set, plane) + i) = out;
  });
}

template <class T, class Args>
void plane_norm(const Args& a, PlaneNormWork<T> work, Executor& executor) {
  using C = compute_t<T>;
  constexpr int width = 16 / sizeof(T);
  work.y = planes_of<T>(a.y);
  work.x = planes_of<const T>(a.x);
  work.weight = static_cast<const T*>(a.weight);
  work.bias = static_cast<const T*>(a.bias);
  work.mean = static_cast<C*>(a.mean);
  work.rstd = static_cast<C*>(a.rstd);
  work.eps = a.eps;
  const auto kernel =
      takes_packs(width, sizeof(T), a.size, a.x, a.y) ? plane_norm_kernel<T, width> : plane_norm_kernel<T, 1>;
  launch("group_norm or batch_norm", kernel, work.sets.sets, plane_threads, 0, executor, work);
}

// ---- backward

template <class T>
struct PlaneBackwardWork {
  PlaneSets sets;
  Planes<T> dx;
  Planes<const T> dy, x;
  const T* weight;
  T *dweight, *dbias;
  const compute_t<T>*mean, *rstd;
  Sums<double>* sums;  // group norm: of dy and dy (x - mean), in each plane
  i64 channels;
  bool constant;  // mean and rstd
};

/// dx = gain w dy + slope x + shift over a set, for the sums of w dy and of w dy (x - mean) over it.
template <class T, int width>
TESSERA_DEVICE void store_gradient(const PlaneBackwardWork<T>& work, i64 set, const Sums<double>& sums) {
  using C = compute_t<T>;
  const PlaneSets& s = work.sets;
  const double gain = static_cast<double>(work.rstd[set]);
  const double slope = work.constant ? 0 : -gain * gain * gain * sums.second / s.count();
  const double shift = work.constant ? 0 : -gain * sums.first / s.count() - slope * static_cast<double>(work.mean[set]);
  const C b = static_cast<C>(slope), c = static_cast<C>(shift);
  for_plane_packs<width>(s, [&](i64 plane, i64 i) {
    const C a = work.rstd[set] * entry(work.weight, s.channel(set, plane), C(1));
    const auto g = load_pack<T, width>(work.dy.at(s, set, plane) + i);
    const auto v = load_pack<T, width>(work.x.at(s, set, plane) + i);
    Pack<T, width> out;
    tile::unroll<width>([&](auto j) { out.lane[j] = convert_element<T>(tile::fma(g[j], a, tile::fma(v[j], b, c))); });
    *reinterpret_cast<Pack<T, width>*>(work.dx.at(s, set, plane) + i) = out;
  });
}

template <class T, int width>
TESSERA_KERNEL(plane_threads)
void batch_backward_kernel(const PlaneBackwardWork<T> work) {
  using C = compute_t<T>;
  const PlaneSets& s = work.sets;
  const i64 set = tile::block_in_grid();
  const C mean = work.mean[set];
  Sums<C> part{C(0), C(0)};
  for_plane_packs<width>(s, [&](i64 plane, i64 i) {
    const auto g = load_pack<T, width>(work.dy.at(s, set, plane) + i);
    const auto v = load_pack<T, width>(work.x.at(s, set, plane) + i);
    tile::unroll<width>([&](auto j) {
      part.first += g[j];
      part.second = tile::fma(g[j], v[j] - mean, part.second);
    });
  });
  Sums<double> sums{static_cast<double>(part.first), static_cast<double>(part.second)};
  sums = join_block<plane_threads>(sums, Plus{});
  if (tile::thread_in_block() == 0) {
    if (work.dweight) work.dweight[set] = convert_element<T>(sums.second * static_cast<double>(work.rstd[set]));
    if (work.dbias) work.dbias[set] = convert_element<T>(sums.first);
  }
  if (!work.dx.data) return;
  const double w = static_cast<double>(entry(work.weight, set, C(1)));
  store_gradient<T, width>(work, set, {w * sums.first, w * sums.second});
}

/// The sums of one plane each.
template <class T, int width, class Team>
TESSERA_KERNEL(Team::threads)
void plane_sums_kernel(const PlaneBackwardWork<T> work) {
  using C = compute_t<T>;
  const PlaneSets& s = work.sets;
  const i64 all = Team::row(), set = tile::quotient(all, s.planes), plane = all - set * s.planes;
  if (set >= s.sets) return;
  const C mean = work.mean[set];
  Sums<C> part{C(0), C(0)};
  const T *dy = work.dy.at(s, set, plane), *x = work.x.at(s, set, plane);
  for (i64 i = Team::rank() * width; i < s.size; i += Team::size * width) {
    const auto g = load_pack<T, width>(dy + i), v = load_pack<T, width>(x + i);
    tile::unroll<width>([&](auto j) {
      part.first += g[j];
      part.second = tile::fma(g[j], v[j] - mean, part.second);
    });
  }
  const Sums<double> sums =
      Team::join(Sums<double>{static_cast<double>(part.first), static_cast<double>(part.second)}, Plus{});
  if (Team::rank() == 0) work.sums[all] = sums;
}

template <class T, int width>
TESSERA_KERNEL(plane_threads)
void group_backward_kernel(const PlaneBackwardWork<T> work) {
  const PlaneSets& s = work.sets;
  const i64 set = tile::block_in_grid();
  Sums<double> sums{0, 0};
  for (i64 plane = tile::thread_in_block(); plane < s.planes; plane += plane_threads) {
    const double w = entry(work.weight, s.channel(set, plane), 1.0);
    const Sums<double> one = work.sums[set * s.planes + plane];
    sums = sums + Sums<double>{w * one.first, w * one.second};
  }
  store_gradient<T, width>(work, set, join_block<plane_threads>(sums, Plus{}));
}

/// Over the images: the sums of planes lie as [batch, channels].
template <class T>
TESSERA_KERNEL(256)
void group_weights_kernel(const PlaneBackwardWork<T> work, i64 batch) {
  const i64 c = first_index();
  if (c >= work.channels) return;
  Sums<double> sum{0, 0};
  for (i64 b = 0; b < batch; ++b) {
    const Sums<double> one = work.sums[b * work.channels + c];
    const double rstd = static_cast<double>(work.rstd[b * work.sets.inner + c / work.sets.planes]);
    sum = sum + Sums<double>{one.first, one.second * rstd};
  }
  if (work.dweight) work.dweight[c] = convert_element<T>(sum.second);
  if (work.dbias) work.dbias[c] = convert_element<T>(sum.first);
}

template <class T, class Args>
PlaneBackwardWork<T> backward_work(const Args& a, const PlaneSets& sets) {
  using C = compute_t<T>;
  PlaneBackwardWork<T> work{};
  work.sets = sets;
  work.dx = planes_of<T>(a.dx);
  work.dy = planes_of<const T>(a.dy);
  work.x = planes_of<const T>(a.x);
  work.weight = static_cast<const T*>(a.weight);
  work.dweight = static_cast<T*>(a.dweight);
  work.dbias = static_cast<T*>(a.dbias);
  work.mean = static_cast<const C*>(a.mean);
  work.rstd = static_cast<const C*>(a.rstd);
  work.channels = a.channels;
  return work;
}

template <class T, int width>
void group_backward(const GroupNormBackwardArgs& a, PlaneBackwardWork<T> work, Executor& executor) {
  const auto sum = [&](auto team) {
    using Team = decltype(team);
    launch("group_norm_backward", plane_sums_kernel<T, width, Team>, Team::blocks(a.batch * a.channels), Team::threads,
           0, executor, work);
  };
  if (a.size <= 2048) sum(Team<32>{});
  else sum(Team<256>{});
  if (work.dweight || work.dbias)
    launch("group_norm_backward", group_weights_kernel<T>, tile::ceil_div<i64>(a.channels, 256), 256, 0, executor, work,
           static_cast<i64>(a.batch));
  if (work.dx.data)
    launch("group_norm_backward", group_backward_kernel<T, width>, work.sets.sets, plane_threads, 0, executor, work);
}

}  // namespace

void group_norm(const GroupNormArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    PlaneNormWork<T> work{};
    work.sets = groups_of(a.batch, a.channels, a.size, a.groups);
    plane_norm<T>(a, work, executor);
  });
}

void batch_norm(const BatchNormArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    PlaneNormWork<T> work{};
    work.sets = channels_of(a.batch, a.channels, a.size);
    work.running_mean = static_cast<C*>(a.running_mean);
    work.running_variance = static_cast<C*>(a.running_variance);
    work.momentum = a.momentum;
    work.given = !a.training;
    plane_norm<T>(a, work, executor);
  });
}

void group_norm_backward(const GroupNormBackwardArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int width = 16 / sizeof(T);
    auto work = backward_work<T>(a, groups_of(a.batch, a.channels, a.size, a.groups));
    work.sums = static_cast<Sums<double>*>(a.workspace);
    if (takes_packs(width, sizeof(T), a.size, a.dx, a.dy, a.x)) group_backward<T, width>(a, work, executor);
    else group_backward<T, 1>(a, work, executor);
  });
}

void batch_norm_backward(const BatchNormBackwardArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int width = 16 / sizeof(T);
    auto work = backward_work<T>(a, channels_of(a.batch, a.channels, a.size));
    work.constant = !a.training;
    const auto kernel = takes_packs(width, sizeof(T), a.size, a.dx, a.dy, a.x) ? batch_backward_kernel<T, width>
                                                                               : batch_backward_kernel<T, 1>;
    launch("batch_norm_backward", kernel, work.sets.sets, plane_threads, 0, executor, work);
  });
}

long long group_norm_backward_workspace(long long batch, long long channels) {
  return batch * channels * static_cast<long long>(sizeof(Sums<double>));
}

}  // namespace tessera::gpu_kernels
