// Windows of planes with up to three dims: where the largest element of each lies, which windows an element lies in,
// and the sums of windows that are laid down where they came from.
#pragma once
#include "../numbers.h"
#include "../types.h"

TESSERA_TILE_BEGIN

/// Elements of a window along a dim: first, first + step, ..., `count` of them.
struct LineSpan {
  i32 first, count, step;
};

/// Windows along a dim. Those of 0 taps are adaptive: they share the elements.
struct PlaneLine {
  i32 size, count, taps, stride, dilation, low;

  /// The elements of window i that lie inside.
  TESSERA_HD LineSpan span(i32 i) const {
    if (taps == 0) {
      const i32 first = static_cast<i32>(quotient(i64(i) * size, i64(count)));
      return {first, static_cast<i32>(quotient(i64(i + 1) * size + count - 1, i64(count))) - first, 1};
    }
    const i32 begin = i * stride - low;
    const i32 skipped = begin < 0 ? (dilation - 1 - begin) / dilation : 0;
    const i32 end = begin < size ? min(taps, (size - 1 - begin) / dilation + 1) : 0;
    return {begin + skipped * dilation, max(end - skipped, 0), dilation};
  }
  /// Windows [first, last) among which are those of an element.
  TESSERA_HD void windows_of(i32 at, i32& first, i32& last) const {
    if (taps == 0) {
      first = static_cast<i32>(quotient(i64(at) * count, i64(size)));
      last = min(count, static_cast<i32>(quotient(i64(at + 1) * count - 1, i64(size))) + 1);
      return;
    }
    const i32 from = at + low - (taps - 1) * dilation;
    first = from > 0 ? (from + stride - 1) / stride : 0;
    last = min(count, (at + low) / stride + 1);
  }
  /// Taps that may be this element's: the first, and how far they are apart.
  TESSERA_HD i32 first_tap(i32 at) const { return dilation == 1 ? (at + low) % stride : 0; }
  TESSERA_HD i32 tap_step() const { return dilation == 1 ? stride : 1; }
  /// The window of which tap t is this element, or -1.
  TESSERA_HD i32 window_at(i32 at, i32 t) const {
    const i32 begin = at + low - t * dilation;
    if (begin < 0) return -1;
    const i32 i = begin / stride;
    return i < count && i * stride == begin ? i : -1;
  }
};

struct PlaneWindows {
  PlaneLine line[3];
  TESSERA_HD i32 elements() const { return line[0].size * line[1].size * line[2].size; }
  TESSERA_HD i32 windows() const { return line[0].count * line[1].count * line[2].count; }
  TESSERA_HD i32 taps() const { return line[0].taps * line[1].taps * line[2].taps; }
};

/// What three numbers of such lengths count.
struct PlanePlace {
  i32 at[3];
  TESSERA_HD PlanePlace(i32 index, i32 rows, i32 columns) {
    const i32 line = index / columns;
    at[2] = index - line * columns;
    at[0] = line / rows;
    at[1] = line - at[0] * rows;
  }
};

/// The largest of some elements, of equal ones the first, and of those that are NaN the last. They come in any order.
template <class C>
struct LargestPlace {
  C value;
  i32 place = -1;
  TESSERA_HD void add(C v, i32 at) {
    const bool is_nan = v != v, held_nan = value != value;
    const bool wins = is_nan ? !held_nan || at > place : !held_nan && (v > value || (v == value && at < place));
    if (place < 0 || wins) value = v, place = at;
  }
};

/// Those of a window whose number leaves `first` when divided by `step`.
template <class C, class T>
TESSERA_HD LargestPlace<C> largest_in_window(const PlaneWindows& p, i32 window, const T* plane, i32 first, i32 step) {
  const PlanePlace at(window, p.line[1].count, p.line[2].count);
  const LineSpan depth = p.line[0].span(at.at[0]), rows = p.line[1].span(at.at[1]), columns = p.line[2].span(at.at[2]);
  LargestPlace<C> largest{C(0)};
  const i32 all = depth.count * rows.count * columns.count;
  if (step > 1) {  // few of many taps
    for (i32 t = first; t < all; t += step) {
      const PlanePlace tap(t, rows.count, columns.count);
      const i32 line = (depth.first + tap.at[0] * depth.step) * p.line[1].size + rows.first + tap.at[1] * rows.step;
      const i32 place = line * p.line[2].size + columns.first + tap.at[2] * columns.step;
      largest.add(convert_element<C>(plane[place]), place);
    }
    return largest;
  }
  for (i32 i = 0; i < depth.count; ++i)
    for (i32 j = 0; j < rows.count; ++j) {
      const i32 line = (depth.first + i * depth.step) * p.line[1].size + rows.first + j * rows.step;
      i32 place = line * p.line[2].size + columns.first;
      for (i32 k = 0; k < columns.count; ++k, place += columns.step)
        largest.add(convert_element<C>(plane[place]), place);
    }
  return largest;
}

/// What comes to element `place` of a plane from the windows whose largest it is.
template <class C, class T>
TESSERA_HD C gradient_of_place(const PlaneWindows& p, i32 place, const T* dy, const i64* places) {
  const PlanePlace at(place, p.line[1].size, p.line[2].size);
  i32 first[3], last[3];
  for (int d = 0; d < 3; ++d) p.line[d].windows_of(at.at[d], first[d], last[d]);
  C sum(0);
  for (i32 i = first[0]; i < last[0]; ++i)
    for (i32 j = first[1]; j < last[1]; ++j)
      for (i32 k = first[2]; k < last[2]; ++k) {
        const i32 window = (i * p.line[1].count + j) * p.line[2].count + k;
        if (places[window] == place) sum += convert_element<C>(dy[window]);
      }
  return sum;
}

/// The sum of the taps that lie on element `place`: x has all windows of a tap, tap after tap.
template <class C, class T>
TESSERA_HD C folded_place(const PlaneWindows& p, i32 place, const T* x) {
  const PlanePlace at(place, p.line[1].size, p.line[2].size);
  const i64 windows = p.windows();
  C sum(0);
  /// fn(tap, window)
  const auto each = [&](int d, auto fn) {
    const PlaneLine& line = p.line[d];
    for (i32 tap = line.first_tap(at.at[d]); tap < line.taps; tap += line.tap_step())
      if (const i32 window = line.window_at(at.at[d], tap); window >= 0) fn(tap, window);
  };
  each(0, [&](i32 a, i32 i) {
    each(1, [&](i32 b, i32 j) {
      const i32 first = (a * p.line[1].taps + b) * p.line[2].taps;
      const i64 row = (i64(i) * p.line[1].count + j) * p.line[2].count;
      each(2, [&](i32 c, i32 k) { sum += convert_element<C>(x[(first + c) * windows + row + k]); });
    });
  });
  return sum;
}

TESSERA_TILE_END
