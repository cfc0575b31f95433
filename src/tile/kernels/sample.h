// Images read at points between their elements: which elements are about a point, their weights, and how those change
// with the point.
#pragma once
#include "../math.h"
#include "../types.h"

TESSERA_TILE_BEGIN

enum class ImageBeyond : i32 { zeros, border, reflection };

struct SampleRule {
  ImageBeyond beyond;
  bool align_corners, elements = false;  // elements: points are coordinates of elements
};

/// The elements along one dim, -1 beyond the image, with their weights and what those change by for a step of the
/// point's coordinate. C is a number, or a vector with a point in each lane.
template <class C, int N>
struct DimTaps {
  rebind_t<C, i32> place[N];
  C weight[N], slope[N];
};

template <class C>
struct Coordinate {
  C at, slope;
};

/// The coordinate where the image is read for one that may lie beyond it.
template <class C>
TESSERA_HD Coordinate<C> within_image(C at, i32 size, const SampleRule& rule) {
  using T = element_t<C>;
  const C last(static_cast<T>(size - 1)), none(T(0)), one(T(1));
  C slope = one;
  if (rule.beyond == ImageBeyond::zeros) return {at, slope};
  if (rule.beyond == ImageBeyond::reflection) {
    const C low = rule.align_corners ? none : C(T(-0.5)), high = rule.align_corners ? last : last + C(T(0.5));
    const C span = high - low;
    if (rule.align_corners && size <= 1) return {none, none};
    const C distance = abs(at - low), turns = floor(distance / span), rest = distance - turns * span;
    const auto is_odd = turns != C(T(2)) * floor(turns * C(T(0.5)));
    slope = select(at == low, none, select((at < low) ^ is_odd, -one, one));
    at = select(is_odd, span - rest, rest) + low;
  }
  const auto is_low = at >= none, is_high = at > last;  // the first false for NaN
  slope = select(is_low, select(is_high, none, slope), none);
  return {select(is_low, select(is_high, last, at), none), slope};
}

namespace detail {

template <class C>
TESSERA_HD rebind_t<C, i32> place_of(C whole, i32 size, const SampleRule& rule) {
  using T = element_t<C>;
  if (rule.beyond != ImageBeyond::zeros) return convert<i32>(round(within_image(whole, size, rule).at));
  const C none(T(-1));
  return convert<i32>(select(whole >= C(T(0)), select(whole <= C(static_cast<T>(size - 1)), whole, none), none));
}

// Weights of elements at a distance up to 1, and up to 2, and their slopes. Keys 1981 with a = -0.75.
template <class C>
TESSERA_HD Coordinate<C> cubic_near(C d) {
  using T = element_t<C>;
  return {(C(T(1.25)) * d - C(T(2.25))) * d * d + C(T(1)), (C(T(3.75)) * d - C(T(4.5))) * d};
}
template <class C>
TESSERA_HD Coordinate<C> cubic_far(C d) {
  using T = element_t<C>;
  return {((C(T(-0.75)) * d + C(T(3.75))) * d - C(T(6))) * d + C(T(3)), (C(T(-2.25)) * d + C(T(7.5))) * d - C(T(6))};
}

}  // namespace detail

/// N: 1 for the nearest element, 2 and 4 for linear and cubic interpolation.
template <int N, class C>
TESSERA_HD DimTaps<C, N> taps_about(Coordinate<C> point, i32 size, const SampleRule& rule) {
  using T = element_t<C>;
  const C one(T(1));
  DimTaps<C, N> taps;
  const auto put = [&](int i, C whole, C weight, C slope) {
    taps.place[i] = detail::place_of(whole, size, rule);
    taps.weight[i] = weight;
    taps.slope[i] = slope * point.slope;
  };
  if (rule.beyond == ImageBeyond::zeros)  // NaN lies nowhere
    point.at = select(point.at == point.at, point.at, C(T(-8)));
  if constexpr (N == 1) {
    put(0, round(point.at), one, C(T(0)));
  } else if constexpr (N == 2) {
    const Coordinate<C> inside = within_image(point.at, size, rule);
    const C begin = floor(inside.at), part = inside.at - begin;
    put(0, begin, one - part, -inside.slope);
    put(1, begin + one, part, inside.slope);
  } else {
    const C begin = floor(point.at), part = point.at - begin, rest = one - part;
    const Coordinate<C> weights[4] = {detail::cubic_far(part + one), detail::cubic_near(part), detail::cubic_near(rest),
                                      detail::cubic_far(rest + one)};
    for (int i = 0; i < 4; ++i)
      put(i, begin + C(static_cast<T>(i - 1)), weights[i].at, i < 2 ? weights[i].slope : -weights[i].slope);
  }
  return taps;
}

/// Of images without channels: their sizes are those of depth, rows and columns.
struct SampledImage {
  i32 spatial, size[3];
  SampleRule rule;
  TESSERA_HD i64 plane() const { return i64(size[0]) * size[1] * size[2]; }
};

