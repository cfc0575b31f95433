// Rows of a matrix: a pointer and the distance of neighbours.
#pragma once
#include "types.h"

TESSERA_TILE_BEGIN

/// Rows of contiguous elements, `pitch` elements apart; data may be missing.
template <class T>
struct Rows {
  T* data;
  i64 pitch;
  TESSERA_HD T* operator[](i64 row) const { return data + row * pitch; }
};

TESSERA_TILE_END
