#if !defined(__HIP__)  // which has no such library
#include "whole_lines.h"

#include "kernels/gpu/device/elementwise/loops.h"

namespace tessera::gpu_kernels {
namespace {

constexpr i64 unit = 4;  // floats in 16 bytes
using Unit = Pack<u32, unit>;
i64 whole(i64 n) { return tile::ceil_div(n, unit) * unit; }

/// Operands by blocks, of which each has those before its end.
struct WholeOperands {
  WholeLines of[3];
  i64 end[3];
};

/// The end of a line for each thread, then units of the lines behind the last.
TESSERA_DEVICE void fill_up(const WholeLines& m, i64 at) {
  if (at < m.lines) {
    for (i64 i = m.length; i < m.units * unit; ++i) m.to[at * m.pitch + i] = 0;
    return;
  }
  const i64 line = tile::quotient(at - m.lines, m.units), i = at - m.lines - line * m.units;
  if (m.lines + line < m.whole) store_at_once(m.to + (m.lines + line) * m.pitch + i * unit, Unit{});
}
TESSERA_DEVICE void copy_unit(const WholeLines& m, i64 at) {
  const i64 line = tile::quotient(at, m.units), i = (at - line * m.units) * unit;
  if (line >= m.whole) return;
  const i64 left = line < m.lines ? m.length - i : 0;
  store_at_once(m.to + line * m.pitch + i, load_unit<u32, unit>(m.from + line * m.step + i, false, left, m.length));
}

constexpr int threads = 256;

TESSERA_KERNEL(threads)
void whole_lines_kernel(const WholeOperands operands) {
  const i64 block = tile::block_in_grid();
  const int i = block < operands.end[0] ? 0 : block < operands.end[1] ? 1 : 2;
  const WholeLines& m = operands.of[i];
  const i64 at = (block - (i > 0 ? operands.end[i - 1] : 0)) * threads + tile::thread_in_block();
  if (m.copies()) copy_unit(m, at);
  else fill_up(m, at);
}

i64 blocks_of(const WholeLines& m) {
  if (!m.from) return 0;
  return tile::ceil_div<i64>(m.copies() ? m.whole * m.units : m.lines + (m.whole - m.lines) * m.units, threads);
}

bool begins_whole(const MatrixArg& m) {
  return (m.column == 1 ? m.row : m.column) % unit == 0 && reinterpret_cast<size_t>(m.data) % 16 == 0;
}

/// An operand of that size that is read as if it were that large. All of its ends get zeros, so that they hold for any
/// other product.
WholeLines lines_of(MatrixArg& m, i64 rows, i64 columns, i64 whole_rows, i64 whole_columns, Ends ends, bool zeros) {
  const bool by_rows = m.column == 1, grows = whole_rows > rows || whole_columns > columns;
  auto& step = by_rows ? m.row : m.column;
  auto* const from = static_cast<u32*>(m.data);
  const i64 lines = by_rows ? rows : columns, length = by_rows ? columns : rows;
  if (begins_whole(m) && (ends != Ends::others || !grows)) {
    if (!grows || !zeros || ends == Ends::zeros) return {};
    return {from, from, lines, length, step, whole(lines), whole(length) / unit, step};
  }
  constexpr i64 in_cache_line = 32;
  const i64 longer = whole(by_rows ? whole_columns : whole_rows);
  const i64 pitch = longer < 256 ? longer : tile::ceil_div(longer, in_cache_line) * in_cache_line;
  const WholeLines copy{from, nullptr, lines, length, step, by_rows ? whole_rows : whole_columns, longer / unit, pitch};
  step = pitch;
  m.data = nullptr;
  return copy;
}

}  // namespace

WholeProduct whole_product(const GemmArgs& given, Spare spare) {
  constexpr i64 least = 128, least_copied = i64{1} << 27, least_filled = i64{1} << 26;
  WholeProduct product{given};
  GemmArgs& args = product.args;
  const i64 m = args.m, n = args.n, k = args.k, work = m * n * k;
  const bool f32 = args.a.type == Scalar::f32 && args.b.type == Scalar::f32 && args.c.type == Scalar::f32;
  if (!args.tf32 || !f32 || args.batch_rank > 0 || tile::min(m, tile::min(n, k)) < least || work < least_filled)
    return product;
  const bool widens =
      spare.c != Ends::others && begins_whole(args.c) && (!args.addend.data || args.addend.data == args.c.data);
  const bool down = args.a.column != 1;  // columns of a
  if (widens) args.n = whole(n);
  if (widens && down) args.m = whole(m);
  if (!down || args.b.column != 1) args.k = whole(k);
  const bool zeros = args.k > k;
  product.of[0] = lines_of(args.a, m, k, args.m, args.k, spare.a, zeros);
  product.of[1] = lines_of(args.b, k, n, args.k, args.n, spare.b, zeros);
  if (product.bytes() > 0 && work < least_copied) return WholeProduct{given};
  if (args.bias.data && args.n > n)
    product.of[2] = {static_cast<const u32*>(args.bias.data), nullptr, 1, n, n, 1, args.n / unit, args.n};
  return product;
}

GemmArgs make_whole(WholeProduct product, void* room, Executor& executor) {
  MatrixArg* const matrix[] = {&product.args.a, &product.args.b, &product.args.bias};
  WholeOperands operands;
  i64 blocks = 0;
  auto* place = static_cast<char*>(room);
  for (int i = 0; i < 3; ++i) {
    WholeLines& m = product.of[i];
    if (m.copies()) {
      const i64 bytes = m.bytes();
      matrix[i]->data = m.to = reinterpret_cast<u32*>(place);
      place += bytes;
    }
    operands.of[i] = m;
    operands.end[i] = blocks += blocks_of(m);
  }
  launch("gemm", whole_lines_kernel, blocks, threads, 0, executor, operands);
  return product.args;
}

}  // namespace tessera::gpu_kernels
#endif