template <class C, int N>
struct PointTaps {
  DimTaps<C, N> dim[3];
  i32 depth;  // taps along it
};

/// The coordinate of a point of a grid, from -1 to 1 in an image, along a dim of n elements.
template <class C>
TESSERA_HD Coordinate<C> coordinate_of(C point, i32 n, const SampleRule& rule) {
  using T = element_t<C>;
  const C one(T(1)), half(T(0.5)), length(static_cast<T>(n));
  if (rule.elements) return {point, one};
  const C from = point + one, last = length - one;
  if (rule.align_corners) return {from * (last * half), last * half};
  return {(from * length - one) * half, length * half};
}

/// About a point of a grid, columns first; point(d) is its coordinate d.
template <int N, class C, class Point>
TESSERA_HD PointTaps<C, N> taps_of_point(const SampledImage& image, const Point& point) {
  using T = element_t<C>;
  PointTaps<C, N> taps;
  for (int d = 0; d < 3; ++d) {
    if (d < 3 - image.spatial) {
      taps.depth = 1;
      taps.dim[d].place[0] = rebind_t<C, i32>(0);
      taps.dim[d].weight[0] = C(T(1));
      taps.dim[d].slope[0] = C(T(0));
      continue;
    }
    if (d == 0) taps.depth = N;
    taps.dim[d] = taps_about<N>(coordinate_of(C(point(2 - d)), image.size[d], image.rule), image.size[d], image.rule);
  }
  return taps;
}
template <int N, class C>
TESSERA_HD PointTaps<C, N> taps_at(const SampledImage& image, const C* point) {
  return taps_of_point<N, C>(image, [point](int d) { return point[d]; });
}

/// fn(offset in the plane, weight) for the elements on the image.
template <class C, int N, class Fn>
TESSERA_HD void each_tap(const SampledImage& image, const PointTaps<C, N>& taps, const Fn& fn) {
  const auto& [depth, rows, columns] = taps.dim;
  for (int k = 0; k < taps.depth; ++k) {
    if (depth.place[k] < 0) continue;
    for (int i = 0; i < N; ++i) {
      if (rows.place[i] < 0) continue;
      const i32 row = (depth.place[k] * image.size[1] + rows.place[i]) * image.size[2];
      const C weight = depth.weight[k] * rows.weight[i];
      for (int j = 0; j < N; ++j)
        if (columns.place[j] >= 0) fn(row + columns.place[j], weight * columns.weight[j]);
    }
  }
}

/// What the sum of the channels' gradients times results changes by for a step of the point: columns, rows, depth.
template <int N, class T, class C>
TESSERA_HD void slope_at_point(const SampledImage& image, const PointTaps<C, N>& taps, i64 channels, const T* x,
                               const T* dy, i64 points, C (&slope)[3]) {
  const i64 plane = image.plane();
  const auto& [depth, rows, columns] = taps.dim;
  slope[0] = slope[1] = slope[2] = C(0);
  for (int k = 0; k < taps.depth; ++k) {
    if (depth.place[k] < 0) continue;
    C product[N][N] = {};
    for (i64 c = 0; c < channels; ++c) {
      const C g = convert_element<C>(dy[c * points]);
      const T* const from = x + c * plane + i64(depth.place[k]) * image.size[1] * image.size[2];
      for (int i = 0; i < N; ++i)
        for (int j = 0; j < N; ++j)
          if (rows.place[i] >= 0 && columns.place[j] >= 0)
            product[i][j] += g * convert_element<C>(from[rows.place[i] * image.size[2] + columns.place[j]]);
    }
    for (int i = 0; i < N; ++i)
      for (int j = 0; j < N; ++j) {
        slope[0] += product[i][j] * depth.weight[k] * rows.weight[i] * columns.slope[j];
        slope[1] += product[i][j] * depth.weight[k] * rows.slope[i] * columns.weight[j];
        slope[2] += product[i][j] * depth.slope[k] * rows.weight[i] * columns.weight[j];
      }
  }
}

// ---- sources: results of one channel, and what each takes of an image's plane

/// Points of grids; those of an image lie together.
template <int N, class C>
struct GridSources {
  static constexpr int taps_along = N;
  SampledImage image;
  i64 images, each_image;
  const C* grid;

  TESSERA_HD i64 count() const { return images * each_image; }
  /// How many of them make the results of a channel that lie together.
  TESSERA_HD i64 together() const { return each_image; }
  TESSERA_HD i64 first(i64 n) const { return n * each_image; }
  TESSERA_HD i64 last(i64 n) const { return (n + 1) * each_image; }
  TESSERA_HD i64 image_of(i64 group) const { return group; }
  TESSERA_HD i64 plane() const { return image.plane(); }
  /// fn(image, offset in the plane, weight)
  template <class Fn>
  TESSERA_HD void each(i64 source, const Fn& fn) const {
    const i64 n = source / each_image;
    each_of(n, source - n * each_image, fn);
  }
  /// The same of a group of those that lie together.
  template <class Fn>
  TESSERA_HD void each_of(i64 group, i64 at, const Fn& fn) const {
    each_tap(image, taps_at<N>(image, grid + (group * each_image + at) * image.spatial),
             [&](i32 offset, C weight) { fn(group, offset, weight); });
  }
};

