// Functions of elements that are made of operators.
#include <cmath>
#include <limits>
#include <numbers>

#include <fmt/format.h>

#include "ops/card_function.h"
#include "ops/gradient.h"
#include "ops/precise.h"
#include "tessera/ops_math.h"

namespace tessera {
namespace {

Tensor below_zero(const Tensor& x) { return lt(x, number_like(x, 0)); }
/// 1 or -1, a constant. Not by abs and sign, whose gradients are 0 at 0.
Tensor side_of_zero(const Tensor& x) { return where(below_zero(x), number_like(x, -1), number_like(x, 1)); }

/// An odd function from what it is for x >= 0.
Tensor odd(const Tensor& x, Tensor (*f)(const Tensor&)) {
  const Tensor side = side_of_zero(x);
  return f(x * side) * side;
}

// log(a + sqrt(a² + 1)) without cancellation; log(2 a) where 1 is nothing beside the square.
Tensor asinh_of_positive(const Tensor& v) {
  const Tensor large = gt(v, number_like(v, 1e9)), one = number_like(v, 1), a = where(large, one, v);
  const Tensor small = log1p(a + a * (a / (sqrt(square(a) + 1.0) + 1.0)));
  return where(large, log(where(large, v, one)) + std::numbers::ln2, small);
}
Tensor atanh_of_positive(const Tensor& a) { return log1p(a * 2.0 / (1.0 - a)) * 0.5; }

Tensor slope_of_asinh(const Tensor& x) { return rsqrt(square(x) + 1.0); }
Tensor slope_of_acosh(const Tensor& x) { return rsqrt((x + -1.0) * (x + 1.0)); }
Tensor slope_of_atanh(const Tensor& x) { return reciprocal((1.0 - x) * (x + 1.0)); }
CardFunction<cosh> card_sinh("sinh", "sinh_of_each");
CardFunction<sinh> card_cosh("cosh", "cosh_of_each");
CardFunction<slope_of_asinh> card_asinh("asinh", "asinh_of_each");
CardFunction<slope_of_acosh> card_acosh("acosh", "acosh_of_each");
CardFunction<slope_of_atanh> card_atanh("atanh", "atanh_of_each");

}  // namespace

// ---- hyperbolic

Tensor sinh(const Tensor& x) {
  if (card_sinh.takes(x)) return card_sinh(x);
  return map_in_single(x, [](const Tensor& v) { return (expm1(v) - expm1(-v)) * 0.5; });
}

Tensor cosh(const Tensor& x) {
  if (card_cosh.takes(x)) return card_cosh(x);
  return map_in_single(x, [](const Tensor& v) { return (exp(v) + exp(-v)) * 0.5; });
}

Tensor asinh(const Tensor& x) {
  if (card_asinh.takes(x)) return card_asinh(x);
  return map_in_single(x, [](const Tensor& v) { return odd(v, asinh_of_positive); });
}

Tensor acosh(const Tensor& x) {
  if (card_acosh.takes(x)) return card_acosh(x);
  return map_in_single(x, [](const Tensor& v) {
    const Tensor over = v + -1.0;
    return log1p(over + sqrt(over) * sqrt(over + 2.0));
  });
}

Tensor atanh(const Tensor& x) {
  if (card_atanh.takes(x)) return card_atanh(x);
  return map_in_single(x, [](const Tensor& v) { return odd(v, atanh_of_positive); });
}

// ---- logarithms

Tensor log2(const Tensor& x) {
  return map_in_single(x, [](const Tensor& v) { return log(v) * std::numbers::log2e; });
}
Tensor log10(const Tensor& x) {
  return map_in_single(x, [](const Tensor& v) { return log(v) * std::numbers::log10e; });
}

// ---- divisions

Tensor div_trunc(const Tensor& a, const Tensor& b) {
  if (is_floating(promote(a.dtype(), b.dtype())))
    return map_in_single(a, b, [](const Tensor& x, const Tensor& y) { return trunc(x / y); });
  const Tensor quotient = floor_div(a, b);
  const Tensor zero = number_like(quotient, 0);
  const Tensor rest = ne(quotient * b, a), opposite = logical_xor(lt(a, zero), lt(b, zero));
  return quotient + cast(logical_and(logical_and(rest, opposite), ne(b, zero)), quotient.dtype());
}

// Signs aside nothing is added to the remainder, so that it is exact.
Tensor fmod(const Tensor& a, const Tensor& b) {
  if (!is_floating(promote(a.dtype(), b.dtype()))) return a - div_trunc(a, b) * b;
  return map_in_single(a, b, [](const Tensor& x, const Tensor& y) {
    const Tensor side = side_of_zero(x);
    return remainder(x * side, abs(y)) * side;
  });
}

// ---- what compares and replaces

Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& weight) {
  const DType dtype = real_dtype(a, b);
  if (dtype != a.dtype() || dtype != weight.dtype()) return a + weight * (b - a);
  const auto f = [](const Tensor& x, const Tensor& y, const Tensor& w) { return x + w * (y - x); };
  return map_elements({a, b, weight}, dtype == Float64 ? Float64 : Float32, dtype, f);
}
Tensor lerp(const Tensor& a, const Tensor& b, double weight) {
  if (!is_floating(promote(a.dtype(), b.dtype()))) return a + (b - a) * weight;
  return map_in_single(
      a, b, [](const Tensor& x, const Tensor& y, double w) { return x + (y - x) * w; }, weight);
}

namespace {
double largest_finite(DType dtype) {
  switch (dtype) {
    case Float16:
      return 65504;
    case BFloat16:
      return 0x1.fep127;
    case Float32:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}
}  // namespace

Tensor nan_to_num(const Tensor& x, double nan, std::optional<double> high, std::optional<double> low) {
  if (!is_floating(x.dtype())) return x;
  const double most = largest_finite(x.dtype());
  const auto f = [](const Tensor& v, double instead, double least, double largest, double finite) {
    const Tensor nans = number_like(v, instead);
    if (least == -finite && largest == finite)
      return where(isnan(v), nans, where(isinf(v), clamp(v.detach(), least, largest), v));
    const Tensor number = where(isnan(v), nans, v);
    const Tensor bounded = where(eq(v, number_like(v, -INFINITY)), number_like(v, least), number);
    return where(eq(v, number_like(v, INFINITY)), number_like(v, largest), bounded);
  };
  return map_elements({x}, x.dtype(), x.dtype(), f, nan, low.value_or(-most), high.value_or(most), most);
}

Tensor isclose(const Tensor& a, const Tensor& b, double relative, double absolute, bool nan_is_nan) {
  if (!(relative >= 0) || !(absolute >= 0))
    throw Error(fmt::format("isclose: tolerances of {} and {} are not positive", relative, absolute));
  const DType wide = promote(real_dtype(promote(a.dtype(), b.dtype())), Float32);
  const auto f = [](const Tensor& x, const Tensor& y, double r, double least, double nans) {
    const Tensor difference = abs(x - y);
    const Tensor near = logical_and(isfinite(difference), le(difference, abs(y) * r + least));
    const Tensor close = logical_or(eq(x, y), near);
    return nans != 0 ? logical_or(close, logical_and(isnan(x), isnan(y))) : close;
  };
  return map_elements({a, b}, wide, Bool, f, relative, absolute, nan_is_nan);
}

}  // namespace tessera
