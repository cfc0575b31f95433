// Convolutions with filters of 3x3 by Winograd's algorithm F(2x2, 3x3), after Lavin and Gray, "Fast algorithms for
// convolutional neural networks" (2015). A tile of 2x2 outputs sees 4x4 inputs; tile and filter are transformed to 16
// points each, multiplied point by point, which is a product of matrices [filters, channels] x [channels, tiles] for
// each point, and transformed back: 4 multiplications an output instead of 9. The transforms are sums and halves.
// A thread takes a strip of tiles at a time, and all that it makes of them stays in the second-level cache.
#pragma once

#include "../arch/cpu/pipeline.h"
#include "conv.h"

TESSERA_TILE_BEGIN

namespace winograd {

inline constexpr int points = 16;

/// One dimension of the transforms.
template <class V>
TESSERA_HD Array<V, 4> of_inputs(V a, V b, V c, V d) {
  return {a - c, b + c, c - b, b - d};
}
template <class V>
TESSERA_HD Array<V, 4> of_filter(V a, V b, V c) {
  const V half(0.5f), outer = (a + c) * half, inner = b * half;
  return {a, outer + inner, outer - inner, c};
}
template <class V>
TESSERA_HD Array<V, 2> to_outputs(V a, V b, V c, V d) {
  return {a + b + c, b - c - d};
}

/// Tiles next to each other in an image.
struct Run {
  i64 image, row, column, count;
};

/// How a convolution is cut into tiles, and how the memory of a strip of them is laid out.
template <class T>
class Plan {
 public:
  using V = NativeVec<T>;
  static constexpr i64 panel = cpu::block_columns<T>;
  /// Elements of transformed inputs and products that stay in the second-level cache beside the filters.
  static constexpr i64 strip_elements = 512 * 1024 / static_cast<i64>(sizeof(T));

  Plan(const ConvShape& shape, i64 threads)
      : shape_(shape), rows_(ceil_div(shape.h.output(), i64{2})), columns_(ceil_div(shape.w.output(), i64{2})) {
    const i64 most = strip_elements / (points * (shape.channels + shape.filters) * panel) * panel;
    strip_ = min(max(most, 2 * panel), round_up(ceil_div(tiles(), 2 * threads), panel));
    pitch_ = apart(strip_ + V::lanes);
    line_ = round_up(columns_ + 1, i64{V::lanes}) + V::lanes;
  }

  const ConvShape& shape() const { return shape_; }
  i64 tiles() const { return shape_.images * rows_ * columns_; }
  i64 strips() const { return ceil_div(tiles(), strip_); }
  cpu::Span strip(i64 index) const { return {index * strip_, min(tiles(), (index + 1) * strip_)}; }
  /// Distance of the rows, one for each channel or filter, of a transformed strip.
  i64 pitch() const { return pitch_; }
  /// Distance of the points of a transformed strip.
  i64 inputs_distance() const { return apart(shape_.channels * pitch_); }
  i64 products_distance() const { return apart(shape_.filters * pitch_); }
  /// Elements of one phase of one row of an image.
  i64 line() const { return line_; }

  i64 filters_size() const { return points * shape_.filters * shape_.channels; }
  i64 inputs_size() const { return points * inputs_distance(); }
  i64 products_size() const { return points * products_distance(); }
  i64 lines_size() const { return 4 * 2 * line_; }
  i64 scratch_bytes() const {
    using W = cpu::Workspace<T>;
    return W::bytes(inputs_size()) + W::bytes(products_size()) + W::bytes(lines_size());
  }

  /// fn(run, place of its first tile in the strip) for the runs of a strip.
  template <class Fn>
  void each_run(const cpu::Span& tiles, const Fn& fn) const {
    for (i64 t = tiles.begin; t < tiles.end;) {
      const i64 row = t / columns_, column = t % columns_;
      const i64 count = min(columns_ - column, tiles.end - t);
      fn(Run{row / rows_, row % rows_, column, count}, t - tiles.begin);
      t += count;
    }
  }

  /// Filters in panels of nearly equal height, as the micro-kernels take them.
  i64 panels() const { return ceil_div(shape_.filters, i64{cpu::block_rows}); }
  cpu::Span filters(i64 index) const { return cpu::part(shape_.filters, panels(), index); }
  /// Where a panel of transformed filters lies: the filters of one channel, then the next channel.
  i64 place(i64 point, const cpu::Span& filters) const {
    return (point * shape_.filters + filters.begin) * shape_.channels;
  }

 private:
  /// At least so many elements, and an odd number of lines: what lies so far apart meets in no set of a cache.
  static i64 apart(i64 elements) {
    constexpr i64 line = 64 / static_cast<i64>(sizeof(T));
    return (ceil_div(elements, line) | 1) * line;
  }

