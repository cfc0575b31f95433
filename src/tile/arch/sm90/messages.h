// Messages between the blocks of a cluster (PTX ISA, "st.async"): they count for a barrier of the block that gets them,
// which so knows that they are there.
#pragma once
#if !defined(TESSERA_SIMULATED_GPU)
#include "ptx.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// A float, or four at a multiple of 16 bytes, to the same place of block `rank`, where they count for the barrier of
/// the same name.
TESSERA_DEVICE void send_float(u32 shared, float x, u32 barrier, u32 rank) {
  asm volatile(
      "{\n.reg .b32 to, at;\nmapa.shared::cluster.u32 to, %0, %3;\nmapa.shared::cluster.u32 at, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %1, [at];\n}" ::"r"(shared),
      "r"(__float_as_uint(x)), "r"(barrier), "r"(rank)
      : "memory");
}
TESSERA_DEVICE void send_four(u32 shared, const float (&x)[4], u32 barrier, u32 rank) {
  asm volatile(
      "{\n.reg .b32 to, at;\nmapa.shared::cluster.u32 to, %0, %6;\nmapa.shared::cluster.u32 at, %5, %6;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [to], {%1, %2, %3, %4}, [at];\n}" ::"r"(shared),
      "r"(__float_as_uint(x[0])), "r"(__float_as_uint(x[1])), "r"(__float_as_uint(x[2])), "r"(__float_as_uint(x[3])),
      "r"(barrier), "r"(rank)
      : "memory");
}

}  // namespace sm90
TESSERA_TILE_END
#endif
