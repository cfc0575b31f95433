// Depthwise convolutions of fewer channels than a vector has lanes: vectors run along whole rows, over pixels and their
// channels, as filters repeat after as many vectors as have a whole number of pixels. Results of several rows share
// what is loaded of them. Of rows whose windows reach into padding the ends are copied, with it; whole rows where they
// are not dense, and apart by the residues of a stride.
#pragma once

#include "conv_depthwise.h"
#include "conv_planes.h"

TESSERA_TILE_BEGIN
namespace detail {

/// Pixels of few channels, one after the other: a vector is written of each, over which the next one writes.
template <class T>
void copy_pixels(const T* from, i64 step, i64 count, i64 channels, T* to) {
  using V = NativeVec<T>;
  const int some = static_cast<int>(channels);
  for (i64 j = 0; j < count; ++j, from += step, to += channels) store(to, load<V>(from, some));
}

/// Where vectors of results of some rows see what they do: how far apart rows lie, and where each step's taps.
template <class T>
struct NarrowSource {
  const T* from;
  i64 row_step;
  const i64* offsets;
};

/// Rows of images as vectors run along them.
template <class T>
class NarrowRows {
 public:
  NarrowRows(const StridedView<const T, 4>& x, const Sweep& h, const Sweep& w) : x_(x), h_(h), w_(w) {
    constexpr i64 lanes = NativeVec<T>::lanes;
    const i64 row = w.outputs * channels();
    phase_ = w_.extent(w.outputs) * channels();
    pitch_ = max<i64>(0, w_.count) * phase_;
    if (x.stride(2) == channels() && w.stride == 1 && w.taps > 0) {
      const i64 begin = max<i64>(0, ceil_div(w.before * channels(), lanes) * lanes);
      const i64 end =
          (w.length + w.before - (w.taps - 1) * w.dilation) * channels();  // of results that see what exists
      in_place_ = {begin, end >= row ? row : max(begin, end / lanes * lanes)};
      if (2 * in_place_.size() < row) in_place_ = {0, 0};
    }
    copies_ = in_place_.size() < row || w.taps == 0;
    constexpr i64 few = 128 * 1024 / static_cast<i64>(sizeof(T));  // elements of a block, for the second-level cache
    block_rows_ = min(max<i64>(1, h.outputs), max(max<i64>(4, h.taps), few / max<i64>(1, pitch_ * h.stride)));
  }

  i64 channels() const { return x_.length(3); }
  i64 steps() const { return h_.taps * w_.sweep.taps; }
  i64 block_rows() const { return block_rows_; }
  /// Elements of a row of outputs, whole vectors, whose taps lie in the image; those of the others are copied.
  const cpu::Span& in_place() const { return in_place_; }
  i64 offsets_size() const { return 2 * steps(); }
  i64 copied_size() const { return copies_ ? h_.extent(block_rows_) * pitch_ + NativeVec<T>::lanes : 0; }

  /// How far from a place each step's lies: in copies, and in images.
  void find_offsets(i64* to) const {
    for (i64 i = 0; i < steps(); ++i) {
      const i64 r = i / w_.sweep.taps, s = i % w_.sweep.taps;
      to[i] = r * h_.dilation * pitch_ + s % w_.count * phase_ + w_.place(s) * channels();
      to[steps() + i] = r * h_.dilation * x_.stride(1) + s * w_.sweep.dilation * channels();
    }
  }
  /// Copies what some rows of outputs see that is not read in place, to memory of copied_size elements.
  void copy(i64 image, const cpu::Span& outputs, T* to) const {
    if (!copies_) return;
    const T* const from = x_.data + image * x_.stride(0);
    const cpu::Span seen = inputs(outputs);
    const i64 pixels = w_.extent(w_.sweep.outputs), more = w_.extent(1) - 1;  // beyond a result's own
    for (i64 i = seen.begin; i < seen.end; ++i, to += pitch_) {
      const T* const row = from + i * x_.stride(1);
      if (in_place_.size() == 0) {
        for (i64 s = 0; s < w_.count; ++s) copy_row(row, s, {0, pixels}, to + s * phase_);
        continue;
      }
      const i64 left = ceil_div(in_place_.begin, channels());
      if (left > 0) copy_row(row, 0, {0, min(pixels, left + more)}, to);
      if (in_place_.end < w_.sweep.outputs * channels()) copy_row(row, 0, {in_place_.end / channels(), pixels}, to);
    }
  }
  /// The row of a tap that an output sees, among the inputs of outputs that were copied.
  NarrowSource<T> copied(const T* copy, const i64* offsets, const cpu::Span& outputs, i64 output, i64 tap) const {
    const i64 row = h_.first_input(output) + tap * h_.dilation - inputs(outputs).begin;
    return {copy + row * pitch_, h_.stride * pitch_, offsets};
  }
  /// The same in an image.
  NarrowSource<T> placed(i64 image, const i64* offsets, i64 output, i64 tap) const {
    const i64 row = h_.first_input(output) + tap * h_.dilation;
    return {x_.data + image * x_.stride(0) + row * x_.stride(1) - w_.sweep.before * channels(),
            h_.stride * x_.stride(1), offsets + steps()};
  }

