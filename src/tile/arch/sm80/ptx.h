// Copy and matrix-multiply instructions of NVIDIA cards from compute capability 8.0 on (PTX ISA, chapters "cp.async",
// "ldmatrix" and "mma").
#pragma once
#include "../../types.h"
#include "../gpu/block.h"

#if !defined(TESSERA_SIMULATED_GPU)
#if !defined(__CUDACC__)
#error "arch/sm80 is code for NVIDIA cards: compile it with nvcc or NVRTC"
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "arch/sm80 needs compute capability 8.0 or newer"
#endif

TESSERA_TILE_BEGIN
namespace sm80 {

TESSERA_DEVICE u32 shared_address(const void* shared) { return static_cast<u32>(__cvta_generic_to_shared(shared)); }

/// Starts copying Bytes (4, 8 or 16, both ends aligned to them) from global to shared memory; writes zeros instead,
/// without reading, where `valid` is false.
template <int Bytes>
TESSERA_DEVICE void copy_async(void* shared, const void* global, bool valid) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "cp.async moves 4, 8 or 16 bytes");
  const u32 to = shared_address(shared);
  const int from_bytes = valid ? Bytes : 0;
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(from_bytes));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(Bytes), "r"(from_bytes));
  }
}
/// Closes the group of copies started since the last call.
TESSERA_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;"); }
/// Waits until at most N groups of this thread are under way.
template <int N>
TESSERA_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/// Four 8x8 matrices of 16-bit elements: lane l points at row l % 8 of matrix l / 8; afterwards r[i] of lane l holds
/// the elements (l / 4, 2 * (l % 4)) and the next one of matrix i, or of its transpose.
template <bool Transposed>
TESSERA_DEVICE void load_matrices(u32 (&r)[4], const void* row) {
  const u32 from = shared_address(row);
  if constexpr (Transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
  }
}

/// c += a * b for a 16x16 a, a 16x8 b and a 16x8 c that the warp holds together; see MmaSync16x8x16.
template <class T>
TESSERA_DEVICE void multiply_add(float* c, const u32* a, const u32* b) {
  static_assert(is_same_v<T, f16> || is_same_v<T, bf16>, "mma.sync: operands are f16 or bf16");
  if constexpr (is_same_v<T, f16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

/// The same for a 16x8 a and an 8x8 b in tf32; see MmaSync16x8x8Tf32.
TESSERA_DEVICE void multiply_add_tf32(float* c, const u32* a, const u32* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/// A float rounded to the 10 bits of tf32's fraction, to nearest, ties away from zero.
TESSERA_DEVICE u32 round_tf32(u32 bits) {
  u32 rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "r"(bits));
  return rounded;
}

/// Two elements of 16 bits, the first in the low half.
template <class T>
TESSERA_DEVICE u32 pack(float low, float high) {
  static_assert(is_same_v<T, f16> || is_same_v<T, bf16>, "pack: f16 or bf16");
  u32 both;
  if constexpr (is_same_v<T, f16>) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

}  // namespace sm80
TESSERA_TILE_END

#endif
