// Who holds what in mma.sync.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"). Compiles for the host too: tests
// check there that fetching, shared memory and fragments fit together.
#pragma once
#include "../gpu/grid.h"

TESSERA_TILE_BEGIN
namespace sm80 {

/// Where in the 16x8 result element r (0 to 3) of a lane lies.
constexpr TESSERA_HD int sum_row(int lane, int r) { return lane / 4 + 8 * (r / 2); }
constexpr TESSERA_HD int sum_column(int lane, int r) { return 2 * (lane % 4) + r % 2; }

/// Where lane `lane` points ldmatrix to fetch 16 rows x 16 k of a tile: four 8x8 matrices, in the order in which mma wants
/// its registers. Left operand (Right = false): matrix 1 lies 8 rows down, matrix 2 at k + 8; right operand, two blocks
/// of 8 columns: the other way round. A tile contiguous along its rows is transposed on the way.
template <class Tile, bool Right>
struct MatrixSource {
  static constexpr bool transposed = Tile::inner_is_rows;
  static constexpr TESSERA_HD int offset(int row, int k, int lane) {
    const int first = lane / 8 % 2 * 8, second = lane / 16 * 8;
    row += Right ? second : first;
    k += Right ? first : second;
    return transposed ? Tile::offset(row, k + lane % 8) : Tile::offset(row + lane % 8, k);
  }
};

}  // namespace sm80
TESSERA_TILE_END
