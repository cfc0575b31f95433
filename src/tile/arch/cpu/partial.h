// Stores of the first lanes of a vector. AVX2's masked stores are short programs of the processor on AMD, of 12 cycles
// and more: two or three plain stores take a fourth of that.
#pragma once

#include "../../vec.h"

#if defined(__AVX2__) && !defined(__AVX512VL__) && !TESSERA_GPU_COMPILER
#include <immintrin.h>
#endif

TESSERA_TILE_BEGIN
namespace cpu {

/// store(p, v, count), of fewer lanes than the vector has.
template <class V>
TESSERA_HD void store_part(element_t<V>* p, V v, int count) {
#if defined(__AVX2__) && !defined(__AVX512VL__) && !TESSERA_GPU_COMPILER
  if constexpr (is_same_v<element_t<V>, float> && lanes_v<V> == 8) {
    const __m256 all = bit_cast<__m256>(v);
    __m128 rest = _mm256_castps256_ps128(all);
    if (count & 4) {
      _mm_storeu_ps(p, rest);
      rest = _mm256_extractf128_ps(all, 1);
      p += 4;
    }
    if (count & 2) {
      _mm_storel_pi(reinterpret_cast<__m64*>(p), rest);
      rest = _mm_movehl_ps(rest, rest);
      p += 2;
    }
    if (count & 1) _mm_store_ss(p, rest);
    return;
  }
#endif
  store(p, v, count);
}

}  // namespace cpu
TESSERA_TILE_END
