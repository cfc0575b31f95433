#include "kernels/args/sample.h"

#include "internal.h"
#include "tile/kernels/rows.h"
#include "tile/kernels/sample.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

constexpr i64 kCost = 32;  // of what comes to a result, beside an addition

tile::SampledImage image_of(const GridSampleArgs& a) {
  return {a.spatial, {a.size[0], a.size[1], a.size[2]}, {static_cast<tile::ImageBeyond>(a.beyond), a.align_corners}};
}

/// fn(Type<T>, Int<N>)
template <class Fn>
void with_taps(const GridSampleArgs& a, const Fn& fn) {
  with_float(a.type, [&](auto type) {
    if (a.interpolation == 0) fn(type, tile::Int<1>{});
    else if (a.interpolation == 1) fn(type, tile::Int<2>{});
    else fn(type, tile::Int<4>{});
  });
}

/// fn(Type<T>, sources)
template <class Fn>
void with_sources(const GridSampleArgs& a, const Fn& fn) {
  with_taps(a, [&](auto type, auto taps) {
    using C = tile::compute_t<typename decltype(type)::type>;
    fn(type,
       tile::GridSources<decltype(taps)::value, C>{image_of(a), a.images, a.points, static_cast<const C*>(a.grid)});
  });
}
template <class Fn>
void with_sources(const RoiAlignArgs& a, const Fn& fn) {
  with_float(a.type, [&](auto type) {
    using C = tile::compute_t<typename decltype(type)::type>;
    fn(type, tile::RegionSources<C>{a.images,
                                    a.regions,
                                    {a.size[0], a.size[1]},
                                    {a.bins[0], a.bins[1]},
                                    a.samples,
                                    static_cast<C>(a.scale),
                                    a.aligned,
                                    static_cast<const C*>(a.bounds),
                                    a.batch});
  });
}

template <class Args>
void sample(const Args& a, Executor& e) {
  with_sources(a, [&](auto type, const auto& sources) {
    using T = typename decltype(type)::type;
    tile::for_rows(tile::ExecutorRef(e), sources.count(), a.channels * kCost, [&](i64 source, int) {
      for (i64 first = 0; first < a.channels; first += tile::channels_together)
        tile::sample_source<tile::compute_t<T>>(
            sources, source, a.channels, first,
            static_cast<int>(tile::min<i64>(tile::channels_together, a.channels - first)), static_cast<const T*>(a.x),
            static_cast<T*>(a.y));
    });
  });
}

/// A plane is one thread's, so that what comes to an element does so in order.
template <class Args>
void input_grad(const Args& a, Executor& e) {
  with_sources(a, [&](auto type, const auto& sources) {
    using T = typename decltype(type)::type;
    using C = tile::compute_t<T>;
    const tile::ExecutorRef executor(e);
    const i64 plane = sources.plane(), together = sources.together();
    executor.parallel(a.images * a.channels, [&](i64 p, int thread) {
      const i64 n = p / a.channels, c = p % a.channels;
      C* const sum = static_cast<C*>(executor.scratch(thread, plane * i64(sizeof(C))));
      for (i64 i = 0; i < plane; ++i) sum[i] = C(0);
      for (i64 source = sources.first(n); source < sources.last(n); ++source) {
        const C g = tile::convert_element<C>(
            static_cast<const T*>(a.dy)[(source / together * a.channels + c) * together + source % together]);
        sources.each(source, [&](i64 image, tile::i32 offset, C weight) {
          if (image == n) sum[offset] += weight * g;
        });
      }
      for (i64 i = 0; i < plane; ++i) static_cast<T*>(a.dx)[p * plane + i] = tile::convert_element<T>(sum[i]);
    });
  });
}

void grid_grad(const GridSampleArgs& a, Executor& e) {
  with_taps(a, [&](auto type, auto taps) {
    using T = typename decltype(type)::type;
    using C = tile::compute_t<T>;
    const tile::SampledImage image = image_of(a);
    tile::for_rows(tile::ExecutorRef(e), a.images * a.points, a.channels * kCost, [&](i64 i, int) {
      const i64 n = i / a.points;
      const C* const point = static_cast<const C*>(a.grid) + i * a.spatial;
      C slope[3];
      tile::slope_at_point(image, tile::taps_at<decltype(taps)::value>(image, point), a.channels,
                           static_cast<const T*>(a.x) + n * a.channels * image.plane(),
                           static_cast<const T*>(a.dy) + n * a.channels * a.points + i - n * a.points, a.points, slope);
      for (int d = 0; d < a.spatial; ++d) static_cast<C*>(a.dgrid)[i * a.spatial + d] = slope[d];
    });
  });
}

}  // namespace

extern const SampleTable sample_table;
const SampleTable sample_table{sample<GridSampleArgs>, input_grad<GridSampleArgs>, grid_grad, sample<RoiAlignArgs>,
                               input_grad<RoiAlignArgs>};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
