#include "kernels/args/sample.h"

#include "internal.h"
#include "tile/kernels/rows.h"
#include "tile/kernels/sample.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

constexpr i64 kCost = 32;  // of what comes to a result, beside an addition

tile::SampledImage image_of(const GridSampleArgs& a) {
  return {a.spatial,
          {a.size[0], a.size[1], a.size[2]},
          {static_cast<tile::ImageBeyond>(a.beyond), a.align_corners, a.elements}};
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

/// What some sources of a group take of its image's planes, one source behind the other. Channels read it one by one,
/// so that a plane stays near.
template <class C>
struct Block {
  static constexpr int most = 256, most_taps = 4096;  // sources, and what they take
  int first = 0, count = 0;                           // those that are held
  int begin[most + 1];
  tile::i32 offset[most_taps];
  C weight[most_taps];

  int taps() const { return begin[count]; }
  void start(int at) { first = count = at, begin[at] = 0; }
  /// fn(source, its first tap, the one behind its last)
  template <class Fn>
  void each(const Fn& fn) const {
    for (int i = first; i < count; ++i) fn(i, begin[i], begin[i + 1]);
  }
};

/// Holds sources [at, last) of a group in a block; flush() takes what is held, and may come within a source.
template <class C, class Sources, class Flush>
void fill_block(Block<C>& block, const Sources& sources, i64 group, i64 at, i64 last, const Flush& flush) {
  block.start(0);
  for (int i = 0; at + i < last; ++i) {
    block.begin[i + 1] = block.begin[i];
    block.count = i + 1;
    sources.each_of(group, at + i, [&](i64, tile::i32 offset, C weight) {
      if (block.taps() == Block<C>::most_taps) {
        flush();
        block.start(i);
        block.begin[i + 1] = 0;
        block.count = i + 1;
      }
      const int tap = block.begin[i + 1]++;
      block.offset[tap] = offset;
      block.weight[tap] = weight;
    });
  }
  flush();
}

template <class Args>
void sample(const Args& a, Executor& e) {
  with_sources(a, [&](auto type, const auto& sources) {
    using T = typename decltype(type)::type;
    using C = tile::compute_t<T>;
    const tile::ExecutorRef executor(e);
    const i64 plane = sources.plane(), together = sources.together(), size = Block<C>::most;
    if (sources.count() == 0) return;
    const i64 blocks = (together + size - 1) / size;
    executor.parallel(sources.count() / together * blocks, [&](i64 part, int thread) {
      const i64 group = part / blocks, at = part % blocks * size, last = tile::min(together, at + size);
      const i64 bytes = a.channels * size * i64(sizeof(C));
      auto* const sums = static_cast<C*>(executor.scratch(thread, bytes + i64(sizeof(Block<C>))));
      auto& block = *reinterpret_cast<Block<C>*>(reinterpret_cast<char*>(sums) + bytes);
      for (i64 i = 0; i < a.channels * size; ++i) sums[i] = C(0);
      const T* const image = static_cast<const T*>(a.x) + sources.image_of(group) * a.channels * plane;
      fill_block(block, sources, group, at, last, [&] {
        if (block.taps() == 0) return;  // of an image that is not there, too
        for (i64 c = 0; c < a.channels; ++c) {
          const T* const from = image + c * plane;
          block.each([&](int i, int tap, int end) {
            C sum = sums[c * size + i];
            for (; tap < end; ++tap) sum += block.weight[tap] * tile::convert_element<C>(from[block.offset[tap]]);
            sums[c * size + i] = sum;
          });
        }
      });
      T* const to = static_cast<T*>(a.y) + group * a.channels * together + at;
      for (i64 c = 0; c < a.channels; ++c)
        for (i64 i = 0; i < last - at; ++i) to[c * together + i] = tile::convert_element<T>(sums[c * size + i]);
    });
  });
}

/// Planes of a few channels are one thread's, so that what comes to an element does so in order.
template <class Args>
void input_grad(const Args& a, Executor& e) {
  with_sources(a, [&](auto type, const auto& sources) {
    using T = typename decltype(type)::type;
    using C = tile::compute_t<T>;
    const tile::ExecutorRef executor(e);
    constexpr i64 most = 16;
    const i64 plane = sources.plane(), together = sources.together(), groups = (a.channels + most - 1) / most;
    executor.parallel(a.images * groups, [&](i64 part, int thread) {
      const i64 n = part / groups, first = part % groups * most, count = tile::min(most, a.channels - first);
      const i64 bytes = (count * plane * i64(sizeof(C)) + 63) / 64 * 64;
      auto* const sums = static_cast<C*>(executor.scratch(thread, bytes + i64(sizeof(Block<C>))));
      auto& block = *reinterpret_cast<Block<C>*>(reinterpret_cast<char*>(sums) + bytes);
      for (i64 i = 0; i < count * plane; ++i) sums[i] = C(0);
      for (i64 group = sources.first(n) / together; group < sources.last(n) / together; ++group) {
        if (sources.image_of(group) != n) continue;
        const T* const dy = static_cast<const T*>(a.dy) + (group * a.channels + first) * together;
        for (i64 at = 0; at < together; at += Block<C>::most)
          fill_block(block, sources, group, at, tile::min<i64>(together, at + Block<C>::most), [&] {
            for (i64 k = 0; k < count; ++k) {
              const T* const from = dy + k * together + at;
              C* const sum = sums + k * plane;
              block.each([&](int i, int tap, int end) {
                const C g = tile::convert_element<C>(from[i]);
                for (; tap < end; ++tap) sum[block.offset[tap]] += block.weight[tap] * g;
              });
            }
          });
      }
      T* const to = static_cast<T*>(a.dx) + (n * a.channels + first) * plane;
      for (i64 i = 0; i < count * plane; ++i) to[i] = tile::convert_element<T>(sums[i]);
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
