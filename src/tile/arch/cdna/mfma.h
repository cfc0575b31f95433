// Matrix instructions of AMD's CDNA cards (Instinct MI200 instruction set architecture, "Matrix Arithmetic
// Instructions").
#pragma once
#include "../../types.h"
#include "../gpu/block.h"

#if !defined(__HIP__)
#error "arch/cdna is code for AMD cards: compile it with clang for HIP"
#elif defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx90a__) && !defined(__gfx942__)
#error "arch/cdna needs gfx90a or gfx942"
#endif

TESSERA_TILE_BEGIN
namespace cdna {

using Accumulator = float __attribute__((ext_vector_type(16)));
using Halves = _Float16 __attribute__((ext_vector_type(4)));
using Shorts = short __attribute__((ext_vector_type(4)));

/// A value that is the same in all lanes of the wave, as a scalar.
TESSERA_DEVICE int uniform(int value) { return __builtin_amdgcn_readfirstlane(value); }

/// Instructions above stay above, those below stay below.
TESSERA_DEVICE void keep_order() { __builtin_amdgcn_sched_barrier(0); }

/// a * b + c for a 32x8 a, an 8x32 b and a 32x32 c that the wave of 64 holds together; see Mfma32x32x8.
template <class T>
TESSERA_DEVICE Accumulator multiply_add(const T* a, const T* b, Accumulator c) {
  static_assert(is_same_v<T, f16> || is_same_v<T, bf16>, "mfma: operands are f16 or bf16");
  if constexpr (is_same_v<T, f16>) {
    Halves x, y;
    __builtin_memcpy(&x, a, sizeof x);
    __builtin_memcpy(&y, b, sizeof y);
    return __builtin_amdgcn_mfma_f32_32x32x8f16(x, y, c, 0, 0, 0);
  } else {
    Shorts x, y;
    __builtin_memcpy(&x, a, sizeof x);
    __builtin_memcpy(&y, b, sizeof y);
    return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(x, y, c, 0, 0, 0);
  }
}

}  // namespace cdna
TESSERA_TILE_END
