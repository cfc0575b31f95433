// Products with a sparse matrix along a dim.
#pragma once

#include "../expr.h"

TESSERA_TILE_BEGIN

/// Rows of a sparse matrix, one after the other; x is [length, inner].
template <class C>
struct SparseRows {
  const int *begins, *places;
  const C* weights;
  i64 entries, length, inner;

  /// fn(place, weight) for the entries of row i, or each `step`-th from the one of number `from` on.
  template <class Fn>
  TESSERA_HD void each(i64 i, const Fn& fn, int from = 0, int step = 1) const {
    const i64 end = min<i64>(begins[i + 1], entries);
    for (i64 t = max<i64>(begins[i], 0) + from; t < end; t += step)
      if (const int place = places[t]; place >= 0 && place < length) fn(i64(place), weights[t]);
  }
  /// Elements from j on of row i of the product, as many as lanes say.
  template <class V, class T, class Lanes>
  TESSERA_HD V product(const T* x, i64 i, i64 j, Lanes lanes) const {
    V sum(element_t<V>(0));
    each(i,
         [&](i64 place, C weight) { sum = fma(V(weight), detail::load_lanes<V>(x + place * inner + j, lanes), sum); });
    return sum;
  }
};

TESSERA_TILE_END
