// Group norm, forward.
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

}  // namespace tessera::gpu_kernels
