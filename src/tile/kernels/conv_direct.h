// Convolutions over images whose channels are contiguous, as products of pixels with filters: rows of the left matrix
// are pixels of a row of the output, which the micro-kernel reads in place, a stretch of channels at each tap; filters
// are packed. Images are copied, a block of rows at a time, only where windows reach into padding, where pixels lie so
// far apart that they meet in few sets of the cache, or where channels are not contiguous.
#pragma once

#include "../arch/cpu/dots.h"
#include "../arch/cpu/pipeline.h"
#include "../arch/cpu/stream.h"
#include "../arch/cpu/stretches.h"
#include "../convolution.h"
#include "../executor.h"
#include "transpose.h"

TESSERA_TILE_BEGIN

/// Quotients by steps, most of which are 1: a division takes as long as several multiplications, and short rows have
/// few of these.
inline i64 by_step(i64 a, i64 step) { return step == 1 ? a : a / step; }
inline i64 up_by_step(i64 a, i64 step) { return by_step(a + step - 1, step); }

/// One dimension of a direct convolution: output i < outputs sees the inputs i * stride + j * dilation - before, j <
/// taps, of `length`; those outside are zero.
struct Sweep {
  i64 length, outputs, taps, stride, dilation, before;
  i64 first_input(i64 output) const { return output * stride - before; }
  /// Taps that lie inside.
  cpu::Span inside(i64 output) const {
    const i64 first = first_input(output);
    const i64 begin = first < 0 ? up_by_step(-first, dilation) : 0;
    const i64 end = first < length ? min(taps, by_step(length - 1 - first, dilation) + 1) : 0;
    return {begin, max(begin, end)};
  }
  /// Inputs that so many outputs see.
  i64 extent(i64 count) const { return (count - 1) * stride + (taps - 1) * dilation + 1; }
};

inline Sweep sweep(const Window& w) { return {w.length, w.output(), w.filter, w.stride, w.dilation, w.pad_low}; }
/// The gradient of the input as a convolution of the output's gradient by the taps that a residue meets, last one
/// first.
inline Sweep sweep(const Residue& r) {
  return {r.outputs, r.count, r.taps, 1, r.output_step, r.output_step * (r.taps - 1) - r.output};
}

/// Elements of packed filters.
template <class T>
i64 packed_filters_size(i64 filters, i64 depth) {
  return cpu::panels_size<T>(filters, depth);
}

namespace detail {

/// Copies a few elements: a call for each pixel would take longer.
template <class T>
void copy_run(const T* from, i64 count, T* to) {
  using V = NativeVec<T>;
  i64 i = 0;
  for (; i + V::lanes <= count; i += V::lanes) store(to + i, load<V>(from + i));
  const int rest = static_cast<int>(count - i);
  if (rest == 0) return;
  if (i > 0) return store(to + count - V::lanes, load<V>(from + count - V::lanes));
  cpu::store_part(to, load<V>(from, rest), rest);
}
template <class T>
void zero_run(T* to, i64 count) {
  using V = NativeVec<T>;
  const V zero(T(0));
  i64 i = 0;
  for (; i + V::lanes <= count; i += V::lanes) store(to + i, zero);
  if (i < count) cpu::store_part(to + i, zero, static_cast<int>(count - i));
}

/// Where the taps (r, s) of a filter and channel lie: among so many elements, from `begin` on.
struct TapLine {
  i64 begin, length;
  template <class T>
  explicit TapLine(const StridedView<T, 4>& w) {
    const i64 down = (w.length(1) - 1) * w.stride(1), along = (w.length(2) - 1) * w.stride(2);
    begin = min<i64>(0, down) + min<i64>(0, along);
    length = max<i64>(0, down) + max<i64>(0, along) - begin + 1;
  }
};

/// A panel of filters (k, r, s, c) whose taps lie close together: some channels at a time are transposed as they lie,
/// then steps are put in order.
template <class T>
void pack_taps(const StridedView<const T, 4>& w, i64 first, i64 count, i64 width, T* panel) {
  constexpr i64 most = 256;  // steps at a time
  const TapLine line(w);
  const i64 rows = w.length(1), columns = w.length(2), channels = w.length(3);
  const i64 run = w.stride(3) == line.length ? max<i64>(1, most / line.length) : 1;
  const T* const begin = w.data + first * w.stride(0) + line.begin;
  T steps[most * cpu::block_columns<T> + cpu::pack_slack<T>];
  for (i64 c = 0; c < channels; c += run) {
    const i64 part = min(run, channels - c);
    cpu::detail::pack_strided(begin + c * w.stride(3), w.stride(0), i64{1}, static_cast<int>(count),
                              static_cast<int>(width), part * line.length, steps);
    for (i64 i = 0; i < part; ++i) {
      for (i64 r = 0; r < rows; ++r) {
        for (i64 s = 0; s < columns; ++s) {
          const i64 step = i * line.length + r * w.stride(1) + s * w.stride(2) - line.begin;
          copy_run(steps + step * width, width, panel + ((r * columns + s) * channels + c + i) * width);
        }
      }
    }
  }
}
/// Whether that pays: lines of memory hold several taps.
template <class T>
bool taps_lie_close(const StridedView<const T, 4>& w) {
  const i64 taps = w.length(1) * w.length(2), length = TapLine(w).length;
  return taps > 1 && length <= 256 && length <= 8 * taps && w.stride(0) != 1 && w.stride(3) != 1;
}

}  // namespace detail

