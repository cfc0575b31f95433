// Convolutions in which each channel has a filter of its own, over images whose channels are contiguous and fill a
// vector: vectors run along channels, a block of them at a time, whose filters then stay in the first-level cache.
// Neighbouring results share what they see. conv_depthwise_narrow.h has those of fewer channels.
#pragma once

#include "../arch/cpu/lanes.h"
#include "conv_direct.h"

TESSERA_TILE_BEGIN

/// The channels that are the lanes of each block. The last block of many channels begins where it ends with them; few
/// channels repeat from pixel to pixel, and so do blocks.
template <class T>
struct LaneBlocks {
  static constexpr i64 lanes = NativeVec<T>::lanes;
  i64 channels;

  bool narrow() const { return channels < lanes; }
  i64 count() const {
    return narrow() ? channels / gcd(static_cast<int>(channels), static_cast<int>(lanes)) : ceil_div(channels, lanes);
  }
  i64 first(i64 block) const { return narrow() ? block * lanes : min(block * lanes, channels - lanes); }
  /// Elements of so many taps, of a block and of all.
  static i64 size_of_one(i64 taps) { return taps * lanes; }
  i64 size(i64 taps) const { return count() * size_of_one(taps); }
};

/// fn(block, lane, channel) of all lanes.
template <class T, class Fn>
void each_lane(const LaneBlocks<T>& blocks, const Fn& fn) {
  for (i64 b = 0; b < blocks.count(); ++b) {
    i64 channel = blocks.first(b) % blocks.channels;
    for (i64 lane = 0; lane < blocks.lanes; ++lane) {
      fn(b, lane, channel);
      if (++channel == blocks.channels) channel = 0;
    }
  }
}

/// Filters (c, r, s), block by block, tap by tap.
template <class T>
void pack_lanes(const StridedView<const T, 3>& w, T* to) {
  const LaneBlocks<T> blocks{w.length(0)};
  const i64 taps = w.length(1) * w.length(2);
  each_lane(blocks, [&](i64 block, i64 lane, i64 channel) {
    T* line = to + block * taps * blocks.lanes + lane;
    for (i64 r = 0; r < w.length(1); ++r) {
      const T* const from = w.data + channel * w.stride(0) + r * w.stride(1);
      for (i64 s = 0; s < w.length(2); ++s, line += blocks.lanes) *line = from[s * w.stride(2)];
    }
  });
}

namespace detail {

/// Outputs whose windows lie inside along a dimension.
inline cpu::Span whole_windows(const Sweep& s) {
  const i64 begin = s.before > 0 ? ceil_div(s.before, s.stride) : 0;
  const i64 last = s.length + s.before - (s.taps - 1) * s.dilation - 1;  // the last input where a window may begin
  const i64 end = last < 0 ? 0 : min(s.outputs, last / s.stride + 1);
  return {min(begin, max<i64>(0, end)), max<i64>(0, end)};
}

/// Outputs of a row of windows whose neighbours see what they see, one place on: every `step`-th one, where the stride
/// divides the dilation. Output `first` + p * step sees at tap s the input `input` + (p + s) * dilation.
struct Neighbours {
  i64 first, step, count, input, begin, end;  // those inputs p + s exist

