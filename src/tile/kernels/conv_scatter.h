// Convolutions as products of pixels with all taps at once, each of which is then added to the results that it leads
// to: products are wide although there are few results a pixel, and none is computed for padding between pixels. A
// block of pixels is multiplied into the second-level cache; then each result adds up what is its own.
#pragma once

#include "conv_direct.h"

TESSERA_TILE_BEGIN
namespace detail {

/// How the results of a scattering convolution are cut: whole images, or bands of rows, for threads; blocks of pixels
/// and a few rows of taps for the cache. In a dimension, tap t of pixel i leads to i * stride + t * dilation - pad_low.
template <class T>
class ScatterPlan {
  using V = NativeVec<T>;

 public:
  static constexpr i64 nr = cpu::block_columns<T>;
  /// Products of a block: they stay in the second-level cache.
  static constexpr i64 block_elements = 256 * 1024 / static_cast<i64>(sizeof(T));

  /// Of pixels (n, h.output(), w.output(), depth) and so many results a pixel.
  ScatterPlan(i64 images, i64 depth, const Window& h, const Window& w, i64 results, i64 threads)
      : h_(h), w_(w), images_(images), depth_(depth), results_(results) {
    constexpr i64 few = 4 * cpu::block_rows, many = 256;  // pixels that share what is read of the taps
    const i64 columns = w.output(), pixels = h.output() * columns, row_taps = max<i64>(1, w.filter * results);
    const i64 least = max(columns, min(few, images * pixels));
    tap_rows_ = even(h.filter, max<i64>(1, block_elements / max<i64>(1, least * row_taps)));
    const i64 most = max(least, min(many, block_elements / (tap_rows_ * row_taps)));
    block_rows_ = even(h.output(), max<i64>(1, most / max<i64>(1, columns)));
    block_images_ = block_rows_ < h.output() ? 1 : even(images, max<i64>(1, most / max<i64>(1, pixels)));
    const i64 wanted = threads == 1 ? 1 : 2 * threads;
    image_parts_ = min(images, threads == 1 ? 1 : max(wanted, ceil_div(images, block_images_)));
    bands_ = images >= wanted ? 1 : min(h.length, ceil_div(wanted, max<i64>(1, images)));
  }

  i64 tasks() const { return image_parts_ * bands_; }
  i64 chunks() const { return ceil_div(h_.filter, tap_rows_); }
  cpu::Span taps_of(i64 chunk) const { return {chunk * tap_rows_, min(h_.filter, (chunk + 1) * tap_rows_)}; }
  /// Columns of the product with a chunk of taps, and where they begin among those that are packed.
  i64 columns_of(i64 chunk) const { return taps_of(chunk).size() * w_.filter * results_; }
  i64 packed_begin(i64 chunk) const { return chunk * cpu::panels_size<T>(columns_of(0), depth_); }
  i64 packed_size() const { return packed_begin(chunks()); }

 private:
  /// The length of parts of at most so much, as equal as can be.
  static i64 even(i64 length, i64 most) { return length == 0 ? 1 : ceil_div(length, ceil_div(length, most)); }

 protected:
  Window h_, w_;
  i64 images_, depth_, results_;
  i64 tap_rows_, block_rows_, block_images_, image_parts_, bands_;
};

/// Filters (depth, r, s, results) as panels of a chunk's taps, in the order r, s, results: some steps of all panels, so
/// that what lies together of the filters is read together.
template <class T>
void pack_taps(const ScatterPlan<T>& plan, const StridedView<const T, 4>& w, i64 chunk, const cpu::Span& steps,
               T* panels) {
  constexpr i64 size = sizeof(T), nr = cpu::block_columns<T>;
  const i64 columns = plan.columns_of(chunk), depth = w.length(0), results = w.length(3);
  const i64 top = plan.taps_of(chunk).begin, last = (columns - 1) / nr * nr,
            last_width = cpu::panel_width<T>(columns, last);
  T* const zeros = panels + cpu::panel_offset(depth, last) + steps.begin * last_width;
  for (i64 i = 0; i < steps.size() * last_width && columns < last + last_width; ++i) zeros[i] = T(0);
  for (i64 j = 0; j < columns;) {  // results of one tap after the other, as far as a panel reaches
    const i64 tap = j / results, c = j % results, first = j / nr * nr, width = cpu::panel_width<T>(columns, first);
    const i64 count = min(results - c, min(first + width, columns) - j);
    const T* from = w.data + steps.begin * w.stride(0) + (top + tap / w.length(2)) * w.stride(1) +
                    tap % w.length(2) * w.stride(2) + c * w.stride(3);
    T* to = panels + cpu::panel_offset(depth, first) + steps.begin * width + j - first;
    j += count;
    if (w.stride(0) == 1) {
      tile::detail::transpose_plane<T>(reinterpret_cast<char*>(to), width * size, reinterpret_cast<const char*>(from),
                                       w.stride(3) * size, steps.size(), count);
    } else {
      for (i64 k = 0; k < steps.size(); ++k, from += w.stride(0), to += width) {
        if (w.stride(3) == 1) copy_run(from, count, to);
        for (i64 i = 0; i < count && w.stride(3) != 1; ++i) to[i] = from[i * w.stride(3)];
      }
    }
  }
}

/// A part of the results in the hands of one thread.
template <class T>
class ScatterTask : ScatterPlan<T> {
  using Plan = ScatterPlan<T>;
  using V = NativeVec<T>;
  using Plan::h_, Plan::w_, Plan::depth_, Plan::results_, Plan::nr, Plan::block_rows_, Plan::block_images_;

