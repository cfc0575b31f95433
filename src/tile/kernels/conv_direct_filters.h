// The gradient of filters from images whose channels are contiguous, as products of the output's gradient, transposed,
// with pixels: columns of a product are the channels of a row of taps, which lie one after the other in memory. Threads
// share the filters, or, where these are few, the pixels, and their sums are added up afterwards. Images whose rows are
// contiguous are turned round on the way, a block at a time. Windows are gathered where their rows would leave lanes
// idle.
#pragma once

#include "conv_direct.h"
#include "transpose.h"

TESSERA_TILE_BEGIN

namespace detail {

/// How the gradient of filters is cut.
template <class T>
class FiltersPlan {
 public:
  using V = NativeVec<T>;
  static constexpr i64 nr = cpu::block_columns<T>;
  /// Elements of images and gradients of a block: they stay in the second-level cache.
  static constexpr i64 block_elements = 512 * 1024 / static_cast<i64>(sizeof(T));
  /// Gradients of at most so many elements are summed by each thread apart.
  static constexpr i64 few_elements = 256 * 1024 / static_cast<i64>(sizeof(T));

  /// Of images (n, h, w, c), whose channels are a part of those of a group.
  FiltersPlan(i64 groups, const StridedView<const T, 4>& x, i64 channels, const Sweep& h, const Sweep& w,
              const StridedView<const T, 4>& dy, i64 filters, i64 threads)
      : window_h_(h),
        window_w_(w),
        h_(h),
        w_(w),
        images_(x.length(0)),
        channels_(channels),
        filters_(filters),
        depth_(h.taps * w.taps * channels) {
    const i64 pixel = x.stride(2);
    constexpr i64 set = 2048 / static_cast<i64>(sizeof(T));  // pixels so far apart meet in two sets of the first level
    const bool odd = w.stride * channels % set == 0;         // has to be
    whole_rows_ = w.dilation == 1 && !odd;
    length_ = whole_rows_ ? w.taps * channels : channels;
    stretches_ = whole_rows_ ? h.taps : h.taps * w.taps;
    const bool padded = w.before > 0 || w.extent(w.outputs) - w.before > w.length;
    turns_ = channels > 1 && x.stride(3) != 1;
    const bool meet = w.stride * pixel % set == 0;  // which the second-level cache can make up for a few times
    copies_ = turns_ || padded || (meet && panels() > 8) || (whole_rows_ && w.taps > 1 && pixel != channels);
    const auto pitch = [&] { return copies_ ? channels + (odd ? V::lanes : 0) : pixel; };
    pitch_ = pitch();
    const bool apart = copies_ && !turns_ && w.taps > 0 && w.taps < w.stride;  // windows leave pixels out
    unfolds_ = apart || (w.dilation > 1 && w.taps > 1 && !odd && unfolding_pays());
    if (unfolds_) {
      w_ = {w.outputs, w.outputs, 1, 1, 1, 0};
      whole_rows_ = copies_ = true;
      stretches_ = h.taps, length_ = pitch_ = w.taps * channels;
    }
    const bool few = filters * depth_ <= few_elements;
    choose(few && !turns_ && dy.stride(3) == 1, taps_follow(x));
    if (swaps_ && meet && !copies_) copies_ = true, pitch_ = pitch();
    packs_ = !swaps_ && (panels() > 1 || dy.stride(3) != 1);
    if (gathers_) {
      h_ = {h.outputs, h.outputs, 1, 1, 1, 0}, w_ = {w.outputs, w.outputs, 1, 1, 1, 0};
      whole_rows_ = copies_ = true, unfolds_ = false;
      stretches_ = 1, length_ = pitch_ = depth_;
    }
    const i64 rows = images_ * h.outputs;
    row_parts_ = few ? min(rows, threads) : 1;
    filter_parts_ = row_parts_ >= threads || swaps_ ? 1 : min(panels(), 2 * threads);
    const i64 pixel_read = gathers_ || unfolds_ ? length_ : channels;
    const i64 per_row =
        w_.outputs * filters / filter_parts_ + min(h_.stride, h_.taps) * w_.extent(w_.outputs) * pixel_read;
    const i64 least = groups == 1 ? 1 : ceil_div(i64{64}, max<i64>(1, w.outputs));  // or sums are loaded too often
    block_rows_ = max(least, block_elements / groups / max<i64>(1, per_row));
  }

