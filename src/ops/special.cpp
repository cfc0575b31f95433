// The inverse of the error function, and functions of the gamma function, made of operators: in f64 to its last digits,
// some also by shorter formulas in f32, which halves are rounded from.
#include <cmath>
#include <numbers>

#include "ops/gradient.h"
#include "ops/precise.h"
#include "tessera/autograd.h"
#include "tessera/ops_math.h"

namespace tessera {
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
  auto it = std::rbegin(c);
  Tensor sum = number_like(w, *it++);
  for (; it != std::rend(c); ++it) sum = sum * squared + *it;
  return sum * inverse;
}

// How far x lies from the nearest integer, for functions of period 1.
Tensor from_integer(const Tensor& x) { return x - round(x); }

constexpr int kShift = 8;  // the series hold from here on

// Halley's method, each step of which has three times as many right digits as the one before. It starts from a
// constant, so one step more makes the gradient exact, too.
Tensor precise_erfinv(const Tensor& x) {
  Tensor y = rough_erfinv(x);
  for (int step = 0; step < 4; ++step) {
    const Tensor newton = (erf(y) - x) * exp(square(y)) * (1 / (2 * std::numbers::inv_sqrtpi));
    y = y - newton / (y * newton + 1.0);
  }
  return y;
}

// The sum of c[i] t^i for t = (x - middle) / reach, from -1 to 1: coefficients are of a Chebyshev fit in t, whose
// relative error is below 5e-9.
Tensor fitted(const Tensor& x, double middle, double reach, std::initializer_list<double> c) {
  const Tensor t = (x + -middle) * (1 / reach);
  auto it = std::rbegin(c);
  Tensor sum = t * *it++;
  for (; it + 1 != std::rend(c); ++it) sum = (sum + *it) * t;
  return sum + *it;
}

// As Giles 2010: a function of w = -log(1 - x²) times x, in two parts.
Tensor quick_erfinv(const Tensor& x) {
  const Tensor w = -log((1.0 - x) * (x + 1.0)), inner = lt(w, number_like(w, 5));
  const Tensor small =
      fitted(w, 2.5, 2.5,
             {1.50140935, 0.616600692, -0.0261082808, -0.0195735643, 0.0085259345, -0.000487876475, -0.000836468738,
              0.000292135779, 2.51574346e-05, -4.14004351e-05, 4.14957776e-06, 2.93113661e-06});
  const Tensor large = fitted(sqrt(where(inner, number_like(w, 5), w)), 3.2, 1,
                              {3.03363657, 1.00469241, 0.00597345592, -0.0042936552, 0.0029474937, -0.00199505776,
                               0.00109252927, -0.000356300635, -3.89268681e-05, 9.88480581e-05, -3.09990533e-05});
  return where(inner, small, large) * x;
}

// For z >= 1/2: Stirling's series where z >= 8, and the recurrence below.
Tensor lgamma_of_large(const Tensor& z) {
  const Tensor few = lt(z, number_like(z, kShift)), small = where(few, z, number_like(z, 1));
  Tensor product = small;
  for (int k = 1; k < kShift; ++k) product = product * (small + k);
  const Tensor w = where(few, z + kShift, z);
  const Tensor series = odd_powers(
      w, {1.0 / 12, -1.0 / 360, 1.0 / 1260, -1.0 / 1680, 1.0 / 1188, -691.0 / 360360, 1.0 / 156, -3617.0 / 122400});
  const Tensor stirling = (w + -0.5) * (log(w) - 1.0) + (0.5 * std::log(2 * std::numbers::pi) - 0.5) + series;
  return stirling - where(few, log(product), number_like(z, 0));
}
Tensor precise_digamma(const Tensor& z) {
  const Tensor w = z + kShift;
  Tensor above = log(w) - odd_powers(w, {0.5}) -
                 odd_powers(w, {1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132, -691.0 / 32760, 1.0 / 12,
                                -3617.0 / 8160}) *
                     reciprocal(w);
  for (int k = 0; k < kShift; ++k) above = above - reciprocal(z + k);
  return above;
}

// For z >= 1/2: where z < 3 a fit on [1.5, 3], which the recurrence reaches from below; the series beyond.
Tensor quick_digamma(const Tensor& z) {
  const Tensor one = number_like(z, 1), few = lt(z, number_like(z, 3)), below = lt(z, number_like(z, 1.5));
  const Tensor near = where(below, z + 1.0, where(few, z, number_like(z, 2))), far = where(few, number_like(z, 3), z);
  constexpr double root = 1.46163213253021240, rest = 1.24381e-8;  // of digamma, the first a float
  const Tensor fit =
      fitted(near, 2.25, 0.75,
             {0.726242785, -0.160693033, 0.0445134098, -0.013401808, 0.00420279858, -0.0013482903, 0.000439936202,
              -0.000144486301, 4.48152483e-05, -1.46271257e-05, 7.36572494e-06, -2.52023365e-06});
  const Tensor inverse = reciprocal(where(few, where(below, z, one), z)), none = number_like(z, 0);
  const Tensor inner = (near + -root + -rest) * fit - where(below, inverse, none);
  const Tensor outer_inverse = where(few, number_like(z, 1.0 / 3), inverse);
  const Tensor square_of = square(outer_inverse);
  Tensor series = square_of * (691.0 / 32760);
  for (const double c : {-1.0 / 132, 1.0 / 240, -1.0 / 252, 1.0 / 120}) series = (series + c) * square_of;
  const Tensor outer = log(far) - outer_inverse * 0.5 + (series + -1.0 / 12) * square_of;
  return where(few, inner, outer);
}

bool is_wide(const Tensor& v) { return v.dtype() == Float64; }

}  // namespace

Tensor erfinv(const Tensor& x) {
  return map_in_single(x, [](const Tensor& v) {
    const Tensor one = number_like(v, 1), size = abs(v), inside = lt(size, one);
    const Tensor bounded = where(inside, v, number_like(v, 0));
    const Tensor y = is_wide(v) ? precise_erfinv(bounded) : quick_erfinv(bounded);
    // A product, so that the gradient there is infinite or NaN, too.
    const Tensor beyond = where(inside, number_like(v, 0), v);
    return where(inside, y, beyond * where(eq(size, one), number_like(v, INFINITY), number_like(v, NAN)));
  });
}

// By reflection below 1/2, which cancels near zeros of the function: in f64 alone.
Tensor lgamma(const Tensor& x) {
  return map_in_double(x, [](const Tensor& v) {
    const Tensor low = lt(v, number_like(v, 0.5)), z = where(low, 1.0 - v, v);
    const Tensor above = lgamma_of_large(z);
    const Tensor angle = from_integer(where(low, v, number_like(v, 0.25))) * std::numbers::pi;
    const Tensor value = where(low, std::log(std::numbers::pi) - log(abs(sin(angle))) - above, above);
    return where(eq(v, number_like(v, -INFINITY)), number_like(v, INFINITY), value);
  });
}

Tensor digamma(const Tensor& x) {
  return map_in_single(x, [](const Tensor& v) {
    const Tensor low = lt(v, number_like(v, 0.5)), z = where(low, 1.0 - v, v);
    const Tensor above = is_wide(v) ? precise_digamma(z) : quick_digamma(z);
    const Tensor angle = from_integer(where(low, v, number_like(v, 0.25))) * std::numbers::pi;
    const Tensor value = where(low, above - std::numbers::pi * reciprocal(tan(angle)), above);
    return where(logical_and(lt(v, number_like(v, 0)), eq(v, floor(v))), number_like(v, NAN), value);
  });
}

}  // namespace tessera
