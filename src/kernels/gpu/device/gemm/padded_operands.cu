#if !defined(__HIP__)  // which has no such library
#include "padded_operands.h"

#include "kernels/gpu/device/elementwise/loops.h"

namespace tessera::gpu_kernels {
namespace {

constexpr i64 unit = 4;  // floats in 16 bytes
using Unit = Pack<u32, unit>;
i64 padded(i64 n) { return tile::ceil_div(n, unit) * unit; }

/// Operands by blocks, of which each has those before its end.
struct PaddedOperands {
  PaddedOperand of[3];
  i64 end[3];
};

/// The end of a row for each thread, then units of the rows behind the last.
TESSERA_DEVICE void pad_in_place(const PaddedOperand& m, i64 at) {
  if (at < m.rows) {
    for (i64 i = m.columns; i < m.units * unit; ++i) m.to[at * m.to_pitch + i] = 0;
    return;
  }
  const i64 row = tile::quotient(at - m.rows, m.units), i = at - m.rows - row * m.units;
  if (m.rows + row < m.padded_rows) store_at_once(m.to + (m.rows + row) * m.to_pitch + i * unit, Unit{});
}
TESSERA_DEVICE void copy_unit(const PaddedOperand& m, i64 at) {
  const i64 row = tile::quotient(at, m.units), i = (at - row * m.units) * unit;
  if (row >= m.padded_rows) return;
  const i64 left = row < m.rows ? m.columns - i : 0;
  store_at_once(m.to + row * m.to_pitch + i, load_unit<u32, unit>(m.from + row * m.pitch + i, false, left, m.columns));
}

constexpr int threads = 256;

TESSERA_KERNEL(threads)
void pad_operands_kernel(const PaddedOperands operands) {
  const i64 block = tile::block_in_grid();
  const int i = block < operands.end[0] ? 0 : block < operands.end[1] ? 1 : 2;
  const PaddedOperand& m = operands.of[i];
  const i64 at = (block - (i > 0 ? operands.end[i - 1] : 0)) * threads + tile::thread_in_block();
  if (m.copies()) copy_unit(m, at);
  else pad_in_place(m, at);
}

i64 blocks_of(const PaddedOperand& m) {
  if (!m.from) return 0;
  return tile::ceil_div<i64>(m.copies() ? m.padded_rows * m.units : m.rows + (m.padded_rows - m.rows) * m.units,
                             threads);
}

bool is_aligned(const MatrixArg& m) {
  return (m.column == 1 ? m.row : m.column) % unit == 0 && reinterpret_cast<size_t>(m.data) % 16 == 0;
}

/// An operand of rows x columns that is read as if it were padded_rows x padded_columns. All of its padding gets zeros,
/// so that they hold for any other product.
PaddedOperand pad(MatrixArg& m, i64 rows, i64 columns, i64 padded_rows, i64 padded_columns, Padding padding,
                  bool zeros) {
  const bool by_rows = m.column == 1, grows = padded_rows > rows || padded_columns > columns;
  auto& pitch = by_rows ? m.row : m.column;
  auto* const from = static_cast<u32*>(m.data);
  const i64 outer = by_rows ? rows : columns, inner = by_rows ? columns : rows;
  if (is_aligned(m) && (padding == Padding::free || !grows)) {
    if (!grows || !zeros) return {};
    return {from, from, outer, inner, pitch, padded(outer), padded(inner) / unit, pitch};
  }
  constexpr i64 in_cache_line = 32;
  const i64 length = padded(by_rows ? padded_columns : padded_rows);
  const i64 to_pitch = length < 256 ? length : tile::ceil_div(length, in_cache_line) * in_cache_line;
  const PaddedOperand copy{from,          nullptr, outer, inner, pitch, by_rows ? padded_rows : padded_columns,
                           length / unit, to_pitch};
  pitch = to_pitch;
  m.data = nullptr;
  return copy;
}

}  // namespace

PaddedProduct padded_product(const GemmArgs& given, ProductPadding padding) {
  constexpr i64 least = 128, least_copied = i64{1} << 27, least_padded = i64{1} << 26;
  PaddedProduct product{given};
  GemmArgs& args = product.args;
  const i64 m = args.m, n = args.n, k = args.k, work = m * n * k;
  const bool f32 = args.a.type == Scalar::f32 && args.b.type == Scalar::f32 && args.c.type == Scalar::f32;
  if (!args.tf32 || !f32 || args.batch_rank > 0 || tile::min(m, tile::min(n, k)) < least || work < least_padded)
    return product;
  const bool widens =
      padding.c == Padding::free && is_aligned(args.c) && (!args.addend.data || args.addend.data == args.c.data);
  const bool transposed_a = args.a.column != 1;
  if (widens) args.n = padded(n);
  if (widens && transposed_a) args.m = padded(m);
  if (!transposed_a || args.b.column != 1) args.k = padded(k);
  const bool zeros = args.k > k;
  product.of[0] = pad(args.a, m, k, args.m, args.k, padding.a, zeros);
  product.of[1] = pad(args.b, k, n, args.k, args.n, padding.b, zeros);
  if (product.bytes() > 0 && work < least_copied) return PaddedProduct{given};
  if (args.bias.data && args.n > n)
    product.of[2] = {static_cast<const u32*>(args.bias.data), nullptr, 1, n, n, 1, args.n / unit, args.n};
  return product;
}

GemmArgs pad_operands(PaddedProduct product, void* room, Executor& executor) {
  MatrixArg* const matrix[] = {&product.args.a, &product.args.b, &product.args.bias};
  PaddedOperands operands;
  i64 blocks = 0;
  auto* place = static_cast<char*>(room);
  for (int i = 0; i < 3; ++i) {
    PaddedOperand& m = product.of[i];
    if (m.copies()) {
      const i64 bytes = m.bytes();
      matrix[i]->data = m.to = reinterpret_cast<u32*>(place);
      place += bytes;
    }
    operands.of[i] = m;
    operands.end[i] = blocks += blocks_of(m);
  }
  launch("gemm", pad_operands_kernel, blocks, threads, 0, executor, operands);
  return product.args;
}

}  // namespace tessera::gpu_kernels
#endif