  static bool slide(const Sweep& w) { return w.stride == 1 || w.dilation == w.stride || w.dilation % w.stride == 0; }
  static i64 residues(const Sweep& w) { return w.dilation == w.stride ? 1 : by_step(w.dilation, w.stride); }
  Neighbours(const Sweep& w, i64 residue)
      : first(residue),
        step(residues(w)),
        count(max<i64>(0, up_by_step(w.outputs - residue, step))),
        input(w.first_input(residue)),
        begin(input < 0 ? up_by_step(-input, w.dilation) : 0),
        end(input < w.length ? by_step(w.length - 1 - input, w.dilation) + 1 : 0) {}
};

/// Parts of a row of outputs, of some at least: the channels of a part are read one block after the other, as they lie
/// in memory, while its pixels are in the first-level cache.
inline i64 row_parts(const Sweep& w, i64 channels, i64 some) {
  constexpr i64 elements = 2048;
  return max<i64>(1, min(w.outputs / some, w.outputs * w.stride * channels / elements));
}

/// Such a part, of whole groups of so many outputs.
inline cpu::Span row_part(i64 outputs, i64 group, i64 parts, i64 index) {
  if (parts == 1) return {0, outputs};
  const cpu::Span groups = cpu::part(ceil_div(outputs, group), parts, index);
  return {min(outputs, groups.begin * group), min(outputs, groups.end * group)};
}

/// Asks for lines of pixels that will be written, or read, in the order in which they lie: blocks of channels touch
/// them in another one.
template <int writes, class T>
void ask_for(T* row, i64 step, const cpu::Span& pixels, const cpu::Span& channels) {
  for (i64 j = pixels.begin; j < pixels.end; ++j) {
    for (i64 c = channels.begin; c < channels.end; c += 64 / static_cast<i64>(sizeof(T)))
      __builtin_prefetch(row + j * step + c, writes);
  }
}

/// Where so many taps lie from the first one.
template <class T>
void find_offsets(const StridedView<const T, 4>& x, const Sweep& h, const Sweep& w, i64 count, i64* to) {
  for (i64 i = 0; i < count; ++i) to[i] = i / w.taps * h.dilation * x.stride(1) + i % w.taps * w.dilation * x.stride(2);
}

/// Rows of a band and some blocks of channels at a time: inputs of a row are in the second-level cache for the next
/// one, and so many taps of the blocks in the first-level cache.
template <class T, class Fn>
void each_band(const cpu::Span& rows, const Sweep& h, i64 row_elements, i64 blocks, i64 taps, const Fn& fn) {
  constexpr i64 lanes = NativeVec<T>::lanes, few = 256 * 1024 / static_cast<i64>(sizeof(T)), filters = few / 4;
  const i64 together = max<i64>(2, filters / (lanes * max<i64>(1, taps)));
  const i64 most = max(max<i64>(1, h.taps), few / max<i64>(1, row_elements));
  for (i64 first = rows.begin; first < rows.end; first += most) {
    const cpu::Span band{first, min(rows.end, first + most)};
    for (i64 b = 0; b < blocks; b += together) fn(band, cpu::Span{b, min(blocks, b + together)});
  }
}

/// Rows of the output of a depthwise convolution.
template <class T>
class DepthwiseRows {
  using V = NativeVec<T>;

 public:
  /// `offsets`: of taps, as find_offsets fills them, or null where windows slide.
  DepthwiseRows(const StridedView<const T, 4>& x, const Sweep& h, const Sweep& w, const T* filters, const i64* offsets)
      : x_(x), h_(h), w_(w), filters_(filters), offsets_(offsets), whole_(whole_windows(w)) {
    parts_ = row_parts(w, x.length(3), cpu::lane_results);
  }

  static i64 offsets_size(const Sweep& h, const Sweep& w) { return Neighbours::slide(w) ? 0 : h.taps * w.taps; }

  /// Some blocks of channels of a part of one row, whose results lie a step apart.
  void run(i64 row, const cpu::Span& blocks, i64 part, T* to, i64 step) const {
    const i64 output = row % h_.outputs;
    const cpu::Span rows = w_.taps > 0 ? h_.inside(output) : cpu::Span{0, 0};
    const Row r{
        blocks,
        rows.size(),
        x_.data + row / h_.outputs * x_.stride(0) + (h_.first_input(output) + rows.begin * h_.dilation) * x_.stride(1),
        filters_ + rows.begin * w_.taps * V::lanes,
        to,
        step};
    if (Neighbours::slide(w_)) {
      for (i64 a = 0; a < Neighbours::residues(w_); ++a) {
        const Neighbours n(w_, a);
        slide(n, row_part(n.count, cpu::lane_results, parts_, part), r);
      }
      return;
    }
    for (i64 i = 0; i < whole_.begin && part == 0; ++i) one(i, r);
    const cpu::Span mine = cpu::part(whole_.size(), parts_, part);
    const i64 groups = ceil_div(mine.size(), i64{cpu::lane_results});
    for (i64 g = 0; g < groups; ++g) {
      const cpu::Span results = cpu::part(mine.size(), groups, g);
      const i64 i = whole_.begin + mine.begin + results.begin;
      const auto kernel = cpu::pick_lanes<V>(static_cast<int>(results.size()));
      each_block(r, [&](i64 channel, const T* f) {
        kernel(r.rows * w_.taps, r.from + channel + w_.first_input(i) * x_.stride(2), w_.stride * x_.stride(2),
               offsets_, f, r.to + channel + i * step, step, V::lanes);
      });
    }
    for (i64 i = whole_.end; i < w_.outputs && part == 0; ++i) one(i, r);
  }
  i64 parts() const { return parts_; }