  /// Whether the channels of a row of taps lie one after the other.
  bool taps_follow(const StridedView<const T, 4>& x) const {
    return window_w_.dilation == 1 && x.stride(3) == 1 && x.stride(2) == channels_;
  }
  i64 row_parts() const { return row_parts_; }
  i64 tasks() const { return row_parts_ * filter_parts_; }
  i64 panels() const { return ceil_div(filters_, i64{cpu::block_rows}); }
  i64 depth() const { return depth_; }
  /// Whether sums are of (r, s, c) by filters.
  bool swaps() const { return swaps_; }

 private:
  static i64 vectors(i64 length) { return ceil_div(length, i64{V::lanes}); }
  /// Whether whole vectors of a row of dilated taps save more multiplications than copies that put those of each output
  /// one after the other take.
  bool unfolding_pays() const {
    const i64 row = window_w_.taps * vectors(channels_), copied = min(window_h_.stride, window_h_.taps);
    return filters_ * window_h_.taps * (row - vectors(window_w_.taps * channels_)) > 8 * row * copied;
  }
  /// What copies of a window take, in multiplications of vectors.
  i64 gathering(bool taps_follow) const {
    const i64 row = taps_follow ? vectors(window_w_.taps * channels_) : window_w_.taps * vectors(channels_);
    return 16 + 8 * window_h_.taps * row;
  }
  /// What copies of the pixels of an output take.
  i64 copying() const {
    const i64 rows = window_h_.taps == 1 ? 1 : window_h_.stride, pixels = unfolds_ ? window_w_.taps : window_w_.stride;
    return copies_ ? 2 * rows * pixels * vectors(channels_) : 0;
  }
  /// A step of a product, in multiplications of vectors: panels of few sums wait for these or for loads.
  static i64 products(i64 rows, i64 columns) {
    const i64 panels = ceil_div(rows, i64{cpu::block_rows}), of_panel = ceil_div(rows, panels);
    const auto of = [&](i64 vectors) { return max(of_panel * vectors, max<i64>(of_panel + vectors, 8)); };
    const i64 all = vectors(columns);
    return panels * (all / 2 * of(2) + all % 2 * of(1));
  }
  /// What takes least for a pixel: vectors along channels or, which saves the packed gradients of the output, along
  /// filters; rows of taps as they lie, or a matrix of windows.
  void choose(bool may_swap, bool taps_follow) {
    const i64 gathered = gathering(taps_follow);
    i64 least = stretches_ * products(filters_, length_) + filters_ + (turns_ ? 0 : copying());
    const auto take = [&](i64 cost, bool swaps, bool gathers) {
      if (cost < least) least = cost, swaps_ = swaps, gathers_ = gathers;
    };
    swaps_ = gathers_ = false;
    if (!turns_) take(products(filters_, depth_) + filters_ + gathered, false, true);
    if (!may_swap) return;
    take(stretches_ * products(length_, filters_), true, false);
    take(products(depth_, filters_) + gathered, true, true);
  }

