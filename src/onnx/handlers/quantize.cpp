// Quantised tensors: exact, as their definitions have it.
#include <cmath>

#include "onnx/handler.h"
#include "onnx/handlers/zero_point.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

struct Range {
  double low, high;
};
Range range_of(const Call& c, DType dtype) {
  if (dtype == UInt8) return {0, 255};
  if (dtype == Int8) return {-128, 127};
  if (dtype == UInt16) return {0, 65535};
  if (dtype == Int16) return {-32768, 32767};
  c.refuse("quantised elements of {} are not supported", name(dtype));
}

/// A scale or a zero point of x: one for all, one for each entry along `axis`, or one for each block along it.
Tensor spread(const Call& c, const Tensor& x, const Tensor& t, int64_t axis, int64_t block) {
  if (t.numel() == 1 && block == 0) return reshape(t, {});
  if (axis < 0) axis += x.dim();
  if (axis < 0 || axis >= x.dim()) c.fail("axis {} is outside of {}", axis, describe(x));
  if (block == 0) {
    Shape shape;
    for (int64_t d = 0; d < x.dim(); ++d) shape.push_back(d == axis ? t.numel() : 1);
    return reshape(t, shape);
  }
  Shape wide = t.shape(), merged = t.shape();
  wide.insert(wide.begin() + axis + 1, Dim(block));
  merged[static_cast<size_t>(axis)] = Dim(t.size(axis) * block);
  return slice(reshape(expand(unsqueeze(t, axis + 1), wide), merged), axis, 0, x.size(axis));
}
Tensor saturated(const Tensor& x, Range range) { return clamp(x, range.low, range.high); }
DType compute_type(const Tensor& t) { return t.dtype() == Float64 ? Float64 : Float32; }

Values quantize(const Call& c) {
  const Tensor& x = c.in(0);
  const DType to = c.has(2) ? c.in(2).dtype() : c.dtype("output_dtype", UInt8), compute = compute_type(x);
  const Range range = range_of(c, to);
  const int64_t axis = c.integer("axis", 1), block = c.integer("block_size", 0);
  const Tensor scale = cast(spread(c, x, c.in(1), axis, block), compute);
  Tensor y = round(div(cast(x, compute), scale));
  if (c.has(2)) y = add(y, cast(spread(c, x, c.in(2), axis, block), compute));
  return {cast(saturated(y, range), to)};
}
Values dequantize(const Call& c) {
  const Tensor& x = c.in(0);
  const int64_t axis = c.integer("axis", 1), block = c.integer("block_size", 0);
  const DType to = c.dtype("output_dtype", c.in(1).dtype()), compute = compute_type(c.in(1));
  Tensor y = cast(x, compute);
  if (c.has(2)) y = sub(y, cast(spread(c, x, c.in(2), axis, block), compute));
  return {cast(mul(y, cast(spread(c, x, c.in(1), axis, block), compute)), to)};
}
Values dynamic_quantize(const Call& c) {
  const Tensor& x = c.in(0);
  const Tensor zero = full({}, 0, Float32, x.device());
  const Tensor high = maximum(amax(x), zero), low = minimum(amin(x), zero);
  const Tensor scale = (high - low) / 255.0;
  const Tensor point = saturated(round(neg(div(low, scale))), {0, 255});
  const Tensor y = saturated(add(round(div(x, scale)), point), {0, 255});
  return {cast(y, UInt8), scale, cast(point, UInt8)};
}

/// Zero points of rows of a [..., m, k], or of columns of b.
Tensor of_rows(const Tensor& point) {
  return point.defined() && point.dim() == 1 && point.numel() > 1 ? unsqueeze(point, 1) : point;
}

Values integer_product(const Call& c) {
  return {cast(matmul(less_zero(c.in(0), of_rows(c.optional(2))), less_zero(c.in(1), c.optional(3))), Int32)};
}
Values quantised_product(const Call& c) {
  const Tensor a = mul(less_zero(c.in(0), of_rows(c.in(2))), cast(of_rows(c.in(1)), Float64)),
               b = mul(less_zero(c.in(3), c.in(5)), cast(c.in(4), Float64));
  const Tensor y = div(matmul(a, b), cast(c.in(6), Float64));
  return {cast(saturated(add(round(y), cast(c.in(7), Float64)), range_of(c, c.in(7).dtype())), c.in(7).dtype())};
}

constexpr Entry entries[] = {
    {"DequantizeLinear", 10, dequantize},   {"DynamicQuantizeLinear", 11, dynamic_quantize},
    {"MatMulInteger", 10, integer_product}, {"QLinearMatMul", 10, quantised_product},
    {"QuantizeLinear", 10, quantize},
};

}  // namespace

std::span<const Entry> quantize_handlers() { return entries; }

}  // namespace tessera::onnx
