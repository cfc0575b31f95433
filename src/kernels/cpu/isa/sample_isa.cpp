#include "kernels/args/sample.h"

#include "internal.h"
#include "tile/arch/cpu/gather.h"
#include "tile/kernels/sample.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

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

/// The same of sources that all take few elements: tap k of source i is at [k * sources + i], with a negative offset
/// where there is none. So that neighbouring sources are the lanes of a vector.
template <class C>
struct TapTable {
  static constexpr int room = 4096, most_taps = 64, lanes = tile::native_bytes / static_cast<int>(sizeof(C));
  using V = tile::Vec<C, lanes>;
  using I = tile::Vec<tile::i32, lanes>;
  int taps, sources;
  tile::i32 offset[room];
  C weight[room];

  /// As many as there is room for: the next channel's plane takes the place of this one in a cache.
  static int sources_for(int taps) { return room / taps / lanes * lanes; }
  void put(int tap, i64 i, tile::i32 place, C share) {
    offset[tap * sources + i] = place;
    weight[tap * sources + i] = place < 0 ? C(0) : share;
  }
  void put_none(int tap, i64 begin, i64 end) {
    for (; tap < taps; ++tap)
      for (i64 i = begin; i < end; ++i) put(tap, i, -1, C(0));
  }
  /// fn(first lane's source, lanes that are there)
  template <class Fn>
  static void each_vector(i64 count, const Fn& fn) {
    for (i64 i = 0; i < count; i += lanes) fn(i, static_cast<int>(tile::min<i64>(lanes, count - i)));
  }
  template <class T>
  V read(const T* plane, int tap, i64 i) const {
    return tile::gather<C, lanes>(plane, tile::load<I>(offset + tap * sources + i));
  }
  V share(int tap, i64 i) const { return tile::load<V>(weight + tap * sources + i); }
};

int taps_of(const GridSampleArgs& a) {
  const int along = 1 << a.interpolation;
  return along * along * (a.spatial == 3 ? along : 1);
}
int taps_of(const RoiAlignArgs& a) { return a.samples > 0 && a.samples <= 8 ? 4 * a.samples * a.samples : 0; }

template <int N, class C>
void fill_table(TapTable<C>& table, const tile::GridSources<N, C>& sources, i64 group, i64 at, i64 count) {
  using V = typename TapTable<C>::V;
  using I = typename TapTable<C>::I;
  const tile::SampledImage& image = sources.image;
  const C* const points = sources.grid + (group * sources.each_image + at) * image.spatial;
  table.each_vector(count, [&](i64 i, int lanes) {
    const auto taps = tile::taps_of_point<N, V>(
        image, [&](int d) { return tile::load_strided<V>(points + i * image.spatial + d, image.spatial, lanes); });
    const auto& [depth, rows, columns] = taps.dim;
    for (int k = 0, tap = 0; k < taps.depth; ++k)
      for (int r = 0; r < N; ++r) {
        const I row = (depth.place[k] * I(image.size[1]) + rows.place[r]) * I(image.size[2]);
        const V weight = depth.weight[k] * rows.weight[r];
        for (int c = 0; c < N; ++c, ++tap) {
          const I beyond = (depth.place[k] | rows.place[r] | columns.place[c]) < I(0);  // -1 where it is true
          tile::store(table.offset + tap * table.sources + i, (row + columns.place[c]) | beyond);
          tile::store(table.weight + tap * table.sources + i, weight * columns.weight[c]);
        }
      }
  });
}
template <class C>
void fill_table(TapTable<C>& table, const tile::RegionSources<C>& sources, i64 group, i64 at, i64 count) {
  for (i64 i = 0; i < count; ++i) {
    int tap = 0;
    sources.each_of(group, at + i, [&](i64, tile::i32 offset, C weight) { table.put(tap++, i, offset, weight); });
    table.put_none(tap, i, i + 1);
  }
  table.put_none(0, count, tile::round_up(count, i64(table.lanes)));
}