 private:
  /// What some blocks of channels of a row have in common: rows of taps, and where they begin without the channels.
  struct Row {
    cpu::Span blocks;
    i64 rows;
    const T *from, *filters;
    T* to;
    i64 step;
  };
  /// fn(first channel, its filters): innermost, since finding out what a part sees takes as long as some of its blocks.
  template <class Fn>
  void each_block(const Row& r, const Fn& fn) const {
    const LaneBlocks<T> blocks{x_.length(3)};
    const T* f = r.filters + blocks.size_of_one(h_.taps * w_.taps) * r.blocks.begin;
    for (i64 b = r.blocks.begin; b < r.blocks.end; ++b, f += blocks.size_of_one(h_.taps * w_.taps))
      fn(blocks.first(b), f);
  }

  void slide(const Neighbours& n, const cpu::Span& part, const Row& r) const {
    constexpr i64 most = cpu::lane_results;
    for (i64 p = part.begin; p < part.end;) {
      const i64 left = part.end - p, whole = p >= n.begin ? min(left, max<i64>(0, n.end - p - w_.taps + 1)) / most : 0;
      const i64 results = whole > 0 || left >= 2 * most ? most : left <= most ? left : left - left / 2;
      taps({static_cast<int>(results), max<i64>(1, whole)}, {0, w_.taps}, n.begin - p, whole > 0 ? n.end : n.end - p,
           (n.input + p * w_.dilation) * x_.stride(2), n.first + p * n.step, n.step, r);
      p += results * max<i64>(1, whole);
    }
  }
  /// One result, of the taps that lie inside.
  void one(i64 i, const Row& r) const {
    const cpu::Span s = w_.inside(i);
    taps({1, 1}, s, 0, s.end, w_.first_input(i) * x_.stride(2), i, 0, r);
  }
  /// Groups of results, from `output` on and so many outputs apart, which see neighbours from `at` on of which
  /// [begin, end) exist.
  struct Groups {
    int results;
    i64 count;
  };
  void taps(const Groups& groups, const cpu::Span& seen, i64 begin, i64 end, i64 at, i64 output, i64 apart,
            const Row& r) const {
    const i64 x_step = w_.dilation * x_.stride(2), places = groups.results + cpu::slide_taps;
    T* const to = r.to + output * r.step;
    each_block(r, [&](i64 channel, const T* f) {  // of all taps, since blocks may overlap
      i64 s = seen.begin;
      do {
        const i64 count = min<i64>(cpu::slide_taps, seen.end - s);
        const cpu::SlideRows rows{count > 0 ? r.rows : 0,
                                  h_.dilation * x_.stride(1),
                                  w_.taps * V::lanes,
                                  x_step,
                                  V::lanes,
                                  static_cast<int>(max<i64>(0, min(places, begin - s))),
                                  static_cast<int>(max<i64>(0, min(places, end - s)))};
        const auto kernel = cpu::pick_slide<V>(groups.results, static_cast<int>(max<i64>(1, count)));
        kernel(rows, groups.count, r.from + channel + at + s * x_step, f + s * V::lanes, to + channel, apart * r.step,
               s > seen.begin);
        s += cpu::slide_taps;
      } while (s < seen.end);
    });
  }

  StridedView<const T, 4> x_;
  Sweep h_, w_;
  const T* filters_;
  const i64* offsets_;
  cpu::Span whole_;
  i64 parts_;
};

}  // namespace detail