 protected:
  Sweep window_h_, window_w_;
  Sweep h_, w_;  // the same, or of points of a matrix of windows
  i64 images_, channels_, filters_, depth_;
  bool whole_rows_, copies_, turns_, unfolds_, gathers_, swaps_, packs_;
  i64 pitch_, length_, stretches_;  // of pixels where they are read; of a stretch of channels; their number
  i64 row_parts_, filter_parts_, block_rows_;
};

/// A part of the gradient of filters in the hands of one thread.
template <class T>
class FiltersTask : FiltersPlan<T> {
  using Plan = FiltersPlan<T>;
  using V = NativeVec<T>;
  using Plan::h_, Plan::w_, Plan::pitch_, Plan::copies_, Plan::channels_, Plan::filters_, Plan::nr, Plan::length_,
      Plan::unfolds_, Plan::stretches_, Plan::block_rows_, Plan::turns_, Plan::window_h_, Plan::window_w_;
  using Pair = cpu::RowPairs::Pair;

 public:
  FiltersTask(const Plan& plan, const StridedView<const T, 4>& x, const StridedView<const T, 4>& dy, i64 index)
      : Plan(plan),
        x_(x),
        dy_(dy),
        rows_(cpu::part(x.length(0) * h_.outputs, this->row_parts_, index / this->filter_parts_)),
        panels_(cpu::part(plan.panels(), this->filter_parts_, index % this->filter_parts_)),
        row_pitch_(copies_ ? w_.extent(w_.outputs) * pitch_ : x.stride(1)),
        rows_of_taps_(plan.taps_follow(x)) {}

  i64 scratch_bytes() const {
    using W = cpu::Workspace<T>;
    return W::bytes(copied_size()) + W::bytes(packed_size()) + W::bytes(pairs_size()) + W::bytes(turned_size()) +
           W::bytes(found_size());
  }

  i64 blocks() const { return ceil_div(rows_.size(), block_rows_); }

  /// to = (or +=, behind the first block) the index-th block's part of [filters, (r, s, c)].
  void run(i64 index, T* to, void* scratch) {
    cpu::Workspace<T> memory(scratch);
    copied_ = memory.take(copied_size());
    packed_ = memory.take(packed_size());
    pairs_ = reinterpret_cast<Pair*>(memory.take(pairs_size()));
    turned_ = memory.take(turned_size());
    found_ = reinterpret_cast<i64*>(memory.take(found_size()));
    const i64 row = rows_.begin + index * block_rows_;
    const cpu::Span block{row, min(rows_.end, row + block_rows_)};
    if (copies_) copy(block);
    if (this->swaps_) return multiply_swapped(block, to);
    if (this->packs_) pack(block);
    for (i64 s = 0; s < stretches_; s += together()) multiply(block, {s, min(stretches_, s + together())}, to);
  }

 private:
  /// At most so many rows of images are copied for a block: each image begins with those above its first output.
  i64 copied_size() const {
    if (!copies_) return 0;
    const i64 images = min((block_rows_ - 1) / h_.outputs + 2, this->images_);
    return (block_rows_ * h_.stride + images * h_.extent(1)) * row_pitch_ + nr;
  }
  i64 packed_size() const {
    return this->packs_ ? block_rows_ * w_.outputs * filters_in() + max<i64>(nr, cpu::pack_slack<T>) : 0;
  }
  i64 turned_size() const { return unfolds_ && turns_ ? window_w_.length * channels_ : 0; }
  i64 found_size() const { return stretches_ * static_cast<i64>(sizeof(i64) / sizeof(T)); }
  i64 filters_in() const { return panel(panels_.end - 1).end - panel(panels_.begin).begin; }
  i64 pairs_size() const { return together() * block_rows_ * static_cast<i64>(sizeof(Pair) / sizeof(T)); }
  /// Stretches of taps that see the same columns one after the other, which stay in the first-level cache.
  i64 together() const {
    constexpr i64 few = 32 * 1024 / static_cast<i64>(sizeof(T));
    return (block_rows_ + h_.taps) * w_.outputs * nr <= few ? max<i64>(1, stretches_) : 1;
  }
  cpu::Span panel(i64 index) const { return cpu::part(filters_, this->panels(), index); }

