// Convolutions of few channels or filters a group, over planes of images: vectors run along places, so that no lane is
// idle for want of filters. Images are copied, a block at a time, with their padding, and in as many planes as the
// strides have residues: any window is then one of stride 1, which sees each step at one distance from its place. Where
// rows are short, vectors run on from row to row, over places between them that are no outputs. Images that need none
// of it are read where they lie.
#pragma once

#include "../arch/cpu/windows.h"
#include "conv_direct.h"

TESSERA_TILE_BEGIN
namespace detail {

/// One dimension of windows over planes that lie apart by the residues of the stride. The residues that taps meet
/// repeat: tap t is of phase t % phases.
struct Phases {
  Sweep sweep;
  i64 count;

  explicit Phases(const Sweep& s)
      : sweep(s), count(min(s.taps, s.stride / gcd(static_cast<int>(s.stride), static_cast<int>(s.dilation)))) {}
  /// Where in its plane the first output sees a tap.
  i64 place(i64 tap) const { return tap * sweep.dilation / sweep.stride; }
  /// Places of a plane that so many outputs see.
  i64 extent(i64 outputs) const { return outputs + (sweep.taps > 0 ? place(sweep.taps - 1) : 0); }
  /// The input at the first place of a plane, for outputs from `output` on.
  i64 first(i64 phase, i64 output) const { return sweep.first_input(output) + phase * sweep.dilation % sweep.stride; }
  /// Whether windows are of stride 1 and stay inside.
  bool plain() const {
    return sweep.stride == 1 && sweep.before <= 0 && sweep.extent(sweep.outputs) - sweep.before <= sweep.length;
  }
};

/// The part of images in the hands of one thread: whole ones, or rows of outputs of one.
struct PlanesBlock {
  cpu::Span images, rows;
};

/// How a convolution over planes is cut, for each of its groups alike.
template <class T>
class PlanesPlan {
  using V = NativeVec<T>;

 public:
  /// Elements of images that a block reads: they stay in the second-level cache.
  static constexpr i64 block_elements = 160 * 1024 / static_cast<i64>(sizeof(T));

  /// Of images (n, h, w, c) of one group, in at least so many blocks where there are rows enough. `single`: of one
  /// filter.
  PlanesPlan(const StridedView<const T, 4>& x, const Sweep& h, const Sweep& w, i64 blocks, bool single = false)
      : h_(h), w_(w), images_(x.length(0)), channels_(x.length(3)) {
    in_place_ = depth() > 0 && h_.plain() && w_.plain() && x.stride(2) == 1 && x.stride(1) >= w.length;
    pitch_ = in_place_ ? x.stride(1) : w_.extent(w.outputs);
    // Runs of a few vectors leave registers idle: they are worth some places between rows.
    const i64 row = round_up(w.outputs, i64{V::lanes}), most = row < 4 * V::lanes ? row + row / 3 : row;
    const bool follow = h_.count * h.dilation % h.stride == 0;
    window_step_ = single && channels_ == 1 && follow && h.taps > h_.count ? h_.count * h.dilation / h.stride : 0;
    if (w.outputs < V::lanes) window_step_ = 0;
    flat_ = h.outputs > 1 && pitch_ < most && window_step_ == 0;
    block_images_ = 1, block_rows_ = h.outputs;
    if (!in_place_) {
      const i64 all = block_elements / max<i64>(1, channels_ * h_.count * w_.count * pitch_);  // rows
      block_rows_ = even(h.outputs, max<i64>(4, all - (h_.extent(1) - 1)));
      if (block_rows_ == h.outputs) block_images_ = even(images_, max<i64>(1, all / h_.extent(h.outputs)));
    }
    if (images_ >= blocks) {
      block_images_ = min(block_images_, images_ / blocks);
    } else {
      block_images_ = 1;
      block_rows_ = min(block_rows_, even(h.outputs, max<i64>(1, h.outputs * images_ / blocks)));
    }
    plane_ = block_images_ * h_.extent(block_rows_) * pitch_;
  }

