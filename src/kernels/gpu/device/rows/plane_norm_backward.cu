// Group and batch norm, backward.
#include "plane_norm.h"

namespace tessera::gpu_kernels {
namespace {

template <class T>
struct PlaneBackwardWork {
  PlaneSets sets;
  Planes<T> dx;
  Planes<const T> dy, x;
  ChannelWeights weight, bias;
  void *dweight, *dbias;
  Scalar weight_type;
  const compute_t<T>*mean, *rstd;
  Sums<double>* sums;  // of dy and dy (x - mean): in each part, or of group norm in each plane
  i64 channels;
  bool constant;          // mean and rstd
  bool relu;              // followed: where y was not positive, dy counts as zero
  ChannelWeights filter;  // that dy counts times, or none
  void* dfilter;

  template <int width>
  struct Packs {
    Pack<T, width> dy, x;
  };
  template <int width>
  TESSERA_DEVICE Packs<width> load(i64 set, const PackPlace& at) const {
    return {pack_at<T, width>(dy.at(sets, set, at.plane) + at.element),
            pack_at<T, width>(x.at(sets, set, at.plane) + at.element)};
  }
  /// fn(lane, dy, x) for each lane.
  template <int width, class Fn>
  TESSERA_DEVICE void each(const Packs<width>& packs, const ScaleShift<compute_t<T>>& line, const Fn& fn) const {
    const auto g = lanes(packs.dy), v = lanes(packs.x);
    tile::unroll<width>([&](auto j) { fn(j, relu && !(line(v[j]) > 0) ? compute_t<T>(0) : g[j], v[j]); });
  }
  TESSERA_DEVICE ScaleShift<compute_t<T>> line(i64 set, i64 channel) const {
    using C = compute_t<T>;
    return {mean[set], rstd[set], weight.at(channel, C(1)), bias.at(channel, C(0))};
  }
};

/// dx = gain w dy + slope x + shift over a part, for the sums of w dy and of w dy (x - mean) over the set.
template <class T, int width>
TESSERA_DEVICE void store_gradient(const PlaneBackwardWork<T>& work, const PlanePart& part, const Sums<double>& sums) {
  using C = compute_t<T>;
  const PlaneSets& s = work.sets;
  const i64 set = part.set;
  const double gain = static_cast<double>(work.rstd[set]);
  const double slope = work.constant ? 0 : -gain * gain * gain * sums.second / s.count();
  const double shift = work.constant ? 0 : -gain * sums.first / s.count() - slope * static_cast<double>(work.mean[set]);
  const C b = static_cast<C>(slope), c = static_cast<C>(shift);
  i64 last = -1;  // the plane that `line` is for
  ScaleShift<C> line(C(0), C(0), C(0), C(0));
  const C filter = work.filter.at(set, C(1));
  const auto load = [&](const PackPlace& at) { return work.template load<width>(set, at); };
  for_plane_packs<width>(s, part, load, [&](const PackPlace& at, const auto& packs) {
    if (at.plane != last) line = work.line(set, s.channel(set, at.plane));
    last = at.plane;
    Pack<T, width> out;
    work.each(packs, line, [&](auto j, C g, C v) {
      out.lane[j] = convert_element<T>(tile::fma(g, filter * line.scale, tile::fma(v, b, c)));
    });
    store_at_once(work.dx.at(s, set, at.plane) + at.element, out);
  });
}

template <class T, int width>
TESSERA_KERNEL(plane_threads)
void batch_sums_kernel(const PlaneBackwardWork<T> work) {
  using C = compute_t<T>;
  const PlanePart part(work.sets, width);
  const C mean = work.mean[part.set];
  const ScaleShift<C> line = work.line(part.set, part.set);
  Sums<C> sum{C(0), C(0)};
  const auto load = [&](const PackPlace& at) { return work.template load<width>(part.set, at); };
  for_plane_packs<width>(work.sets, part, load, [&](const PackPlace&, const auto& packs) {
    work.each(packs, line, [&](auto, C g, C v) {
      sum.first += g;
      sum.second = tile::fma(g, v - mean, sum.second);
    });
  });
  const auto sums =
      join_block<plane_threads>(Sums<double>{static_cast<double>(sum.first), static_cast<double>(sum.second)}, Plus{});
  if (tile::thread_in_block() == 0) work.sums[tile::block_in_grid()] = sums;
}

template <class T, int width>
TESSERA_KERNEL(plane_threads)
void batch_backward_kernel(const PlaneBackwardWork<T> work) {
  using C = compute_t<T>;
  const PlaneSets& s = work.sets;
  const PlanePart part(s, width);
  Sums<double> sums{0, 0};
  for (i64 i = tile::thread_in_block() % team_lanes; i < s.parts; i += team_lanes)
    sums = sums + work.sums[part.set * s.parts + i];
  sums = join_lanes(sums, Plus{});
  const double filter = work.filter.at(part.set, 1.0);
  if (part.index == 0 && tile::thread_in_block() == 0) {
    const double rstd = static_cast<double>(work.rstd[part.set]);
    if (work.dweight) store_as(work.dweight, work.weight_type, part.set, filter * sums.second * rstd);
    if (work.dbias) store_as(work.dbias, work.weight_type, part.set, filter * sums.first);
    if (work.dfilter)  // the sum of dy times what the norm gave
      store_as(work.dfilter, work.filter.type, part.set,
               work.weight.at(part.set, 1.0) * sums.second * rstd + work.bias.at(part.set, 0.0) * sums.first);
  }
  if (!work.dx.data) return;
  const double w = filter * static_cast<double>(work.weight.at(part.set, C(1)));
  store_gradient<T, width>(work, part, {w * sums.first, w * sums.second});
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
    const auto g = lanes(pack_at<T, width>(dy + i)), v = lanes(pack_at<T, width>(x + i));
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
    const double rstd = static_cast<double>(work.rstd[b * work.sets.inner + c / work.sets.planes]);
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

template <class T, int width>
void batch_backward(const PlaneBackwardWork<T>& work, Executor& executor) {
  const i64 blocks = work.sets.sets * work.sets.parts;
  launch("batch_norm_backward", batch_sums_kernel<T, width>, blocks, plane_threads, 0, executor, work);
  launch("batch_norm_backward", batch_backward_kernel<T, width>, blocks, plane_threads, 0, executor, work);
}

}  // namespace

void group_norm_backward(const GroupNormBackwardArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int width = plane_width<T>;
    auto work = backward_work<T>(a, groups_of(a.batch, a.channels, a.size, a.groups));
    if (takes_packs(width, sizeof(T), a.size, a.dx, a.dy, a.x)) group_backward<T, width>(a, work, executor);
    else group_backward<T, 1>(a, work, executor);
  });
}

void batch_norm_backward(const BatchNormBackwardArgs& a, Executor& executor) {
  if (a.lines) return line_norm_backward(a, executor);
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int width = plane_width<T>;
    auto work = backward_work<T>(a, channels_of(a.batch, a.channels, a.size));
    work.constant = !a.training;
    work.bias = {a.bias, a.weight_type};
    work.relu = a.relu;
    work.filter = {a.filter, a.type};
    work.dfilter = a.dfilter;
    if (takes_packs(width, sizeof(T), a.size, a.dx, a.dy, a.x)) batch_backward<T, width>(work, executor);
    else batch_backward<T, 1>(work, executor);
  });
}

long long group_norm_backward_workspace(long long batch, long long channels) {
  return batch * channels * static_cast<long long>(sizeof(Sums<double>));
}

}  // namespace tessera::gpu_kernels
