// How operands lie in shared memory for wgmma: rows of 128 bytes, whose 16-byte chunks are swizzled by eights of rows,
// as TMA writes them with CU_TENSOR_MAP_SWIZZLE_128B.
#pragma once
#include "../../base.h"

TESSERA_TILE_BEGIN
namespace sm90 {

inline constexpr int line_bytes = 128, line_elements = 64;  // of 16 bits
inline constexpr int atom_bytes = 8 * line_bytes;           // after which the swizzle repeats

/// A tile of an operand, Depth deep: of Extent rows of a, or columns of b. A line holds what is 64 deep of one row or,
/// transposed, 64 rows at one depth; transposed tiles are blocks of 64 rows, one behind the other. Tiles that are
/// not transposed and deeper than 64 are such tiles one behind the other.
template <int Extent, int Depth = line_elements>
struct SharedOperand {
  static constexpr int depth = Depth, bytes = Extent * Depth * 2;
  static constexpr int block_bytes = depth * line_bytes;  // of 64 rows, if transposed or 64 deep

  /// What wgmma takes for a tile that starts at `address` of shared memory, a multiple of atom_bytes: address, distance
  /// of blocks of rows if transposed, distance of eights of lines, and the swizzle of 128 bytes.
  static constexpr TESSERA_HD u64 descriptor(u32 address) {
    constexpr u64 blocks = block_bytes / 16, eights = atom_bytes / 16, swizzle = 1;
    return swizzle << 62 | eights << 32 | blocks << 16 | (address & 0x3ffff) >> 4;
  }
  /// What to add to the descriptor to get 16 deeper.
  static constexpr TESSERA_HD int step(bool transposed) { return (transposed ? 16 * line_bytes : 32) / 16; }
  /// What to add to get to depth 16 * i.
  static constexpr TESSERA_HD int at(int i, bool transposed) {
    return transposed ? i * step(true) : i / 4 * (Extent * line_bytes / 16) + i % 4 * step(false);
  }
};

/// A transposed tile, 64 deep, of an extent that is whole 32: blocks of 32 rows, whose lines of 64 bytes are swizzled
/// by pairs of lines.
template <int Extent>
struct NarrowOperand {
  static constexpr int lines = 64, line_bytes = 64, bytes = Extent * lines * 2, block_bytes = lines * line_bytes;
  static constexpr TESSERA_HD u64 descriptor(u32 address) {
    constexpr u64 blocks = block_bytes / 16, eights = 8 * line_bytes / 16, swizzle = 2;
    return swizzle << 62 | eights << 32 | blocks << 16 | (address & 0x3ffff) >> 4;
  }
  static constexpr TESSERA_HD int step(bool) { return 16 * line_bytes / 16; }
};

/// Where 16-byte chunk `chunk` of line `line` lies in a box that TMA reads or writes with this swizzle.
constexpr TESSERA_HD u32 swizzled(int line, int chunk) {
  return static_cast<u32>(line * line_bytes + (chunk ^ line % 8) * 16);
}
/// The same in a box of lines of 64 bytes.
constexpr TESSERA_HD u32 swizzled_narrow(int line, int chunk) {
  return static_cast<u32>(line * 64 + (chunk ^ line / 2 % 4) * 16);
}

}  // namespace sm90
TESSERA_TILE_END
