// Group norm over sets of planes that share their statistics. A set is cut into parts, a block each, whose sums the
// blocks of the next kernel put together.
#pragma once
#include "channel_line.h"
#include "image_lines.h"
#include "norm.h"

namespace tessera::gpu_kernels {

using tile::compute_t;
using tile::convert_element;

inline constexpr int plane_threads = 256;

/// Sets of planes: each image has so many groups of neighbouring channels.
struct PlaneSets {
  i64 sets, groups, planes, size;  // planes of each set, elements of each plane
  i64 parts;                       // of each set

  TESSERA_DEVICE i64 channel(i64 set, i64 plane) const { return set % groups * planes + plane; }
  TESSERA_DEVICE double count() const { return static_cast<double>(planes) * static_cast<double>(size); }
};

template <class T>
struct Planes {
  T* data;
  i64 batch_stride, channel_stride;
  TESSERA_DEVICE T* at(const PlaneSets& s, i64 set, i64 plane) const {
    return data + set / s.groups * batch_stride + s.channel(set, plane) * channel_stride;
  }
};
template <class T>
Planes<T> planes_of(const PlanesArg& arg) {
  return {static_cast<T*>(arg.data), arg.batch_stride, arg.channel_stride};
}

/// A block's part of a set, in packs.
struct PlanePart {
  i64 set, index, begin, end;
  TESSERA_DEVICE PlanePart(const PlaneSets& s, int width) {
    const i64 block = tile::block_in_grid(), packs = s.planes * (s.size / width);
    const i64 length = tile::ceil_div(packs, s.parts);
    set = tile::quotient(block, s.parts);
    index = block - set * s.parts;
    begin = tile::min(packs, index * length);
    end = tile::min(packs, begin + length);
  }
};

/// The first element of a pack, in its plane.
struct PackPlace {
  i64 plane, element;
};

/// use(place, load(place)) for this thread's packs of a part, some loads ahead: memory answers late.
template <int width, class Load, class Use>
TESSERA_DEVICE void for_plane_packs(const PlaneSets& s, const PlanePart& part, const Load& load, const Use& use) {
  constexpr int ahead = 4;
  const auto place = [&](i64 p) {
    const i64 plane = tile::quotient(p * width, s.size);
    return PackPlace{plane, p * width - plane * s.size};
  };
  i64 p = part.begin + tile::thread_in_block();
  if (p >= part.end) return;
  PackPlace next = place(p);
  const PackPlace step = place(plane_threads);
  for (; p < part.end; p += ahead * plane_threads) {
    PackPlace at[ahead];
    decltype(load(next)) held[ahead];
    tile::unroll<ahead>([&](auto k) {
      at[k] = next;
      if (p + k * plane_threads < part.end) held[k] = load(next);
      next.plane += step.plane;
      next.element += step.element;
      if (next.element < s.size) return;
      ++next.plane;
      next.element -= s.size;
    });
    tile::unroll<ahead>([&](auto k) {
      if (p + k * plane_threads < part.end) use(at[k], held[k]);
    });
  }
}

/// Some 2048 blocks of 16384 elements or more: the same on every card, and so are the results.
inline i64 parts_of(i64 sets, i64 elements) {
  return tile::max<i64>(1, tile::min(2048 / tile::max<i64>(1, sets), elements / 16384));
}
inline PlaneSets groups_of(i64 batch, i64 channels, i64 size, i64 groups) {
  const i64 width = channels / groups;
  return {batch * groups, groups, width, size, parts_of(batch * groups, width * size)};
}

using PartMoments = tile::Moments<double>;

/// The moments of a set from those of its parts; every team of the block comes to the same.
TESSERA_DEVICE PartMoments join_moments(const PartMoments* parts, i64 count) {
  const int lane = tile::thread_in_block() % team_lanes;
  Sums<double> all{0, 0};
  for (i64 i = lane; i < count; i += team_lanes)
    all = all + Sums<double>{parts[i].count, parts[i].count * parts[i].mean};
  all = join_lanes(all, Plus{});
  const double mean = all.second / all.first;
  double squares = 0;
  for (i64 i = lane; i < count; i += team_lanes)
    squares += parts[i].squares + parts[i].count * (parts[i].mean - mean) * (parts[i].mean - mean);
  return {mean, join_lanes(squares, Plus{}), all.first};
}

/// Whether packs of `width` elements lie within planes at multiples of their size.
template <class... P>
bool takes_packs(int width, int bytes, i64 size, const P&... planes) {
  const auto fits = [&](const PlanesArg& p) {
    return !p.data || (reinterpret_cast<size_t>(p.data) % (width * bytes) == 0 && p.batch_stride % width == 0 &&
                       p.channel_stride % width == 0);
  };
  return size % width == 0 && (fits(planes) && ...);
}

}  // namespace tessera::gpu_kernels
