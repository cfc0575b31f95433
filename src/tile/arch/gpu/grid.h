// How the tile of a block is shared out to its warps.
#pragma once
#include "../../base.h"

TESSERA_TILE_BEGIN

/// A tile of M x N cut into Warps equal parts, as square as possible so that operands are read least often; each part is
/// whole in units of UnitM x UnitN.
template <int M, int N, int Warps, int UnitM, int UnitN>
struct WarpGrid {
  static consteval int best() {
    int best = 0;
    for (int down = 1; down <= Warps; ++down) {
      const bool whole = Warps % down == 0 && M % (down * UnitM) == 0 && N % (Warps / down * UnitN) == 0;
      if (whole && (best == 0 || M / down + N * down / Warps < M / best + N * best / Warps)) best = down;
    }
    return best;
  }
  static constexpr int down = best(), across = down > 0 ? Warps / down : 1;
  static_assert(down > 0, "tile GEMM: the tile cannot be cut into equal parts for the warps of the block");
  static constexpr int rows = M / max(down, 1), columns = N / across;  // of one warp

  static constexpr TESSERA_HD int row(int warp) { return warp % down * rows; }
  static constexpr TESSERA_HD int column(int warp) { return warp / down * columns; }
};

TESSERA_TILE_END
