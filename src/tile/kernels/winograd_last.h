// Winograd's F(2x2, 3x3) (winograd.h) over images whose channels are contiguous: vectors run along channels in all
// transforms. A strip of tiles is transformed once; then, a panel of filters after the other, it is multiplied at all
// points and transformed back, so that products stay in the first-level caches.
#pragma once

#include "conv_direct.h"
#include "winograd.h"

TESSERA_TILE_BEGIN

namespace winograd {

/// How a convolution is cut into strips of tiles.
template <class T>
class LastPlan {
 public:
  using V = NativeVec<T>;
  static constexpr i64 nr = cpu::block_columns<T>;
  /// Elements of transformed inputs of a strip, which stay in the second-level cache.
  static constexpr i64 strip_elements = 512 * 1024 / static_cast<i64>(sizeof(T));

  LastPlan(const ConvShape& shape, i64 threads)
      : shape_(shape), rows_(ceil_div(shape.h.output(), i64{2})), columns_(ceil_div(shape.w.output(), i64{2})) {
    constexpr i64 set = 2048 / static_cast<i64>(sizeof(T));  // rows so far apart meet in two sets of the first level
    pitch_ = round_up(shape.channels, i64{V::lanes});
    if (pitch_ % set == 0) pitch_ += V::lanes;
    const i64 height = cpu::block_rows, most = clamp(strip_elements / (points * pitch_ * height), 1, 64 / height);
    strips_ = min(tiles(), round_up(ceil_div(tiles(), most * height), threads));
  }

  const ConvShape& shape() const { return shape_; }
  i64 rows() const { return rows_; }
  i64 columns() const { return columns_; }
  i64 tiles() const { return shape_.images * rows_ * columns_; }
  i64 strips() const { return strips_; }
  cpu::Span strip(i64 index) const { return cpu::part(tiles(), strips_, index); }
  i64 pitch() const { return pitch_; }
  i64 panels() const { return ceil_div(shape_.filters, nr); }
  /// Elements of packed filters before their transform, and of a panel of them after it.
  i64 packed_size() const { return packed_filters_size<T>(shape_.filters, 9 * shape_.channels); }
  i64 panel_size() const { return points * shape_.channels * nr; }

 private:
  static i64 clamp(i64 v, i64 low, i64 high) { return max(low, min(v, high)); }

  ConvShape shape_;
  i64 rows_, columns_;  // of tiles
  i64 pitch_, strips_;
};

/// A panel of packed filters at all points: of each the filters of one channel, then the next channel.
template <class T>
void transform_panel(const LastPlan<T>& plan, i64 panel, const T* packed, T* to) {
  using V = NativeVec<T>;
  const i64 channels = plan.shape().channels, first = panel * plan.nr;
  const i64 width = cpu::panel_width<T>(plan.shape().filters, first), distance = channels * width;
  const T* from = packed + cpu::panel_offset(9 * channels, first);
  for (i64 i = 0; i < distance; i += V::lanes) {
    Array<V, 4> column[3];
    unroll<3>([&](auto s) {
      const auto tap = [&](int r) { return load<V>(from + (3 * r + s) * distance + i); };
      column[s] = of_filter(tap(0), tap(1), tap(2));
    });
    unroll<4>([&](auto r) {
      const auto row = of_filter(column[0][r], column[1][r], column[2][r]);
      unroll<4>([&](auto s) { store(to + (4 * r + s) * distance + i, row[s]); });
    });
  }
}

/// A strip of tiles in the hands of one thread.
template <class T>
class LastStrip {
  using V = NativeVec<T>;
  static constexpr i64 nr = cpu::block_columns<T>;

 public:
  LastStrip(const LastPlan<T>& plan, i64 index) : plan_(plan), tiles_(plan.strip(index)) {}

  i64 scratch_bytes() const {
    using W = cpu::Workspace<T>;
    return W::bytes(inputs_size()) + W::bytes(products_size()) + W::bytes(plan_.pitch()) + W::bytes(4 * nr);
  }

  template <class MakeSink>
  void run(const StridedView<const T, 4>& x, const T* filters, void* scratch, const MakeSink& sink) {
    cpu::Workspace<T> memory(scratch);
    inputs_ = memory.take(inputs_size());
    products_ = memory.take(products_size());
    zeros_ = memory.take(plan_.pitch());
    block_ = memory.take(4 * nr);
    for (i64 c = 0; c < plan_.pitch(); ++c) zeros_[c] = T(0);
    for (i64 t = 0; t < tiles_.size(); ++t) transform_input(x, t);
    for (i64 p = 0; p < plan_.panels(); ++p) {
      multiply(p, filters);
      for (i64 t = 0; t < tiles_.size(); ++t) transform_output(t, p * nr, sink);
    }
  }

 private:
  struct Place {
    i64 image, row, column;  // of a tile
  };
  Place place(i64 tile) const {
    const i64 t = tiles_.begin + tile, each = plan_.rows() * plan_.columns();
    return {t / each, t % each / plan_.columns(), t % plan_.columns()};
  }
  i64 inputs_distance() const { return tiles_.size() * plan_.pitch(); }
  i64 products_distance() const { return tiles_.size() * nr; }
  i64 inputs_size() const { return points * inputs_distance(); }
  i64 products_size() const { return points * products_distance(); }

