// Group norm, forward and backward.
#include "plane_norm.h"

namespace tessera::gpu_kernels {
namespace {

template <class T>
struct PlaneNormWork {
  PlaneSets sets;
  Planes<T> y;
  Planes<const T> x;
  ChannelWeights weight, bias;
  compute_t<T>*mean, *rstd;
  double eps;
  PartMoments* moments;  // [sets, parts]
};

/// The moments of each part, around the mean of its first packs, so that nothing cancels.
template <class T, int width>
TESSERA_KERNEL(plane_threads)
void plane_moments_kernel(const PlaneNormWork<T> work) {
  using C = compute_t<T>;
  const PlaneSets& s = work.sets;
  const PlanePart part(s, width);
  PlanePart first = part;
  first.end = tile::min(part.end, part.begin + plane_threads);
  C sum = C(0), squares = C(0);
  const auto load = [&](const PackPlace& at) {
    return words_at<T, width>(work.x.at(s, part.set, at.plane) + at.element);
  };
  for_plane_packs<width>(s, first, load, [&](const PackPlace&, const Words<T, width>& words) {
    const auto v = lanes_of<T, width>(words);
    tile::unroll<width>([&](auto j) { sum += v[j]; });
  });
  const double firsts = static_cast<double>(tile::max<i64>(1, first.end - first.begin) * width);
  const C centre = static_cast<C>(join_block<plane_threads>(static_cast<double>(sum), Plus{}) / firsts);
  sum = C(0);
  for_plane_packs<width>(s, part, load, [&](const PackPlace&, const Words<T, width>& words) {
    const auto v = lanes_of<T, width>(words);
    tile::unroll<width>([&](auto j) {
      const C d = v[j] - centre;
      sum += d;
      squares = tile::fma(d, d, squares);
    });
  });
  const auto sums =
      join_block<plane_threads>(Sums<double>{static_cast<double>(sum), static_cast<double>(squares)}, Plus{});
  if (tile::thread_in_block() != 0) return;
  const double count = static_cast<double>((part.end - part.begin) * width);
  const double offset = count > 0 ? sums.first / count : 0;
  const double rest = sums.second - sums.first * offset;
  work.moments[tile::block_in_grid()] = {static_cast<double>(centre) + offset, rest < 0 ? 0 : rest, count};
}

/// Mean and reciprocal deviation of a set; one thread keeps them.
template <class T>
TESSERA_DEVICE Sums<compute_t<T>> statistics(const PlaneNormWork<T>& work, const PlanePart& part) {
  using C = compute_t<T>;
  const PartMoments all = join_moments(work.moments + part.set * work.sets.parts, work.sets.parts);
  const C mean = static_cast<C>(all.mean);
  const C rstd = static_cast<C>(1 / tile::sqrt(all.squares / all.count + work.eps));
  if (part.index == 0 && tile::thread_in_block() == 0) {
    work.mean[part.set] = mean;
    work.rstd[part.set] = rstd;
  }
  return {mean, rstd};
}

template <class T, int width>
TESSERA_KERNEL(plane_threads)
void plane_norm_kernel(const PlaneNormWork<T> work) {
  using C = compute_t<T>;
  const PlaneSets& s = work.sets;
  const PlanePart part(s, width);
  const Sums<C> mean_rstd = statistics(work, part);
  i64 last = -1;  // the plane that `line` is for
  ScaleShift<C> line(C(0), C(0), C(0), C(0));
  const auto load = [&](const PackPlace& at) {
    return words_at<T, width>(work.x.at(s, part.set, at.plane) + at.element);
  };
  for_plane_packs<width>(s, part, load, [&](const PackPlace& at, const Words<T, width>& words) {
    if (at.plane != last) {
      const i64 c = s.channel(part.set, at.plane);
      line = {mean_rstd.first, mean_rstd.second, work.weight.at(c, C(1)), work.bias.at(c, C(0))};
      last = at.plane;
    }
    const auto v = lanes_of<T, width>(words);
    Pack<T, width> out;
    tile::unroll<width>([&](auto j) { out.lane[j] = convert_element<T>(line(v[j])); });
    store_at_once(work.y.at(s, part.set, at.plane) + at.element, out);
  });
}

template <class T, int width>
void launch_norm(const PlaneNormWork<T>& work, Executor& executor) {
  const i64 blocks = work.sets.sets * work.sets.parts;
  launch("group_norm", plane_moments_kernel<T, width>, blocks, plane_threads, 0, executor, work);
  launch("group_norm", plane_norm_kernel<T, width>, blocks, plane_threads, 0, executor, work);
}

}  // namespace

void group_norm(const GroupNormArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    constexpr int width = line_width<T>;
    PlaneNormWork<T> work{};
    work.sets = groups_of(a.batch, a.channels, a.size, a.groups);
    work.y = planes_of<T>(a.y);
    work.x = planes_of<const T>(a.x);
    work.weight = {a.weight, a.weight_type};
    work.bias = {a.bias, a.weight_type};
    work.mean = static_cast<C*>(a.mean);
    work.rstd = static_cast<C*>(a.rstd);
    work.eps = a.eps;
    work.moments = static_cast<PartMoments*>(a.workspace);
    if (takes_packs(width, sizeof(T), a.size, a.x, a.y)) launch_norm<T, width>(work, executor);
    else launch_norm<T, 1>(work, executor);
  });
}

