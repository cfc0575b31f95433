// Shared memory and matrix instructions of the sm80 pipeline: who reads what. Compiles for the host too.
#pragma once
#include "../../matrix_layout.h"
#include "../gpu/operand.h"

TESSERA_TILE_BEGIN
namespace sm80 {

inline constexpr int warp_size = 32;

/// Where the lanes point ldmatrix to fetch 16 rows x 16 k of a tile: the 8 elements of each lane are a line of one of
/// four 8x8 matrices, which come in the order of mma's registers: for the left operand rows first, for the right one
/// (two blocks of 8 columns) k first. Tiles with lines along the rows are transposed on the way. A line of a matrix
/// holds Line elements: 4 words make 16 rows x 8 k.
template <int Along, bool Right, int Line = 8>
struct MatrixLines {
  static constexpr TESSERA_HD auto layout() {
    constexpr auto matrices = Right ? lanes(2, 1) * lanes(1, 2) : lanes(1, 2) * lanes(2, 1);
    constexpr auto lines = Along == 1 ? lanes(8, 1) * vec(1, Line) : lanes(1, 8) * vec(Line, 1);
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

/// Where the lanes find words of a tile that is not read by ldmatrix: the elements of an operand of mma, or (Quads)
/// four neighbours along the lines for 8 lanes at a time.
struct Words {
  static constexpr TESSERA_HD auto layout() { return named("rk", lanes(8, 4)); }
};
template <int Along>
struct Quads {
  static constexpr TESSERA_HD auto layout() {
    return named("rk", Along == 1 ? lanes(8, 1) * vec(1, 4) : lanes(8, 1) * vec(4, 1));
  }
};

/// Whether no access to this tile, filling it or reading it as Layout says, meets a bank twice.
template <class Fetch, class Layout>
constexpr TESSERA_HD bool is_conflict_free() {
  using Tile = typename Fetch::Tile;
  constexpr int bytes = sizeof(typename Tile::Element);
  const auto offset = [](const auto& c) { return Tile::offset(c[0], c[1]); };
  const auto by_line = [](const auto& c) {
    return Tile::along == 0 ? Tile::offset(c[1], c[0]) : Tile::offset(c[0], c[1]);
  };
  return bank_use(Layout::layout(), SharedMemory::nvidia, bytes, offset).is_conflict_free() &&
         bank_use(Fetch::Layout::layout(), SharedMemory::nvidia, bytes, by_line).is_conflict_free();
}

}  // namespace sm80
TESSERA_TILE_END
