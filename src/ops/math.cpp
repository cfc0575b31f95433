// Functions of elements that are made of operators.
#include <cmath>
#include <limits>
#include <numbers>

#include <fmt/format.h>

#include "ops/gradient.h"
#include "ops/precise.h"
#include "tessera/autograd.h"
#include "tessera/ops_math.h"

namespace tessera {
namespace {

Tensor below_zero(const Tensor& x) { return lt(x, number_like(x, 0)); }

/// An odd function from what it is for x >= 0. Not by abs and sign, whose gradients are 0 at 0.
template <class F>
Tensor odd(const Tensor& x, const F& f) {
  const Tensor below = below_zero(x), y = f(where(below, -x, x));
  return where(below, -y, y);
}

}  // namespace

// ---- trigonometric and hyperbolic

Tensor acos(const Tensor& x) {
  return in_single(x, [](const Tensor& v) { return atan(sqrt((1.0 - v) / (v + 1.0))) * 2.0; });
}

Tensor asin(const Tensor& x) {
  return in_single(x, [](const Tensor& v) { return atan(v / sqrt((1.0 - v) * (v + 1.0))); });
}

Tensor sinh(const Tensor& x) {
  return in_single(x, [](const Tensor& v) { return (expm1(v) - expm1(-v)) * 0.5; });
}

Tensor cosh(const Tensor& x) {
  return in_single(x, [](const Tensor& v) { return (exp(v) + exp(-v)) * 0.5; });
}

// log(a + sqrt(a² + 1)) without cancellation; log(2 a) where 1 is nothing beside the square.
Tensor asinh(const Tensor& x) {
  const auto positive = [](const Tensor& v) {
    const Tensor large = gt(v, number_like(v, 1e9)), one = number_like(v, 1), a = where(large, one, v);
    const Tensor small = log1p(a + a * (a / (sqrt(square(a) + 1.0) + 1.0)));
    return where(large, log(where(large, v, one)) + std::numbers::ln2, small);
  };
  return in_single(x, [&](const Tensor& v) { return odd(v, positive); });
}

Tensor acosh(const Tensor& x) {
  return in_single(x, [](const Tensor& v) {
    const Tensor over = v + -1.0;
    return log1p(over + sqrt(over) * sqrt(over + 2.0));
  });
}

Tensor atanh(const Tensor& x) {
  const auto positive = [](const Tensor& a) { return log1p(a * 2.0 / (1.0 - a)) * 0.5; };
  return in_single(x, [&](const Tensor& v) { return odd(v, positive); });
}

// The arc tangent of the smaller side by the larger one, then the octant.
Tensor atan2(const Tensor& y, const Tensor& x) {
  return in_single(y, x, [](const Tensor& b, const Tensor& a) {
    const Tensor left = below_zero(a), under = below_zero(b), width = where(left, -a, a), height = where(under, -b, b);
    const Tensor steep = gt(height, width), larger = where(steep, height, width), smaller = where(steep, width, height);
    const Tensor zero = number_like(larger, 0), one = number_like(larger, 1);
    const Tensor ratio =
        where(logical_and(isinf(larger), isinf(smaller)), one, smaller / where(eq(larger, zero), one, larger));
    const Tensor octant = atan(ratio), quadrant = where(steep, std::numbers::pi / 2 - octant, octant);
    const Tensor upper = where(left, std::numbers::pi - quadrant, quadrant);
    return where(under, -upper, upper);
  });
}

// ---- logarithms, powers, special functions

Tensor log2(const Tensor& x) {
  return in_single(x, [](const Tensor& v) { return log(v) * std::numbers::log2e; });
}
Tensor log10(const Tensor& x) {
  return in_single(x, [](const Tensor& v) { return log(v) * std::numbers::log10e; });
}

Tensor hypot(const Tensor& a, const Tensor& b) {
  return in_single(a, b, [](const Tensor& x, const Tensor& y) {
    const Tensor width = abs(x), height = abs(y), larger = maximum(width, height), smaller = minimum(width, height);
    const Tensor none = logical_or(eq(larger, number_like(larger, 0)), isinf(larger));
    const Tensor ratio = smaller / where(none, number_like(larger, 1), larger);
    return where(none, larger, larger * sqrt(square(ratio) + 1.0));
  });
}

namespace {

// Winitzki's approximation, right to 0.2 per cent, for |x| < 1.
Tensor rough_erfinv(const Tensor& x) {
  const NoGrad plain;
  constexpr double a = 0.147;
  const Tensor logarithm = log1p(-square(x)), t = logarithm * 0.5 + 2 / (std::numbers::pi * a);
  const Tensor squared = logarithm * (-1 / a) / (sqrt(square(t) - logarithm * (1 / a)) + t);
  return sign(x) * sqrt(squared);
}

// The sum of c[i] w^-(2i + 1), w large.
Tensor odd_powers(const Tensor& w, std::initializer_list<double> c) {
  const Tensor inverse = reciprocal(w), squared = square(inverse);
  Tensor sum = full({}, 0, Float64, w.device());
  for (auto it = std::rbegin(c); it != std::rend(c); ++it) sum = sum * squared + *it;
  return sum * inverse;
}

// How far x lies from the nearest integer, for functions of period 1.
Tensor from_integer(const Tensor& x) { return x - round(x); }

constexpr int kShift = 8;  // the series hold from here on

}  // namespace

// Halley's method, each step of which has three times as many right digits as the one before. It starts from a
// constant, so one step more makes the gradient exact, too.
Tensor erfinv(const Tensor& x) {
  return in_double(x, [](const Tensor& v) {
    const Tensor one = number_like(v, 1), size = abs(v), inside = lt(size, one);
    const Tensor bounded = where(inside, v, number_like(v, 0));
    Tensor y = rough_erfinv(bounded);
    for (int step = 0; step < 4; ++step) {
      const Tensor newton = (erf(y) - bounded) * exp(square(y)) * (1 / (2 * std::numbers::inv_sqrtpi));
      y = y - newton / (y * newton + 1.0);
    }
    // A product, so that the gradient there is infinite or NaN, too.
    const Tensor beyond = where(inside, number_like(v, 0), v);
    return where(inside, y, beyond * where(eq(size, one), number_like(v, INFINITY), number_like(v, NAN)));
  });
}

// Stirling's series where x >= 8, the recurrence below, and the reflection below 1/2.
Tensor lgamma(const Tensor& x) {
  return in_double(x, [](const Tensor& v) {
    const Tensor low = lt(v, number_like(v, 0.5)), z = where(low, 1.0 - v, v);
    const Tensor few = lt(z, number_like(z, kShift)), small = where(few, z, number_like(z, 1));
    Tensor product = small;
    for (int k = 1; k < kShift; ++k) product = product * (small + k);
    const Tensor w = where(few, z + kShift, z);
    const Tensor series = odd_powers(
        w, {1.0 / 12, -1.0 / 360, 1.0 / 1260, -1.0 / 1680, 1.0 / 1188, -691.0 / 360360, 1.0 / 156, -3617.0 / 122400});
    const Tensor stirling = (w + -0.5) * (log(w) - 1.0) + (0.5 * std::log(2 * std::numbers::pi) - 0.5) + series;
    const Tensor above = stirling - where(few, log(product), number_like(z, 0));
    const Tensor angle = from_integer(where(low, v, number_like(v, 0.25))) * std::numbers::pi;
    const Tensor value = where(low, std::log(std::numbers::pi) - log(abs(sin(angle))) - above, above);
    return where(eq(v, number_like(v, -INFINITY)), number_like(v, INFINITY), value);
  });
}

Tensor digamma(const Tensor& x) {
  return in_double(x, [](const Tensor& v) {
    const Tensor low = lt(v, number_like(v, 0.5)), z = where(low, 1.0 - v, v), w = z + kShift;
    Tensor above = log(w) - odd_powers(w, {0.5}) -
                   odd_powers(w, {1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132, -691.0 / 32760, 1.0 / 12,
                                  -3617.0 / 8160}) *
                       reciprocal(w);
    for (int k = 0; k < kShift; ++k) above = above - reciprocal(z + k);
    const Tensor angle = from_integer(where(low, v, number_like(v, 0.25))) * std::numbers::pi;
    const Tensor value = where(low, above - std::numbers::pi * reciprocal(tan(angle)), above);
    return where(logical_and(below_zero(v), eq(v, floor(v))), number_like(v, NAN), value);
  });
}

// ---- divisions

Tensor div_trunc(const Tensor& a, const Tensor& b) {
  const Tensor quotient = floor_div(a, b);
  if (is_floating(quotient.dtype())) return trunc(div(a, b));
  const Tensor zero = number_like(quotient, 0);
  const Tensor rest = ne(quotient * b, a), opposite = logical_xor(lt(a, zero), lt(b, zero));
  return quotient + cast(logical_and(logical_and(rest, opposite), ne(b, zero)), quotient.dtype());
}

// Signs aside nothing is added to the remainder, so that it is exact.
Tensor fmod(const Tensor& a, const Tensor& b) {
  if (!is_floating(promote(a.dtype(), b.dtype()))) return a - div_trunc(a, b) * b;
  const Tensor below = below_zero(a), rest = remainder(where(below, -a, a), abs(b));
  return where(below, -rest, rest);
}

// ---- what compares and replaces

Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& weight) { return a + weight * (b - a); }
Tensor lerp(const Tensor& a, const Tensor& b, double weight) { return a + (b - a) * weight; }

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
  const Tensor infinite = isinf(x), replaced = where(isnan(x), number_like(x, nan), x);
  const Tensor ends = where(below_zero(x), number_like(x, low.value_or(-most)), number_like(x, high.value_or(most)));
  return where(infinite, ends, replaced);
}

Tensor isclose(const Tensor& a, const Tensor& b, double relative, double absolute, bool nan_is_nan) {
  if (!(relative >= 0) || !(absolute >= 0))
    throw Error(fmt::format("isclose: tolerances of {} and {} are not positive", relative, absolute));
  const DType wide = promote(real_dtype(promote(a.dtype(), b.dtype())), Float32);
  const Tensor x = cast(a, wide), y = cast(b, wide), difference = abs(x - y);
  const Tensor near = logical_and(isfinite(difference), le(difference, abs(y) * relative + absolute));
  const Tensor close = logical_or(eq(a, b), near);
  return nan_is_nan ? logical_or(close, logical_and(isnan(x), isnan(y))) : close;
}

}  // namespace tessera