 public:
  ScatterTask(const Plan& plan, const StridedView<const T, 4>& x, i64 index)
      : Plan(plan),
        x_(x),
        my_images_(cpu::part(this->images_, this->image_parts_, index / this->bands_)),
        band_(cpu::part(h_.length, this->bands_, index % this->bands_)) {
    constexpr i64 set = 2048 / static_cast<i64>(sizeof(T));  // pixels so far apart meet in two sets of the first level
    const bool rows_follow = block_rows_ == 1 || x.stride(1) == x.length(2) * x.stride(2);
    const bool images_follow = block_images_ == 1 || x.stride(0) == x.length(1) * x.stride(1);
    copies_ = (depth_ > 1 && x.stride(3) != 1) || !rows_follow || !images_follow || x.stride(2) % set == 0;
    pitch_ = !copies_ ? x.stride(2) : depth_ % set == 0 ? depth_ + V::lanes : depth_;
    products_pitch_ = round_up(this->columns_of(0), i64{V::lanes});
  }

  i64 scratch_bytes() const {
    using W = cpu::Workspace<T>;
    return W::bytes(copied_size()) + W::bytes(products_size()) + W::bytes(places_size()) + W::bytes(meetings_size());
  }

  /// Adds up the results: row(image, i) is where a row of them begins, whose pixels lie a pitch apart, and
  /// finish(image, i) is called when it is complete.
  template <class Row, class Finish>
  void run(const T* packed, void* scratch, i64 to_pitch, const Row& row, const Finish& finish) {
    cpu::Workspace<T> memory(scratch);
    copied_ = memory.take(copied_size());
    products_ = memory.take(products_size());
    i64* const places = reinterpret_cast<i64*>(memory.take(places_size()));
    meetings_ = reinterpret_cast<i64*>(memory.take(meetings_size()));
    find_places(places);
    const i64 last_tap = (h_.filter - 1) * h_.dilation - h_.pad_low;
    cpu::Span rows{0, h_.output()};
    if (block_images_ == 1) {  // those that are met; several images are one run of pixels
      rows = {clamp(ceil_div(band_.begin - last_tap, h_.stride), 0, h_.output()),
              clamp(ceil_div(band_.end + h_.pad_low, h_.stride), 0, h_.output())};
    }
    for (i64 image = my_images_.begin; image < my_images_.end; image += block_images_) {
      const cpu::Span images{image, min(image + block_images_, my_images_.end)};
      i64 begun = band_.begin, done = band_.begin;
      bool last = false;
      for (i64 i = rows.begin; !last; i += block_rows_) {
        const cpu::Span block{min(i, rows.end), min(i + block_rows_, rows.end)};
        last = block.end >= rows.end;
        const cpu::Span met{clamp(block.begin * h_.stride - h_.pad_low, band_.begin, begun),
                            last ? band_.end : clamp((block.end - 1) * h_.stride + last_tap + 1, begun, band_.end)};
        const T* const from = pixels(images, block);
        // Rows of pixels in ascending order, so that a result's sum is the same in any blocks.
        for (i64 chunk = this->chunks() - 1; chunk >= 0; --chunk) {
          multiply(images.size() * block.size() * x_.length(2), from, packed + this->packed_begin(chunk), chunk);
          for (i64 n = images.begin; n < images.end; ++n) {
            for (i64 o = met.begin; o < met.end; ++o)
              add_row(n - images.begin, block, o, chunk, chunk == this->chunks() - 1 && o >= begun, row(n, o),
                      to_pitch);
          }
        }
        begun = max(begun, met.end);
        const i64 complete = last ? band_.end : clamp(block.end * h_.stride - h_.pad_low, done, begun);
        for (i64 n = images.begin; n < images.end; ++n) {
          for (i64 o = done; o < complete; ++o) finish(n, o);
        }
        done = complete;
      }
    }
  }

