// Products of f32 whose lines begin or end off whole 16 bytes, as a library has fast algorithms for them.
#pragma once
#include "kernels/args/gpu/vendor_gemm.h"
#include "kernels/gpu/device/runtime/host.h"

namespace tessera::gpu_kernels {

/// Lines of an operand: so many of them and so long they become, zeros where there is nothing. Without `from` they stay
/// as they are; `to` is null until their copy has its place, or is `from`, where only what is nobody's is written.
struct WholeLines {
  const u32* from;
  u32* to;
  i64 lines, length, step;
  i64 whole, units, pitch;
  TESSERA_HD bool copies() const { return from && to != from; }
  bool fills() const { return from && to == from; }
  i64 bytes() const { return copies() ? tile::ceil_div<i64>(whole * pitch, 16) * 64 : 0; }
};

/// The operands and the bias.
struct WholeProduct {
  GemmArgs args;
  WholeLines of[3] = {};
  size_t bytes() const { return static_cast<size_t>(of[0].bytes() + of[1].bytes() + of[2].bytes()); }
};
WholeProduct whole_product(const GemmArgs& args, Spare spare);

/// Its operands are ready behind that; copies lie at `room`.
GemmArgs make_whole(WholeProduct product, void* room, Executor& executor);

}  // namespace tessera::gpu_kernels
