// Strip functions by operation and compute type, in two translation units so that each compiles in seconds.
#pragma once

#include "elementwise.h"
#include "internal.h"
#include "tile/kernels/functors.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

/// Null where the operation does not exist in that type, or is in the other list.
tile::StripFn math_strip(MapOp op, Scalar compute);
tile::StripFn arithmetic_strip(MapOp op, Scalar compute);

/// Floating point: F in f32 or f64 with N inputs.
template <class F, int N>
tile::StripFn float_strip(Scalar compute) {
  using tile::map_strip;
  if constexpr (N == 1) {
    if (compute == Scalar::f32) return map_strip<F, float, float>;
    if (compute == Scalar::f64) return map_strip<F, double, double>;
  } else {
    if (compute == Scalar::f32) return map_strip<F, float, float, float>;
    if (compute == Scalar::f64) return map_strip<F, double, double, double>;
  }
  return nullptr;
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