/// The convolution of each channel of images (n, h, w, c), of a vector's channels at least, with its filter of those
/// that pack_lanes packed; y (n, ho, wo, c) has contiguous channels, too. finish(image, row, first channel, count) is
/// called of results that are complete, of some of them again after they were computed anew.
template <class T, class Finish>
void conv2d_depthwise(const ExecutorRef& executor, const StridedView<const T, 4>& x, const Sweep& h, const Sweep& w,
                      const T* filters, const StridedView<T, 4>& y, const Finish& finish) {
  using Rows = detail::DepthwiseRows<T>;
  const LaneBlocks<T> blocks{x.length(3)};
  const i64 rows = x.length(0) * h.outputs,
            parts = min(rows, executor.threads() == 1 ? 1 : 8 * i64{executor.threads()});
  const bool far = x.length(0) * x.length(1) * x.length(2) * x.length(3) > 1 << 20;  // beyond the second-level cache
  executor.parallel(parts, [&](i64 index, int thread) {
    const i64 steps = Rows::offsets_size(h, w);
    i64* const offsets = static_cast<i64*>(executor.scratch(thread, (steps + 1) * static_cast<i64>(sizeof(i64))));
    detail::find_offsets(x, h, w, steps, offsets);
    const Rows task(x, h, w, filters, offsets);
    detail::each_band<T>(
        cpu::part(rows, parts, index), h, x.length(2) * x.length(3) * h.stride, blocks.count(), h.taps * w.taps,
        [&](const cpu::Span& band, const cpu::Span& some) {
          const cpu::Span channels{blocks.first(some.begin), blocks.first(some.end - 1) + blocks.lanes};
          for (i64 row = band.begin; row < band.end; ++row) {
            const i64 image = row / h.outputs, i = row % h.outputs;
            T* const to = y.data + image * y.stride(0) + i * y.stride(1);
            const i64 newest = h.first_input(i) + (h.taps - 1) * h.dilation;  // row of its last taps
            const bool asks = far && newest >= 0 && newest < h.length;
            const T* const from = asks ? x.data + image * x.stride(0) + newest * x.stride(1) : nullptr;
            for (i64 part = 0; part < task.parts(); ++part) {
              const auto mine = [&](i64 pixels) { return cpu::part(pixels, task.parts(), part); };
              if (asks) detail::ask_for<0>(from, x.stride(2), mine(x.length(2)), channels);
              detail::ask_for<1>(to, y.stride(2), mine(y.length(2)), channels);
              task.run(row, some, part, to, y.stride(2));
            }
            finish(image, i, channels.begin, channels.size());
          }
        });
  });
}

/// Parts of the rows of outputs whose sums the gradient of filters keeps apart.
inline i64 depthwise_parts(i64 images, const Sweep& h, i64 threads) {
  return max<i64>(1, min(images * h.outputs, threads));
}

namespace detail {

/// Sums for the gradient of filters, (blocks, taps, lanes), to which rows of outputs add.
template <class T>
class DepthwiseSums {
  using V = NativeVec<T>;

 public:
  /// `offsets` of taps, as find_offsets fills them.
  DepthwiseSums(const StridedView<const T, 4>& x, const Sweep& h, const Sweep& w, const StridedView<const T, 4>& dy,
                const i64* offsets, T* sums)
      : x_(x), dy_(dy), h_(h), w_(w), whole_(whole_windows(w)), offsets_(offsets), sums_(sums) {
    parts_ = row_parts(w, x.length(3) + dy.length(3), 4 * cpu::slide_factors);
  }
  i64 parts() const { return parts_; }

  /// Whether a row's taps slide along it.
  static bool slides(const Sweep& w) { return Neighbours::slide(w) && w.taps > 1; }
  static i64 offsets_size(const Sweep& h, const Sweep& w) { return slides(w) ? 0 : h.taps * w.taps; }

