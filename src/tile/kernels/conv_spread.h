// Convolutions of few channels and filters a group as depthwise ones. Rows of images are copied once for each channel
// of a group, and every lane of a copy is what its filter sees of that channel: so all lanes are at work. Channels of a
// group then are rows of taps. Rows that windows see a dilation apart are images of their own.
#pragma once

#include "../arch/cpu/gather.h"
#include "../lookup.h"
#include "conv_depthwise_narrow.h"

TESSERA_TILE_BEGIN

/// So many groups, of as many channels each, which as many lanes each see.
struct SpreadGroups {
  i64 count, channels, lanes;
  i64 all_lanes() const { return count * lanes; }
};

/// Outputs `first`, `first` + step, ... of a dimension see only every so many-th input, from `input` on: a dimension of
/// their own, without dilation.
struct Undilated {
  i64 first, step, input, input_step;
  Sweep sweep;

  static i64 residues(const Sweep& s) {
    return s.dilation / gcd(static_cast<int>(s.stride), static_cast<int>(s.dilation));
  }
  Undilated(const Sweep& s, i64 index) : first(index), step(residues(s)), input_step(s.dilation) {
    const i64 begin = s.first_input(index), d = s.dilation;
    input = (begin % d + d) % d;
    sweep = {ceil_div(max<i64>(0, s.length - input), d),
             ceil_div(s.outputs - index, step),
             s.taps,
             s.stride * step / d,
             1,
             (input - begin) / d};
  }
};

namespace detail {

/// Copies of rows of images for a block of lanes, as a depthwise convolution reads them.
template <class T>
class SpreadRows {
  using V = NativeVec<T>;
  using Index = rebind_t<V, i32>;
  using Memory = cpu::Workspace<T>;
  static constexpr i64 lanes = V::lanes;

 public:
  SpreadRows(const SpreadGroups& groups, const StridedView<const T, 4>& x, const Sweep& h, const Sweep& w)
      : groups_(groups),
        x_(x),
        h_(h),
        w_(w),
        blocks_{groups.all_lanes()},
        row_size_(w.length * groups.channels * lanes) {
    constexpr i64 few = 64 * 1024 / static_cast<i64>(sizeof(T));  // elements: most of the first-level cache, and more
    const i64 rows = few / max<i64>(1, row_size_ * h.stride);
    block_rows_ = min(max<i64>(1, h.outputs), max(max<i64>(1, 2 * h.taps), rows));
  }

  /// Rows of outputs that a copy serves.
  i64 block_rows() const { return block_rows_; }
  i64 blocks() const { return blocks_.count(); }
  i64 first_lane(i64 block) const { return blocks_.first(block); }
  i64 taps() const { return h_.taps * w_.taps * groups_.channels; }

  i64 scratch_bytes() const {
    return Memory::bytes(copied_size()) + Memory::bytes(lanes) + Memory::bytes(offsets_size());
  }
  void take(void* scratch) {
    Memory memory(scratch);
    copied_ = memory.take(copied_size());
    index_ = reinterpret_cast<i32*>(memory.take(lanes));
    offsets_ = reinterpret_cast<i64*>(memory.take(offsets_size()));
    find_offsets(view(0), rows({0, 0}), columns(), taps(), offsets_);
  }
  const i64* offsets() const { return offsets_; }

  /// What some rows of outputs of an image see, and its dimensions.
  StridedView<const T, 4> copy(i64 image, const cpu::Span& outputs, i64 block) const {
    const cpu::Span seen = inputs(outputs);
    const i64 first = first_lane(block), group = first / groups_.lanes;
    for (i64 lane = 0; lane < lanes; ++lane)
      index_[lane] = static_cast<i32>(((first + lane) / groups_.lanes - group) * groups_.channels);
    const T* const from = x_.data + image * x_.stride(0) + group * groups_.channels;
    for (i64 i = seen.begin; i < seen.end && taps() > 0; ++i)
      copy_row(from + i * x_.stride(1), copied_ + (i - seen.begin) * row_size_);
    return view(seen.size());
  }
  Sweep rows(const cpu::Span& outputs) const {
    const cpu::Span seen = inputs(outputs);
    const i64 before = seen.begin - h_.first_input(outputs.begin);
    const Sweep s{seen.size(), outputs.size(), h_.taps, h_.stride, 1, before};
    const i64 c = groups_.channels;
    return {s.length * c, s.outputs, s.taps * c, s.stride * c, 1, s.before * c};
  }
  Sweep columns() const { return w_; }