  /// The gradient of the output, a panel of filters after the other.
  void pack(const cpu::Span& block) const {
    const i64 first = panel(panels_.begin).begin, pixels = block.size() * w_.outputs;
    for (i64 p = panels_.begin; p < panels_.end; ++p) {
      const cpu::Span k = panel(p);
      const int count = static_cast<int>(k.size());
      T* to = packed_ + (k.begin - first) * pixels;
      for (i64 row = block.begin; row < block.end; ++row, to += w_.outputs * count) {
        const T* from =
            dy_.data + row / h_.outputs * dy_.stride(0) + row % h_.outputs * dy_.stride(1) + k.begin * dy_.stride(3);
        cpu::detail::pack_strided(from, dy_.stride(3), dy_.stride(2), count, count, w_.outputs, to);
      }
    }
  }

  void copy(const cpu::Span& block) const {
    T* to = copied_;
    for (i64 row = block.begin; row < block.end;) {
      const i64 image = row / h_.outputs, first = row % h_.outputs;
      const i64 count = min(h_.outputs - first, block.end - row);
      const i64 begin = h_.first_input(first), end = begin + h_.extent(count);
      for (i64 i = begin; i < end; ++i, to += row_pitch_) {
        if (h_.taps == 1 && (i - begin) % h_.stride != 0) continue;  // no window sees it
        if (this->gathers_) {
          gather_row(image, i, to);
          continue;
        }
        if (i < 0 || i >= h_.length) continue;
        const T* const from = x_.data + image * x_.stride(0) + i * x_.stride(1);
        unfolds_ ? unfold_row(from, to) : copy_row(from, to);
      }
      row += count;
    }
  }
  /// The windows of a row of outputs, one after the other.
  void gather_row(i64 image, i64 row, T* to) const {
    const i64 top = window_h_.first_input(row), count = window_w_.taps * channels_;
    for (i64 column = 0; column < w_.outputs; ++column) {
      for (i64 r = 0; r < window_h_.taps; ++r, to += count) {
        const i64 at = top + r * window_h_.dilation;
        if (at < 0 || at >= window_h_.length) {
          zero_run(to, count);
        } else {
          put_taps(x_.data + image * x_.stride(0) + at * x_.stride(1), x_.stride(2), column, to);
        }
      }
    }
  }
  /// What an output's row of taps sees, one tap after the other, of a row of pixels.
  void put_taps(const T* from, i64 pixel, i64 column, T* to) const {
    const i64 taps = window_w_.taps, step = window_w_.dilation * pixel;
    const cpu::Span seen = window_w_.inside(column), inside{min(taps, seen.begin), min(taps, seen.end)};
    zero_run(to, inside.begin * channels_);
    to += inside.begin * channels_;
    from += window_w_.first_input(column) * pixel + inside.begin * step;
    if (rows_of_taps_) {
      copy_run(from, inside.size() * channels_, to);
      to += inside.size() * channels_;
    } else {
      for (i64 s = inside.begin; s < inside.end; ++s, from += step, to += channels_) copy_run(from, channels_, to);
    }
    zero_run(to, (taps - inside.end) * channels_);
  }
  /// The same of all outputs of a row.
  void unfold_row(const T* from, T* to) const {
    if (turns_) turn_row(from, window_w_.length, turned_);
    for (i64 column = 0; column < w_.outputs; ++column, to += length_)
      put_taps(turns_ ? turned_ : from, turns_ ? channels_ : x_.stride(2), column, to);
  }
  /// Pixels of a row whose channels are not contiguous.
  void turn_row(const T* from, i64 count, T* to) const {
    constexpr i64 size = sizeof(T);
    const i64 pitch = unfolds_ ? channels_ : pitch_;
    tile::detail::transpose_plane<T>(reinterpret_cast<char*>(to), pitch * size, reinterpret_cast<const char*>(from),
                                     x_.stride(3) * size, count, channels_);
  }
  void copy_row(const T* from, T* to) const {
    const i64 count = row_pitch_ / pitch_;
    const i64 left = min(count, max<i64>(0, w_.before)), skipped = max<i64>(0, -w_.before);
    const i64 inside = max<i64>(0, min(count - left, w_.length - skipped));
    const auto zero = [&](i64 pixels) {
      zero_run(to, pixels * pitch_);
      to += pixels * pitch_;
    };
    zero(left);
    from += skipped * x_.stride(2);
    if (turns_) {
      turn_row(from, inside, to);
      to += inside * pitch_;
    } else if (pitch_ == channels_ && x_.stride(2) == channels_) {
      copy_run(from, inside * channels_, to);
      to += inside * channels_;
    } else {
      for (i64 i = 0; i < inside; ++i, from += x_.stride(2), to += pitch_) copy_run(from, channels_, to);
    }
    zero(count - left - inside);
  }

