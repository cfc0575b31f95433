// Matrix instructions of AMD's CDNA cards (Instinct MI200 instruction set architecture, "Matrix Arithmetic
// Instructions").
#pragma once
#include "../../matrix_layout.h"
#include "../../types.h"
#include "../gpu/block.h"
#include "../gpu/operand.h"

#if !defined(TESSERA_SIMULATED_GPU)
#if !defined(__HIP__)
#error "arch/cdna is code for AMD cards: compile it with clang for HIP"
#endif

// What the target has: nothing, where kernels of matrix cores compile, are not launched, and stop; MI100's
// instructions, MI200's with more of bf16, or MI300's with other ones for i8.
#if defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__)
#define TESSERA_MFMA 3
#elif defined(__gfx90a__)
#define TESSERA_MFMA 2
#elif defined(__gfx908__)
#define TESSERA_MFMA 1
#else
#define TESSERA_MFMA 0
#endif

TESSERA_TILE_BEGIN
namespace cdna {

/// A value that is the same in all lanes of the wave, as a scalar.
TESSERA_DEVICE int uniform(int value) { return __builtin_amdgcn_readfirstlane(value); }

/// This thread's index, anew: what is computed from it is not kept in registers from one turn of a loop to the next.
TESSERA_DEVICE int thread_anew() {
  int thread = thread_in_block();
  touch(thread);
  return thread & 1023;
}

/// Instructions above stay above, those below stay below.
TESSERA_DEVICE void keep_order() { __builtin_amdgcn_sched_barrier(0); }

/// Matrix instructions for Edge x Edge sums of operands of type T: f16, bf16, i8 or float.
template <class T, int Edge = 32>
struct MatrixCore {
  static constexpr int held = is_same_v<T, float> ? 1 : 4;  // elements of an operand in a lane
  using Layout = Mfma<Edge, held>;
  using Element = conditional_t<is_same_v<T, i8>, i32, float>;
  using Sums = Element __attribute__((ext_vector_type(Edge * Edge / 64)));

  /// a * b + c; the wave of 64 holds all three together as Layout says.
  static TESSERA_DEVICE Sums multiply_add([[maybe_unused]] const T* a, [[maybe_unused]] const T* b,
                                          [[maybe_unused]] Sums c) {
    static_assert(is_same_v<T, f16> || is_same_v<T, bf16> || is_same_v<T, i8> || is_same_v<T, float>);
#if TESSERA_MFMA
#define TESSERA_BY_EDGE(at_32, at_16, type)                 \
  const auto x = load<type>(a), y = load<type>(b);          \
  if constexpr (Edge == 32) return at_32(x, y, c, 0, 0, 0); \
  else return at_16(x, y, c, 0, 0, 0)
    if constexpr (is_same_v<T, float>) {
      TESSERA_BY_EDGE(__builtin_amdgcn_mfma_f32_32x32x2f32, __builtin_amdgcn_mfma_f32_16x16x4f32, float);
    } else if constexpr (is_same_v<T, f16>) {
      TESSERA_BY_EDGE(__builtin_amdgcn_mfma_f32_32x32x8f16, __builtin_amdgcn_mfma_f32_16x16x16f16, Halves);
    } else if constexpr (is_same_v<T, bf16>) {
#if TESSERA_MFMA >= 2
      TESSERA_BY_EDGE(__builtin_amdgcn_mfma_f32_32x32x8bf16_1k, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k, Shorts);
#else
      return add_pairs(a + 2, b + 2, add_pairs(a, b, c));
#endif
    } else {
#if TESSERA_MFMA <= 2
      TESSERA_BY_EDGE(__builtin_amdgcn_mfma_i32_32x32x8i8, __builtin_amdgcn_mfma_i32_16x16x16i8, i32);
#else
      __builtin_trap();  // gfx940 takes 8 at a time
#endif
    }
#undef TESSERA_BY_EDGE
#else
    __builtin_trap();
#endif
  }

 private:
  using Halves = _Float16 __attribute__((ext_vector_type(4)));
  using Shorts = short __attribute__((ext_vector_type(4)));
  using Pair = short __attribute__((ext_vector_type(2)));

  template <class To>
  static TESSERA_DEVICE To load(const T* from) {
    To to;
    __builtin_memcpy(&to, from, sizeof to);
    return to;
  }
#if TESSERA_MFMA == 1
  /// MI100 multiplies two neighbours at a time, which permutes k, for both operands alike.
  static TESSERA_DEVICE Sums add_pairs(const T* a, const T* b, Sums c) {
    const auto x = load<Pair>(a), y = load<Pair>(b);
    if constexpr (Edge == 32) return __builtin_amdgcn_mfma_f32_32x32x4bf16(x, y, c, 0, 0, 0);
    else return __builtin_amdgcn_mfma_f32_16x16x8bf16(x, y, c, 0, 0, 0);
  }
#endif
};

}  // namespace cdna
TESSERA_TILE_END

#endif
