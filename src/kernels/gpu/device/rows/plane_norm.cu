// Group and batch norm, forward.
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
  compute_t<T>*running_mean, *running_variance;  // of batch norm
  double momentum, eps;
  bool given;  // the running estimates are used instead of the batch's
  bool relu;
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
    return pack_at<T, width>(work.x.at(s, part.set, at.plane) + at.element);
  };
  for_plane_packs<width>(s, first, load, [&](const PackPlace&, const Pack<T, width>& pack) {
    const auto v = lanes(pack);
    tile::unroll<width>([&](auto j) { sum += v[j]; });
  });
  const double firsts = static_cast<double>(tile::max<i64>(1, first.end - first.begin) * width);
  const C centre = static_cast<C>(join_block<plane_threads>(static_cast<double>(sum), Plus{}) / firsts);
  sum = C(0);
  for_plane_packs<width>(s, part, load, [&](const PackPlace&, const Pack<T, width>& pack) {
    const auto v = lanes(pack);
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
  if (work.given) {
    const double variance = static_cast<double>(work.running_variance[part.set]);
    return {work.running_mean[part.set], static_cast<C>(1 / tile::sqrt(variance + work.eps))};
  }
  const PartMoments all = join_moments(work.moments + part.set * work.sets.parts, work.sets.parts);
  const C mean = static_cast<C>(all.mean);
  const C rstd = static_cast<C>(1 / tile::sqrt(all.squares / all.count + work.eps));
  if (part.index == 0 && tile::thread_in_block() == 0) {
    work.mean[part.set] = mean;
    work.rstd[part.set] = rstd;
    move_estimate(work.running_mean, part.set, all.mean, work.momentum);
    move_estimate(work.running_variance, part.set, all.squares / tile::max(1.0, all.count - 1), work.momentum);
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
    return pack_at<T, width>(work.x.at(s, part.set, at.plane) + at.element);
  };
  for_plane_packs<width>(s, part, load, [&](const PackPlace& at, const Pack<T, width>& pack) {
    if (at.plane != last) {
      const i64 c = s.channel(part.set, at.plane);
      line = {mean_rstd.first, mean_rstd.second, work.weight.at(c, C(1)), work.bias.at(c, C(0))};
      last = at.plane;
    }
    const auto v = lanes(pack);
    Pack<T, width> out;
    tile::unroll<width>([&](auto j) {
      const C y = line(v[j]);
      out.lane[j] = convert_element<T>(work.relu ? tile::relu(y) : y);
    });
    store_at_once(work.y.at(s, part.set, at.plane) + at.element, out);
  });
}

template <class T, int width>
void launch_norm(const PlaneNormWork<T>& work, Executor& executor) {
  const i64 blocks = work.sets.sets * work.sets.parts;
  if (!work.given)
    launch("group_norm or batch_norm", plane_moments_kernel<T, width>, blocks, plane_threads, 0, executor, work);
  launch("group_norm or batch_norm", plane_norm_kernel<T, width>, blocks, plane_threads, 0, executor, work);
}

template <class T, class Args>
void plane_norm(const Args& a, PlaneNormWork<T> work, Executor& executor) {
  using C = compute_t<T>;
  constexpr int width = plane_width<T>;
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
  if (a.lines) return line_norm(a, executor);
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    PlaneNormWork<T> work{};
    work.sets = channels_of(a.batch, a.channels, a.size);
    work.running_mean = static_cast<C*>(a.running_mean);
    work.running_variance = static_cast<C*>(a.running_variance);
    work.momentum = a.momentum;
    work.given = !a.training;
    work.relu = a.relu;
    plane_norm<T>(a, work, executor);
  });
}

long long plane_parts_workspace(long long sets, long long elements) {
  return sets * tile::max(parts_of(sets, elements), line_norm_parts(elements, sets)) *
         static_cast<long long>(sizeof(PartMoments));
}

}  // namespace tessera::gpu_kernels