/// fn(group, its source, sources, table) for blocks of sources, by several threads.
template <class T, class Sources, class Fn>
void each_table(const Sources& sources, int taps, Executor& e, const Fn& fn) {
  using Table = TapTable<tile::compute_t<T>>;
  const tile::ExecutorRef executor(e);
  const int most = Table::sources_for(taps);
  const i64 together = sources.together(), blocks = (together + most - 1) / most;
  if (sources.count() == 0) return;
  executor.parallel(sources.count() / together * blocks, [&](i64 part, int thread) {
    auto& table = *static_cast<Table*>(executor.scratch(thread, sizeof(Table)));
    table.taps = taps, table.sources = most;
    const i64 group = part / blocks, at = part % blocks * most, count = tile::min<i64>(most, together - at);
    fill_table(table, sources, group, at, count);
    fn(group, at, count, table);
  });
}

template <class T, class Sources>
void sample_by_vectors(const Sources& sources, int taps, i64 channels, const void* x, void* y, Executor& e) {
  each_table<T>(sources, taps, e, [&](i64 group, i64 at, i64 count, const auto& table) {
    const i64 plane = sources.plane(), together = sources.together();
    const T* from = static_cast<const T*>(x) + sources.image_of(group) * channels * plane;
    T* to = static_cast<T*>(y) + group * channels * together + at;
    for (i64 c = 0; c < channels; ++c, from += plane, to += together)
      table.each_vector(count, [&](i64 i, int n) {
        auto sum = table.share(0, i) * table.read(from, 0, i);
        for (int k = 1; k < taps; ++k) sum += table.share(k, i) * table.read(from, k, i);
        tile::store(to + i, sum, n);
      });
  });
}

