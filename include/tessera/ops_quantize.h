// Numbers as small integers: value = scale (integer - zero point). Exact, as ONNX defines them; their speed is no aim
// yet. Made of ops.h's operators. Every function throws Error naming itself, the shapes and the rule broken.
#pragma once
#include "tessera/ops_pool.h"

namespace tessera {

// ---- quantised tensors: src/ops/quantize.cpp ------------------------------------------------------------------------
// Scale and zero point are one for all, [n] for the n entries of x along `axis`, or, with a block size, of the shape of
// x with blocks in the place of entries along `axis`. A zero point may be undefined.

/// round(x / scale) + zero point, ties to even, cut to the range of `dtype`: i8, u8, i16 or u16.
Tensor quantize(const Tensor& x, const Tensor& scale, const Tensor& zero_point = {}, DType dtype = Int8,
                int64_t axis = 1, int64_t block = 0);
/// scale (x - zero point) in the dtype of the scale.
Tensor dequantize(const Tensor& x, const Tensor& scale, const Tensor& zero_point = {}, int64_t axis = 1,
                  int64_t block = 0);
struct Quantized {
  Tensor values, scale, zero_point;  ///< u8, f32 [], u8 []
};
/// By the range of x and 0.
Quantized dynamic_quantize(const Tensor& x);

/// (a - a_zero) (b - b_zero), exact in i32: a [..., m, k], b [..., k, n] of 8 bits. a_zero is one or [m], b_zero one or
/// [n].
Tensor integer_matmul(const Tensor& a, const Tensor& b, const Tensor& a_zero = {}, const Tensor& b_zero = {});
/// conv() of x - x_zero with weight - weight_zero, exact in i32, of 8 bits. weight_zero is one or [out].
Tensor integer_conv(const Tensor& x, const Tensor& weight, const Tensor& x_zero = {}, const Tensor& weight_zero = {},
                    const ConvOptions& options = {});

}  // namespace tessera
