// How a product is cut: over threads first, then for the caches.
#pragma once

#include "../../config.h"
#include "microkernel.h"

TESSERA_TILE_BEGIN
namespace cpu {

struct Extent {
  i64 m, n, k;
};

/// A half-open range.
struct Span {
  i64 begin, end;
  TESSERA_HD i64 size() const { return end - begin; }
  TESSERA_HD bool contains(i64 index) const { return begin <= index && index < end; }
};

/// The index-th of `parts` spans of [0, length), in whole units, as equal as can be.
TESSERA_HD Span part(i64 length, i64 parts, i64 index, i64 unit = 1) {
  const i64 units = ceil_div(length, unit);
  const i64 base = units / parts, extra = units % parts;
  const i64 begin = index * base + min(index, extra);
  const i64 end = begin + base + (index < extra ? 1 : 0);
  return {min(length, begin * unit), min(length, end * unit)};
}

/// The index-th part of a range.
TESSERA_HD Span part(Span range, i64 parts, i64 index, i64 unit = 1) {
  const Span at = part(range.size(), parts, index, unit);
  return {range.begin + at.begin, range.begin + at.end};
}

/// Elements of the right matrix that, packed, stay in the second-level cache while the left one streams past them.
template <class T>
inline constexpr i64 right_elements = 512 * 1024 / static_cast<i64>(sizeof(T));
/// Elements of the left matrix that are packed at a time: the third-level cache holds them.
template <class T>
inline constexpr i64 left_elements = 8 * 1024 * 1024 / static_cast<i64>(sizeof(T));
/// A left matrix that the second-level cache holds: as much as there may be where the right one is read in place, a
/// panel at a time.
template <class T>
inline constexpr i64 whole_elements = 512 * 1024 / static_cast<i64>(sizeof(T));

/// Steps of k up to which the memory of the result decides how columns are cut.
template <class T>
inline constexpr i64 short_sum = 1536 / static_cast<i64>(sizeof(T));

/// Rows (or columns) up to which a product counts as skinny.
inline constexpr i64 skinny_limit = 8;

/// Where the elements of a product's matrices lie: whether kernels read B in place, whether A is transposed, whether B
/// comes in panels, and whether these are read but once, as all rows of the product are few.
struct Places {
  bool right_in_place = false, left_transposed = false, right_packed = false, read_once = false;
};

/// How a thread's part of a product is cut where nobody says. A panel of B streams through the first-level cache, so
/// that tile_k may be deep and the result is touched seldom; where B is read in place, a panel uses but a part of every
/// line. A transposed A is packed from lines a row of A's memory apart, few of which the caches can hold; a B that is
/// not wide goes by the same steps of k. Nothing hides the packing of the first tile_n columns, which shows where there
/// are few rows, unless sums are so short that the memory of the result weighs more. Panels that are there
/// already are read from their begin to their end where that is done once, otherwise in the steps that packing takes,
/// so that sums are the same.
template <class T>
constexpr TESSERA_HD Config default_config(const Extent& e, Places places) {
  constexpr i64 shallow = 1024 / static_cast<i64>(sizeof(T));
  const bool in_place = places.right_in_place;
  const bool by_steps = places.left_transposed && !in_place && e.n * shallow < right_elements<T>;
  const i64 deepest = places.read_once ? max<i64>(1, e.k)
                      : by_steps       ? shallow
                                       : (in_place ? 768 : 4096) / static_cast<i64>(sizeof(T));
  const i64 depth = max<i64>(1, e.k);
  const i64 k = ceil_div(depth, ceil_div(depth, deepest));
  const i64 m = max<i64>(1, min(e.m, (in_place ? whole_elements<T> : left_elements<T>) / depth));
  const bool few_rows = !by_steps && !places.right_packed && depth > short_sum<T> && e.m * depth <= whole_elements<T>;
  const i64 wide = max(i64{64}, right_elements<T> / k / 64 * 64);
  const i64 n = places.read_once ? e.n : in_place ? block_columns<T> : few_rows ? 64 : wide;
  return {static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1, 1};
}

struct Grid {
  i64 m, n;
};

/// The grid of at most `threads` parts whose slowest part costs least, packing included.
template <class T>
TESSERA_HD Grid choose_grid(const Extent& e, i64 threads) {
  constexpr i64 nr = block_columns<T>;
  Grid best{1, 1};
  double least = 0;
  for (i64 gm = 1; gm <= threads; ++gm) {
    const i64 gn = threads / gm;
    const double rows = static_cast<double>(ceil_div(e.m, gm));
    const double columns = static_cast<double>(min(e.n, ceil_div(ceil_div(e.n, nr), gn) * nr));
    // In cycles per step of k: block_rows * nr products, then packing, which costs most on the left: it is less hidden.
    const double cost = rows * columns / (2 * NativeVec<T>::lanes) + rows * 0.8 + columns * 0.4;
    if (gm == 1 || cost < least) {
      least = cost;
      best = {gm, gn};
    }
  }
  return {min(best.m, e.m), min(best.n, ceil_div(e.n, nr))};
}

}  // namespace cpu
TESSERA_TILE_END