/// Whether so few filters of so many channels are summed by dots, whose filters are packed otherwise.
inline bool by_dots(i64 filters, i64 channels) { return filters <= cpu::dots_filters && channels >= 24; }

/// Packs filters (k, r, s, c): panels of filters, or, unless these are wanted, filters for dots, each in steps of r, s
/// and c.
template <class T>
void pack_filters(const ExecutorRef& executor, const StridedView<const T, 4>& w, T* to, bool panels = false) {
  const i64 filters = w.length(0), rows = w.length(1), columns = w.length(2), channels = w.length(3);
  if (!panels && by_dots(filters, channels)) {
    executor.parallel(filters, [&](i64 k, int) {
      T* line = to + k * rows * columns * channels;
      for (i64 tap = 0; tap < rows * columns; ++tap, line += channels) {
        const T* from = w.data + k * w.stride(0) + tap / columns * w.stride(1) + tap % columns * w.stride(2);
        if (w.stride(3) == 1) detail::copy_run(from, channels, line);
        for (i64 c = 0; c < channels && w.stride(3) != 1; ++c) line[c] = from[c * w.stride(3)];
      }
    });
    return;
  }
  const i64 depth = rows * columns * channels, nr = cpu::block_columns<T>;
  const bool dense = w.stride(3) == 1 && w.stride(2) == channels && w.stride(1) == columns * channels;
  executor.parallel(ceil_div(filters, nr), [&](i64 index, int) {
    const i64 first = index * nr, width = cpu::panel_width<T>(filters, first), count = min(width, filters - first);
    T* panel = to + cpu::panel_offset(depth, first);
    const i64 taps = dense ? 1 : rows * columns, steps = depth / max<i64>(taps, 1);
    if (detail::taps_lie_close(w)) return detail::pack_taps(w, first, count, width, panel);
    for (i64 tap = 0; tap < taps; ++tap) {
      const T* from = w.data + tap / columns * w.stride(1) + tap % columns * w.stride(2);
      const auto view = strided(from, {steps, filters}, {w.stride(3), w.stride(0)});
      cpu::pack_panel<1, T, remove_cvref_t<decltype(view)>>(&view, {first, count, 0, steps}, static_cast<int>(width),
                                                            panel + tap * steps * width);
    }
  });
}