 private:
  cpu::Span inputs(const cpu::Span& outputs) const {
    const i64 first = h_.first_input(outputs.begin), begin = min(h_.length, max<i64>(0, first));
    return {begin, max(begin, min(h_.length, first + h_.extent(outputs.size())))};
  }
  i64 copied_size() const { return min(h_.length, max<i64>(0, h_.extent(block_rows_))) * row_size_; }
  i64 offsets_size() const { return (taps() + 1) * static_cast<i64>(sizeof(i64) / sizeof(T)); }

  StridedView<const T, 4> view(i64 rows) const {
    const T* const from = copied_;
    return strided(from, {1, rows * groups_.channels, w_.length, lanes}, {0, w_.length * lanes, lanes, 1});
  }

  void copy_row(const T* from, T* to) const {
    const i64 c = groups_.channels, channel = w_.length * lanes;
    const Index index = load<Index>(index_);
    const int seen = index_[lanes - 1] + 1;
    const auto each = [&](auto get) __attribute__((always_inline)) {
      const T* at = from;
      for (i64 j = 0; j < w_.length; ++j, at += x_.stride(2)) {
        T* result = to + j * lanes;
        for (i64 k = 0; k < c; ++k, result += channel) store(result, get(at + k));
      }
    };
    if (seen <= lanes) {
      each([=](const T* p) {
        const V v = load<V>(p, seen);
        return permute(v, v, index);
      });
    } else if (seen <= 2 * lanes) {
      each([=](const T* p) { return permute(load<V>(p), load<V>(p + lanes, seen - static_cast<int>(lanes)), index); });
    } else {
      each([=](const T* p) { return gather<T>(p, index); });
    }
  }

  SpreadGroups groups_;
  StridedView<const T, 4> x_;
  Sweep h_, w_;
  LaneBlocks<T> blocks_;
  i64 row_size_, block_rows_;
  T* copied_ = nullptr;
  i32* index_ = nullptr;
  i64* offsets_ = nullptr;
};

/// fn(rows to copy, image, outputs) for blocks of rows of all images, of so many parts, by several threads.
template <class T, class Fn>
void each_spread_block(const ExecutorRef& executor, const SpreadRows<T>& plan, i64 images, i64 outputs, i64 parts,
                       const Fn& fn) {
  executor.parallel(parts, [&](i64 index, int thread) {
    SpreadRows<T> mine = plan;
    mine.take(executor.scratch(thread, mine.scratch_bytes()));
    each_row_block(cpu::part(images * outputs, parts, index), outputs, plan.block_rows(),
                   [&](i64 image, const cpu::Span& rows) { fn(mine, index, image, rows); });
  });
}

/// fn(r, s, channel) of the taps of a depthwise convolution in their order.
template <class Fn>
void each_spread_tap(i64 rows, i64 columns, i64 channels, const Fn& fn) {
  for (i64 r = 0; r < rows; ++r) {
    for (i64 c = 0; c < channels; ++c) {
      for (i64 s = 0; s < columns; ++s) fn(r, s, c);
    }
  }
}
/// Where the element of a lane begins in filters (group, lane, r, s, channel).
template <class T>
T* of_lane(const StridedView<T, 5>& w, i64 lane) {
  return w.data + lane / w.length(1) * w.stride(0) + lane % w.length(1) * w.stride(1);
}

}  // namespace detail

/// Filters (group, lane, r, s, channel), block by block of lanes, tap by tap: of LaneBlocks::size elements.
template <class T>
void pack_spread(const StridedView<const T, 5>& w, T* to) {
  const LaneBlocks<T> blocks{w.length(0) * w.length(1)};
  const i64 taps = w.length(2) * w.length(3) * w.length(4);
  each_lane(blocks, [&](i64 block, i64 lane, i64 index) {
    T* line = to + block * taps * blocks.lanes + lane;
    const T* const from = detail::of_lane(w, index);
    detail::each_spread_tap(w.length(2), w.length(3), w.length(4), [&](i64 r, i64 s, i64 c) {
      *line = from[r * w.stride(2) + s * w.stride(3) + c * w.stride(4)];
      line += blocks.lanes;
    });
  });
}

/// fn(images, rows, outputs, row of an output) for images (n, h, w, c) and outputs (n, ho, wo, k), cut by rows into
/// those without dilation.
template <class T, class U, class Fn>
void each_undilated(const StridedView<T, 4>& x, const Sweep& h, const StridedView<U, 4>& y, const Fn& fn) {
  for (i64 i = 0; i < min(h.outputs, Undilated::residues(h)); ++i) {
    const Undilated u(h, i);
    fn(strided(x.data + u.input * x.stride(1), {x.length(0), u.sweep.length, x.length(2), x.length(3)},
               {x.stride(0), u.input_step * x.stride(1), x.stride(2), x.stride(3)}),
       u.sweep,
       strided(y.data + u.first * y.stride(1), {y.length(0), u.sweep.outputs, y.length(2), y.length(3)},
               {y.stride(0), u.step * y.stride(1), y.stride(2), y.stride(3)}),
       [=](i64 row) { return u.first + row * u.step; });
  }
}