 private:
  cpu::Span inputs(const cpu::Span& outputs) const {
    const i64 first = h_.first_input(outputs.begin), begin = max<i64>(0, first);
    return {begin, max(begin, min(h_.length, first + h_.extent(outputs.size())))};
  }
  /// Some pixels of a phase of a row.
  void copy_row(const T* from, i64 phase, const cpu::Span& pixels, T* to) const {
    const i64 step = w_.sweep.stride, first = w_.first(phase, 0), last = w_.sweep.length - first;
    const auto among = [&](i64 pixel) { return min(pixels.end, max(pixels.begin, pixel)); };
    const i64 begin = among(first < 0 ? ceil_div(-first, step) : 0);
    const i64 end = max(begin, among(last > 0 ? ceil_div(last, step) : 0));
    const i64 c = channels();
    const auto zero = [&](i64 from, i64 to_end) { zero_run(to + from * c, (to_end - from) * c); };
    zero(pixels.begin, begin);
    from += (first + begin * step) * x_.stride(2);
    if (step == 1 && x_.stride(2) == c) {
      copy_run(from, (end - begin) * c, to + begin * c);
    } else {
      copy_pixels(from, step * x_.stride(2), end - begin, c, to + begin * c);
    }
    zero(end, pixels.end);
  }

  StridedView<const T, 4> x_;
  Sweep h_;
  Phases w_;
  cpu::Span in_place_{0, 0};
  bool copies_;
  i64 phase_, pitch_, block_rows_;
};

/// fn(block, at, lanes) for the vectors of a row of so many elements.
template <class T, class Fn>
void each_vector(i64 elements, const LaneBlocks<T>& blocks, const Fn& fn) {
  const i64 count = blocks.count();
  i64 block = 0;
  for (i64 at = 0; at < elements; at += blocks.lanes) {
    fn(block, at, static_cast<int>(min(blocks.lanes, elements - at)));
    if (++block == count) block = 0;
  }
}
/// fn(rows, taps) for rows of outputs that see the same taps, among some.
template <class Fn>
void each_alike(const Sweep& h, const cpu::Span& rows, const Fn& fn) {
  for (i64 i = rows.begin; i < rows.end;) {
    const cpu::Span taps = h.inside(i);
    i64 end = i + 1;
    for (; end < rows.end; ++end) {
      const cpu::Span next = h.inside(end);
      if (next.begin != taps.begin || next.end != taps.end) break;
    }
    fn(cpu::Span{i, end}, taps);
    i = end;
  }
}

/// What a thread works with: offsets, copies, rows of outputs that are not dense.
template <class T>
struct NarrowMemory {
  using Memory = cpu::Workspace<T>;
  i64* offsets;
  T *copy, *outputs;

  NarrowMemory(const ExecutorRef& executor, int thread, const NarrowRows<T>& rows, i64 row_size) {
    const i64 offsets_size = rows.offsets_size() * static_cast<i64>(sizeof(i64) / sizeof(T));
    const i64 outputs_size = rows.block_rows() * row_size + NativeVec<T>::lanes;
    Memory memory(executor.scratch(
        thread, Memory::bytes(offsets_size) + Memory::bytes(rows.copied_size()) + Memory::bytes(outputs_size)));
    offsets = reinterpret_cast<i64*>(memory.take(offsets_size));
    copy = memory.take(rows.copied_size());
    outputs = memory.take(outputs_size);
    rows.find_offsets(offsets);
  }
};

/// fn(image, outputs) for blocks of at most so many rows, of images with `outputs` rows each, among rows of all images.
template <class Fn>
void each_row_block(const cpu::Span& rows, i64 outputs, i64 most, const Fn& fn) {
  for (i64 row = rows.begin; row < rows.end;) {
    const i64 first = row % outputs, count = min(min(most, outputs - first), rows.end - row);
    fn(row / outputs, cpu::Span{first, first + count});
    row += count;
  }
}

}  // namespace detail

