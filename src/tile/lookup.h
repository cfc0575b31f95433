// Numbers looked up by the lanes of a vector: of eight, where the processor has an instruction for it, and of two
// vectors. Reciprocals, which some processors look up.
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

/// 1 / x to the last bit or two, for x and 1 / x between 2^-126 and 2^126.
template <class V>
TESSERA_HD V inverse(V x) {
  return V(element_t<V>(1)) / x;
}
#if TESSERA_X86 && defined(__AVX512F__)
template <>
TESSERA_HD Vec<float, 16> inverse<Vec<float, 16>>(Vec<float, 16> x) {  // a division would bound every loop
  const auto guess =
      Vec<float, 16>::of(reinterpret_cast<Vec<float, 16>::Native>(_mm512_rcp14_ps(reinterpret_cast<__m512>(x.v))));
  return fma(guess, fma(-x, guess, Vec<float, 16>(1.0f)), guess);
}
#endif

/// Lane index of a, and of b behind it, in every lane.
template <class T, int N>
TESSERA_HD Vec<T, N> permute(Vec<T, N> a, Vec<T, N> b, Vec<i32, N> index) {
  T from[2 * N], to[N];
  store(from, a);
  store(from + N, b);
  for (int i = 0; i < N; ++i) to[i] = from[index[i]];
  return load<Vec<T, N>>(static_cast<const T*>(to));
}
#if TESSERA_X86 && defined(__AVX2__)
template <>
TESSERA_HD Vec<float, 8> permute<float, 8>(Vec<float, 8> a, Vec<float, 8> b, Vec<i32, 8> index) {
  const auto at = reinterpret_cast<__m256i>(index.v);
  const __m256 of_a = _mm256_permutevar8x32_ps(reinterpret_cast<__m256>(a.v), at);
  const __m256 of_b = _mm256_permutevar8x32_ps(reinterpret_cast<__m256>(b.v), at);
  const __m256 beyond = _mm256_castsi256_ps(_mm256_slli_epi32(at, 28));  // the sign: bit 3
  return Vec<float, 8>::of(reinterpret_cast<Vec<float, 8>::Native>(_mm256_blendv_ps(of_a, of_b, beyond)));
}
#endif
#if TESSERA_X86 && defined(__AVX512F__)
template <>
TESSERA_HD Vec<float, 16> permute<float, 16>(Vec<float, 16> a, Vec<float, 16> b, Vec<i32, 16> index) {
  return Vec<float, 16>::of(reinterpret_cast<Vec<float, 16>::Native>(_mm512_permutex2var_ps(
      reinterpret_cast<__m512>(a.v), reinterpret_cast<__m512i>(index.v), reinterpret_cast<__m512>(b.v))));
}
#endif

TESSERA_TILE_END