namespace detail {

/// Memory that the kernels of tiles ask for ahead: shares of a panel, and nothing behind it. Requests behind it, where
/// there may be no page, made products take up to four times as long.
template <class T>
class PanelAhead {
 public:
  PanelAhead(const T* panel, i64 steps, i64 width)
      : begin_(reinterpret_cast<const char*>(panel)),
        share_(steps / cpu::ahead_steps * cpu::ahead_lines * 64),
        shares_(ceil_div<i64>(width * cpu::ahead_steps * static_cast<i64>(sizeof(T)), cpu::ahead_lines * 64)) {}
  /// Of the next tile.
  const char* next() { return begin_ + turn_++ % shares_ * share_; }

 private:
  const char* begin_;
  i64 share_, shares_, turn_ = 0;
};

/// Some channels of images (n, h, w, c).
template <class T>
StridedView<const T, 4> channels_of(const StridedView<const T, 4>& x, i64 first, i64 count) {
  return strided(x.data + first * x.stride(3), {x.length(0), x.length(1), x.length(2), count},
                 {x.stride(0), x.stride(1), x.stride(2), x.stride(3)});
}

/// How a direct convolution is cut: blocks of rows of all images, of columns, and of panels of filters.
template <class T>
class DirectPlan {
 public:
  static constexpr i64 nr = cpu::block_columns<T>;
  /// Elements of images that a block reads: with a panel of filters they stay in the second-level cache.
  static constexpr i64 block_elements = 384 * 1024 / static_cast<i64>(sizeof(T));
  /// Elements of a panel that all pixels of a block are multiplied with before the next of it are read: more would
  /// leave the second-level cache between one row and the next.
  static constexpr i64 panel_elements = 256 * 1024 / static_cast<i64>(sizeof(T));

  /// Groups of a block follow each other, since their pixels share lines of the caches.
  DirectPlan(i64 groups, const StridedView<const T, 4>& x, const Sweep& h, const Sweep& w, i64 filters, i64 threads,
             bool dots)
      : x_(x), h_(h), w_(w), filters_(filters), panels_(ceil_div(filters, nr)), dots_(dots) {
    constexpr i64 set = 2048 / static_cast<i64>(sizeof(T));  // pixels so far apart meet in two sets of the first level
    const i64 channels = x.length(3);
    turns_ = channels > 1 && x.stride(3) != 1;
    const i64 pixel = turns_ ? channels : x.stride(2);
    const bool meet = w.outputs > 1 && w.stride * pixel % set == 0;
    const bool padded = w.before > 0 || w.extent(w.outputs) - w.before > w.length;
    copies_ = (turns_ || meet || padded) && h.taps * w.taps > 0;
    pitch_ = copies_ ? channels + (meet ? NativeVec<T>::lanes : 0) : pixel;
    step_ = copies_ && w.taps == 1 ? 1 : w.stride;
    const i64 rows = x.length(0) * h.outputs, row = w.extent(w.outputs) * channels;
    // Results stay in that cache, too, from one panel to the next, where all filters have room beside them.
    light_ = filters * h.taps * w.taps * channels <= block_elements / 2;
    const i64 results = light_ ? w.outputs * filters : 0;
    column_parts_ = min(w.outputs, max<i64>(1, ceil_div(max(row * h.taps, results), block_elements)));
    const i64 least = groups == 1 ? 1 : min<i64>(4, h.outputs);
    const i64 seen = max(row * min(h.stride, h.taps), results);
    const i64 most = max(least, block_elements / groups * column_parts_ / max<i64>(1, seen));
    row_parts_ = ceil_div(rows, most);
    // Filters that are larger than the images are read by one thread each.
    const bool heavy = filters * h.taps * w.taps > rows * w.outputs;
    const i64 wanted = threads == 1 ? 1 : 2 * threads;
    if (!heavy && rows * w.outputs > wanted * cpu::block_rows) split_images(wanted);
    filter_parts_ = min(panels_, ceil_div(wanted, row_parts_ * column_parts_));
  }

