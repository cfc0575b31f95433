// Copies of halves whose rows are misaligned to 16-byte aligned ones, on Hopper's cards.
#pragma once
#include "kernels/gpu/device/runtime/launch_early.h"
#include "operand_copy.h"
#include "tile/arch/sm90/ptx.h"

namespace tessera::gpu_kernels {

using LineUnit = Pack<u32, 4>;  // eight halves

/// Lines of `units` units to one place; those of a matrix of the batch are `rows`.
struct LineCopy {
  const tile::u16* from;
  LineUnit* to;
  i64 lines, rows, row, batch, columns, units;
};
/// By blocks: so many of them for the first.
struct LineCopies {
  LineCopy of[2];
  i64 blocks;
};

constexpr int line_copy_threads = 256;

/// A unit for each thread, of the two units of memory in which it lies; by single halves at the ends of lines.
static TESSERA_KERNEL(line_copy_threads) void copy_lines_kernel(const __grid_constant__ LineCopies copies) {
  tile::sm90::launch_dependent_grids();
  tile::sm90::wait_on_dependent_grids();
  const i64 block = tile::block_in_grid();
  const bool second = block >= copies.blocks;
  const LineCopy& copy = copies.of[second];
  const i64 at = (second ? block - copies.blocks : block) * line_copy_threads + tile::thread_in_block();
  const i64 line = tile::quotient(at, copy.units), unit = at - line * copy.units;
  if (line >= copy.lines) return;
  const i64 batch = copy.rows == copy.lines ? 0 : tile::quotient(line, copy.rows);
  const tile::u16* const from = copy.from + batch * copy.batch + (line - batch * copy.rows) * copy.row + unit * 8;
  const i64 left = copy.columns - unit * 8;
  const int off = static_cast<int>(reinterpret_cast<u64>(from) / 2 % 8);
  LineUnit to;
  if (unit * 8 >= off && left >= 16 - off) {
    const auto* const units = reinterpret_cast<const LineUnit*>(from - off);
    const LineUnit near = units[0], far = units[1];
    u32 words[8], moved[6];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = near.lane[i], words[4 + i] = far.lane[i];
#pragma unroll
    for (int i = 0; i < 6; ++i) moved[i] = off & 4 ? words[i + 2] : words[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) moved[i] = off & 2 ? moved[i + 1] : moved[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) to.lane[i] = __funnelshift_r(moved[i], moved[i + 1], off % 2 * 16);
  } else {
    const auto half = [&](int i) -> u32 { return i < left ? from[i] : tile::u16{0}; };
#pragma unroll
    for (int i = 0; i < 4; ++i) to.lane[i] = half(2 * i) | half(2 * i + 1) << 16;
  }
  copy.to[at] = to;
}

/// Copies the operands that are to be, to the workspace, where they are then, and which begins behind them.
inline void run_copies(const OperandCopy& a, const OperandCopy& b, GemmArgs& args, Executor& executor) {
  LineCopies copies{};
  i64 blocks = 0;
  int count = 0;
  const auto add = [&](const OperandCopy& copy, MatrixArg& m) {
    const MatrixArg& from = copy.from;
    if (!from.data) return;
    if (from.column != 1) {
      args.workspace = run_copy(copy, m, args.workspace, executor);
      return;
    }
    m.data = args.workspace;
    args.workspace = static_cast<char*>(args.workspace) + copy.bytes();
    const i64 lines = copy.count() * copy.rows, units = copy.pitch / 8;
    copies.blocks = blocks;
    copies.of[count++] = {static_cast<const tile::u16*>(from.data),
                          static_cast<LineUnit*>(m.data),
                          lines,
                          copy.rows,
                          from.row,
                          from.batch[max_batch_rank - 1],
                          copy.columns,
                          units};
    blocks += tile::ceil_div<i64>(lines * units, line_copy_threads);
  };
  add(a, args.a);
  add(b, args.b);
  if (count == 0) return;
  if (count == 1) copies.blocks = blocks;
  launch_early("gemm", copy_lines_kernel, blocks, line_copy_threads, 0, 1, executor, copies);
}

}  // namespace tessera::gpu_kernels