/// Bins of regions.
template <class C>
struct RegionSources {
  i64 images, regions;
  i32 size[2], bins[2], samples;
  C scale;
  bool aligned;
  const C* bounds;
  const i64* batch;

  TESSERA_HD i64 count() const { return regions * bins[0] * bins[1]; }
  TESSERA_HD i64 together() const { return i64(bins[0]) * bins[1]; }
  TESSERA_HD i64 first(i64) const { return 0; }
  TESSERA_HD i64 last(i64) const { return count(); }
  TESSERA_HD i64 image_of(i64 group) const { return batch[group]; }
  TESSERA_HD i64 plane() const { return i64(size[0]) * size[1]; }
  template <class Fn>
  TESSERA_HD void each(i64 source, const Fn& fn) const {
    const i64 region = source / together();
    each_of(region, source - region * together(), fn);
  }
  template <class Fn>
  TESSERA_HD void each_of(i64 region, i64 at, const Fn& fn) const {
    const i64 n = batch[region];
    if (n < 0 || n >= images) return;
    const i32 bin = static_cast<i32>(at);
    const Along rows = along(region, 0, bin / bins[1]), columns = along(region, 1, bin % bins[1]);
    const C share = C(1) / (static_cast<C>(rows.samples) * static_cast<C>(columns.samples));
    for (i32 i = 0; i < rows.samples; ++i) {
      const DimTaps<C, 2> down = taps_of(rows, i, size[0]);
      for (i32 j = 0; j < columns.samples; ++j) {
        const DimTaps<C, 2> across = taps_of(columns, j, size[1]);
        for (int k = 0; k < 4; ++k)
          if (down.place[k / 2] >= 0 && across.place[k % 2] >= 0)
            fn(n, down.place[k / 2] * size[1] + across.place[k % 2], share * down.weight[k / 2] * across.weight[k % 2]);
      }
    }
  }

 private:
  /// A bin along one dim: sample i lies at begin + (first + i + 1/2) step.
  struct Along {
    C begin, step, first;
    i32 samples;
  };
  TESSERA_HD Along along(i64 region, int dim, i32 bin) const {
    const C* const bound = bounds + region * 4 + (1 - dim);
    const C shift = aligned ? C(0.5) : C(0), begin = bound[0] * scale - shift;
    C length = bound[2] * scale - shift - begin;
    if (!aligned && length < C(1)) length = C(1);
    i32 count = samples;
    if (count == 0) {
      const C wanted = ceil(length / static_cast<C>(bins[dim]));
      count = wanted > C(0) ? static_cast<i32>(wanted < C(1 << 20) ? wanted : C(1 << 20)) : 0;
    }
    return {begin, length / (static_cast<C>(bins[dim]) * static_cast<C>(count)),
            static_cast<C>(bin) * static_cast<C>(count), count};
  }
  /// The border repeats up to one element beyond the image; farther samples are 0.
  static TESSERA_HD DimTaps<C, 2> taps_of(const Along& bin, i32 i, i32 length) {
    const C at = bin.begin + (bin.first + static_cast<C>(i) + C(0.5)) * bin.step;
    DimTaps<C, 2> taps = taps_about<2>(Coordinate<C>{at, C(1)}, length, SampleRule{ImageBeyond::border, false});
    if (!(at >= C(-1) && at <= static_cast<C>(length))) taps.place[0] = taps.place[1] = -1;
    return taps;
  }
};

/// How many channels of a source go together.
inline constexpr int channels_together = 8;

/// Where the results of a source's first channel of those from `first` on lie.
template <class Sources>
TESSERA_HD i64 result_place(const Sources& sources, i64 source, i64 channels, i64 first) {
  const i64 group = source / sources.together();
  return (group * channels + first) * sources.together() + source - group * sources.together();
}

/// y of a source and `count` channels from `first` on, at most channels_together.
template <class C, class T, class Sources>
TESSERA_HD void sample_source(const Sources& sources, i64 source, i64 channels, i64 first, int count, const T* x,
                              T* y) {
  const i64 plane = sources.plane(), together = sources.together();
  C sum[channels_together] = {};
  sources.each(source, [&](i64 n, i32 offset, C weight) {
    const T* const from = x + (n * channels + first) * plane + offset;
    for (int k = 0; k < channels_together; ++k)
      if (k < count) sum[k] += weight * convert_element<C>(from[k * plane]);
  });
  T* const to = y + result_place(sources, source, channels, first);
  for (int k = 0; k < channels_together; ++k)
    if (k < count) to[k * together] = convert_element<T>(sum[k]);
}

TESSERA_TILE_END