long long plane_parts_workspace(long long sets, long long elements) {
  return sets * parts_of(sets, elements) * static_cast<long long>(sizeof(PartMoments));
}

namespace {

template <class T>
struct PlaneBackwardWork {
  PlaneSets sets;
  Planes<T> dx;
  Planes<const T> dy, x;
  ChannelWeights weight;
  void *dweight, *dbias;
  Scalar weight_type;
  const compute_t<T>*mean, *rstd;
  Sums<double>* sums;  // of dy and dy (x - mean) in each plane
  i64 channels;

  template <int width>
  struct Packs {
    Words<T, width> dy, x;
  };
  template <int width>
  TESSERA_DEVICE Packs<width> load(i64 set, const PackPlace& at) const {
    return {words_at<T, width>(dy.at(sets, set, at.plane) + at.element),
            words_at<T, width>(x.at(sets, set, at.plane) + at.element)};
  }
};

/// dx = gain w dy + slope x + shift over a part, for the sums of w dy and of w dy (x - mean) over the set.
template <class T, int width>
TESSERA_DEVICE void store_gradient(const PlaneBackwardWork<T>& work, const PlanePart& part, const Sums<double>& sums) {
  using C = compute_t<T>;
  const PlaneSets& s = work.sets;
  const i64 set = part.set;
  const double gain = static_cast<double>(work.rstd[set]);
  const double slope = -gain * gain * gain * sums.second / s.count();
  const double shift = -gain * sums.first / s.count() - slope * static_cast<double>(work.mean[set]);
  const C b = static_cast<C>(slope), c = static_cast<C>(shift);
  i64 last = -1;  // the plane that `scale` is for
  C scale(0);
  const auto load = [&](const PackPlace& at) { return work.template load<width>(set, at); };
  for_plane_packs<width>(s, part, load, [&](const PackPlace& at, const auto& packs) {
    if (at.plane != last) scale = work.rstd[set] * work.weight.at(s.channel(set, at.plane), C(1));
    last = at.plane;
    const auto g = lanes_of<T, width>(packs.dy), v = lanes_of<T, width>(packs.x);
    Pack<T, width> out;
    tile::unroll<width>(
        [&](auto j) { out.lane[j] = convert_element<T>(tile::fma(g[j], scale, tile::fma(v[j], b, c))); });
    store_at_once(work.dx.at(s, set, at.plane) + at.element, out);
  });
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
  for (i64 i = Team::rank() * width; i < s.size; i += Team::size() * width) {
    const auto g = lanes_of<T, width>(words_at<T, width>(dy + i)), v = lanes_of<T, width>(words_at<T, width>(x + i));
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
  const PlanePart part(s, width);
  Sums<double> sums{0, 0};
  for (i64 plane = tile::thread_in_block(); plane < s.planes; plane += plane_threads) {
    const double w = work.weight.at(s.channel(part.set, plane), 1.0);
    const Sums<double> one = work.sums[part.set * s.planes + plane];
    sums = sums + Sums<double>{w * one.first, w * one.second};
  }
  store_gradient<T, width>(work, part, join_block<plane_threads>(sums, Plus{}));
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
    const double rstd = static_cast<double>(work.rstd[b * work.sets.groups + c / work.sets.planes]);
    sum = sum + Sums<double>{one.first, one.second * rstd};
  }
  if (work.dweight) store_as(work.dweight, work.weight_type, c, sum.second);
  if (work.dbias) store_as(work.dbias, work.weight_type, c, sum.first);
}

template <class T, class Args>
PlaneBackwardWork<T> backward_work(const Args& a, const PlaneSets& sets) {
  using C = compute_t<T>;
  PlaneBackwardWork<T> work{};
  work.sets = sets;
  work.dx = planes_of<T>(a.dx);
  work.dy = planes_of<const T>(a.dy);
  work.x = planes_of<const T>(a.x);
  work.weight = {a.weight, a.weight_type};
  work.dweight = a.dweight;
  work.dbias = a.dbias;
  work.weight_type = a.weight_type;
  work.mean = static_cast<const C*>(a.mean);
  work.rstd = static_cast<const C*>(a.rstd);
  work.sums = static_cast<Sums<double>*>(a.workspace);
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
    launch("group_norm_backward", group_backward_kernel<T, width>, work.sets.sets * work.sets.parts, plane_threads, 0,
           executor, work);
}

}  // namespace

void group_norm_backward(const GroupNormBackwardArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int width = line_width<T>;
    auto work = backward_work<T>(a, groups_of(a.batch, a.channels, a.size, a.groups));
    if (takes_packs(width, sizeof(T), a.size, a.dx, a.dy, a.x)) group_backward<T, width>(a, work, executor);
    else group_backward<T, 1>(a, work, executor);
  });
}

long long group_norm_backward_workspace(long long batch, long long channels) {
  return batch * channels * static_cast<long long>(sizeof(Sums<double>));
}

}  // namespace tessera::gpu_kernels