  void transform_input(const StridedView<const T, 4>& x, i64 tile) const {
    const Window &h = plan_.shape().h, &w = plan_.shape().w;
    const Place at = place(tile);
    const T* from[4][4];
    for (i64 r = 0; r < 4; ++r) {
      for (i64 s = 0; s < 4; ++s) {
        const i64 i = 2 * at.row + r - h.pad_low, j = 2 * at.column + s - w.pad_low;
        const bool inside = i >= 0 && i < h.length && j >= 0 && j < w.length;
        from[r][s] = inside ? x.data + at.image * x.stride(0) + i * x.stride(1) + j * x.stride(2) : zeros_;
      }
    }
    const i64 channels = plan_.shape().channels, distance = inputs_distance();
    T* const to = inputs_ + tile * plan_.pitch();
    const auto transform = [&](i64 c, auto get) __attribute__((always_inline)) {
      Array<V, 4> d[4];
      unroll<4>([&](auto r) __attribute__((always_inline)) {
        d[r] = of_inputs(get(from[r][0] + c), get(from[r][1] + c), get(from[r][2] + c), get(from[r][3] + c));
      });
      unroll<4>([&](auto s) __attribute__((always_inline)) {
        const auto v = of_inputs(d[0][s], d[1][s], d[2][s], d[3][s]);
        unroll<4>([&](auto r) __attribute__((always_inline)) { store(to + (4 * r + s) * distance + c, v[r]); });
      });
    };
    i64 c = 0;
    for (; c + V::lanes <= channels; c += V::lanes) transform(c, [](const T* p) { return load<V>(p); });
    const int rest = static_cast<int>(channels - c);
    if (rest > 0) transform(c, [=](const T* p) { return load<V>(p, rest); });
  }

  /// The products of a panel of filters with all tiles, at each point.
  void multiply(i64 panel, const T* filters) const {
    const i64 channels = plan_.shape().channels;
    const i64 width = cpu::panel_width<T>(plan_.shape().filters, panel * nr), count = tiles_.size();
    const i64 heights = ceil_div(count, i64{cpu::block_rows}), zero = 0;
    for (i64 point = 0; point < points; ++point) {
      const T* const b = filters + panel * plan_.panel_size() + point * channels * width;
      for (i64 i = 0; i < heights; ++i) {
        const cpu::Span rows = cpu::part(count, heights, i);
        const int height = static_cast<int>(rows.size());
        const auto kernel = width == nr ? cpu::pick_stretch<V, 2>(height) : cpu::pick_stretch<V, 1>(height);
        kernel({1, channels, &zero}, inputs_ + point * inputs_distance() + rows.begin * plan_.pitch(), plan_.pitch(), b,
               products_ + point * products_distance() + rows.begin * nr, nr, V::lanes,
               reinterpret_cast<const char*>(b + channels * width) + i % 4 * channels * 32);
      }
    }
  }

  template <class MakeSink>
  void transform_output(i64 tile, i64 filter, const MakeSink& sink) const {
    const Place at = place(tile);
    const i64 row = 2 * at.row, column = 2 * at.column, filters = min(nr, plan_.shape().filters - filter);
    const i64 rows = min(plan_.shape().h.output() - row, i64{2}),
              columns = min(plan_.shape().w.output() - column, i64{2});
    const T* const from = products_ + tile * nr;
    for (i64 j = 0; j < filters; j += V::lanes) {
      Array<V, 2> m[4];
      unroll<4>([&](auto s) __attribute__((always_inline)) {
        const auto point = [&](int r) __attribute__((always_inline)) {
          return load<V>(from + (4 * r + s) * products_distance() + j);
        };
        m[s] = to_outputs(point(0), point(1), point(2), point(3));
      });
      unroll<2>([&](auto r) __attribute__((always_inline)) {
        const auto y = to_outputs(m[0][r], m[1][r], m[2][r], m[3][r]);
        store(block_ + 2 * r * nr + j, y[0]);
        store(block_ + (2 * r + 1) * nr + j, y[1]);
      });
    }
    for (i64 r = 0; r < rows; ++r) {
      const auto epilogue = sink(at.image, row + r);
      cpu::apply_sink<T, remove_cvref_t<decltype(epilogue)>>(&epilogue, block_ + 2 * r * nr, nr, column, filter,
                                                             columns, filters);
    }
  }

  const LastPlan<T>& plan_;
  cpu::Span tiles_;
  T *inputs_ = nullptr, *products_ = nullptr, *zeros_ = nullptr, *block_ = nullptr;
};

}  // namespace winograd

/// Elements of memory that conv2d_winograd_last needs.
template <class T>
i64 winograd_last_size(const ConvShape& shape) {
  const winograd::LastPlan<T> plan(shape, 1);
  return plan.packed_size() + plan.panels() * plan.panel_size();
}

/// conv2d_winograd over images (n, h, w, c) of contiguous channels; sink(image, row) is the epilogue over [columns of
/// that row of the output, filters].
template <class T, class MakeSink>
void conv2d_winograd_last(const ExecutorRef& executor, const ConvShape& shape, const StridedView<const T, 4>& x,
                          const StridedView<const T, 4>& filters, T* memory, const MakeSink& sink) {
  const winograd::LastPlan<T> plan(shape, executor.threads());
  T* const transformed = memory + plan.packed_size();
  pack_filters(executor, filters, memory, true);
  executor.parallel(plan.panels(), [&](i64 panel, int) {
    winograd::transform_panel(plan, panel, static_cast<const T*>(memory), transformed + panel * plan.panel_size());
  });
  executor.parallel(plan.strips(), [&](i64 index, int thread) {
    winograd::LastStrip<T> strip(plan, index);
    strip.run(x, static_cast<const T*>(transformed), executor.scratch(thread, strip.scratch_bytes()), sink);
  });
}

TESSERA_TILE_END
