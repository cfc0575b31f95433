// Quantised operands of products.
#pragma once
#include "tessera/ops.h"

namespace tessera::onnx {

/// x less its zero point, which may be undefined, in f64: sums of products of 8-bit integers are below 2^53, so exact.
inline Tensor less_zero(const Tensor& x, const Tensor& point) {
  const Tensor wide = cast(x, Float64);
  return point.defined() ? sub(wide, cast(point, Float64)) : wide;
}

}  // namespace tessera::onnx