  /// Rows of a block that a stretch of taps sees, and where that begins in copies or the images.
  i64 find_pairs(const cpu::Span& block, i64 stretch, Pair* to) const {
    const i64 per_row = this->whole_rows_ ? 1 : w_.taps, tap = stretch / per_row;
    const i64 within = stretch % per_row * w_.dilation * pitch_;
    i64 found = 0, held = 0;
    for (i64 row = block.begin; row < block.end;) {
      const i64 image = row / h_.outputs, first = row % h_.outputs;
      const i64 count = min(h_.outputs - first, block.end - row);
      for (i64 i = 0; i < count; ++i) {
        const i64 at = h_.first_input(first + i) + tap * h_.dilation;
        if (at < 0 || at >= h_.length) continue;
        const i64 place = copies_ ? (held + at - h_.first_input(first)) * row_pitch_
                                  : image * x_.stride(0) + at * row_pitch_ - w_.before * pitch_;
        to[found++] = {row + i, place + within};
      }
      held += h_.extent(count);
      row += count;
    }
    return found;
  }
  const T* images() const { return copies_ ? copied_ : x_.data; }
  i64 place_of_row(i64 row) const { return row / h_.outputs * dy_.stride(0) + row % h_.outputs * dy_.stride(1); }

  /// fn(j, vectors, last) of the panels of so many columns.
  template <class Fn>
  static void each_panel(i64 columns, const Fn& fn) {
    for (i64 j = 0; j < columns; j += nr) {
      const i64 width = min(nr, columns - j);
      const int vectors = static_cast<int>(ceil_div(width, i64{V::lanes}));
      fn(j, vectors, static_cast<int>(width) - (vectors - 1) * V::lanes);
    }
  }
  static auto kernel(int vectors, i64 rows) {
    const int count = static_cast<int>(rows);
    return vectors == 1 ? cpu::pick_row_pairs<V, 1>(count) : cpu::pick_row_pairs<V, 2>(count);
  }

  /// The gradient of the output, transposed, by some stretches of pixels.
  void multiply(const cpu::Span& block, const cpu::Span& stretches, T* to) {
    const bool packs = this->packs_, add = block.begin > rows_.begin;
    const i64 first = panel(panels_.begin).begin, pixels = block.size() * w_.outputs, depth = this->depth();
    Pair* end = pairs_;
    for (i64 s = stretches.begin; s < stretches.end; ++s) {
      Pair* const begin = end;
      end += find_pairs(block, s, begin);
      for (Pair* pair = begin; pair < end; ++pair) pair->a = packs ? pair->a - block.begin : place_of_row(pair->a);
      found_[s] = end - begin;
    }
    each_panel(length_, [&](i64 j, int vectors, int last) {
      const Pair* pairs = pairs_;
      for (i64 s = stretches.begin; s < stretches.end; pairs += found_[s++]) {
        for (i64 p = panels_.begin; p < panels_.end; ++p) {
          const cpu::Span k = panel(p);
          const i64 count = k.size(), step = packs ? count : dy_.stride(2);
          const T* const a = packs ? packed_ + (k.begin - first) * pixels : dy_.data + k.begin;
          kernel(vectors, count)({found_[s], w_.outputs, step, packs ? w_.outputs * count : 1, pairs}, a, images() + j,
                                 w_.stride * pitch_, to + k.begin * depth + s * length_ + j, depth, last, add);
        }
      }
    });
  }