  i64 depth() const { return channels_ * h_.sweep.taps * w_.sweep.taps; }
  i64 blocks() const { return ceil_div(images_, block_images_) * row_blocks(); }
  PlanesBlock block(i64 index) const {
    return {cpu::part(images_, ceil_div(images_, block_images_), index / row_blocks()),
            cpu::part(h_.sweep.outputs, row_blocks(), index % row_blocks())};
  }
  bool flat() const { return flat_; }
  /// The distance of rows of outputs that share what they see, one row of taps apart; 0 where none do.
  i64 window_step() const { return window_step_; }
  cpu::WindowTaps window_taps(const i64* offsets) const {
    return {h_.sweep.taps, w_.sweep.taps, h_.count, window_step_ * pitch_, offsets};
  }
  bool in_place() const { return in_place_; }
  /// Places whose channels stay in the second-level cache, of whole vectors.
  i64 chunk() const { return max<i64>(12, block_elements / max<i64>(1, channels_) / V::lanes) * V::lanes; }
  i64 copied_size() const { return in_place_ || depth() == 0 ? 0 : channels_ * h_.count * w_.count * plane_; }
  i64 plane() const { return plane_; }
  i64 pitch() const { return pitch_; }
  /// Rows of each image in a block's planes.
  i64 held_rows(const PlanesBlock& block) const { return in_place_ ? 0 : h_.extent(block.rows.size()); }

  /// How far from a place each step's lies: steps of channels, of rows and columns of taps.
  void find_offsets(const StridedView<const T, 4>& x, i64* to) const {
    for (i64 c = 0; c < channels_; ++c) {
      for (i64 r = 0; r < h_.sweep.taps; ++r) {
        for (i64 s = 0; s < w_.sweep.taps; ++s) {
          const i64 start =
              in_place_ ? c * x.stride(3) : ((c * h_.count + r % h_.count) * w_.count + s % w_.count) * plane_;
          *to++ = start + h_.place(r) * pitch_ + w_.place(s);
        }
      }
    }
  }
  /// Where the places of the block's first image begin, in a copy of copied_size elements or where they lie.
  const T* planes(const StridedView<const T, 4>& x, const PlanesBlock& block, T* copy) const {
    if (depth() == 0) return copy;
    if (in_place_) {
      return x.data + block.images.begin * x.stride(0) + h_.sweep.first_input(block.rows.begin) * x.stride(1) +
             w_.sweep.first_input(0);
    }
    T* to = copy;
    if (channels_ > 1 && x.stride(3) == 1 && x.stride(2) != 1) {
      for (i64 r = 0; r < h_.count; ++r) {
        for (i64 s = 0; s < w_.count; ++s, to += plane_) turn_planes(x, block, r, s, to);
      }
      return copy;
    }
    for (i64 c = 0; c < channels_; ++c) {
      for (i64 r = 0; r < h_.count; ++r) {
        for (i64 s = 0; s < w_.count; ++s, to += plane_) copy_plane(x, block, c, r, s, to);
      }
    }
    return copy;
  }

 private:
  /// The length of parts of at most so much, as equal as can be.
  static i64 even(i64 length, i64 most) { return length == 0 ? 1 : ceil_div(length, ceil_div(length, most)); }
  i64 row_blocks() const { return ceil_div(h_.sweep.outputs, block_rows_); }

  /// Of so many places, a step apart from the input `first` on, those that lie inside.
  static cpu::Span inside(const Sweep& s, i64 first, i64 places) {
    const i64 begin = min(places, first < 0 ? ceil_div(-first, s.stride) : 0);
    return {begin, max(begin, min(places, first < s.length ? ceil_div(s.length - first, s.stride) : 0))};
  }
  /// The planes of all channels, which are contiguous: pixels are read once.
  void turn_planes(const StridedView<const T, 4>& x, const PlanesBlock& block, i64 r, i64 s, T* to) const {
    constexpr i64 size = sizeof(T);
    const i64 step = w_.sweep.stride * x.stride(2), apart = h_.count * w_.count * plane_;
    const i64 rows = held_rows(block), top = h_.first(r, block.rows.begin), left = w_.first(s, 0);
    const cpu::Span across = inside(w_.sweep, left, pitch_), down = inside(h_.sweep, top, rows);
    const auto zero = [&](i64 begin, i64 end) {
      for (i64 c = 0; c < channels_ && begin < end; ++c) zero_run(to + c * apart + begin, end - begin);
    };
    for (i64 image = block.images.begin; image < block.images.end; ++image) {
      const T* const from = x.data + image * x.stride(0) + left * x.stride(2) + across.begin * step;
      for (i64 i = 0; i < rows; ++i, to += pitch_) {
        const bool exists = i >= down.begin && i < down.end;
        zero(0, exists ? across.begin : pitch_);
        if (!exists) continue;
        tile::detail::transpose_plane<T>(
            reinterpret_cast<char*>(to + across.begin), apart * size,
            reinterpret_cast<const char*>(from + (top + i * h_.sweep.stride) * x.stride(1)), step * size, channels_,
            across.size());
        zero(across.end, pitch_);
      }
    }
  }