  ConvShape shape_;
  i64 rows_, columns_;  // of tiles
  i64 strip_, pitch_, line_;
};

/// Transforms a panel of the filters (k, r, s, c).
template <class T>
void transform_filters(const Plan<T>& plan, const cpu::Span& span, const StridedView<const T, 4>& filters, T* to) {
  for (i64 c = 0; c < plan.shape().channels; ++c) {
    for (i64 k = span.begin; k < span.end; ++k) {
      const T* from = filters.data + k * filters.stride(0) + c * filters.stride(3);
      Array<T, 4> column[3];
      for (int s = 0; s < 3; ++s, from += filters.stride(2)) {
        column[s] = of_filter(from[0], from[filters.stride(1)], from[2 * filters.stride(1)]);
      }
      const i64 at = c * span.size() + k - span.begin;
      for (int i = 0; i < 4; ++i) {
        const auto row = of_filter(column[0][i], column[1][i], column[2][i]);
        for (int j = 0; j < 4; ++j) to[plan.place(4 * i + j, span) + at] = row[j];
      }
    }
  }
}

/// A strip of tiles in the hands of one thread.
template <class T>
class Strip {
  using V = NativeVec<T>;
  static constexpr i64 lanes = V::lanes;
  /// Most channels summed at a time: sums of sums are more exact, and a panel of inputs fits the first-level cache.
  static constexpr i64 depth = 768 / static_cast<i64>(sizeof(T));

 public:
  Strip(const Plan<T>& plan, const cpu::Span& tiles, void* scratch) : plan_(plan), tiles_(tiles) {
    cpu::Workspace<T> memory(scratch);
    inputs_ = memory.take(plan.inputs_size());
    products_ = memory.take(plan.products_size());
    lines_ = memory.take(plan.lines_size());
  }

  /// From images (n, h, w, c).
  void transform_inputs(const StridedView<const T, 4>& x) const {
    for (i64 c = 0; c < plan_.shape().channels; ++c) {
      plan_.each_run(tiles_, [&](const Run& run, i64 at) {
        // A run below another one shares two rows with it.
        for (i64 r = at > 0 && run.row > 0 ? 2 : 0; r < 4; ++r) split_row(x, run.image, 2 * run.row + r, c);
        for (i64 i = 0; i < run.count; i += lanes) {
          transform_tiles(run.row, run.column + i, inputs_ + c * plan_.pitch() + at + i);
        }
      });
    }
  }

  /// The product of each point with the transformed filters.
  void multiply(const T* filters) const {
    const i64 channels = plan_.shape().channels, pitch = plan_.pitch();
    const i64 parts = ceil_div(channels, depth);
    for (i64 point = 0; point < points; ++point) {
      const T* const inputs = inputs_ + point * plan_.inputs_distance();
      T* const products = products_ + point * plan_.products_distance();
      for (i64 i = 0; i < parts; ++i) {
        const cpu::Span c = cpu::part(channels, parts, i);
        for (i64 j = 0; j < tiles_.size(); j += plan_.panel) {
          for (i64 p = 0; p < plan_.panels(); ++p) {
            const cpu::Span k = plan_.filters(p);
            const T* const left = filters + plan_.place(point, k) + c.begin * k.size();
            const auto kernel = cpu::pick_outer<V, cpu::block_vectors>(static_cast<int>(k.size()));
            kernel(c.size(), left, inputs + c.begin * pitch + j, pitch, products + k.begin * pitch + j, pitch, lanes,
                   i > 0, {});
          }
        }
      }
    }
  }

  /// The outputs to their epilogue: sink(image) is one over [filters, output positions].
  template <class MakeSink>
  void transform_outputs(const MakeSink& sink) const {
    plan_.each_run(tiles_, [&](const Run& run, i64 at) {
      const auto epilogue = sink(run.image);
      bool unit = true;
      epilogue.views([&](const auto& view) { unit = unit && tile::detail::has_unit_columns(view); });
      unit ? finish<true>(epilogue, run, at) : finish<false>(epilogue, run, at);
    });
  }

 private:
  T* line(i64 row) const { return lines_ + row % 4 * 2 * plan_.line(); }

