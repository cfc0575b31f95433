// Windows of dense images, whose vectors threads share. Images are outer x rows x columns x inner vectors: of V
// neighbouring channels where these lie last, else single elements. All sizes and numbers of vectors are below 2^30.
#pragma once
#include "block.h"

TESSERA_TILE_BEGIN

/// One spatial dim.
struct ImageWindow {
  int length, output, filter, stride, dilation, padding;
  Inverse by_stride, by_dilation;

  static ImageWindow of(i64 length, i64 filter, i64 stride, i64 dilation, i64 padding) {
    const i64 room = length + 2 * padding - dilation * (filter - 1) - 1;
    stride = min(stride, room + 1);  // a longer one leaves one window all the same
    return {static_cast<int>(length),   static_cast<int>(room / stride + 1),
            static_cast<int>(filter),   static_cast<int>(stride),
            static_cast<int>(dilation), static_cast<int>(padding),
            Inverse::of(stride),        Inverse::of(dilation)};
  }
  TESSERA_HD int start(int o) const { return o * stride - padding; }
  /// The taps [first, last) that lie on the image, of a window that starts at `start`.
  TESSERA_HD int first_tap(int start) const { return start < 0 ? by_dilation(dilation - 1 - start) : 0; }
  TESSERA_HD int last_tap(int start) const {
    return start < length ? min(filter, by_dilation(length - start + dilation - 1)) : 0;
  }
  /// What it adds to the divisor of an average.
  TESSERA_HD int counted(int start, bool padding_counts) const {
    if (padding_counts) return min(filter, length + padding - start);
    return last_tap(start) - first_tap(start);
  }
  /// The windows [first, last] that reach over `at`; with dilation not all see it.
  TESSERA_HD int first_window(int at) const {
    const int begin = at + padding - dilation * (filter - 1);
    return begin > 0 ? by_stride(begin + stride - 1) : 0;
  }
  TESSERA_HD int last_window(int at) const { return min(by_stride(at + padding), output - 1); }
  /// By steps of 1, the taps [first, last] that see what is so far behind the first window's start.
  TESSERA_HD int first_seeing(int behind) const {
    return behind >= output ? by_dilation(behind - output + dilation) : 0;
  }
  TESSERA_HD int last_seeing(int behind) const { return min(by_dilation(behind), filter - 1); }
};

/// A vector's place, in the order in which they lie.
struct VectorPlace {
  int outer, row, column, inner;
};

struct DenseWindows {
  ImageWindow h, w;
  int outer, inner;                        // images, or all their planes; vectors of a pixel
  bool count_padding;                      // in the divisor of an average
  int rows = 0, columns = 0, threads = 0;  // of an image a thread each; of all
  Inverse by_inner, by_columns, by_rows;

  DenseWindows(const ImageWindow& h, const ImageWindow& w, i64 outer, i64 inner, bool count_padding)
      : h(h), w(w), outer(static_cast<int>(outer)), inner(static_cast<int>(inner)), count_padding(count_padding) {}
  DenseWindows over(int new_rows, int new_columns) const {
    DenseWindows p = *this;
    p.rows = new_rows;
    p.columns = new_columns;
    p.threads = outer * new_rows * new_columns * inner;
    p.by_inner = Inverse::of(inner);
    p.by_columns = Inverse::of(new_columns);
    p.by_rows = Inverse::of(new_rows);
    return p;
  }
  DenseWindows over_results() const { return over(h.output, w.output); }
  DenseWindows over_images() const { return over(h.length, w.length); }
  /// For pool_row and, in blocks of `down` x `across` places, the gradients of windows of one form.
  DenseWindows over_result_rows(int results) const { return over(h.output, w.output / results); }
  DenseWindows over_blocks(int down, int across) const {
    return over(ceil_div(h.length, down), ceil_div(w.length, across));
  }

  TESSERA_HD VectorPlace place(int thread) const {
    const int pixel = by_inner(thread), line = by_columns(pixel), outer = by_rows(line);
    return {outer, line - outer * rows, pixel - line * columns, thread - pixel * inner};
  }
  TESSERA_HD int in_images(int outer, int row, int column, int at) const {
    return ((outer * h.length + row) * w.length + column) * inner + at;
  }
  TESSERA_HD int in_results(int outer, int row, int column, int at) const {
    return ((outer * h.output + row) * w.output + column) * inner + at;
  }
  /// fn(row, column, number of the tap) for the windows that see a place of the images.
  template <class F>
  TESSERA_HD void each_window(const VectorPlace& at, const F& fn) const {
    const int last_row = h.last_window(at.row), first_column = w.first_window(at.column),
              last_column = w.last_window(at.column);
    for (int i = h.first_window(at.row); i <= last_row; ++i) {
      const int down = at.row - h.start(i), r = h.by_dilation(down);
      if (r * h.dilation != down) continue;
      for (int j = first_column; j <= last_column; ++j) {
        const int across = at.column - w.start(j), s = w.by_dilation(across);
        if (s * w.dilation == across) fn(i, j, r * w.filter + s);
      }
    }
  }
  /// The same by steps of 1, in the order of the taps.
  template <class F>
  TESSERA_DEVICE void each_tap(const VectorPlace& at, const F& fn) const {
    const int down = at.row + h.padding, across = at.column + w.padding;
    const int last_row = h.last_seeing(down), first_column = w.first_seeing(across),
              last_column = w.last_seeing(across);
    for (int r = h.first_seeing(down); r <= last_row; ++r) {
#pragma unroll 4
      for (int s = first_column; s <= last_column; ++s)
        fn(down - r * h.dilation, across - s * w.dilation, r * w.filter + s);
    }
  }
};

/// Vector `index` of V elements.
template <int V, class T>
TESSERA_DEVICE Pack<T, V> load_vector(const T* data, int index) {
  return *reinterpret_cast<const Pack<T, V>*>(data + static_cast<i64>(index) * V);
}
template <int V, class T>
TESSERA_DEVICE void store_vector(T* data, int index, const Pack<T, V>& pack) {
  *reinterpret_cast<Pack<T, V>*>(data + static_cast<i64>(index) * V) = pack;
}

TESSERA_TILE_END
