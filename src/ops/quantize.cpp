// Quantised tensors, and exact products of small integers.
#include <algorithm>
#include <optional>

#include "ops/check.h"
#include "tessera/ops.h"
#include "tessera/ops_quantize.h"

namespace tessera {
namespace {

struct Range {
  double low, high;
};
std::optional<Range> range_of(DType dtype) {
  if (dtype == UInt8) return Range{0, 255};
  if (dtype == Int8) return Range{-128, 127};
  if (dtype == UInt16) return Range{0, 65535};
  if (dtype == Int16) return Range{-32768, 32767};
  return std::nullopt;
}

// A scale or a zero point, to broadcast over x.
Tensor spread(std::string_view op, const Tensor& x, const Tensor& t, int64_t axis, int64_t block) {
  if (t.numel() == 1 && block == 0) return reshape(t, {});
  if (axis < 0) axis += x.dim();
  if (axis < 0 || axis >= x.dim() || block < 0) fail(op, "axis {} in blocks of {} of {}", axis, block, describe(x));
  const int64_t parts = block == 0 ? x.size(axis) : x.size(axis) == 0 ? 0 : (x.size(axis) - 1) / block + 1;
  if (block == 0 ? t.numel() != parts : t.dim() != x.dim() || t.size(axis) != parts)
    fail(op, "{} for {} parts of {}", describe(t), parts, describe(x));
  if (block == 0) {
    Shape shape;
    for (int64_t d = 0; d < x.dim(); ++d) shape.push_back(d == axis ? t.numel() : 1);
    return reshape(t, shape);
  }
  const int64_t length = std::min(block, x.size(axis));  // of the only one
  Shape wide = t.shape(), merged = t.shape();
  wide.insert(wide.begin() + axis + 1, Dim(length));
  merged[static_cast<size_t>(axis)] = Dim(parts * length);
  return slice(reshape(expand(unsqueeze(t, axis + 1), wide), merged), axis, 0, x.size(axis));
}
DType compute_type(const Tensor& t) { return t.dtype() == Float64 ? Float64 : Float32; }
Tensor saturated(const Tensor& x, Range range) { return clamp(x, range.low, range.high); }

// x less its zero point in f64: sums of products of 8-bit integers are below 2^53, so exact.
Tensor less_zero(std::string_view op, const Tensor& x, const Tensor& point) {
  if (x.dtype() != Int8 && x.dtype() != UInt8) fail(op, "takes integers of 8 bits, not {}", describe(x));
  const Tensor wide = cast(x, Float64);
  return point.defined() ? sub(wide, cast(point, Float64)) : wide;
}
// A zero point for each filter.
Tensor of_filters(const Tensor& point, const Tensor& weight) {
  if (!point.defined() || point.numel() == 1) return point;
  Shape shape{point.numel()};
  while (shape.rank() < weight.dim()) shape.push_back(1);
  return reshape(point, shape);
}

}  // namespace

Tensor quantize(const Tensor& x, const Tensor& scale, const Tensor& zero_point, DType dtype, int64_t axis,
                int64_t block) {
  constexpr std::string_view op = "quantize";
  const std::optional<Range> range = range_of(dtype);
  if (!range) fail(op, "gives i8, u8, i16 or u16, not {}", name(dtype));
  if (!is_floating(x.dtype())) fail(op, "takes floating-point tensors, not {}", describe(x));
  const DType compute = compute_type(x);
  Tensor y = round(div(cast(x, compute), cast(spread(op, x, scale, axis, block), compute)));
  if (zero_point.defined()) y = add(y, cast(spread(op, x, zero_point, axis, block), compute));
  return cast(saturated(y, *range), dtype);
}
Tensor dequantize(const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t axis, int64_t block) {
  constexpr std::string_view op = "dequantize";
  if (is_floating(x.dtype())) fail(op, "takes integers, not {}", describe(x));
  if (!is_floating(scale.dtype())) fail(op, "the scale is {}", describe(scale));
  const DType compute = compute_type(scale);
  Tensor y = cast(x, compute);
  if (zero_point.defined()) y = sub(y, cast(spread(op, x, zero_point, axis, block), compute));
  return cast(mul(y, cast(spread(op, x, scale, axis, block), compute)), scale.dtype());
}
Quantized dynamic_quantize(const Tensor& x) {
  if (x.dtype() != Float32) fail("dynamic_quantize", "takes f32, not {}", describe(x));
  const Tensor zero = full({}, 0, Float32, x.device());
  const Tensor high = maximum(amax(x), zero), low = minimum(amin(x), zero), scale = (high - low) / 255.0;
  const Tensor point = saturated(round(neg(div(low, scale))), {0, 255});
  return {cast(saturated(add(round(div(x, scale)), point), {0, 255}), UInt8), scale, cast(point, UInt8)};
}

Tensor integer_matmul(const Tensor& a, const Tensor& b, const Tensor& a_zero, const Tensor& b_zero) {
  constexpr std::string_view op = "integer_matmul";
  const bool by_row = a_zero.defined() && a_zero.dim() == 1 && a_zero.numel() > 1;
  return cast(matmul(less_zero(op, a, by_row ? unsqueeze(a_zero, 1) : a_zero), less_zero(op, b, b_zero)), Int32);
}
Tensor integer_conv(const Tensor& x, const Tensor& weight, const Tensor& x_zero, const Tensor& weight_zero,
                    const ConvOptions& options) {
  constexpr std::string_view op = "integer_conv";
  return cast(conv(less_zero(op, x, x_zero), less_zero(op, weight, of_filters(weight_zero, weight)), {}, options),
              Int32);
}

}  // namespace tessera