  i64 tasks() const { return row_parts_ * column_parts_ * filter_parts_; }
  /// Whether a task has all results of its pixels, and the second-level cache those of all groups.
  bool holds_results(i64 groups) const {
    const i64 rows = ceil_div(x_.length(0) * h_.outputs, row_parts_), columns = ceil_div(w_.outputs, column_parts_);
    return light_ && filter_parts_ == 1 && rows * columns * filters_ * groups <= 2 * block_elements;
  }

 private:
  void split_images(i64 wanted) {
    const i64 rows = x_.length(0) * h_.outputs;
    if (rows >= wanted) {
      row_parts_ = min(rows, round_up(row_parts_, wanted));
    } else {
      column_parts_ = min(ceil_div(w_.outputs, i64{cpu::block_rows}), round_up(column_parts_, ceil_div(wanted, rows)));
    }
  }

 protected:
  StridedView<const T, 4> x_;
  Sweep h_, w_;
  i64 filters_, panels_;
  bool dots_, copies_, turns_, light_;
  i64 pitch_, step_;  // of pixels where they are read; pixels from one output to the next
  i64 row_parts_, column_parts_, filter_parts_;
};

/// A block of a direct convolution in the hands of one thread.
template <class T>
class DirectTask : DirectPlan<T> {
  using Plan = DirectPlan<T>;
  using V = NativeVec<T>;
  using Plan::x_, Plan::h_, Plan::w_, Plan::pitch_, Plan::step_, Plan::copies_, Plan::filters_, Plan::nr, Plan::turns_,
      Plan::dots_;

 public:
  /// The index-th block of images that are cut as `plan` says.
  DirectTask(const Plan& plan, const StridedView<const T, 4>& x, i64 index)
      : Plan(plan),
        panels_(cpu::part(plan_panels(), this->filter_parts_, index % this->filter_parts_)),
        columns_(cpu::part(w_.outputs, this->column_parts_, index / this->filter_parts_ % this->column_parts_)),
        rows_(cpu::part(x_.length(0) * h_.outputs, this->row_parts_,
                        index / (this->filter_parts_ * this->column_parts_))),
        width_(dots_ ? filters_ : cpu::panel_width<T>(filters_, 0)),
        depth_parts_(min(h_.taps * w_.taps, ceil_div(h_.taps * w_.taps * x_.length(3) * width_, Plan::panel_elements))),
        whole_rows_(w_.dilation == 1 && pitch_ == x_.length(3) && depth_parts_ <= 1),
        row_pitch_(copies_ ? (w_.taps == 1 ? columns_.size() : w_.extent(columns_.size())) * pitch_ : x_.stride(1)),
        per_row_(whole_rows_ ? 1 : w_.taps) {
    x_.data = x.data;
  }

  i64 scratch_bytes() const {
    using W = cpu::Workspace<T>;
    return W::bytes(copied_size()) + W::bytes(cpu::block_rows * nr) + W::bytes(offsets_size()) +
           W::bytes(partial_size());
  }

  /// Results of the block, of so many filters.
  i64 results(i64 filters) const { return rows_.size() * columns_.size() * filters; }
  /// run() to `memory` of results of all groups, where this one's begin at a filter; finish(image, row) is what becomes
  /// of sums.
  template <class Finish>
  void run_to(T* memory, i64 all_filters, i64 first, const T* packed, void* scratch, const Finish& finish) {
    run(packed, scratch, [&](i64 image, i64 row) {
      const i64 pixels = (image * h_.outputs + row - rows_.begin) * columns_.size() - columns_.begin;
      return store(strided(memory + pixels * all_filters + first, {w_.outputs, filters_}, {all_filters, 1}),
                   finish(image, row));
    });
  }
  /// Writes those results past the caches to `y` (n, ho, wo, k), whose pixels follow one another.
  void put_past_caches(const T* memory, const StridedView<T, 4>& y) const {
    const i64 filters = y.length(3), count = columns_.size() * filters;
    for (i64 row = rows_.begin; row < rows_.end; ++row, memory += count) {
      T* const to = y.data + row / h_.outputs * y.stride(0) + row % h_.outputs * y.stride(1);
      cpu::stream(to + columns_.begin * filters, memory, count * static_cast<i64>(sizeof(T)));
    }
    cpu::fence();
  }