 private:
  static i64 clamp(i64 v, i64 low, i64 high) { return max(low, min(v, high)); }
  i64 block_pixels() const { return block_images_ * block_rows_ * x_.length(2); }
  i64 copied_size() const { return copies_ ? block_pixels() * pitch_ : 0; }
  i64 products_size() const { return block_pixels() * products_pitch_ + V::lanes; }
  static constexpr i64 words = sizeof(i64) / sizeof(T);
  i64 places_size() const { return (w_.length + 1 + w_.output() * w_.filter) * words; }
  i64 meetings_size() const { return h_.filter * words; }

  /// Of each column of results, where products of a row of pixels lie that lead to it: first where its list begins.
  void find_places(i64* begins) {
    begins_ = begins, places_ = begins + w_.length + 1;
    for (i64 j = 0, at = 0; j <= w_.length; ++j) {
      begins_[j] = at;
      for (i64 s = 0; s < w_.filter && j < w_.length; ++s) {
        const i64 from = j + w_.pad_low - s * w_.dilation;
        if (from >= 0 && from % w_.stride == 0 && from / w_.stride < w_.output())
          places_[at++] = from / w_.stride * products_pitch_ + s * results_;
      }
    }
  }

  /// The pixels of a block, a distance apart, where they lie or copied.
  const T* pixels(const cpu::Span& images, const cpu::Span& rows) const {
    if (!copies_) return x_.data + images.begin * x_.stride(0) + rows.begin * x_.stride(1);
    T* to = copied_;
    const bool dense = x_.stride(1) == x_.length(2) * x_.stride(2);
    for (i64 n = images.begin; n < images.end; ++n) {
      const T* from = x_.data + n * x_.stride(0) + rows.begin * x_.stride(1);
      if (dense) {
        copy_pixels(from, rows.size() * x_.length(2), to);
        to += rows.size() * x_.length(2) * pitch_;
      } else {
        for (i64 i = 0; i < rows.size(); ++i, from += x_.stride(1), to += x_.length(2) * pitch_)
          copy_pixels(from, x_.length(2), to);
      }
    }
    return copied_;
  }
  void copy_pixels(const T* from, i64 count, T* to) const {
    constexpr i64 size = sizeof(T);
    if (x_.stride(3) != 1 && x_.stride(2) == 1) {
      tile::detail::transpose_plane<T>(reinterpret_cast<char*>(to), pitch_ * size, reinterpret_cast<const char*>(from),
                                       x_.stride(3) * size, count, depth_);
      return;
    }
    for (i64 i = 0; i < count; ++i, from += x_.stride(2), to += pitch_) {
      if (x_.stride(3) == 1) {
        copy_run(from, depth_, to);
      } else {
        for (i64 k = 0; k < depth_; ++k) to[k] = from[k * x_.stride(3)];
      }
    }
  }

  void multiply(i64 pixels, const T* from, const T* packed, i64 chunk) const {
    const i64 columns = this->columns_of(chunk), panels = ceil_div(columns, nr);
    const i64 tiles = ceil_div(pixels, i64{cpu::block_rows}), none = 0;
    for (i64 p = 0; p < panels; ++p) {
      const T* const b = packed + cpu::panel_offset(depth_, p * nr);
      const i64 next = min(p + 1, panels - 1) * nr;
      PanelAhead<T> ahead(packed + cpu::panel_offset(depth_, next), depth_, cpu::panel_width<T>(columns, next));
      const bool one = columns - p * nr <= V::lanes;
      for (i64 t = 0; t < tiles; ++t) {
        const cpu::Span at = cpu::part(pixels, tiles, t);
        const int rows = static_cast<int>(at.size());
        const auto kernel = one ? cpu::pick_stretch<V, 1>(rows) : cpu::pick_stretch<V, 2>(rows);
        kernel({1, depth_, &none}, from + at.begin * pitch_, pitch_, b, products_ + at.begin * products_pitch_ + p * nr,
               products_pitch_, V::lanes, ahead.next());
      }
    }
  }