  void copy_plane(const StridedView<const T, 4>& x, const PlanesBlock& block, i64 channel, i64 r, i64 s, T* to) const {
    const i64 step = w_.sweep.stride, first = w_.first(s, 0);
    const i64 rows = held_rows(block), top = h_.first(r, block.rows.begin), down = h_.sweep.stride;
    const auto [begin, end] = inside(w_.sweep, first, pitch_);
    const auto [above, below] = inside(h_.sweep, top, rows);
    const bool follow = end - begin == pitch_ && step * x.stride(2) == 1 && down * x.stride(1) == pitch_;
    for (i64 image = block.images.begin; image < block.images.end; ++image) {
      const T* from = x.data + image * x.stride(0) + channel * x.stride(3) + (first + begin * step) * x.stride(2) +
                      (top + above * down) * x.stride(1);
      zero_run(to, above * pitch_);
      to += above * pitch_;
      const i64 lines = follow ? 1 : below - above, line = follow ? (below - above) * pitch_ : pitch_;
      const i64 behind = pitch_ - end, inside = line - begin - behind;
      if (lines > 0) zero_run(to, begin);
      for (i64 i = 0; i < lines; ++i, from += down * x.stride(1), to += line) {
        copy_line(from, step * x.stride(2), inside, to + begin);
        zero_run(to + begin + inside, i + 1 < lines ? behind + begin : behind);  // as far as the next line's images
      }
      zero_run(to, (rows - below) * pitch_);
      to += (rows - below) * pitch_;
    }
  }

 public:
  static void copy_line(const T* from, i64 step, i64 count, T* to) {
    if (step == 1) return copy_run(from, count, to);
    for (i64 j = 0; j < count; ++j) to[j] = from[j * step];
  }

 private:
  Phases h_, w_;
  i64 images_, channels_;
  bool in_place_, flat_;
  i64 pitch_, window_step_, block_images_, block_rows_, plane_;
};

/// fn(image, row, column, first, count) for the outputs among the places [begin, end) of a block, counted from the
/// first of them on.
template <class Fn>
void each_line(const PlanesBlock& block, i64 columns, i64 pitch, i64 held_rows, i64 begin, i64 end, const Fn& fn) {
  i64 row = begin / pitch, column = begin % pitch;
  for (i64 at = begin; at < end; ++row, column = 0) {
    const i64 image = held_rows > 0 ? row / held_rows : 0, i = row - image * held_rows;
    if (column < columns && i < block.rows.size()) {
      fn(block.images.begin + image, block.rows.begin + i, column, at - begin, min(columns - column, end - at));
    }
    at += pitch - column;
  }
}

/// The outputs of a block, of a few filters at a time.
template <class T, class Result>
class PlanesTask {
  using V = NativeVec<T>;

 public:
  PlanesTask(const PlanesPlan<T>& plan, i64 columns, i64 filters, const i64* offsets, T* copy, T* values)
      : plan_(plan), columns_(columns), filters_(filters), offsets_(offsets), copy_(copy), values_(values) {}

  static i64 values_size() {
    i64 most = 0;
    for (int rows = 1; rows <= cpu::places_rows; ++rows) most = max<i64>(most, rows * cpu::places_vectors(rows));
    for (int rows = 1; rows <= cpu::window_rows; ++rows) most = max<i64>(most, rows * cpu::window_vectors(rows));
    return (most + 1) * V::lanes;  // whole vectors are read
  }

  void run(const StridedView<const T, 4>& x, const PlanesBlock& block, const T* packed, const Result& result) const {
    const T* const from = plan_.planes(x, block, copy_);
    const i64 panels = ceil_div(filters_, i64{cpu::places_rows}), held = plan_.held_rows(block);
    const i64 rows = block.rows.size(), images = block.images.size(), pitch = plan_.pitch();
    if (plan_.window_step() > 0) return windows(block, packed, from, result);
    const i64 count = plan_.flat() ? ((images - 1) * held + rows - 1) * pitch + columns_ : columns_;
    const auto multiply = [&](i64 p, const Line& line, const cpu::Span& some) {
      const cpu::Span filters = cpu::part(filters_, panels, p);
      places(block, line, filters, packed + filters.begin * plan_.depth(), from, some, result);
    };
    const auto each_place = [&](const auto& fn) {
      if (plan_.flat()) return fn(Line{0, 0});
      for (i64 image = 0; image < images; ++image)
        for (i64 row = 0; row < rows; ++row) fn(Line{image, row});
    };
    if (plan_.in_place() && panels > 1 && filters_ * plan_.depth() <= PlanesPlan<T>::block_elements) {
      const i64 chunk = plan_.chunk();  // from beyond the caches, for all filters
      return each_place([&](const Line& line) {
        for (i64 first = 0; first < count; first += chunk)
          for (i64 p = 0; p < panels; ++p) multiply(p, line, {first, min(count, first + chunk)});
      });
    }
    for (i64 p = 0; p < panels; ++p) each_place([&](const Line& line) { multiply(p, line, {0, count}); });
  }

