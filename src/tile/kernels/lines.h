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

  /// Elements from j on of row i of the product, as many as lanes say.
  template <class V, class T, class Lanes>
  TESSERA_HD V product(const T* x, i64 i, i64 j, Lanes lanes) const {
    const i64 end = min<i64>(begins[i + 1], entries);
    V sum(element_t<V>(0));
    for (i64 t = max<i64>(begins[i], 0); t < end; ++t)
      if (const int place = places[t]; place >= 0 && place < length)
        sum = fma(V(weights[t]), detail::load_lanes<V>(x + place * inner + j, lanes), sum);
    return sum;
  }
};

TESSERA_TILE_END