template <class Args>
void sample(const Args& a, Executor& e) {
  with_sources(a, [&](auto type, const auto& sources) {
    using T = typename decltype(type)::type;
    using C = tile::compute_t<T>;
    if (const int taps = taps_of(a); taps > 0 && taps <= TapTable<C>::most_taps)
      return sample_by_vectors<T>(sources, taps, a.channels, a.x, a.y, e);
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

/// Of a table's taps. What lies beyond the image is added to a number that nobody reads: branches would be guessed
/// wrong.
template <class C, class T>
void add_to_plane(const tile::i32* offset, const C* weight, i64 step, int taps, i64 count, const T* dy, C* sums) {
  C beyond(0);
  for (i64 i = 0; i < count; ++i) {
    const C g = tile::convert_element<C>(dy[i]);
    for (i64 k = 0, tap = i; k < taps; ++k, tap += step) {
      const tile::i32 at = offset[tap];
      C* const to = at >= 0 ? sums + at : &beyond;
      *to += weight[tap] * g;
    }
  }
}

/// Adds the gradients of results to sums of an image's planes: `dy` and `sums` are those of the first of some channels.
template <class T, class C, class Sources>
void add_to_planes(const Sources& sources, int taps, i64 group, i64 channels, const T* dy, C* sums, void* room) {
  const i64 plane = sources.plane(), together = sources.together();
  if (taps == 0) {
    auto& block = *static_cast<Block<C>*>(room);
    for (i64 at = 0; at < together; at += Block<C>::most)
      fill_block(block, sources, group, at, tile::min<i64>(together, at + Block<C>::most), [&] {
        for (i64 k = 0; k < channels; ++k)
          block.each([&](int i, int tap, int end) {
            const C g = tile::convert_element<C>(dy[k * together + at + i]);
            for (; tap < end; ++tap) sums[k * plane + block.offset[tap]] += block.weight[tap] * g;
          });
      });
    return;
  }
  auto& table = *static_cast<TapTable<C>*>(room);
  const int most = table.sources_for(taps);
  table.taps = taps, table.sources = most;
  for (i64 at = 0; at < together; at += most) {
    const i64 count = tile::min<i64>(most, together - at);
    fill_table(table, sources, group, at, count);
    for (i64 k = 0; k < channels; ++k)
      add_to_plane(table.offset, table.weight, most, taps, count, dy + k * together + at, sums + k * plane);
  }
}

/// Planes of a few channels are one thread's, so that what comes to an element does so in order.
template <class Args>
void input_grad(const Args& a, Executor& e) {
  with_sources(a, [&](auto type, const auto& sources) {
    using T = typename decltype(type)::type;
    using C = tile::compute_t<T>;
    const tile::ExecutorRef executor(e);
    constexpr i64 most = 16, room = tile::max(sizeof(Block<C>), sizeof(TapTable<C>));
    const int taps = taps_of(a) <= TapTable<C>::most_taps ? taps_of(a) : 0;
    const i64 plane = sources.plane(), together = sources.together(), groups = (a.channels + most - 1) / most;
    executor.parallel(a.images * groups, [&](i64 part, int thread) {
      const i64 n = part / groups, first = part % groups * most, count = tile::min(most, a.channels - first);
      const i64 bytes = (count * plane * i64(sizeof(C)) + 63) / 64 * 64;
      auto* const sums = static_cast<C*>(executor.scratch(thread, bytes + room));
      for (i64 i = 0; i < count * plane; ++i) sums[i] = C(0);
      for (i64 group = sources.first(n) / together; group < sources.last(n) / together; ++group)
        if (sources.image_of(group) == n)
          add_to_planes(sources, taps, group, count,
                        static_cast<const T*>(a.dy) + (group * a.channels + first) * together, sums,
                        reinterpret_cast<char*>(sums) + bytes);
      T* const to = static_cast<T*>(a.dx) + (n * a.channels + first) * plane;
      for (i64 i = 0; i < count * plane; ++i) to[i] = tile::convert_element<T>(sums[i]);
    });
  });
}

/// The gradient of a point's coordinates, of what each element about it makes of the gradients of all channels.
template <int N, class C>
void slopes_of_point(const tile::PointTaps<C, N>& taps, const C* products, i64 step, int spatial, C* slopes) {
  const auto& [depth, rows, columns] = taps.dim;
  C slope[3] = {};
  for (int k = 0; k < taps.depth; ++k)
    for (int i = 0; i < N; ++i)
      for (int j = 0; j < N; ++j, products += step) {
        slope[0] += *products * depth.weight[k] * rows.weight[i] * columns.slope[j];
        slope[1] += *products * depth.weight[k] * rows.slope[i] * columns.weight[j];
        slope[2] += *products * depth.slope[k] * rows.weight[i] * columns.weight[j];
      }
  for (int d = 0; d < spatial; ++d) slopes[d] = slope[d];
}

void grid_grad(const GridSampleArgs& a, Executor& e) {
  with_sources(a, [&](auto type, const auto& sources) {
    using T = typename decltype(type)::type;
    using C = tile::compute_t<T>;
    each_table<T>(sources, taps_of(a), e, [&](i64 n, i64 at, i64 count, auto& table) {
      using Table = tile::remove_cvref_t<decltype(table)>;
      constexpr int N = tile::remove_cvref_t<decltype(sources)>::taps_along;
      C* const slopes = static_cast<C*>(a.dgrid) + (n * a.points + at) * a.spatial;
      if constexpr (N == 1) {
        for (i64 i = 0; i < count * a.spatial; ++i) slopes[i] = C(0);
        return;
      }
      const i64 plane = sources.plane();
      table.each_vector(count, [&](i64 i, int lanes) {
        typename Table::V products[Table::most_taps];
        for (int k = 0; k < table.taps; ++k) products[k] = typename Table::V(0);
        const T* from = static_cast<const T*>(a.x) + n * a.channels * plane;
        const T* dy = static_cast<const T*>(a.dy) + n * a.channels * a.points + at + i;
        for (i64 c = 0; c < a.channels; ++c, from += plane, dy += a.points) {
          const auto g = tile::load<typename Table::V>(dy, lanes);
          for (int k = 0; k < table.taps; ++k) products[k] += g * table.read(from, k, i);
        }
        for (int l = 0; l < lanes; ++l)
          slopes_of_point(tile::taps_at<N>(sources.image, sources.grid + (n * a.points + at + i + l) * a.spatial),
                          reinterpret_cast<const C*>(products) + l, Table::lanes, a.spatial,
                          slopes + (i + l) * a.spatial);
      });
    });
  });
}

}  // namespace

extern const SampleTable sample_table;
const SampleTable sample_table{sample<GridSampleArgs>, input_grad<GridSampleArgs>, grid_grad, sample<RoiAlignArgs>,
                               input_grad<RoiAlignArgs>};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
