// Quantised tensors, and exact products of small integers.
#include <algorithm>
#include <optional>

#include "ops/call_plan.h"
#include "ops/check.h"
#include "ops/exact_products.h"
#include "ops/map_graph.h"
#include "tessera/autocast.h"
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

// round(x / scale) + zero, cut to the range.
Tensor quantized(const Tensor& x, const Tensor& scale, const Tensor& zero, DType compute, DType dtype, Range range) {
  return map_elements(
      {x, scale, zero}, compute, dtype,
      [](const Tensor& v, const Tensor& s, const Tensor& z, double low, double high) {
        return clamp(add(round(div(v, s)), z), low, high);
      },
      range.low, range.high);
}

void check_bytes(std::string_view op, const Tensor& x) {
  if (x.dtype() != Int8 && x.dtype() != UInt8) fail(op, "takes integers of 8 bits, not {}", describe(x));
}
// x less its zero point in f64: sums of products of 8-bit integers are below 2^53, so exact.
Tensor less_zero(std::string_view op, const Tensor& x, const Tensor& point) {
  check_bytes(op, x);
  const Tensor wide = cast(x, Float64);
  return point.defined() ? sub(wide, cast(point, Float64)) : wide;
}

constexpr double kExactInF32 = 1 << 24, kByte = 255;
constexpr int64_t kTerms = 258;  // products of two such integers whose sum is exact in f32

// In parts of the inner dim, each exact in f32.
Tensor product_in_parts(const Tensor& a, const Tensor& b) {
  const int64_t k = a.size(-1), inner = b.dim() > 1 ? -2 : 0;
  if (k <= kTerms || b.size(inner) != k) return cast(matmul(a, b), Int32);
  Tensor sum;
  for (int64_t at = 0; at < k; at += kTerms) {
    const int64_t end = std::min(at + kTerms, k);
    const Tensor part = cast(matmul(slice(a, -1, at, end), slice(b, inner, at, end)), Int32);
    sum = sum.defined() ? add(sum, part) : part;
  }
  return sum;
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
  const Tensor step = spread(op, x, scale, axis, block);
  const Tensor zero = zero_point.defined() ? spread(op, x, zero_point, axis, block) : zeros({}, dtype, x.device());
  return quantized(x, step, zero, compute_type(x), dtype, *range);
}
Tensor dequantize(const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t axis, int64_t block) {
  constexpr std::string_view op = "dequantize";
  if (is_floating(x.dtype())) fail(op, "takes integers, not {}", describe(x));
  if (!is_floating(scale.dtype())) fail(op, "the scale is {}", describe(scale));
  const DType compute = compute_type(scale);
  const Tensor step = spread(op, x, scale, axis, block);
  const Tensor zero = zero_point.defined() ? spread(op, x, zero_point, axis, block) : zeros({}, x.dtype(), x.device());
  return map_elements({x, zero, step}, compute, scale.dtype(),
                      [](const Tensor& v, const Tensor& z, const Tensor& s) { return mul(sub(v, z), s); });
}
Quantized dynamic_quantize(const Tensor& x) {
  if (x.dtype() != Float32) fail("dynamic_quantize", "takes f32, not {}", describe(x));
  const Tensor zero = full({}, 0, Float32, x.device());
  const Tensor high = maximum(amax(x), zero), low = minimum(amin(x), zero), range = high - low;
  const Tensor scale = where(eq(range, zero), full({}, 1, Float32, x.device()), range / 255.0);  // of zeros alone: 1
  const Tensor point = saturated(round(neg(div(low, scale))), {0, 255});
  return {quantized(x, scale, point, Float32, UInt8, {0, 255}), scale, cast(point, UInt8)};
}

Tensor integers_in_f32(std::string_view op, const Tensor& x, const Tensor& zero) {
  check_bytes(op, x);
  if (!zero.defined()) return cast(x, Float32);
  return map_elements({x, zero}, Float32, Float32, [](const Tensor& v, const Tensor& z) { return sub(v, z); });
}
bool sums_fit(const Tensor& weight) {
  const Tensor sizes = abs(flatten(cast(weight, Float32), 1));
  return weight.numel() == 0 || amax(sum(sizes, {1})).item() * kByte <= kExactInF32;
}
Tensors parts_that_fit(const Tensor& weight) {
  Tensors parts{weight};
  while (!std::all_of(parts.begin(), parts.end(), sums_fit))
    parts = split(weight, (weight.size(1) - 1) / (2 * static_cast<int64_t>(parts.size())) + 1, 1);
  return parts;
}

Tensor integer_matmul(const Tensor& a, const Tensor& b, const Tensor& a_zero, const Tensor& b_zero) {
  constexpr std::string_view op = "integer_matmul";
  const bool by_row = a_zero.defined() && a_zero.dim() == 1 && a_zero.numel() > 1;
  const Tensor zero = by_row ? unsqueeze(a_zero, 1) : a_zero;
  const amp::NoAutocast exact;
  if (!is_exact_in_f32(a) || a.dim() == 0 || b.dim() == 0)
    return cast(matmul(less_zero(op, a, zero), less_zero(op, b, b_zero)), Int32);
  return product_in_parts(integers_in_f32(op, a, zero), integers_in_f32(op, b, b_zero));
}

// Weights of many elements are 16 high + low, whose sums are smaller.
Tensor exact_conv(const Tensor& x, const Tensor& weight, const ConvOptions& options, bool fits) {
  const amp::NoAutocast exact;
  std::optional<ForceKernel> no_winograd;  // whose factors are fractions
  const bool is_square = weight.dim() >= 4 && weight.size(-1) == 3 && weight.size(-2) == 3;
  if (is_square && options.groups == 1) no_winograd.emplace("conv2d", "implicit_gemm");
  const auto sums = [&](const Tensor& w) { return cast(conv(x, w, {}, options), Int32); };
  const int64_t terms = weight.size(0) == 0 ? 0 : weight.numel() / weight.size(0);
  if (fits || terms <= kTerms) return sums(weight);
  if (static_cast<double>(terms) * 16 * kByte > kExactInF32)
    return cast(conv(cast(x, Float64), cast(weight, Float64), {}, options), Int32);
  const Tensor high = floor(weight * (1.0 / 16));
  return add(mul(sums(high), full({}, 16, Int32, x.device())), sums(sub(weight, high * 16.0)));
}
Tensor integer_conv(const Tensor& x, const Tensor& weight, const Tensor& x_zero, const Tensor& weight_zero,
                    const ConvOptions& options) {
  constexpr std::string_view op = "integer_conv";
  const Tensor zero = of_filters(weight_zero, weight);
  if (is_exact_in_f32(x))
    return exact_conv(integers_in_f32(op, x, x_zero), integers_in_f32(op, weight, zero), options, false);
  const amp::NoAutocast exact;
  return cast(conv(less_zero(op, x, x_zero), less_zero(op, weight, zero), {}, options), Int32);
}

}  // namespace tessera
