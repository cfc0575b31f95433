// Elements read at the places that the lanes of a vector name.
#pragma once

#include "../../vec.h"

TESSERA_TILE_BEGIN

/// p[index] in every lane, and 0 where the index is negative.
template <class C, int N, class T>
TESSERA_HD Vec<C, N> gather(const T* p, Vec<i32, N> index) {
  C lane[N];
  for (int i = 0; i < N; ++i) lane[i] = index[i] < 0 ? C(0) : convert_element<C>(p[index[i]]);
  return load<Vec<C, N>>(static_cast<const C*>(lane));
}
#if TESSERA_X86 && defined(__AVX512F__)
template <>
TESSERA_HD Vec<float, 16> gather<float, 16, float>(const float* p, Vec<i32, 16> index) {
  const auto at = reinterpret_cast<__m512i>(index.v);
  const __mmask16 present = _mm512_cmpge_epi32_mask(at, _mm512_setzero_si512());
  return Vec<float, 16>::of(
      reinterpret_cast<Vec<float, 16>::Native>(_mm512_mask_i32gather_ps(_mm512_setzero_ps(), present, at, p, 4)));
}
#elif TESSERA_X86 && defined(__AVX2__)
template <>
TESSERA_HD Vec<float, 8> gather<float, 8, float>(const float* p, Vec<i32, 8> index) {
  const auto at = reinterpret_cast<__m256i>(index.v);
  const __m256 present = _mm256_castsi256_ps(_mm256_cmpgt_epi32(at, _mm256_set1_epi32(-1)));
  return Vec<float, 8>::of(
      reinterpret_cast<Vec<float, 8>::Native>(_mm256_mask_i32gather_ps(_mm256_setzero_ps(), p, at, present, 4)));
}
#endif

TESSERA_TILE_END