  /// sink(image, row) is the epilogue over [columns of that row of the output, filters].
  template <class MakeSink>
  void run(const T* packed, void* scratch, const MakeSink& sink) {
    cpu::Workspace<T> memory(scratch);
    copied_ = memory.take(copied_size());
    T* const block = memory.take(cpu::block_rows * nr);
    offsets_ = reinterpret_cast<i64*>(memory.take(offsets_size()));
    T* const partial = memory.take(partial_size());
    for (i64 r = 0, at = 0; r < h_.taps; ++r) {
      for (i64 s = 0; s < per_row_; ++s) offsets_[at++] = r * row_distance() + s * w_.dilation * pitch_;
    }
    if (copies_) copy();
    const i64 depth = h_.taps * w_.taps * x_.length(3), taps = h_.taps * per_row_;
    const auto panel_of = [&](i64 p) { return packed + cpu::panel_offset(depth, p * nr); };
    const auto width = [&](i64 p) { return cpu::panel_width<T>(filters_, p * nr); };
    for (i64 p = panels_.begin; p < panels_.end; ++p) {
      const i64 next = min(p + 1, panels_.end - 1);
      if (depth_parts_ <= 1) {
        PanelAhead<T> ahead(panel_of(next), depth, width(next));
        each_row(sink, [&](i64 row, const auto& epilogue) {
          multiply_row(row, {0, taps}, panel_of(p), p * nr, epilogue, block, ahead);
        });
        continue;
      }
      for (i64 part = 0; part < depth_parts_; ++part) {
        const cpu::Span mine = cpu::part(taps, depth_parts_, part);
        const bool last = part == depth_parts_ - 1;
        const i64 then = last ? next : p, behind = last ? 0 : mine.end;
        PanelAhead<T> ahead(panel_of(then) + behind * x_.length(3) * width(then), mine.size() * x_.length(3),
                            width(then));
        each_row(sink, [&](i64 row, const auto& epilogue) {
          T* const sums = partial + (row - rows_.begin) * columns_.size() * nr;
          multiply_part(row, mine, panel_of(p), p * nr, part == 0, sums, block, ahead);
          if (last) finish_row(sums, p * nr, epilogue);
        });
      }
    }
  }

 private:
  /// fn(row, epilogue) of the rows of the block.
  template <class MakeSink, class Fn>
  void each_row(const MakeSink& sink, const Fn& fn) const {
    for (i64 row = rows_.begin; row < rows_.end; ++row) {
      const auto epilogue_sink = sink(row / h_.outputs, row % h_.outputs);
      fn(row, cpu::epilogue_of<T>(epilogue_sink));
    }
  }
  i64 plan_panels() const { return ceil_div(filters_, nr); }
  /// Rows of the input that outputs [begin, end) of an image see, of those that there are; where there is one tap, a
  /// copy has only those that are seen.
  cpu::Span inputs(i64 begin, i64 end) const {
    if (h_.taps == 1) return {begin, end};
    const i64 first = h_.first_input(begin), top = max<i64>(0, first);
    return {top, max(top, min(h_.length, first + h_.extent(end - begin)))};  // none where all lies outside
  }
  i64 row_distance() const { return h_.dilation * row_pitch_; }
  i64 offsets_size() const { return h_.taps * per_row_ * static_cast<i64>(sizeof(i64) / sizeof(T)); }

