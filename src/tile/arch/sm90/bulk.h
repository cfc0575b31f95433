// Copies of whole runs between memory and shared memory by Hopper's TMA (PTX ISA, "cp.async.bulk"), also
// adding; messages to other blocks of a cluster; and counters in memory by which blocks wait for each other.
#pragma once
#include "ptx.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// Starts copying bytes, a multiple of 16, to shared memory; they count for `barrier`.
TESSERA_DEVICE void bulk_load(u32 shared, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
               : "memory");
}
/// Starts copying bytes, a multiple of 16, from shared memory; part of this thread's group, see tma_store_commit.
TESSERA_DEVICE void bulk_store(void* to, u32 shared, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
               "r"(shared), "r"(bytes)
               : "memory");
}
/// The same, added to the floats that are there.
TESSERA_DEVICE void bulk_reduce_add(float* to, u32 shared, u32 bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
      "r"(shared), "r"(bytes)
      : "memory");
}
/// Waits until at most N groups of this thread's stores are under way.
template <int N>
TESSERA_DEVICE void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

/// Sends 8 bytes to the same place of block `rank` of the cluster, where they count for the barrier of the same name.
TESSERA_DEVICE void send(u32 shared, u64 message, u32 barrier, u32 rank) {
  asm volatile(
      "{\n.reg .b32 to, at;\nmapa.shared::cluster.u32 to, %0, %3;\nmapa.shared::cluster.u32 at, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [to], %1, [at];\n}" ::"r"(shared),
      "l"(message), "r"(barrier), "r"(rank)
      : "memory");
}

/// Waits until a counter in memory is `value`; what was stored by whoever counted, by TMA too, is visible.
TESSERA_DEVICE void wait_count(const int* counter, int value) {
  int count;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                 : "=r"(count)
                 : "l"(__cvta_generic_to_global(counter))
                 : "memory");
  } while (count != value);
  asm volatile("fence.proxy.async;" ::: "memory");
}
/// Counts one more, once what this thread stored is visible.
TESSERA_DEVICE void count_up(int* counter) {
  asm volatile("fence.proxy.async;\nred.release.gpu.global.add.s32 [%0], 1;" ::"l"(__cvta_generic_to_global(counter))
               : "memory");
}
/// The next of a counter's values.
TESSERA_DEVICE int take_ticket(int* counter) {
  int ticket;
  asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(ticket)
               : "l"(__cvta_generic_to_global(counter))
               : "memory");
  return ticket;
}

/// Counts one more in shared memory, after what this thread did before; returns the count before.
TESSERA_DEVICE int count_shared(u32 counter) {
  int count;
  asm volatile("atom.acq_rel.cta.shared::cta.add.s32 %0, [%1], 1;" : "=r"(count) : "r"(counter) : "memory");
  return count;
}
TESSERA_DEVICE void store_word(u32 shared, int x) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(shared), "r"(x) : "memory");
}
TESSERA_DEVICE int load_word(u32 shared) {
  int x;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(shared) : "memory");
  return x;
}
TESSERA_DEVICE void store_four(u32 shared, const float* r) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "f"(r[0]), "f"(r[1]), "f"(r[2]), "f"(r[3])
               : "memory");
}

}  // namespace sm90
TESSERA_TILE_END
