// Products of f32 whose rows begin or end off 16 bytes, padded with zeros as a library has fast algorithms for them.
#pragma once
#include "kernels/args/gpu/vendor_gemm.h"
#include "kernels/gpu/device/runtime/host.h"

namespace tessera::gpu_kernels {

/// An operand by its contiguous dim, here called rows: `rows` of `columns` elements, `pitch` apart, become
/// `padded_rows` of `units` times 16 bytes, with zeros behind. Without `from` it stays as it is; `to` is null until its
/// copy has its place, or is `from`, where only padding is written.
struct PaddedOperand {
  const u32* from;
  u32* to;
  i64 rows, columns, pitch;
  i64 padded_rows, units, to_pitch;
  TESSERA_HD bool copies() const { return from && to != from; }
  i64 bytes() const { return copies() ? tile::ceil_div<i64>(padded_rows * to_pitch, 16) * 64 : 0; }
};

/// The operands and the bias.
struct PaddedProduct {
  GemmArgs args;
  PaddedOperand of[3] = {};
  size_t bytes() const { return static_cast<size_t>(of[0].bytes() + of[1].bytes() + of[2].bytes()); }
};
PaddedProduct padded_product(const GemmArgs& args, ProductPadding padding);

/// Its operands are ready behind that; copies lie at `room`.
GemmArgs pad_operands(PaddedProduct product, void* room, Executor& executor);

}  // namespace tessera::gpu_kernels