  /// fn(image, outputs) for the parts of images that the rows of the block are.
  template <class Fn>
  void each_image(const Fn& fn) const {
    for (i64 row = rows_.begin; row < rows_.end;) {
      const i64 image = row / h_.outputs, first = row % h_.outputs;
      const i64 count = min(h_.outputs - first, rows_.end - row);
      fn(image, cpu::Span{first, first + count});
      row += count;
    }
  }
  i64 partial_size() const { return depth_parts_ > 1 ? rows_.size() * columns_.size() * nr : 0; }
  i64 copied_size() const {
    i64 rows = 0;
    if (copies_) each_image([&](i64, const cpu::Span& o) { rows += max<i64>(0, inputs(o.begin, o.end).size()); });
    return rows * row_pitch_;
  }
  void copy() const {
    T* to = copied_;
    each_image([&](i64 image, const cpu::Span& o) {
      const cpu::Span in = inputs(o.begin, o.end);
      for (i64 i = in.begin; i < in.end; ++i, to += row_pitch_)
        copy_row(image, h_.taps == 1 ? h_.first_input(i) : i, to);
    });
  }
  void copy_row(i64 image, i64 row, T* to) const {
    const i64 channels = x_.length(3), count = row_pitch_ / pitch_;
    const T* const from = x_.data + image * x_.stride(0) + row * x_.stride(1);
    const i64 first = w_.first_input(columns_.begin), step = w_.taps == 1 ? w_.stride : 1;
    const bool outside = row < 0 || row >= h_.length;
    if (turns_ && !outside) return turn_row(from, first, step, to);
    for (i64 i = 0; i < count; ++i, to += pitch_) {
      const i64 at = first + i * step;
      if (outside || at < 0 || at >= w_.length) {
        zero_run(to, channels);
      } else if (pitch_ == channels && x_.stride(2) == channels && step == 1) {
        const i64 run = min(count - i, w_.length - at);
        copy_run(from + at * channels, run * channels, to);
        i += run - 1, to += (run - 1) * pitch_;
      } else {
        copy_run(from + at * x_.stride(2), channels, to);
      }
    }
  }
  /// The same of a row whose channels are not contiguous; pixel i of the copy is first + i * step.
  void turn_row(const T* from, i64 first, i64 step, T* to) const {
    constexpr i64 size = sizeof(T);
    const i64 channels = x_.length(3), count = row_pitch_ / pitch_;
    const i64 begin = min(count, first < 0 ? ceil_div(-first, step) : 0);
    const i64 end = max(begin, min(count, ceil_div(w_.length - first, step)));
    zero_run(to, begin * pitch_);
    zero_run(to + end * pitch_, (count - end) * pitch_);
    from += (first + begin * step) * x_.stride(2);
    to += begin * pitch_;
    const i64 distance = step * x_.stride(2);
    if (distance == 1) {
      tile::detail::transpose_plane<T>(reinterpret_cast<char*>(to), pitch_ * size, reinterpret_cast<const char*>(from),
                                       x_.stride(3) * size, end - begin, channels);
    } else {
      for (i64 c = 0; c < channels; ++c) {
        for (i64 i = 0; i < end - begin; ++i) to[i * pitch_ + c] = from[c * x_.stride(3) + i * distance];
      }
    }
  }

  /// Where the window of the block's first column begins in a row of the output; taps outside of the image are not
  /// read.
  const T* origin(i64 row) const {
    const i64 image = row / h_.outputs, output = row % h_.outputs;
    if (!copies_) {
      return x_.data + image * x_.stride(0) + h_.first_input(output) * x_.stride(1) +
             w_.first_input(columns_.begin) * x_.stride(2);
    }
    const i64 image0 = rows_.begin / h_.outputs, first = rows_.begin % h_.outputs;
    i64 before = 0;  // rows of images before this one
    if (image > image0) {
      before = inputs(first, h_.outputs).size() + (image - image0 - 1) * inputs(0, h_.outputs).size();
    }
    const i64 held = inputs(image > image0 ? 0 : first, h_.outputs).begin;
    return copied_ + (before + (h_.taps == 1 ? output : h_.first_input(output)) - held) * row_pitch_;
  }