  /// A part of a row of outputs, to some blocks of channels.
  void add(i64 row, const cpu::Span& blocks, i64 part) const {
    const i64 image = row / h_.outputs, i = row % h_.outputs;
    const cpu::Span taps = h_.inside(i);
    Row at{blocks, x_.data + image * x_.stride(0) + (h_.first_input(i) + taps.begin * h_.dilation) * x_.stride(1),
           dy_.data + image * dy_.stride(0) + i * dy_.stride(1), sums_ + taps.begin * w_.taps * V::lanes};
    if (!slides(w_)) return add_windows(taps.size(), part, at);
    const i64 chunks = ceil_div(w_.taps, i64{cpu::slide_sums_taps});
    for (i64 c = 0; c < chunks; ++c) {
      const cpu::Span along = chunks == 1 ? cpu::Span{0, w_.taps} : cpu::part(w_.taps, chunks, c);
      const i64 most = cpu::slide_sums_rows(static_cast<int>(along.size()));
      const i64 panels = taps.size() <= most ? taps.size() > 0 : ceil_div(taps.size(), most);
      for (i64 p = 0; p < panels; ++p) {
        const cpu::Span rows = panels == 1 ? cpu::Span{0, taps.size()} : cpu::part(taps.size(), panels, p);
        for (i64 a = 0; a < Neighbours::residues(w_); ++a) add_taps(Neighbours(w_, a), part, rows, along, at);
      }
    }
  }

 private:
  /// What some blocks of channels have in common: where they begin without the channels.
  struct Row {
    cpu::Span blocks;
    const T *from, *of_dy;
    T* to;
  };
  /// fn(first channel, its sums)
  template <class Fn>
  void each_block(const Row& r, const Fn& fn) const {
    const LaneBlocks<T> blocks{x_.length(3)};
    T* to = r.to + blocks.size_of_one(h_.taps * w_.taps) * r.blocks.begin;
    for (i64 b = r.blocks.begin; b < r.blocks.end; ++b, to += blocks.size_of_one(h_.taps * w_.taps))
      fn(blocks.first(b), to);
  }

  /// Some taps of some rows, whose sums slide along the row.
  void add_taps(const Neighbours& n, i64 part, const cpu::Span& rows, const cpu::Span& taps, const Row& r) const {
    const i64 x_step = w_.dilation * x_.stride(2), dy_step = n.step * dy_.stride(2), x_row = h_.dilation * x_.stride(1);
    const cpu::Span mine = row_part(n.count, cpu::slide_factors, parts_, part);
    if (mine.size() == 0) return;
    const i64 place = mine.begin + taps.begin;  // of the first tap
    const cpu::SlideSums k{mine.size(), x_row, x_step, dy_step, w_.taps * V::lanes, n.begin - place, n.end - place};
    const auto kernel = cpu::pick_slide_sums<V>(static_cast<int>(rows.size()), static_cast<int>(taps.size()));
    const T* const from = r.from + rows.begin * x_row + n.input * x_.stride(2) + place * x_step;
    const T* const of_dy = r.of_dy + n.first * dy_.stride(2) + mine.begin * dy_step;
    each_block(r, [&](i64 channel, T* to) {
      kernel(k, from + channel, of_dy + channel, to + (rows.begin * w_.taps + taps.begin) * V::lanes);
    });
  }
  /// So many rows of taps of whole windows, a few taps at a time, and one by one of others.
  void add_windows(i64 rows, i64 part, const Row& r) const {
    constexpr i64 most = cpu::sums_steps(1);
    const auto edge = [&](i64 output) {
      const cpu::Span s = w_.inside(output);
      const T* const from = r.from + w_.first_input(output) * x_.stride(2);
      const T* const of_dy = r.of_dy + output * dy_.stride(2);
      each_block(r, [&](i64 channel, T* to) {
        const V factor = load<V>(of_dy + channel);
        for (i64 r = 0; r < rows; ++r) {
          for (i64 k = r * w_.taps + s.begin; k < r * w_.taps + s.end; ++k) {
            T* const sum = to + k * V::lanes;
            store(sum, fma(load<V>(from + channel + offsets_[k]), factor, load<V>(sum)));
          }
        }
      });
    };
    for (i64 i = 0; i < whole_.begin && part == 0; ++i) edge(i);
    const cpu::Span mine = cpu::part(whole_.size(), parts_, part);
    const i64 first = whole_.begin + mine.begin;
    const cpu::PlaceRows places{mine.size(), V::lanes, dy_.stride(2), w_.stride * x_.stride(2)};
    for (i64 k = 0; k < rows * w_.taps && mine.size() > 0; k += most) {
      const auto kernel = cpu::detail::sums_of<V, 1>(static_cast<int>(min(most, rows * w_.taps - k)),
                                                     make_seq<static_cast<int>(most)>{});
      const T* const from = r.from + w_.first_input(first) * x_.stride(2);
      each_block(r, [&](i64 channel, T* to) {
        kernel(places, r.of_dy + channel + first * dy_.stride(2), 0, from + channel, offsets_ + k, to + k * V::lanes,
               0);
      });
    }
    for (i64 i = whole_.end; i < w_.outputs && part == 0; ++i) edge(i);
  }

