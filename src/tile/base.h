// Ground of the tile library: no standard header is included below tile/ (NVRTC has none),
// except in arch/cpu, which may use <immintrin.h>.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define TESSERA_GPU_COMPILER 1
#define TESSERA_HD __host__ __device__ __forceinline__
#elif defined(__HIP__)
#define TESSERA_GPU_COMPILER 1
#define TESSERA_HD __host__ __device__ inline __attribute__((always_inline))
#else
#define TESSERA_GPU_COMPILER 0
#define TESSERA_HD inline __attribute__((always_inline))
#endif

#if defined(__CUDACC_RTC__)
// Builtins of other compilers that it knows by other names.
#include "nvrtc.h"
#endif

// Each instruction set has a namespace of its own: the linker may otherwise keep one copy of an inline
// function, compiled for the newest processor, and an older one dies on it.
#if defined(__HIP_DEVICE_COMPILE__)
#define TESSERA_ISA amdgcn
#elif defined(__CUDA_ARCH__)
#define TESSERA_ISA ptx
#elif TESSERA_GPU_COMPILER
#define TESSERA_ISA gpu_host
#elif defined(__AVX512F__)
#define TESSERA_ISA avx512
#elif defined(__AVX2__) && defined(__FMA__)
#define TESSERA_ISA avx2
#else
#define TESSERA_ISA baseline
#endif

#if TESSERA_GPU_COMPILER  // one compilation sees host and device passes: names must agree between them
#undef TESSERA_ISA
#define TESSERA_ISA gpu
#endif

#define TESSERA_TILE_BEGIN  \
  namespace tessera::tile { \
  inline namespace TESSERA_ISA {
#define TESSERA_TILE_END \
  }                      \
  }

TESSERA_TILE_BEGIN

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

/// A compile-time integer as a value.
template <int N>
struct Int {
  static constexpr int value = N;
  constexpr TESSERA_HD operator int() const { return N; }
};

template <bool C, class T, class F>
struct Conditional {
  using type = T;
};
template <class T, class F>
struct Conditional<false, T, F> {
  using type = F;
};
template <bool C, class T, class F>
using conditional_t = typename Conditional<C, T, F>::type;

template <class A, class B>
inline constexpr bool is_same_v = false;
template <class A>
inline constexpr bool is_same_v<A, A> = true;

template <class T>
struct RemoveCvRef {
  using type = T;
};
template <class T>
struct RemoveCvRef<const T> {
  using type = T;
};
template <class T>
struct RemoveCvRef<T&> {
  using type = typename RemoveCvRef<T>::type;
};
template <class T>
struct RemoveCvRef<T&&> {
  using type = typename RemoveCvRef<T>::type;
};
template <class T>
using remove_cvref_t = typename RemoveCvRef<T>::type;

template <class T>
constexpr TESSERA_HD T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr TESSERA_HD T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
constexpr TESSERA_HD T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
template <class T>
constexpr TESSERA_HD T round_up(T a, T b) {
  return ceil_div(a, b) * b;
}

TESSERA_TILE_END
