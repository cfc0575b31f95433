// Functions of the gamma function, made of operators: in f64 to its last digits, some also by shorter formulas in f32,
// which halves are rounded from.
#include <cmath>
#include <numbers>

#include "ops/card_function.h"
#include "ops/gradient.h"
#include "ops/precise.h"
#include "tessera/autograd.h"
#include "tessera/ops_math.h"

namespace tessera {
namespace {

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

// The sum of c[i] t^i for t = (x - middle) / reach, from -1 to 1: coefficients are of a Chebyshev fit in t, whose
// relative error is below 5e-9.
Tensor fitted(const Tensor& x, double middle, double reach, std::initializer_list<double> c) {
  const Tensor from_middle = x + -middle;
  auto it = std::rbegin(c);
  auto power = static_cast<double>(c.size() - 1);
  const auto next = [&] { return *it++ / std::pow(reach, power--); };
  Tensor sum = from_middle * next();
  while (it + 1 != std::rend(c)) sum = (sum + next()) * from_middle;
  return sum + next();
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

// Likewise, where the fit is of lgamma(z) / (z - 2). One logarithm serves the recurrence and the series.
Tensor quick_lgamma_of_large(const Tensor& z) {
  const Tensor one = number_like(z, 1), few = lt(z, number_like(z, 3)), below = lt(z, number_like(z, 1.5));
  const Tensor near = where(below, z + 1.0, where(few, z, one)), far = where(few, number_like(z, 3), z);
  const Tensor fit = fitted(near, 2.25, 0.75,
                            {0.49948686, 0.219178825, -0.0305411682, 0.00619656947, -0.00147524399, 0.00038358924,
                             -0.00010520529, 2.90157866e-05, -8.37530197e-06, 3.35326883e-06, -1.03890921e-06});
  const Tensor logarithm = log(where(below, z, where(few, one, z)));
  const Tensor inverse = reciprocal(far), squared = square(inverse);
  Tensor series = squared * (1.0 / 1188);
  for (const double c : {-1.0 / 1680, 1.0 / 1260, -1.0 / 360}) series = (series + c) * squared;
  const Tensor outer =
      (far + -0.5) * (logarithm - 1.0) + (0.5 * std::log(2 * std::numbers::pi) - 0.5) + (series + 1.0 / 12) * inverse;
  return where(few, (near + -2.0) * fit - logarithm, outer);
}

// log(pi / (|sin(pi r)| gamma(z))), where above = lgamma(z). Near zeros of the function the quotient is near 1, and the
// logarithms would cancel: there, where gamma(z) is small, the quotient is taken in f64, and its rounding to f32 added.
Tensor quick_lgamma_of_low(const Tensor& z, const Tensor& r, const Tensor& above) {
  const Tensor wide = cast(r, Float64), u = square(wide);
  Tensor sine = u * -2.1915353447830204e-05;
  for (const double c : {0.00046630280576761234, -0.0073704309457143478, 0.082145886611128191, -0.59926452932079188,
                         2.5501640398773451, -5.1677127800499694})
    sine = (sine + c) * u;
  sine = abs((sine + std::numbers::pi) * wide);
  const Tensor small = lt(z, number_like(z, 6)), inside = cast(where(small, z, number_like(z, 1)), Float64);
  const Tensor inverse_gamma =
      fitted(inside, 3.25, 2.75,
             {0.3922711649161,    -1.097074575612,   1.000428016805,     0.236647677476,      -1.296028194222,
              1.100697312243,     -0.1611718497629,  -0.4551786450759,   0.4299462832742,     -0.1382281838187,
              -0.05143584256482,  0.07646629739883,  -0.0348025927204,   0.002670139850038,   0.006187635021918,
              -0.004220794059964, 0.001150901353756, 0.0002378513250826, -0.0002919707522829, 5.479517708459e-05,
              7.907089804586e-06});
  const Tensor quotient = inverse_gamma * std::numbers::pi / sine, rounded = cast(quotient, Float32);
  const Tensor near = logical_and(small, isfinite(rounded)), one = number_like(z, 1);
  const Tensor part = where(near, rounded, one), logarithm = log(where(near, rounded, cast(sine, Float32)));
  const Tensor rest = cast(quotient - cast(part, Float64), Float32) / part;
  return where(near, logarithm + rest, std::log(std::numbers::pi) - logarithm - above);
}

// The value of one, as a constant, and the gradient of the other.
Tensor with_slope_of(const Tensor& value, const Tensor& slope) {
  if (!slope.requires_grad()) return value;
  const Tensor none = slope - slope.detach();
  return value.detach() + where(eq(none, none), none, number_like(none, 0));
}

bool is_wide(const Tensor& v) { return v.dtype() == Float64; }

}  // namespace

namespace {
CardFunction<digamma> card_lgamma("lgamma", "lgamma_of_each");
}  // namespace

Tensor lgamma(const Tensor& x) {
  if (card_lgamma.takes(x)) return card_lgamma(x);
  return map_in_single(x, [](const Tensor& v) {
    const Tensor low = lt(v, number_like(v, 0.5)), z = where(low, 1.0 - v, v);
    const Tensor above = is_wide(v) ? lgamma_of_large(z) : quick_lgamma_of_large(z);
    const Tensor r = from_integer(where(low, v, number_like(v, 0.25)));
    const Tensor reflected = std::log(std::numbers::pi) - log(abs(sin(r * std::numbers::pi))) - above;
    const Tensor below = is_wide(v) ? reflected : with_slope_of(quick_lgamma_of_low(z, r, above), reflected);
    const Tensor value = where(low, below, above);
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