/// The convolution of images (n, h, w, c) in groups with filters that pack_spread packed; y (n, ho, wo, lanes).
/// Channels are contiguous, and those of y a vector's at least. Rows are not dilated. finish(image, row) is called of
/// rows that are complete.
template <class T, class Finish>
void conv2d_spread(const ExecutorRef& executor, const SpreadGroups& groups, const StridedView<const T, 4>& x,
                   const Sweep& h, const Sweep& w, const T* filters, const StridedView<T, 4>& y, const Finish& finish) {
  const detail::SpreadRows<T> plan(groups, x, h, w);
  const i64 rows = x.length(0) * h.outputs,
            parts = min(rows, executor.threads() == 1 ? 1 : 8 * i64{executor.threads()});
  detail::each_spread_block(executor, plan, x.length(0), h.outputs, parts,
                            [&](const detail::SpreadRows<T>& mine, i64, i64 image, const cpu::Span& outputs) {
                              T* const to = y.data + image * y.stride(0) + outputs.begin * y.stride(1);
                              for (i64 b = 0; b < plan.blocks(); ++b) {
                                const T* const f = filters + b * LaneBlocks<T>::size_of_one(plan.taps());
                                const detail::DepthwiseRows<T> task(mine.copy(image, outputs, b), mine.rows(outputs),
                                                                    mine.columns(), f, mine.offsets());
                                for (i64 i = 0; i < outputs.size(); ++i) {
                                  for (i64 part = 0; part < task.parts(); ++part)
                                    task.run(i, {0, 1}, part, to + i * y.stride(1) + plan.first_lane(b), y.stride(2));
                                }
                              }
                              for (i64 i = outputs.begin; i < outputs.end; ++i) finish(image, i);
                            });
}

/// Adds to the sums of each of so many parts of rows what is the gradient of filters, from images and the gradient of
/// the output (n, ho, wo, lanes), both of contiguous channels; a part's sums are LaneBlocks::size elements. Rows are
/// not dilated.
template <class T>
void add_spread_sums(const ExecutorRef& executor, const SpreadGroups& groups, const StridedView<const T, 4>& x,
                     const Sweep& h, const Sweep& w, const StridedView<const T, 4>& dy, i64 parts, T* all) {
  const detail::SpreadRows<T> plan(groups, x, h, w);
  const LaneBlocks<T> blocks{groups.all_lanes()};
  const i64 taps = plan.taps(), size = blocks.size(taps);
  detail::each_spread_block(executor, plan, x.length(0), h.outputs, parts,
                            [&](const detail::SpreadRows<T>& mine, i64 part, i64 image, const cpu::Span& outputs) {
                              const T* const from = dy.data + image * dy.stride(0) + outputs.begin * dy.stride(1);
                              for (i64 b = 0; b < plan.blocks(); ++b) {
                                const auto of_dy =
                                    strided(from + plan.first_lane(b), {1, outputs.size(), dy.length(2), blocks.lanes},
                                            {dy.stride(0), dy.stride(1), dy.stride(2), 1});
                                T* const sums = all + part * size + b * blocks.size_of_one(taps);
                                const detail::DepthwiseSums<T> task(mine.copy(image, outputs, b), mine.rows(outputs),
                                                                    mine.columns(), of_dy, mine.offsets(), sums);
                                for (i64 i = 0; i < outputs.size(); ++i)
                                  for (i64 p = 0; p < task.parts(); ++p) task.add(i, {0, 1}, p);
                              }
                            });
}

/// gw (group, lane, r, s, channel), of the sums of so many parts.
template <class T>
void unpack_spread(const T* sums, i64 parts, const StridedView<T, 5>& gw) {
  const LaneBlocks<T> blocks{gw.length(0) * gw.length(1)};
  const i64 taps = gw.length(2) * gw.length(3) * gw.length(4), size = blocks.size(taps);
  each_lane(blocks, [&](i64 block, i64 lane, i64 index) {
    const T* from = sums + block * taps * blocks.lanes + lane;
    T* const to = detail::of_lane(gw, index);
    detail::each_spread_tap(gw.length(2), gw.length(3), gw.length(4), [&](i64 r, i64 s, i64 c) {
      T total = *from;
      for (i64 part = 1; part < parts; ++part) total += from[part * size];
      to[r * gw.stride(2) + s * gw.stride(3) + c * gw.stride(4)] = total;
      from += blocks.lanes;
    });
  });
}

TESSERA_TILE_END