  /// Adds to a row of results what the pixels of a block lead to it, by a chunk of taps; `first`: writes it.
  void add_row(i64 image, const cpu::Span& block, i64 o, i64 chunk, bool first, T* to, i64 to_pitch) const {
    const cpu::Span taps = this->taps_of(chunk);
    i64 count = 0;
    for (i64 r = taps.end - 1; r >= taps.begin; --r) {
      const i64 from = o + h_.pad_low - r * h_.dilation, i = from / h_.stride;
      if (from < 0 || from % h_.stride != 0 || i < block.begin || i >= block.end) continue;
      const i64 row = image * block.size() + i - block.begin;
      meetings_[count++] = row * x_.length(2) * products_pitch_ + (r - taps.begin) * w_.filter * results_;
    }
    if (count == 0 && !first) return;
    for (i64 j = 0; j < w_.length; ++j, to += to_pitch) {
      i64 c = 0;
      for (; c + 4 * V::lanes <= results_; c += 4 * V::lanes) add_pixel<4>(j, c, count, first, V::lanes, to);
      for (; c < results_; c += V::lanes) {
        add_pixel<1>(j, c, count, first, static_cast<int>(min<i64>(V::lanes, results_ - c)), to);
      }
    }
  }
  template <int Vectors>
  void add_pixel(i64 j, i64 c, i64 count, bool first, int last, T* to) const {
    V sum[Vectors];
    TESSERA_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      const T* const at = to + c + v * V::lanes;
      sum[v] = first ? V(T(0)) : last == V::lanes ? load<V>(at) : load<V>(at, last);
    }
    for (i64 m = 0; m < count; ++m) {
      const T* const from = products_ + meetings_[m] + c;
      for (i64 p = begins_[j]; p < begins_[j + 1]; ++p) {
        TESSERA_UNROLL
        for (int v = 0; v < Vectors; ++v) sum[v] += load<V>(from + places_[p] + v * V::lanes);
      }
    }
    TESSERA_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      T* const at = to + c + v * V::lanes;
      if (last == V::lanes) {
        store(at, sum[v]);
      } else {
        cpu::store_part(at, sum[v], last);
      }
    }
  }

  StridedView<const T, 4> x_;
  cpu::Span my_images_, band_;
  bool copies_;
  i64 pitch_, products_pitch_;
  T *copied_ = nullptr, *products_ = nullptr;
  i64 *begins_ = nullptr, *places_ = nullptr, *meetings_ = nullptr;
};

}  // namespace detail

/// A scattering convolution of pixels (n, h.output(), w.output(), k) in groups with filters (k / groups, r, s, results)
/// of each group, w(group), to results (n, h.length, w.length, groups * results) whose channels are contiguous.
template <class T>
class ScatterConvolution {
 public:
  ScatterConvolution(i64 groups, const StridedView<const T, 4>& x, const Window& h, const Window& w,
                     const StridedView<T, 4>& y, i64 threads)
      : groups_(groups),
        depth_(x.length(3) / groups),
        results_(y.length(3) / groups),
        x_(x),
        y_(y),
        plan_(x.length(0), depth_, h, w, results_, ceil_div(threads, groups)) {}

  /// Elements of memory that run() needs.
  i64 memory_size() const { return groups_ * plan_.packed_size(); }

  /// finish(group, image, row) is called of each row that is complete.
  template <class Filters, class Finish>
  void run(const ExecutorRef& executor, const Filters& w, T* memory, const Finish& finish) const {
    pack(executor, w, memory);
    executor.parallel(groups_ * plan_.tasks(), [&](i64 index, int thread) {
      const i64 group = index / plan_.tasks();
      const auto part =
          strided(x_.data + group * depth_ * x_.stride(3), {x_.length(0), x_.length(1), x_.length(2), depth_},
                  {x_.stride(0), x_.stride(1), x_.stride(2), x_.stride(3)});
      detail::ScatterTask<T> task(plan_, part, index % plan_.tasks());
      const auto row = [&](i64 image, i64 i) {
        return y_.data + image * y_.stride(0) + i * y_.stride(1) + group * results_;
      };
      task.run(memory + group * plan_.packed_size(), executor.scratch(thread, task.scratch_bytes()), y_.stride(2), row,
               [&](i64 image, i64 i) { finish(group, image, i); });
    });
  }

 private:
  template <class Filters>
  void pack(const ExecutorRef& executor, const Filters& w, T* memory) const {
    constexpr i64 few = 64;  // steps
    const i64 chunks = plan_.chunks(), parts = ceil_div(depth_, few);
    executor.parallel(groups_ * chunks * parts, [&](i64 index, int) {
      const i64 group = index / (chunks * parts), chunk = index % chunks;
      detail::pack_taps<T>(plan_, w(group), chunk, cpu::part(depth_, parts, index / chunks % parts),
                           memory + group * plan_.packed_size() + plan_.packed_begin(chunk));
    });
  }

  i64 groups_, depth_, results_;
  StridedView<const T, 4> x_;
  StridedView<T, 4> y_;
  detail::ScatterPlan<T> plan_;
};

TESSERA_TILE_END