  /// fn(tile) of the pixels of a row that a kernel computes together, counted from the block's first column.
  template <class Fn>
  void each_tile(const Fn& fn) const {
    const i64 rows = dots_ ? cpu::dots_rows(static_cast<int>(filters_)) : cpu::block_rows;
    const i64 count = columns_.size(), tiles = ceil_div(count, rows);
    for (i64 t = 0; t < tiles; ++t) fn(cpu::part(count, tiles, t));
  }
  /// Products of a tile with the taps in `mine`, of whose last vector so many columns are written.
  void multiply_tile(const T* from, const cpu::Span& mine, const T* panel, i64 filter, const cpu::Span& tile, T* to,
                     i64 to_pitch, bool whole, const char* ahead) const {
    const i64 filters = min(nr, filters_ - filter);
    const int vectors = static_cast<int>(ceil_div(filters, i64{V::lanes}));
    const int last = static_cast<int>(filters) - (vectors - 1) * V::lanes;
    const i64 channels = x_.length(3), length = whole_rows_ ? w_.taps * channels : channels;
    const cpu::Stretches steps{mine.size(), length, offsets_ + mine.begin};
    from += tile.begin * step_ * pitch_;
    if (dots_)
      return cpu::pick_dots<V>(static_cast<int>(tile.size()), static_cast<int>(filters_))(
          steps, from, step_ * pitch_, panel + mine.begin * length, h_.taps * w_.taps * channels, to, to_pitch);
    const T* const b = panel + mine.begin * length * vectors * V::lanes;
    const int rows = static_cast<int>(tile.size());
    const auto kernel = vectors == 1 ? cpu::pick_stretch<V, 1>(rows) : cpu::pick_stretch<V, 2>(rows);
    kernel(steps, from, step_ * pitch_, b, to, to_pitch, whole ? V::lanes : last, ahead);
  }
  /// Those of `mine` that lie inside for a row.
  cpu::Span inside(i64 row, const cpu::Span& mine) const {
    const cpu::Span taps = h_.inside(row % h_.outputs);
    const i64 begin = max(mine.begin, taps.begin * per_row_);
    return {begin, max(begin, min(mine.end, taps.end * per_row_))};
  }
  void multiply_row(i64 row, const cpu::Span& taps, const T* panel, i64 filter, const cpu::Epilogue<T>& epilogue,
                    T* block, PanelAhead<T>& ahead) const {
    const cpu::Span seen = inside(row, taps);
    const bool direct = epilogue.direct != nullptr;
    const T* const from = origin(row);
    each_tile([&](const cpu::Span& tile) {
      const i64 column = columns_.begin + tile.begin;
      T* const to = direct ? epilogue.direct + column * epilogue.pitch + filter : block;
      multiply_tile(from, seen, panel, filter, tile, to, direct ? epilogue.pitch : nr, !direct, ahead.next());
      if (!direct) epilogue.apply(epilogue.sink, block, nr, column, filter, tile.size(), min(nr, filters_ - filter));
    });
  }
  /// The same of a part of the taps, to sums of the row's pixels.
  void multiply_part(i64 row, const cpu::Span& part, const T* panel, i64 filter, bool first, T* sums, T* block,
                     PanelAhead<T>& ahead) const {
    const cpu::Span seen = inside(row, part);
    if (seen.size() == 0 && !first) return;
    const T* const from = origin(row);
    const i64 width = cpu::panel_width<T>(filters_, filter);
    each_tile([&](const cpu::Span& tile) {
      T* const to = sums + tile.begin * nr;
      multiply_tile(from, seen, panel, filter, tile, first ? to : block, nr, true, ahead.next());
      for (i64 i = 0; i < tile.size() && !first; ++i) {
        for (i64 j = i * nr; j < i * nr + width; j += V::lanes) store(to + j, load<V>(to + j) + load<V>(block + j));
      }
    });
  }
  void finish_row(const T* sums, i64 filter, const cpu::Epilogue<T>& epilogue) const {
    const i64 filters = min(nr, filters_ - filter);
    each_tile([&](const cpu::Span& tile) {
      const i64 column = columns_.begin + tile.begin;
      const T* const from = sums + tile.begin * nr;
      if (!epilogue.direct) return epilogue.apply(epilogue.sink, from, nr, column, filter, tile.size(), filters);
      for (i64 i = 0; i < tile.size(); ++i)
        copy_run(from + i * nr, filters, epilogue.direct + (column + i) * epilogue.pitch + filter);
    });
  }

