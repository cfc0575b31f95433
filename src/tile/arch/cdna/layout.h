// Who holds what in v_mfma_f32_32x32x8 (Instinct MI200 instruction set architecture, "Matrix Arithmetic Instructions").
// Compiles for the host too: tests check there that fetching, shared memory and fragments fit together.
#pragma once
#include "../gpu/grid.h"

TESSERA_TILE_BEGIN
namespace cdna {

inline constexpr int wave_size = 64;

/// Where in the 32x32 result element r (0 to 15) of a lane lies.
constexpr TESSERA_HD int sum_row(int lane, int r) { return r / 4 * 8 + lane / 32 * 4 + r % 4; }
constexpr TESSERA_HD int sum_column(int lane, int) { return lane % 32; }

/// The 8 elements along k, of 16, that a lane reads at once from shared memory for two instructions: the first takes
/// elements 0 to 3, the second 4 to 7. Both operands leave the order of k alike, so the sum is the same.
constexpr TESSERA_HD int operand_row(int lane) { return lane % 32; }
constexpr TESSERA_HD int operand_k(int lane) { return lane / 32 * 8; }

}  // namespace cdna
TESSERA_TILE_END