 private:
  struct Line {
    i64 image, row;  // counted from the block's first
  };
  /// The outputs of one filter, some rows at a time, which share what they see.
  void windows(const PlanesBlock& block, const T* a, const T* from, const Result& result) const {
    const i64 rows = block.rows.size(), step = plan_.window_step(), vectors = ceil_div(columns_, i64{V::lanes});
    const cpu::WindowTaps taps = plan_.window_taps(offsets_);
    const i64 most = min<i64>(cpu::window_rows, taps.of_phase(taps.phases - 1) + 1);
    for (i64 image = 0; image < block.images.size(); ++image)
      for (i64 first = 0; first < min(step, rows); ++first)
        for (i64 row = first; row < rows; row += most * step) {
          const int count = static_cast<int>(min(most, ceil_div(rows - row, step)));
          const i64 parts = ceil_div(vectors, i64{cpu::window_vectors(count)});
          for (i64 p = 0; p < parts; ++p)
            window({image, row}, count, cpu::part(vectors, parts, p), block, taps, a, from, result);
        }
  }
  void window(const Line& line, int count, const cpu::Span& part, const PlanesBlock& block, const cpu::WindowTaps& taps,
              const T* a, const T* from, const Result& result) const {
    const i64 begin = part.begin * V::lanes, end = min(columns_, part.end * V::lanes), step = plan_.window_step();
    const int n = static_cast<int>(part.size()), last = static_cast<int>(end - begin) - (n - 1) * V::lanes;
    const i64 image = block.images.begin + line.image, row = block.rows.begin + line.row;
    const T* const b = from + (line.image * plan_.held_rows(block) + line.row) * plan_.pitch() + begin;
    const auto kernel = cpu::pick_window<V>(count, n);
    if (result.direct())
      return kernel(taps, a, b, result.place(image, 0, row) + begin, step * result.row_stride(), last);
    kernel(taps, a, b, values_, n * V::lanes, last);
    for (int i = 0; i < count; ++i)
      result.put(values_ + i * n * V::lanes, image, 0, row + i * step, begin, end - begin);
  }
  /// Some places, counted from the beginning of a line.
  void places(const PlanesBlock& block, const Line& line, const cpu::Span& filters, const T* a, const T* from,
              const cpu::Span& some, const Result& result) const {
    const i64 held = plan_.held_rows(block), first = (line.image * held + line.row) * plan_.pitch();
    const int rows = static_cast<int>(filters.size());
    const i64 vectors = ceil_div(some.size(), i64{V::lanes}), parts = ceil_div(vectors, i64{cpu::places_vectors(rows)});
    const bool direct = result.direct() && !plan_.flat();
    for (i64 p = 0; p < parts; ++p) {
      const cpu::Span part = cpu::part(vectors, parts, p);
      const i64 begin = some.begin + part.begin * V::lanes, end = min(some.end, some.begin + part.end * V::lanes);
      const i64 at = first + begin;
      const int n = static_cast<int>(part.size()), last = static_cast<int>(end - begin) - (n - 1) * V::lanes;
      const auto kernel = cpu::pick_places<V>(rows, n);
      if (direct) {
        T* const to = result.place(block.images.begin + line.image, filters.begin, block.rows.begin + line.row);
        kernel(plan_.depth(), a, from + at, offsets_, to + begin, result.filter_stride(), last);
        continue;
      }
      const i64 pitch = n * V::lanes;
      kernel(plan_.depth(), a, from + at, offsets_, values_, pitch, last);
      each_line(block, columns_, plan_.pitch(), held, at, at + end - begin,
                [&](i64 image, i64 row, i64 column, i64 value, i64 length) {
                  for (i64 i = 0; i < rows; ++i)
                    result.put(values_ + i * pitch + value, image, filters.begin + i, row, column, length);
                });
    }
  }

  const PlanesPlan<T>& plan_;
  i64 columns_, filters_;
  const i64* offsets_;
  T *copy_, *values_;
};

/// Blocks and threads: how many blocks each of so many groups should have at least.
inline i64 blocks_wanted(const ExecutorRef& executor, i64 groups) {
  const i64 threads = executor.threads();
  return threads == 1 ? 1 : ceil_div(4 * threads, groups);
}

}  // namespace detail

/// What is no more than stored.
struct Unchanged {
  template <class V>
  V operator()(V v, i64, i64, i64, i64, int) const {
    return v;
  }
};