  StridedView<const T, 4> x_, dy_;
  Sweep h_, w_;
  cpu::Span whole_;
  const i64* offsets_;
  T* sums_;
  i64 parts_;
};

}  // namespace detail

/// The gradient of filters from sums of lanes that parts of the outputs keep apart, of blocks of taps.
template <class T>
void add_lanes(const T* sums, i64 parts, const StridedView<T, 3>& gw) {
  const LaneBlocks<T> blocks{gw.length(0)};
  const i64 taps = gw.length(1) * gw.length(2), size = blocks.size(taps);
  each_lane(blocks, [&](i64 block, i64 lane, i64 channel) {
    const bool again = blocks.narrow() && block * blocks.lanes + lane >= blocks.channels;
    const T* from = sums + block * taps * blocks.lanes + lane;
    for (i64 r = 0; r < gw.length(1); ++r) {
      T* to = gw.data + channel * gw.stride(0) + r * gw.stride(1);
      for (i64 s = 0; s < gw.length(2); ++s, from += blocks.lanes, to += gw.stride(2)) {
        T total = *from;
        for (i64 part = 1; part < parts; ++part) total += from[part * size];
        *to = again ? *to + total : total;
      }
    }
  });
}

/// The gradient gw (c, r, s) of the filters, from images and the gradient of the output (n, ho, wo, c), both of
/// contiguous channels, a vector's at least; `memory` has LaneBlocks::size elements for each of the parts.
template <class T>
void depthwise_filters(const ExecutorRef& executor, const StridedView<const T, 4>& x, const Sweep& h, const Sweep& w,
                       const StridedView<const T, 4>& dy, const StridedView<T, 3>& gw, T* memory) {
  const LaneBlocks<T> blocks{x.length(3)};
  const i64 size = blocks.size(h.taps * w.taps), rows = x.length(0) * h.outputs;
  const i64 parts = depthwise_parts(x.length(0), h, executor.threads());
  executor.parallel(parts, [&](i64 index, int thread) {
    T* const to = memory + index * size;
    for (i64 i = 0; i < size; ++i) to[i] = T(0);
    const i64 steps = detail::DepthwiseSums<T>::offsets_size(h, w);
    i64* const offsets = static_cast<i64*>(executor.scratch(thread, (steps + 1) * static_cast<i64>(sizeof(i64))));
    detail::find_offsets(x, h, w, steps, offsets);
    const detail::DepthwiseSums<T> sums(x, h, w, dy, offsets, to);
    const i64 row = x.length(2) * x.length(3) * h.stride + dy.length(2) * dy.length(3);
    detail::each_band<T>(cpu::part(rows, parts, index), h, row, blocks.count(), h.taps * w.taps,
                         [&](const cpu::Span& band, const cpu::Span& some) {
                           for (i64 row = band.begin; row < band.end; ++row)
                             for (i64 part = 0; part < sums.parts(); ++part) sums.add(row, some, part);
                         });
  });
  add_lanes(static_cast<const T*>(memory), parts, gw);
}

TESSERA_TILE_END