  /// Pixels, transposed, by the gradient of the output.
  void multiply_swapped(const cpu::Span& block, T* to) const {
    const i64 panels = ceil_div(length_, i64{cpu::block_rows});
    for (i64 s = 0; s < stretches_; ++s, to += length_ * filters_) {
      const i64 found = find_pairs(block, s, pairs_);
      for (i64 i = 0; i < found; ++i) pairs_[i] = {pairs_[i].b, place_of_row(pairs_[i].a)};
      each_panel(filters_, [&](i64 j, int vectors, int last) {
        for (i64 p = 0; p < panels; ++p) {
          const cpu::Span k = cpu::part(length_, panels, p);
          kernel(vectors, k.size())({found, w_.outputs, w_.stride * pitch_, 1, pairs_}, images() + k.begin,
                                    dy_.data + j, dy_.stride(2), to + k.begin * filters_ + j, filters_, last,
                                    block.begin > rows_.begin);
        }
      });
    }
  }

  StridedView<const T, 4> x_, dy_;
  cpu::Span rows_, panels_;
  i64 row_pitch_;
  bool rows_of_taps_;  // whether those of a window lie one after the other
  T *copied_ = nullptr, *packed_ = nullptr, *turned_ = nullptr;
  Pair* pairs_ = nullptr;
  i64* found_ = nullptr;  // pairs of each stretch
};

}  // namespace detail

/// The gradient gw (k, r, s, c) of filters in groups, from images (n, h, w, c) and the gradient of the output (n, ho,
/// wo, k). Each has contiguous channels, or rows: strides of 1 along them, or along w and wo.
template <class T>
class FiltersGradient {
 public:
  FiltersGradient(i64 groups, const StridedView<const T, 4>& x, const Sweep& h, const Sweep& w,
                  const StridedView<const T, 4>& dy, const StridedView<T, 4>& gw, i64 threads)
      : groups_(groups),
        channels_(x.length(3) / groups),
        filters_(dy.length(3) / groups),
        x_(x),
        dy_(dy),
        gw_(gw),
        plan_(groups, x, channels_, h, w, dy, filters_, ceil_div(threads, groups)),
        dense_(gw.stride(3) == 1 && gw.stride(2) == channels_ && gw.stride(1) == w.taps * channels_),
        in_place_(plan_.row_parts() == 1 && !plan_.swaps() && dense_ && gw.stride(0) == plan_.depth()) {}

  /// Elements of memory that run() needs.
  i64 memory_size() const { return in_place_ ? 0 : plan_.row_parts() * groups_ * size(); }

  void run(const ExecutorRef& executor, T* memory) const {
    const i64 tasks = plan_.tasks(), each = tasks / plan_.row_parts();
    const i64 shares = executor.threads() == 1 ? 1 : min(groups_, 2 * i64{executor.threads()});
    executor.parallel(shares * tasks, [&](i64 index, int thread) {
      const cpu::Span groups = cpu::part(groups_, shares, index / tasks);
      const i64 part = index % tasks / each;
      const auto task_of = [&](i64 group) {
        return detail::FiltersTask<T>(plan_, slice(x_, group * channels_, channels_),
                                      slice(dy_, group * filters_, filters_), index % tasks);
      };
      const auto first = task_of(groups.begin);
      void* const scratch = executor.scratch(thread, first.scratch_bytes());
      for (i64 block = 0; block < first.blocks(); ++block) {  // groups of a block share lines of the caches
        for (i64 group = groups.begin; group < groups.end; ++group) {
          T* const to = in_place_ ? gw_.data + group * size() : memory + (part * groups_ + group) * size();
          task_of(group).run(block, to, scratch);
        }
      }
    });
    if (in_place_) return;
    const i64 panels = ceil_div(filters_, panel);
    executor.parallel(groups_ * panels, [&](i64 index, int thread) {
      put_panel(memory, index / panels, cpu::part(filters_, panels, index % panels), executor, thread);
    });
  }

