// Storage types of 16 bits and their conversions. Arithmetic is done in float.
#pragma once

#include "base.h"

TESSERA_TILE_BEGIN

template <class To, class From>
constexpr TESSERA_HD To bit_cast(const From& from) {
  return __builtin_bit_cast(To, from);
}

namespace detail {

/// IEEE binary16 to binary32, exact; a signalling NaN is quieted.
constexpr TESSERA_HD float f16_to_f32_portable(u16 h) {
  const u32 sign = static_cast<u32>(h & 0x8000u) << 16;
  const u32 magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) {
    const u32 quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
    return bit_cast<float>(sign | 0x7f800000u | quiet | ((magnitude & 0x3ffu) << 13));
  }
  // Shifted into place the exponent is too small by 112; the product repairs it, subnormals included.
  return bit_cast<float>(sign | bit_cast<u32>(bit_cast<float>(magnitude << 13) * 0x1p112f));
}

/// binary32 to binary16, to nearest even.
constexpr TESSERA_HD u16 f32_to_f16_portable(float f) {
  const u32 bits = bit_cast<u32>(f);
  const u32 sign = (bits >> 16) & 0x8000u;
  u32 a = bits & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<u16>(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
  if (a >= 0x477ff000u) return static_cast<u16>(sign | 0x7c00u);  // rounds to infinity from 65520 on
  if (a < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded significand in the low bits
    return static_cast<u16>(sign | (bit_cast<u32>(bit_cast<float>(a) + 0.5f) - 0x3f000000u));
  }
  a += 0xfffu + ((a >> 13) & 1u) - (112u << 23);
  return static_cast<u16>(sign | (a >> 13));
}

TESSERA_HD float f16_to_f32(u16 h) {
#if defined(__CUDA_ARCH__)
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
#elif defined(__HIP_DEVICE_COMPILE__)
  return static_cast<float>(bit_cast<_Float16>(h));
#else
  return f16_to_f32_portable(h);
#endif
}

TESSERA_HD u16 f32_to_f16(float f) {
#if defined(__CUDA_ARCH__)
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
#elif defined(__HIP_DEVICE_COMPILE__)
  return bit_cast<u16>(static_cast<_Float16>(f));
#else
  return f32_to_f16_portable(f);
#endif
}

/// binary32 to bfloat16, to nearest even; NaN stays NaN.
constexpr TESSERA_HD u16 f32_to_bf16(float f) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {  // one instruction for two neighbours
    u16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
  }
#endif
  const u32 bits = bit_cast<u32>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<u16>((bits >> 16) | 0x40u);
  return static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr TESSERA_HD float bf16_to_f32(u16 h) { return bit_cast<float>(static_cast<u32>(h) << 16); }

}  // namespace detail

/// IEEE binary16 in memory.
struct f16 {
  u16 bits;
  f16() = default;
  explicit TESSERA_HD f16(float f) : bits(detail::f32_to_f16(f)) {}
  explicit TESSERA_HD operator float() const { return detail::f16_to_f32(bits); }
};

/// bfloat16 in memory.
struct bf16 {
  u16 bits;
  bf16() = default;
  explicit constexpr TESSERA_HD bf16(float f) : bits(detail::f32_to_bf16(f)) {}
  explicit constexpr TESSERA_HD operator float() const { return detail::bf16_to_f32(bits); }
};

/// The type in which a kernel computes on elements of type T.
template <class T>
struct ComputeType {
  using type = T;
};
template <>
struct ComputeType<f16> {
  using type = float;
};
template <>
struct ComputeType<bf16> {
  using type = float;
};
template <class T>
using compute_t = typename ComputeType<remove_cvref_t<T>>::type;

/// Conversion between any two element types; the 16-bit ones pass through float.
template <class To, class From>
TESSERA_HD To convert_element(From x) {
  if constexpr (is_same_v<To, From>) {
    return x;
  } else if constexpr (is_same_v<From, f16> || is_same_v<From, bf16>) {
    return convert_element<To>(static_cast<float>(x));
  } else if constexpr (is_same_v<To, f16> || is_same_v<To, bf16>) {
    return To(static_cast<float>(x));
  } else if constexpr ((is_same_v<To, u64> || is_same_v<To, u32>)&&(is_same_v<From, float> ||
                                                                    is_same_v<From, double>)) {
    // What lies below zero wraps, as it does in smaller types; on its own each processor does as it likes.
    return is_same_v<To, u32> || x < From(0) ? static_cast<To>(static_cast<i64>(x)) : static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

TESSERA_TILE_END
