// Images read at points between their elements: a thread for a source, a point or a bin, and a few channels. The
// gradient of an image is gathered: lists say which sources come to each of its elements and with what weight. Each is
// made once for all channels and sorted, so that sums are the same each time.
#include "tile/kernels/sample.h"

#include "kernels/args/sample.h"
#include "kernels/gpu/device/runtime/fault.h"

namespace tessera::gpu_kernels {
namespace {

constexpr int kThreads = 256;

/// Which channels of which source a thread has.
struct Share {
  i64 source, first;
  int count;
};
struct Shares {
  i64 sources, channels;
  int each;  // channels of a thread

  i64 total() const { return sources * tile::ceil_div<i64>(channels, each); }
  TESSERA_DEVICE Share at(i64 index) const {
    i64 part, source;
    if ((static_cast<u64>(index) | static_cast<u64>(sources)) >> 32) {
      part = index / sources;
      source = index - part * sources;
    } else {
      part = static_cast<u32>(index) / static_cast<u32>(sources);
      source = static_cast<u32>(index) - static_cast<u32>(part) * static_cast<u32>(sources);
    }
    const i64 first = part * each;
    return {source, first, static_cast<int>(tile::min<i64>(each, channels - first))};
  }
};

/// So many channels for each thread that the card is full.
Shares shares_of(i64 sources, i64 channels, const Executor& executor) {
  const i64 full = static_cast<i64>(executor.multiprocessors) * 2048, wanted = sources * channels / full;
  return {sources, channels, static_cast<int>(tile::max<i64>(1, tile::min<i64>(wanted, tile::channels_together)))};
}

template <class T, class Sources>
TESSERA_KERNEL(256)
void sample_kernel(const Sources sources, const Shares shares, i64 total, const T* x, T* y) {
  for (i64 i = first_index(); i < total; i += index_step()) {
    const Share share = shares.at(i);
    tile::sample_source<tile::compute_t<T>>(sources, share.source, shares.channels, share.first, share.count, x, y);
  }
}

TESSERA_KERNEL(256)
void check_batch(const i64* batch, i64 regions, i64 images, const char* op, gpu::Fault* fault) {
  for (i64 i = first_index(); i < regions; i += index_step())
    if (batch[i] < 0 || batch[i] >= images) raise(fault, op, batch[i], images);
}

template <class T, int N>
TESSERA_KERNEL(256)
void grid_grad_kernel(const tile::SampledImage image, i64 total, i64 channels, i64 points, const T* x,
                      const tile::compute_t<T>* grid, const T* dy, tile::compute_t<T>* dgrid) {
  using C = tile::compute_t<T>;
  for (i64 i = first_index(); i < total; i += index_step()) {
    const i64 n = i / points;
    C slope[3];
    tile::slope_at_point(image, tile::taps_at<N>(image, grid + i * image.spatial), channels,
                         x + n * channels * image.plane(), dy + n * channels * points + i - n * points, points, slope);
    for (int d = 0; d < image.spatial; ++d) dgrid[i * image.spatial + d] = slope[d];
  }
}

// ---- the gradient of images in any order

template <class C>
TESSERA_KERNEL(256)
void clear_kernel(C* data, i64 count) {
  for (i64 i = first_index(); i < count; i += index_step()) data[i] = C(0);
}

template <class T, class Sources>
TESSERA_KERNEL(256)
void scatter_sources(const Sources sources, const Shares shares, i64 total, const T* dy, tile::compute_t<T>* dx) {
  using C = tile::compute_t<T>;
  const i64 plane = sources.plane(), together = sources.together();
  for (i64 i = first_index(); i < total; i += index_step()) {
    const Share share = shares.at(i);
    const T* const from = dy + tile::result_place(sources, share.source, shares.channels, share.first);
    C g[tile::channels_together];
    for (int k = 0; k < tile::channels_together; ++k)
      g[k] = k < share.count ? tile::convert_element<C>(from[k * together]) : C(0);
    sources.each(share.source, [&](i64 n, i32 offset, C weight) {
      C* const to = dx + (n * shares.channels + share.first) * plane + offset;
      for (int k = 0; k < tile::channels_together; ++k)
        if (k < share.count) atomicAdd(to + k * plane, weight * g[k]);
    });
  }
}

// ---- the same source after source, a thread for a plane

template <class T, class Sources>
TESSERA_KERNEL(64)
void add_in_order(const Sources sources, i64 planes, i64 channels, const T* dy, tile::compute_t<T>* dx) {
  using C = tile::compute_t<T>;
  const i64 plane = sources.plane();
  for (i64 p = first_index(); p < planes; p += index_step()) {
    const i64 n = p / channels;
    for (i64 source = sources.first(n); source < sources.last(n); ++source) {
      const C g = tile::convert_element<C>(dy[tile::result_place(sources, source, channels, p - n * channels)]);
      sources.each(source, [&](i64 image, i32 offset, C weight) {
        if (image == n) dx[p * plane + offset] += weight * g;
      });
    }
  }
}

// ---- the same gathered

/// A contribution: where the source's result for channel 0 lies, and its weight.
template <class C>
struct Entry {
  u32 from;
  C weight;
  TESSERA_DEVICE bool operator<(const Entry& o) const { return from < o.from || (from == o.from && weight < o.weight); }
};

template <class C>
struct Lists {
  u32 *counts, *ends, *total;
  Entry<C>* entries;
};
template <class C>
Lists<C> lists_in(void* room, const GatherRoom& layout, i64 places) {
  char* const base = static_cast<char*>(room);
  u32* const counts = reinterpret_cast<u32*>(base);
  return {counts, reinterpret_cast<u32*>(base + layout.ends_at), counts + places,
          reinterpret_cast<Entry<C>*>(base + layout.entries_at)};
}

template <class C, class Sources>
TESSERA_KERNEL(256)
void count_entries(const Sources sources, const Lists<C> lists) {
  const i64 plane = sources.plane();
  for (i64 source = first_index(); source < sources.count(); source += index_step())
    sources.each(source, [&](i64 n, i32 offset, C) { atomicAdd(lists.counts + n * plane + offset, 1u); });
}

/// Gives each place its part of the entries, in any order: ends are where they begin, until those are there.
template <class C>
TESSERA_KERNEL(256)
void share_entries(i64 places, const Lists<C> lists) {
  TESSERA_SHARED u32 sums[kThreads];
  TESSERA_SHARED u32 base;
  const int thread = tile::thread_in_block();
  for (i64 from = tile::block_in_grid() * kThreads; from < places; from += index_step()) {
    const i64 i = from + thread;
    const u32 count = i < places ? lists.counts[i] : 0;
    sums[thread] = count;
    for (int step = 1; step < kThreads; step *= 2) {
      tile::sync_block();
      const u32 before = thread >= step ? sums[thread - step] : 0;
      tile::sync_block();
      sums[thread] += before;
    }
    if (thread == kThreads - 1) base = atomicAdd(lists.total, sums[thread]);
    tile::sync_block();
    if (i < places) lists.ends[i] = base + sums[thread] - count;
    tile::sync_block();
  }
}

template <class C, class Sources>
TESSERA_KERNEL(256)
void write_entries(const Sources sources, i64 channels, const Lists<C> lists) {
  const i64 plane = sources.plane();
  for (i64 source = first_index(); source < sources.count(); source += index_step()) {
    const u32 from = static_cast<u32>(tile::result_place(sources, source, channels, 0));
    sources.each(source, [&](i64 n, i32 offset, C weight) {
      lists.entries[atomicAdd(lists.ends + n * plane + offset, 1u)] = {from, weight};
    });
  }
}

template <class E>
TESSERA_DEVICE void sink(E* heap, u32 at, u32 count) {
  const E moved = heap[at];
  for (u32 child = 2 * at + 1; child < count; child = 2 * at + 1) {
    if (child + 1 < count && heap[child] < heap[child + 1]) ++child;
    if (!(moved < heap[child])) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = moved;
}

template <class C>
TESSERA_KERNEL(256)
void sort_entries(i64 places, const Lists<C> lists) {
  for (i64 i = first_index(); i < places; i += index_step()) {
    const u32 count = lists.counts[i];
    Entry<C>* const list = lists.entries + (lists.ends[i] - count);
    if (count <= 32) {
      for (u32 k = 1; k < count; ++k) {
        const Entry<C> moved = list[k];
        u32 at = k;
        for (; at > 0 && moved < list[at - 1]; --at) list[at] = list[at - 1];
        list[at] = moved;
      }
      continue;
    }
    for (u32 k = count / 2; k-- > 0;) sink(list, k, count);
    for (u32 k = count - 1; k > 0; --k) {
      const Entry<C> largest = list[0];
      list[0] = list[k];
      list[k] = largest;
      sink(list, 0, k);
    }
  }
}

template <class T>
TESSERA_KERNEL(256)
void gather_entries(i64 plane, i64 together, const Shares shares, i64 total, const Lists<tile::compute_t<T>> lists,
                    const T* dy, T* dx) {
  using C = tile::compute_t<T>;
  for (i64 i = first_index(); i < total; i += index_step()) {
    const Share share = shares.at(i);
    const u32 end = lists.ends[share.source], begin = end - lists.counts[share.source];
    C sum[tile::channels_together] = {};
    for (u32 e = begin; e < end; ++e) {
      const Entry<C> entry = lists.entries[e];
      const T* const from = dy + entry.from + share.first * together;
      for (int k = 0; k < tile::channels_together; ++k)
        if (k < share.count) sum[k] += entry.weight * tile::convert_element<C>(from[k * together]);
    }
    const i64 n = share.source / plane;
    T* const to = dx + (n * shares.channels + share.first) * plane + share.source - n * plane;
    for (int k = 0; k < tile::channels_together; ++k)
      if (k < share.count) to[k * plane] = tile::convert_element<T>(sum[k]);
  }
}

// ---- from arguments to launches

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
    fn(type, tile::GridSources<decltype(taps)::value, C>{image_of(a), i64{a.images}, i64{a.points},
                                                         static_cast<const C*>(a.grid)});
  });
}
template <class Fn>
void with_sources(const RoiAlignArgs& a, const Fn& fn) {
  with_float(a.type, [&](auto type) {
    using C = tile::compute_t<typename decltype(type)::type>;
    fn(type, tile::RegionSources<C>{i64{a.images},
                                    i64{a.regions},
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
void sample(const Args& a, Executor& executor) {
  with_sources(a, [&](auto type, const auto& sources) {
    using T = typename decltype(type)::type;
    using Sources = tile::remove_cvref_t<decltype(sources)>;
    const Shares shares = shares_of(sources.count(), a.channels, executor);
    launch("sample", sample_kernel<T, Sources>, grid_for(shares.total(), kThreads, executor), kThreads, 0, executor,
           sources, shares, shares.total(), static_cast<const T*>(a.x), static_cast<T*>(a.y));
  });
}

void roi_align(const RoiAlignArgs& a, Executor& executor) {
  launch("sample", check_batch, grid_for(a.regions, kThreads, executor), kThreads, 0, executor, a.batch, i64{a.regions},
         i64{a.images}, "roi_align", executor.fault);
  sample(a, executor);
}

template <class C>
void clear(C* data, i64 count, Executor& executor) {
  launch("clear", clear_kernel<C>, grid_for(count, kThreads, executor), kThreads, 0, executor, data, count);
}

template <class T, class Args, class Sources>
void scatter(const Args& a, const Sources& sources, Executor& executor) {
  using C = tile::compute_t<T>;
  const Shares shares = shares_of(sources.count(), a.channels, executor);
  clear(static_cast<C*>(a.dx), gathered_places(a) * a.channels, executor);
  launch("scatter", scatter_sources<T, Sources>, grid_for(shares.total(), kThreads, executor), kThreads, 0, executor,
         sources, shares, shares.total(), static_cast<const T*>(a.dy), static_cast<C*>(a.dx));
}

template <class T, class Args, class Sources>
void add_sources(const Args& a, const Sources& sources, Executor& executor) {
  using C = tile::compute_t<T>;
  const i64 planes = a.images * a.channels;
  clear(static_cast<C*>(a.dx), gathered_places(a) * a.channels, executor);
  launch("scatter", add_in_order<T, Sources>, grid_for(planes, 64, executor), 64, 0, executor, sources, planes,
         i64{a.channels}, static_cast<const T*>(a.dy), static_cast<C*>(a.dx));
}

template <class T, class Args, class Sources>
void gather(const Args& a, const Sources& sources, Executor& executor) {
  using C = tile::compute_t<T>;
  const i64 places = gathered_places(a);
  const Lists<C> lists = lists_in<C>(a.room, GatherRoom(places, static_cast<i64>(gathered_entries(a)), a.type), places);
  const i64 of_sources = grid_for(sources.count(), kThreads, executor),
            of_places = grid_for(places, kThreads, executor);
  clear(lists.counts, places + 1, executor);
  launch("gather", count_entries<C, Sources>, of_sources, kThreads, 0, executor, sources, lists);
  launch("gather", share_entries<C>, of_places, kThreads, 0, executor, places, lists);
  launch("gather", write_entries<C, Sources>, of_sources, kThreads, 0, executor, sources, i64{a.channels}, lists);
  launch("gather", sort_entries<C>, of_places, kThreads, 0, executor, places, lists);
  const Shares shares = shares_of(places, a.channels, executor);
  launch("gather", gather_entries<T>, grid_for(shares.total(), kThreads, executor), kThreads, 0, executor,
         sources.plane(), sources.together(), shares, shares.total(), lists, static_cast<const T*>(a.dy),
         static_cast<T*>(a.dx));
}

template <class Args>
void input_grad(const Args& a, Executor& executor) {
  with_sources(a, [&](auto type, const auto& sources) {
    using T = typename decltype(type)::type;
    if (a.adding == Adding::any_order) scatter<T>(a, sources, executor);
    else if (a.adding == Adding::lists) gather<T>(a, sources, executor);
    else add_sources<T>(a, sources, executor);
  });
}

void grid_grad(const GridSampleArgs& a, Executor& executor) {
  with_taps(a, [&](auto type, auto taps) {
    using T = typename decltype(type)::type;
    using C = tile::compute_t<T>;
    const i64 total = a.images * a.points;
    launch("sample", grid_grad_kernel<T, decltype(taps)::value>, grid_for(total, kThreads, executor), kThreads, 0,
           executor, image_of(a), total, i64{a.channels}, i64{a.points}, static_cast<const T*>(a.x),
           static_cast<const C*>(a.grid), static_cast<const T*>(a.dy), static_cast<C*>(a.dgrid));
  });
}

}  // namespace

const SampleTable* device_sample_table() {
  static const SampleTable table{sample<GridSampleArgs>, input_grad<GridSampleArgs>, grid_grad, roi_align,
                                 input_grad<RoiAlignArgs>};
  return &table;
}

}  // namespace tessera::gpu_kernels
