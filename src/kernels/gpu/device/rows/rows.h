// Rows, and the groups of threads that work on them: tile/arch/gpu/row_tile.h.
#pragma once
#include "kernels/gpu/device/elementwise/join.h"
#include "tile/arch/gpu/row_tile.h"

namespace tessera::gpu_kernels {

using tile::Exponents, tile::fast_exp, tile::JoinExponents, tile::Lanes, tile::Larger, tile::larger, tile::largest_of,
    tile::Rows;

template <class T, int width>
TESSERA_DEVICE Lanes<T, width> lanes(const Pack<T, width>& p) {
  return Lanes<T, width>(p);
}

}  // namespace tessera::gpu_kernels
