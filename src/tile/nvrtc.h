// Builtins of other compilers under the names that NVRTC knows.
#pragma once
#if defined(__CUDACC_RTC__)
#define __builtin_memcpy memcpy
#define __builtin_memset memset
#define __builtin_inff() __builtin_bit_cast(float, 0x7f800000u)
#define __builtin_inf() __builtin_bit_cast(double, 0x7ff0000000000000ull)
#define __builtin_nanf(text) __builtin_bit_cast(float, 0x7fc00000u)
#define __builtin_nan(text) __builtin_bit_cast(double, 0x7ff8000000000000ull)
#define __builtin_sqrtf sqrtf
#define __builtin_sqrt sqrt
#define __builtin_fmaf fmaf
#define __builtin_fma fma
#define __builtin_fmod fmod
#define __builtin_floor floor
#endif
