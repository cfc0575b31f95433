// Quantised tensors: exact, as their definitions have it.
#include "onnx/handler.h"
#include "tessera/ops.h"
#include "tessera/ops_quantize.h"

namespace tessera::onnx {
namespace {

/// Throws for elements that are not supported.
DType small_integer(const Call& c, DType dtype) {
  if (dtype != UInt8 && dtype != Int8 && dtype != UInt16 && dtype != Int16)
    c.refuse("quantised elements of {} are not supported", name(dtype));
  return dtype;
}

Values quantise(const Call& c) {
  const DType to = small_integer(c, c.has(2) ? c.in(2).dtype() : c.dtype("output_dtype", UInt8));
  return {quantize(c.in(0), c.in(1), c.optional(2), to, c.integer("axis", 1), c.integer("block_size", 0))};
}
Values dequantise(const Call& c) {
  const Tensor y = dequantize(c.in(0), c.in(1), c.optional(2), c.integer("axis", 1), c.integer("block_size", 0));
  return {cast(y, c.dtype("output_dtype", y.dtype()))};
}
Values quantise_by_range(const Call& c) {
  const Quantized q = dynamic_quantize(cast(c.in(0), Float32));  // of products in halves, too
  return {q.values, q.scale, q.zero_point};
}

Values integer_product(const Call& c) { return {integer_matmul(c.in(0), c.in(1), c.optional(2), c.optional(3))}; }

/// Zero points of rows of a [..., m, k].
Tensor of_rows(const Tensor& point) {
  return point.defined() && point.dim() == 1 && point.numel() > 1 ? unsqueeze(point, 1) : point;
}
Values quantised_product(const Call& c) {
  const auto wide = [](const Tensor& t) { return cast(t, Float64); };
  const Tensor sums = wide(integer_matmul(c.in(0), c.in(3), c.in(2), c.in(5)));
  const Tensor y = div(mul(mul(sums, wide(of_rows(c.in(1)))), wide(c.in(4))), wide(c.in(6)));
  return {quantize(y, full({}, 1, Float64, y.device()), c.in(7), small_integer(c, c.in(7).dtype()))};
}

constexpr Entry entries[] = {
    {"DequantizeLinear", 10, dequantise},
    {"DynamicQuantizeLinear", 11, quantise_by_range},
    {"MatMulInteger", 10, integer_product},
    {"QLinearMatMul", 10, quantised_product},
    {"QuantizeLinear", 10, quantise},
    {"QuantizeLinear", 1, quantise, "com.microsoft"},
    {"DequantizeLinear", 1, dequantise, "com.microsoft"},
};

}  // namespace

std::span<const Entry> quantize_handlers() { return entries; }

}  // namespace tessera::onnx
