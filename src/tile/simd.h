// What the vector extensions of GCC and clang do not express: square root, fused multiply-add, masks on
// memory and half floats, by width. Included by vec.h only; other widths take the loops there.
#pragma once

#include "types.h"

#if defined(__CUDACC__)  // reads this, but runs none of it
#define TESSERA_UNROLL
#define TESSERA_UNROLL4
#elif defined(__clang__)
#define TESSERA_UNROLL _Pragma("clang loop unroll(full)")
#define TESSERA_UNROLL4 _Pragma("clang loop unroll_count(4)")
#else
#define TESSERA_UNROLL _Pragma("GCC unroll 32")
#define TESSERA_UNROLL4 _Pragma("GCC unroll 4")
#endif

#if defined(__x86_64__) && !TESSERA_GPU_COMPILER
#define TESSERA_X86 1
#else
#define TESSERA_X86 0
#endif

#if TESSERA_X86
#if !defined(__clang__)  // GCC 12 warns about its own _mm512_undefined
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif

TESSERA_TILE_BEGIN
namespace simd {

typedef i32 Int8 __attribute__((vector_size(32)));
typedef i64 Long4 __attribute__((vector_size(32)));
typedef u16 Short8 __attribute__((vector_size(16)));
typedef u16 Short16 __attribute__((vector_size(32)));

TESSERA_HD __m128 sqrt(__m128 a) { return _mm_sqrt_ps(a); }
TESSERA_HD __m128d sqrt(__m128d a) { return _mm_sqrt_pd(a); }
TESSERA_HD __m128 min(__m128 a, __m128 b) { return _mm_min_ps(a, b); }
TESSERA_HD __m128d min(__m128d a, __m128d b) { return _mm_min_pd(a, b); }
TESSERA_HD __m128 max(__m128 a, __m128 b) { return _mm_max_ps(a, b); }
TESSERA_HD __m128d max(__m128d a, __m128d b) { return _mm_max_pd(a, b); }

#if defined(__AVX2__) && defined(__FMA__)
TESSERA_HD __m128 fma(__m128 a, __m128 b, __m128 c) { return _mm_fmadd_ps(a, b, c); }
TESSERA_HD __m128d fma(__m128d a, __m128d b, __m128d c) { return _mm_fmadd_pd(a, b, c); }
TESSERA_HD __m256 fma(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
TESSERA_HD __m256d fma(__m256d a, __m256d b, __m256d c) { return _mm256_fmadd_pd(a, b, c); }
/// sum += a * b in the sum's own register: among the three forms of the instruction GCC 12 takes others too, and moves
/// sums about, even through memory, in loops that leave no register free.
#define TESSERA_ADD_PRODUCT(V, suffix) \
  TESSERA_HD void add_product(V& sum, V a, V b) { asm("vfmadd231" suffix " %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); }
TESSERA_ADD_PRODUCT(__m256, "ps")
TESSERA_ADD_PRODUCT(__m256d, "pd")
TESSERA_HD __m256 sqrt(__m256 a) { return _mm256_sqrt_ps(a); }
TESSERA_HD __m256d sqrt(__m256d a) { return _mm256_sqrt_pd(a); }
TESSERA_HD __m256 min(__m256 a, __m256 b) { return _mm256_min_ps(a, b); }
TESSERA_HD __m256d min(__m256d a, __m256d b) { return _mm256_min_pd(a, b); }
TESSERA_HD __m256 max(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
TESSERA_HD __m256d max(__m256d a, __m256d b) { return _mm256_max_pd(a, b); }

/// To integers: 0 to the nearest, 1 down, 2 up, 3 towards zero.
template <int how>
TESSERA_HD __m128 rounded(__m128 a) {
  return _mm_round_ps(a, how | _MM_FROUND_NO_EXC);
}
template <int how>
TESSERA_HD __m128d rounded(__m128d a) {
  return _mm_round_pd(a, how | _MM_FROUND_NO_EXC);
}
template <int how>
TESSERA_HD __m256 rounded(__m256 a) {
  return _mm256_round_ps(a, how | _MM_FROUND_NO_EXC);
}
template <int how>
TESSERA_HD __m256d rounded(__m256d a) {
  return _mm256_round_pd(a, how | _MM_FROUND_NO_EXC);
}

TESSERA_HD __m256i first_lanes32(int n) { return reinterpret_cast<__m256i>(Int8{0, 1, 2, 3, 4, 5, 6, 7} < n); }
TESSERA_HD __m256i first_lanes64(int n) { return reinterpret_cast<__m256i>(Long4{0, 1, 2, 3} < static_cast<i64>(n)); }
#if !defined(__AVX512VL__)
TESSERA_HD __m256 load_first(const float* p, int n, Int<8>) { return _mm256_maskload_ps(p, first_lanes32(n)); }
TESSERA_HD __m256d load_first(const double* p, int n, Int<4>) { return _mm256_maskload_pd(p, first_lanes64(n)); }
TESSERA_HD void store_first(float* p, __m256 v, int n) { _mm256_maskstore_ps(p, first_lanes32(n), v); }
TESSERA_HD void store_first(double* p, __m256d v, int n) { _mm256_maskstore_pd(p, first_lanes64(n), v); }
#endif
#endif

#if defined(__F16C__)
TESSERA_HD __m256 widen_f16(Short8 h) { return _mm256_cvtph_ps(reinterpret_cast<__m128i>(h)); }
TESSERA_HD Short8 narrow_f16(__m256 v) {
  return reinterpret_cast<Short8>(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
#endif

#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512BW__)
TESSERA_HD __m512 fma(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
TESSERA_HD __m512d fma(__m512d a, __m512d b, __m512d c) { return _mm512_fmadd_pd(a, b, c); }
TESSERA_ADD_PRODUCT(__m512, "ps")
TESSERA_ADD_PRODUCT(__m512d, "pd")
TESSERA_HD __m512 sqrt(__m512 a) { return _mm512_sqrt_ps(a); }
TESSERA_HD __m512d sqrt(__m512d a) { return _mm512_sqrt_pd(a); }
TESSERA_HD __m512 min(__m512 a, __m512 b) { return _mm512_min_ps(a, b); }
TESSERA_HD __m512d min(__m512d a, __m512d b) { return _mm512_min_pd(a, b); }
TESSERA_HD __m512 max(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
TESSERA_HD __m512d max(__m512d a, __m512d b) { return _mm512_max_pd(a, b); }

template <int how>
TESSERA_HD __m512 rounded(__m512 a) {
  return _mm512_roundscale_ps(a, how | _MM_FROUND_NO_EXC);
}
template <int how>
TESSERA_HD __m512d rounded(__m512d a) {
  return _mm512_roundscale_pd(a, how | _MM_FROUND_NO_EXC);
}

TESSERA_HD u32 first_bits(int n) { return n <= 0 ? 0u : _bzhi_u32(~0u, static_cast<u32>(n)); }
TESSERA_HD __m512 load_first(const float* p, int n, Int<16>) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(first_bits(n)), p);
}
TESSERA_HD __m512d load_first(const double* p, int n, Int<8>) {
  return _mm512_maskz_loadu_pd(static_cast<__mmask8>(first_bits(n)), p);
}
TESSERA_HD __m256 load_first(const float* p, int n, Int<8>) {
  return _mm256_maskz_loadu_ps(static_cast<__mmask8>(first_bits(n)), p);
}
TESSERA_HD __m256d load_first(const double* p, int n, Int<4>) {
  return _mm256_maskz_loadu_pd(static_cast<__mmask8>(first_bits(n)), p);
}
TESSERA_HD void store_first(float* p, __m512 v, int n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>(first_bits(n)), v);
}
TESSERA_HD void store_first(double* p, __m512d v, int n) {
  _mm512_mask_storeu_pd(p, static_cast<__mmask8>(first_bits(n)), v);
}
TESSERA_HD void store_first(float* p, __m256 v, int n) {
  _mm256_mask_storeu_ps(p, static_cast<__mmask8>(first_bits(n)), v);
}
TESSERA_HD void store_first(double* p, __m256d v, int n) {
  _mm256_mask_storeu_pd(p, static_cast<__mmask8>(first_bits(n)), v);
}
TESSERA_HD __m512 widen_f16(Short16 h) { return _mm512_cvtph_ps(reinterpret_cast<__m256i>(h)); }
TESSERA_HD Short16 narrow_f16(__m512 v) {
  return reinterpret_cast<Short16>(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
#endif

}  // namespace simd
TESSERA_TILE_END
#endif