/// Outputs (n, ho, wo, k) of any strides, of finish(values, image, filter, row, column, count).
template <class T, class Finish>
class PlanesResult {
  using V = NativeVec<T>;

 public:
  PlanesResult(const StridedView<T, 4>& y, const Finish& finish) : y_(y), finish_(finish) {}

  /// Whether kernels may store rows themselves.
  bool direct() const { return is_same_v<Finish, Unchanged> && y_.stride(2) == 1; }
  T* place(i64 image, i64 filter, i64 row) const {
    return y_.data + image * y_.stride(0) + row * y_.stride(1) + filter * y_.stride(3);
  }
  i64 filter_stride() const { return y_.stride(3); }
  i64 row_stride() const { return y_.stride(1); }

  void put(const T* from, i64 image, i64 filter, i64 row, i64 column, i64 count) const {
    const i64 step = y_.stride(2);
    T* const to = place(image, filter, row) + column * step;
    for (i64 j = 0; j < count; j += V::lanes) {
      const int n = static_cast<int>(min<i64>(V::lanes, count - j));
      const V v = finish_(load<V>(from + j), image, filter, row, column + j, n);
      if (step == 1 && n == V::lanes) {
        store(to + j, v);
      } else if (step == 1) {
        cpu::store_part(to + j, v, n);
      } else {
        T lanes[V::lanes];
        store(lanes, v);
        for (int i = 0; i < n; ++i) to[(j + i) * step] = lanes[i];
      }
    }
  }

 private:
  StridedView<T, 4> y_;
  Finish finish_;
};

/// Filters (k, r, s, c) as the kernels read them: a few of them by steps of channels and taps, then the next few.
template <class T>
void pack_planes_filters(const StridedView<const T, 4>& w, T* to) {
  const i64 panels = ceil_div(w.length(0), i64{cpu::places_rows});
  for (i64 p = 0; p < panels; ++p) {
    const cpu::Span filters = cpu::part(w.length(0), panels, p);
    for (i64 c = 0; c < w.length(3); ++c) {
      for (i64 r = 0; r < w.length(1); ++r) {
        for (i64 s = 0; s < w.length(2); ++s) {
          const T* const from = w.data + r * w.stride(1) + s * w.stride(2) + c * w.stride(3);
          for (i64 k = filters.begin; k < filters.end; ++k) *to++ = from[k * w.stride(0)];
        }
      }
    }
  }
}

/// The convolution of images (n, h, w, c) of any strides in groups, by filters that pack_planes_filters packed for one
/// group after the other; result(group) is where its outputs go.
template <class T, class MakeResult>
void conv2d_planes(const ExecutorRef& executor, i64 groups, const StridedView<const T, 4>& x, const Sweep& h,
                   const Sweep& w, i64 filters, const T* packed, const MakeResult& result) {
  using Result = remove_cvref_t<decltype(result(i64{0}))>;
  using Task = detail::PlanesTask<T, Result>;
  using Memory = cpu::Workspace<T>;
  if (groups * x.length(0) * h.outputs * w.outputs * filters == 0) return;
  const i64 channels = x.length(3) / groups;
  const auto part = [&](i64 group) {
    return strided(x.data + group * channels * x.stride(3), {x.length(0), x.length(1), x.length(2), channels},
                   {x.stride(0), x.stride(1), x.stride(2), x.stride(3)});
  };
  const detail::PlanesPlan<T> plan(part(0), h, w, detail::blocks_wanted(executor, groups), filters == 1);
  const i64 tasks = plan.blocks() * groups, parts = min(tasks, 8 * i64{executor.threads()});
  const i64 offsets_size = plan.depth() * static_cast<i64>(sizeof(i64) / sizeof(T));
  executor.parallel(parts, [&](i64 index, int thread) {
    Memory memory(executor.scratch(
        thread, Memory::bytes(offsets_size) + Memory::bytes(plan.copied_size()) + Memory::bytes(Task::values_size())));
    i64* const offsets = reinterpret_cast<i64*>(memory.take(offsets_size));
    T* const copy = memory.take(plan.copied_size());
    const Task task(plan, w.outputs, filters, offsets, copy, memory.take(Task::values_size()));
    plan.find_offsets(part(0), offsets);
    const cpu::Span mine = cpu::part(tasks, parts, index);
    for (i64 i = mine.begin; i < mine.end; ++i) {  // groups of a block one after the other: they may share lines
      const i64 group = i % groups;
      task.run(part(group), plan.block(i / groups), packed + group * filters * plan.depth(), result(group));
    }
  });
}

TESSERA_TILE_END