  cpu::Span panels_, columns_, rows_;
  i64 width_, depth_parts_;  // of panels, and parts in which they are read
  bool whole_rows_;          // whether a row of taps is one stretch
  i64 row_pitch_, per_row_;
  T* copied_ = nullptr;
  i64* offsets_ = nullptr;
};

}  // namespace detail

/// The convolution of images (n, h, w, c), best of contiguous channels, in groups, with packed filters, so many for
/// each group, which lie in panels although dots might sum them for `panels`; sink(group, image, row) is the epilogue
/// over [columns of that row of the output, filters].
template <class T, class MakeSink>
void conv2d_direct(const ExecutorRef& executor, i64 groups, const StridedView<const T, 4>& x, const Sweep& h,
                   const Sweep& w, i64 filters, const T* packed, const MakeSink& sink, bool panels = false) {
  if (groups * x.length(0) * h.outputs * w.outputs * filters == 0) return;
  const i64 channels = x.length(3) / groups, size = packed_filters_size<T>(filters, h.taps * w.taps * channels);
  const auto part = [&](i64 group) { return detail::channels_of(x, group * channels, channels); };
  const detail::DirectPlan<T> plan(groups, part(0), h, w, filters, ceil_div<i64>(executor.threads(), groups),
                                   !panels && by_dots(filters, channels));
  executor.parallel(groups * plan.tasks(), [&](i64 index, int thread) {
    const i64 group = index % groups;
    detail::DirectTask<T> task(plan, part(group), index / groups);
    task.run(packed + group * size, executor.scratch(thread, task.scratch_bytes()),
             [&](i64 image, i64 row) { return sink(group, image, row); });
    cpu::fence();  // a sink may write past the caches
  });
}

/// The same to an output (n, ho, wo, k) whose pixels follow one another and which no cache would hold:
/// finish(group, image, row) is what becomes of sums. Returns false where a block's results would not stay in a cache.
template <class T, class Finish>
bool conv2d_direct_past_caches(const ExecutorRef& executor, i64 groups, const StridedView<const T, 4>& x,
                               const Sweep& h, const Sweep& w, const T* packed, const StridedView<T, 4>& y,
                               const Finish& finish, bool panels = false) {
  const i64 channels = x.length(3) / groups, all = y.length(3), filters = all / groups;
  const i64 size = packed_filters_size<T>(filters, h.taps * w.taps * channels);
  const auto part = [&](i64 group) { return detail::channels_of(x, group * channels, channels); };
  const detail::DirectPlan<T> plan(groups, part(0), h, w, filters, executor.threads(),
                                   !panels && by_dots(filters, channels));
  if (!plan.holds_results(groups)) return false;
  executor.parallel(plan.tasks(), [&](i64 index, int thread) {
    detail::DirectTask<T> task(plan, part(0), index);
    const i64 begin = cpu::Workspace<T>::bytes(task.results(all));
    char* const scratch = static_cast<char*>(executor.scratch(thread, begin + task.scratch_bytes()));
    T* const results = reinterpret_cast<T*>(scratch);
    for (i64 group = 0; group < groups; ++group) {
      detail::DirectTask<T>(plan, part(group), index)
          .run_to(results, all, group * filters, packed + group * size, scratch + begin,
                  [&](i64 image, i64 row) { return finish(group, image, row); });
    }
    task.put_past_caches(results, y);
  });
  return true;
}

TESSERA_TILE_END