  /// Copies a row of the padded image, elements with even places apart from those with odd ones.
  void split_row(const StridedView<const T, 4>& x, i64 image, i64 row, i64 channel) const {
    const Window &h = plan_.shape().h, &w = plan_.shape().w;
    T *const even = line(row), *const odd = even + plan_.line();
    const i64 length = plan_.line() - lanes, y = row - h.pad_low;
    const i64 padding = y < 0 || y >= h.length ? length : min(length, (w.pad_low + 1) / 2);
    for (i64 i = 0; i < padding; ++i) even[i] = odd[i] = T(0);
    if (padding == length) return;
    const i64 stride = x.stride(2);
    const T* from = x.data + image * x.stride(0) + y * x.stride(1) + channel * x.stride(3);
    if (w.pad_low % 2 == 1) odd[padding - 1] = *from;
    i64 at = 2 * padding - w.pad_low;
    const auto load_from = [&](i64 i) __attribute__((always_inline)) {
      const int left = static_cast<int>(min(max(w.length - i, i64{0}), lanes));
      if (stride != 1) return load_strided<V>(from + i * stride, stride, left);
      return left == lanes ? load<V>(from + i) : load<V>(from + i, left);
    };
    for (i64 i = padding; i < length; i += lanes, at += 2 * lanes) {
      const auto [low, high] = unzip(load_from(at), load_from(at + lanes));
      store(even + i, low);
      store(odd + i, high);
    }
  }

  /// As many tiles as a vector has lanes.
  void transform_tiles(i64 row, i64 column, T* to) const {
    Array<V, 4> d[4];
    unroll<4>([&](auto r) __attribute__((always_inline)) {
      const T *const even = line(2 * row + r) + column, *const odd = even + plan_.line();
      d[r] = of_inputs(load<V>(even), load<V>(odd), load<V>(even + 1), load<V>(odd + 1));
    });
    const i64 distance = plan_.inputs_distance();
    unroll<4>([&](auto j) __attribute__((always_inline)) {
      const auto v = of_inputs(d[0][j], d[1][j], d[2][j], d[3][j]);
      unroll<4>([&](auto i) __attribute__((always_inline)) { store(to + (4 * i + j) * distance, v[i]); });
    });
  }

  /// The two rows of outputs of a run, of every filter.
  template <bool Unit, class Sink>
  void finish(const Sink& sink, const Run& run, i64 at) const {
    const i64 width = plan_.shape().w.output(), rows = min(plan_.shape().h.output() - 2 * run.row, i64{2});
    const i64 distance = plan_.products_distance();
    for (i64 k = 0; k < plan_.shape().filters; ++k) {
      const auto to = sink.template row<Unit>(k);
      const T* from = products_ + k * plan_.pitch() + at;
      for (i64 i = 0; i < run.count; i += lanes, from += lanes) {
        Array<V, 2> m[4];
        unroll<4>([&](auto j) __attribute__((always_inline)) {
          const auto point = [&](int r) __attribute__((always_inline)) {
            return load<V>(from + (4 * r + j) * distance);
          };
          m[j] = to_outputs(point(0), point(1), point(2), point(3));
        });
        const i64 column = 2 * (run.column + i);
        const i64 count = min(2 * (run.count - i), width - column);
        unroll<2>([&](auto r) __attribute__((always_inline)) {
          if (r >= rows) return;
          const auto y = to_outputs(m[0][r], m[1][r], m[2][r], m[3][r]);
          const auto [low, high] = zip(y[0], y[1]);
          const i64 n = (2 * run.row + r) * width + column;
          if (count >= 2 * lanes) {
            to(low, n, AllLanes{});
            to(high, n + lanes, AllLanes{});
          } else {
            to(low, n, static_cast<int>(min(count, lanes)));
            if (count > lanes) to(high, n + lanes, static_cast<int>(count - lanes));
          }
        });
      }
    }
  }

  const Plan<T>& plan_;
  cpu::Span tiles_;
  T *inputs_, *products_, *lines_;
};

}  // namespace winograd

/// Elements of memory that conv2d_winograd needs.
template <class T>
i64 winograd_size(const ConvShape& shape) {
  return winograd::Plan<T>(shape, 1).filters_size();
}

/// y = convolution of x (n, h, w, c) with filters (k, 3, 3, c) in one group, stride and dilation 1; `memory` holds
/// winograd_size elements. sink(image) is the epilogue over [filters, output positions]. Where an output sees an
/// infinite element it may become a NaN.
template <class T, class MakeSink>
void conv2d_winograd(const ExecutorRef& executor, const ConvShape& shape, const StridedView<const T, 4>& x,
                     const StridedView<const T, 4>& filters, T* memory, const MakeSink& sink) {
  const winograd::Plan<T> plan(shape, executor.threads());
  executor.parallel(plan.panels(),
                    [&](i64 index, int) { winograd::transform_filters(plan, plan.filters(index), filters, memory); });
  executor.parallel(plan.strips(), [&](i64 index, int thread) {
    const winograd::Strip<T> strip(plan, plan.strip(index), executor.scratch(thread, plan.scratch_bytes()));
    strip.transform_inputs(x);
    strip.multiply(memory);
    strip.transform_outputs(sink);
  });
}

TESSERA_TILE_END
