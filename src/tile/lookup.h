// Eight 32-bit numbers looked up by the lanes of a vector, where the processor has an instruction for it.
#pragma once

#include "vec.h"

TESSERA_TILE_BEGIN

/// Whether lookup8() exists for N lanes.
template <int N>
inline constexpr bool has_lookup8 = TESSERA_X86&& native_bytes >= 32 && N * 4 >= 32 && N * 4 <= native_bytes;

#if TESSERA_X86 && defined(__AVX2__)
/// table[index % 8] in every lane.
TESSERA_HD Vec<i32, 8> lookup8(const i32* table, Vec<i32, 8> index) {
  const __m256i eight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table));
  return Vec<i32, 8>::of(
      reinterpret_cast<Vec<i32, 8>::Native>(_mm256_permutevar8x32_epi32(eight, reinterpret_cast<__m256i>(index.v))));
}
#endif
#if TESSERA_X86 && defined(__AVX512F__) && defined(__AVX512DQ__)
TESSERA_HD Vec<i32, 16> lookup8(const i32* table, Vec<i32, 16> index) {
  const __m512i twice = _mm512_broadcast_i32x8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(table)));
  return Vec<i32, 16>::of(
      reinterpret_cast<Vec<i32, 16>::Native>(_mm512_permutexvar_epi32(reinterpret_cast<__m512i>(index.v), twice)));
}
#endif

TESSERA_TILE_END
