// Shared memory and matrix instructions of the sm80 pipeline: who reads what. Compiles for the host too.
#pragma once
#include "../../matrix_layout.h"
#include "../gpu/operand.h"

TESSERA_TILE_BEGIN
namespace sm80 {

inline constexpr int warp_size = 32;

/// Where the lanes point ldmatrix to fetch 16 rows x 16 k of a tile: the 8 elements of each lane are a line of one of
/// four 8x8 matrices, which come in the order of mma's registers: for the left operand rows first, for the right one
/// (two blocks of 8 columns) k first. Tiles with lines along the rows are transposed on the way.
template <int Along, bool Right>
struct MatrixLines {
  static constexpr TESSERA_HD auto layout() {
    constexpr auto matrices = Right ? lanes(2, 1) * lanes(1, 2) : lanes(1, 2) * lanes(2, 1);
    constexpr auto lines = Along == 1 ? lanes(8, 1) * vec(1, 8) : lanes(1, 8) * vec(8, 1);
    return named("rk", matrices * lines);
  }
};

/// Rows of Width elements in shared memory as operands that are summed over along the rows (Along 1) or across them
/// (0): where a lane points ldmatrix for the 16 x 16 elements from (line, column) on, both multiples of 16. The tile's
/// permutation is an exclusive or, and so is the way to a column.
template <class T, int Lines, int Width, int Along, bool Right>
struct RowFragments {
  using Tile = conditional_t<Along == 1, SharedTile<T, Lines, Width, 1>, SharedTile<T, Width, Lines, 0>>;
  static constexpr TESSERA_HD int of_lane(int lane) {
    const auto at = thread_coords<MatrixLines<Along, Right>>(lane);
    return Tile::offset(at[0], at[1]);
  }
  static constexpr TESSERA_HD int offset(int of_lane, int line, int column) {
    return (of_lane ^ column) + line * Width;
  }
};

/// Whether no access of the pipeline to this tile, filling it or reading it, meets a bank twice.
template <class Fetch, bool Right>
constexpr TESSERA_HD bool is_conflict_free() {
  using Tile = typename Fetch::Tile;
  const auto offset = [](const auto& c) { return Tile::offset(c[0], c[1]); };
  const auto by_line = [](const auto& c) {
    return Tile::along == 0 ? Tile::offset(c[1], c[0]) : Tile::offset(c[0], c[1]);
  };
  return bank_use(MatrixLines<Tile::along, Right>::layout(), SharedMemory::nvidia, 2, offset).is_conflict_free() &&
         bank_use(Fetch::Layout::layout(), SharedMemory::nvidia, 2, by_line).is_conflict_free();
}

}  // namespace sm80
TESSERA_TILE_END