/// conv2d_depthwise of fewer channels.
template <class T, class Finish>
void conv2d_depthwise_narrow(const ExecutorRef& executor, const StridedView<const T, 4>& x, const Sweep& h,
                             const Sweep& w, const T* filters, const StridedView<T, 4>& y, const Finish& finish) {
  using V = NativeVec<T>;
  constexpr i64 most = cpu::lane_results;
  const detail::NarrowRows<T> plan(x, h, w);
  const LaneBlocks<T> blocks{x.length(3)};
  const i64 rows = x.length(0) * h.outputs,
            parts = min(rows, executor.threads() == 1 ? 1 : 8 * i64{executor.threads()});
  const i64 row_size = w.outputs * blocks.channels;
  const bool dense = y.stride(2) == blocks.channels;
  executor.parallel(parts, [&](i64 index, int thread) {
    const detail::NarrowMemory<T> memory(executor, thread, plan, dense ? 0 : row_size);
    const auto each = [&](i64 image, const cpu::Span& outputs) {
      plan.copy(image, outputs, memory.copy);
      const auto place = [&](i64 i) { return y.data + image * y.stride(0) + i * y.stride(1); };
      const i64 to_step = dense ? y.stride(1) : row_size;
      detail::each_alike(h, outputs, [&](const cpu::Span& alike, const cpu::Span& taps) {
        const auto placed = plan.placed(image, memory.offsets, alike.begin, taps.begin);
        const auto copied = plan.copied(memory.copy, memory.offsets, outputs, alike.begin, taps.begin);
        const i64 steps = taps.size() * w.taps, first_step = taps.begin * w.taps;
        T* const to = dense ? place(alike.begin) : memory.outputs + (alike.begin - outputs.begin) * row_size;
        detail::each_vector(row_size, blocks, [&](i64 lanes, i64 at, int count) {
          const T* const f = filters + (lanes * plan.steps() + first_step) * V::lanes;
          const detail::NarrowSource<T>& x = plan.in_place().contains(at) ? placed : copied;
          for (i64 i = 0; i < alike.size(); i += most) {
            const auto kernel = cpu::pick_lanes<V>(static_cast<int>(min(most, alike.size() - i)));
            kernel(steps, x.from + i * x.row_step + at, x.row_step, x.offsets, f, to + i * to_step + at, to_step,
                   count);
          }
        });
      });
      for (i64 i = outputs.begin; i < outputs.end; ++i) {
        const T* row = memory.outputs + (i - outputs.begin) * row_size;
        for (i64 j = 0; j < w.outputs && !dense; ++j, row += blocks.channels)
          detail::copy_run(row, blocks.channels, place(i) + j * y.stride(2));
        finish(image, i, i64{0}, blocks.channels);
      }
    };
    detail::each_row_block(cpu::part(rows, parts, index), h.outputs, plan.block_rows(), each);
  });
}

/// depthwise_filters of fewer channels.
template <class T>
void depthwise_filters_narrow(const ExecutorRef& executor, const StridedView<const T, 4>& x, const Sweep& h,
                              const Sweep& w, const StridedView<const T, 4>& dy, const StridedView<T, 3>& gw,
                              T* memory) {
  using V = NativeVec<T>;
  constexpr i64 most = cpu::sums_steps(1);
  const detail::NarrowRows<T> plan(x, h, w);
  const LaneBlocks<T> blocks{x.length(3)};
  const i64 row_size = w.outputs * blocks.channels, size = blocks.size(plan.steps()), rows = x.length(0) * h.outputs;
  const i64 parts = depthwise_parts(x.length(0), h, executor.threads());
  const bool dense = dy.stride(2) == blocks.channels;
  executor.parallel(parts, [&](i64 index, int thread) {
    T* const sums = memory + index * size;
    for (i64 i = 0; i < size; ++i) sums[i] = T(0);
    const detail::NarrowMemory<T> own(executor, thread, plan, dense ? 0 : row_size);
    const auto each = [&](i64 image, const cpu::Span& outputs) {
      plan.copy(image, outputs, own.copy);
      const T* const of_image = dy.data + image * dy.stride(0);
      for (i64 i = outputs.begin; i < outputs.end && !dense; ++i) {
        detail::copy_pixels(of_image + i * dy.stride(1), dy.stride(2), w.outputs, blocks.channels,
                            own.outputs + (i - outputs.begin) * row_size);
      }
      detail::each_alike(h, outputs, [&](const cpu::Span& alike, const cpu::Span& taps) {
        const auto placed = plan.placed(image, own.offsets, alike.begin, taps.begin);
        const auto copied = plan.copied(own.copy, own.offsets, outputs, alike.begin, taps.begin);
        const T* const of_dy =
            dense ? of_image + alike.begin * dy.stride(1) : own.outputs + (alike.begin - outputs.begin) * row_size;
        const i64 steps = taps.size() * w.taps, first_step = taps.begin * w.taps;
        detail::each_vector(row_size, blocks, [&](i64 lanes, i64 at, int count) {
          const detail::NarrowSource<T>& x = plan.in_place().contains(at) ? placed : copied;
          T* const to = sums + (lanes * plan.steps() + first_step) * V::lanes;
          for (i64 k = 0; k < steps; k += most) {
            const auto kernel =
                cpu::detail::sums_of<V, 1>(static_cast<int>(min(most, steps - k)), make_seq<static_cast<int>(most)>{});
            kernel({alike.size(), count, dense ? dy.stride(1) : row_size, x.row_step}, of_dy + at, 0, x.from + at,
                   x.offsets + k, to + k * V::lanes, 0);
          }
        });
      });
    };
    detail::each_row_block(cpu::part(rows, parts, index), h.outputs, plan.block_rows(), each);
  });
  add_lanes(static_cast<const T*>(memory), parts, gw);
}

TESSERA_TILE_END