 private:
  i64 size() const { return filters_ * plan_.depth(); }
  static StridedView<const T, 4> slice(const StridedView<const T, 4>& v, i64 first, i64 count) {
    return strided(v.data + first * v.stride(3), {v.length(0), v.length(1), v.length(2), count},
                   {v.stride(0), v.stride(1), v.stride(2), v.stride(3)});
  }
  // Filters that are put where they belong at a time.
  static constexpr i64 panel = 2 * NativeVec<T>::lanes;

  /// Some filters of a group, of the sums of all parts.
  void put_panel(T* memory, i64 group, const cpu::Span& filters, const ExecutorRef& executor, int thread) const {
    const i64 depth = plan_.depth();
    T* const sums = memory + group * size();
    if (!plan_.swaps()) {
      add_parts(sums + filters.begin * depth, filters.size() * depth);
      for (i64 k = filters.begin; k < filters.end; ++k) put(sums + k * depth, group * filters_ + k);
      return;
    }
    for (i64 i = 0; i < depth; ++i) add_parts(sums + i * filters_ + filters.begin, filters.size());
    const i64 first = group * filters_ + filters.begin;
    if (dense_)
      return turn(sums + filters.begin, filters_, filters.size(), depth, gw_.data + first * gw_.stride(0),
                  gw_.stride(0));
    cpu::Workspace<T> scratch(executor.scratch(thread, cpu::Workspace<T>::bytes(panel * depth)));
    T* const lines = scratch.take(panel * depth);
    turn(sums + filters.begin, filters_, filters.size(), depth, lines, depth);
    for (i64 k = 0; k < filters.size(); ++k) put(lines + k * depth, first + k);
  }
  void add_parts(T* sums, i64 count) const {
    for (i64 part = 1; part < plan_.row_parts(); ++part) {
      const T* const from = sums + part * groups_ * size();
      for (i64 i = 0; i < count; ++i) sums[i] += from[i];
    }
  }
  /// to[r * to_step + c] = from[c * from_step + r]
  static void turn(const T* from, i64 from_step, i64 rows, i64 columns, T* to, i64 to_step) {
    constexpr i64 size = sizeof(T);
    tile::detail::transpose_plane<T>(reinterpret_cast<char*>(to), to_step * size, reinterpret_cast<const char*>(from),
                                     from_step * size, rows, columns);
  }
  /// A filter (r, s, c).
  void put(const T* from, i64 filter) const {
    const i64 rows = gw_.length(1), columns = gw_.length(2);
    T* const to = gw_.data + filter * gw_.stride(0);
    if (dense_) return detail::copy_run(from, plan_.depth(), to);
    if (gw_.stride(2) == 1 && gw_.stride(1) == columns)
      return turn(from, channels_, channels_, rows * columns, to, gw_.stride(3));
    for (i64 r = 0; r < rows; ++r) {
      for (i64 s = 0; s < columns; ++s) {
        T* at = to + r * gw_.stride(1) + s * gw_.stride(2);
        for (i64 c = 0; c < channels_; ++c, at += gw_.stride(3)) *at = *from++;
      }
    }
  }

  i64 groups_, channels_, filters_;
  StridedView<const T, 4> x_, dy_;
  StridedView<T, 4> gw_;
  detail::FiltersPlan<T> plan_;
  bool dense_, in_place_;  // whether (r, s, c) of a filter lie one after the other; whether sums are made there
};

TESSERA_TILE_END
