// Functions of angles and their inverses, as those of math.h, which includes this.
#pragma once

#include "math.h"

TESSERA_TILE_BEGIN

namespace detail {

#if defined(__FMA__) || TESSERA_GPU_COMPILER
inline constexpr float reducible = 0x1p26f;
#else
inline constexpr float reducible = 0x1p12f;  // the products of the reduction are rounded
#endif

/// x = q pi / 2 + r: the sine and the cosine of r.
template <class V>
struct Quadrant {
  using I = rebind_t<V, i32>;
  V sine, cosine;
  I q;
  explicit TESSERA_HD Quadrant(V x) {
    using D = rebind_t<V, double>;
    const D wide = convert<double>(x);  // reduced in double: exact enough up to the limit
    const D n = round(wide * D(0.636619772367581343076));
    q = convert<i32>(select(abs(wide) < D(reducible), n, D(0.0)));
    set(convert<float>(fma(n, D(-6.12323399573676603587e-17), fma(n, D(-1.57079632679489655800), wide))));
  }
  /// n and x in f32: the first product's rounding would be of bits that the difference does not have.
  TESSERA_HD Quadrant(V x, V n) : q(convert<i32>(n)) {
    set(fma(n, V(0x1.ee59dap-50f), fma(n, V(0x1.777a5cp-25f), fma(n, V(-0x1.921fb6p+0f), x))));
  }

 private:
  TESSERA_HD void set(V r) {
    const V z = r * r;
    sine = fma(r * z, horner(z, -1.666666664e-01f, 8.333329267e-03f, -1.983929612e-04f, 2.717939820e-06f), r);
    cosine = fma(z * z, horner(z, 4.166666662e-02f, -1.388888360e-03f, 2.479947861e-05f, -2.720678725e-07f),
                 fma(z, V(-0.5f), V(1.0f)));
  }
};
template <class V>
TESSERA_HD V sin_of(const Quadrant<V>& at, int quadrants) {
  using I = rebind_t<V, i32>;
  const I q = at.q + I(quadrants);
  const V y = select((q & I(1)) == I(0), at.sine, at.cosine);
  return select((q & I(2)) == I(0), y, -y);
}
template <class V>
TESSERA_HD V tan_of(const Quadrant<V>& at) {
  using I = rebind_t<V, i32>;
  const auto even = (at.q & I(1)) == I(0);
  return select(even, at.sine, -at.cosine) / select(even, at.cosine, at.sine);
}
/// Whether all of x are reduced in f32: three parts of pi / 2 are enough for quotients of 13 bits.
template <class V>
TESSERA_HD bool all_near_zero(V x) {
  if constexpr (rounds<V> && is_same_v<element_t<V>, float>) return all(abs(x) < V(0x1p13f));
  else return false;
}
template <class V>
TESSERA_HD Quadrant<V> quadrant_near_zero(V x) {
  return Quadrant<V>(x, round(x * V(0.636619747f)));
}

/// `reduced` where x can be reduced in double, and f(x) elsewhere.
template <class V, class F>
TESSERA_HD V or_by_lane(V x, V reduced, F f) {
  const auto ordinary = abs(x) < V(reducible);
  return all(ordinary) ? reduced : select(ordinary, reduced, via_f64(x, f));
}

/// sin(x + quadrants * pi / 2).
template <class V>
TESSERA_HD V sin_shifted(V x, int quadrants) {
  const auto exact = [=](double s) { return quadrants ? libm::cos(s) : libm::sin(s); };
  if constexpr (is_f64<V>) {
    return via_f64(x, exact);
  } else if constexpr (native::has<V>) {
    return quadrants ? native::cos(x) : native::sin(x);
  } else {
    if (all_near_zero(x)) return sin_of(quadrant_near_zero(x), quadrants);
    if constexpr (is_wide<rebind_t<V, double>>)
      return by_halves<V>([=](auto half) { return sin_shifted(half, quadrants); }, x);
    else return or_by_lane(x, sin_of(Quadrant<V>(x), quadrants), exact);
  }
}

}  // namespace detail

template <class V>
TESSERA_HD V sin(V x) {
  return detail::sin_shifted(x, 0);
}
template <class V>
TESSERA_HD V cos(V x) {
  return detail::sin_shifted(x, 1);
}
template <class V>
TESSERA_HD V tan(V x) {
  const auto exact = [](double s) { return libm::tan(s); };
  if constexpr (detail::is_f64<V>) {
    return detail::via_f64(x, exact);
  } else if constexpr (native::has<V>) {
    return native::tan(x);
  } else {
    if (detail::all_near_zero(x)) return detail::tan_of(detail::quadrant_near_zero(x));
    if constexpr (is_wide<rebind_t<V, double>>) return detail::by_halves<V>([](auto half) { return tan(half); }, x);
    else return detail::or_by_lane(x, detail::tan_of(detail::Quadrant<V>(x)), exact);
  }
}

namespace detail {

/// atan(t) for |t| <= tan(pi / 8), to 7e-10.
template <class V>
TESSERA_HD V atan_small(V t) {
  const V z = t * t;
  const V p = horner(z, -3.333331518e-01f, 1.999847097e-01f, -1.424352226e-01f, 1.059372711e-01f, -6.077991005e-02f);
  return fma(t * z, p, t);
}

/// asin(s) for the s between 0 and 1/2 of which |x| is the sine, or 1 - 2 s² where |x| is above 1/2.
template <class V>
struct SmallArc {
  decltype(V() > V()) large;
  V angle;
  explicit TESSERA_HD SmallArc(V x) : large(abs(x) > V(0.5f)) {
    const V a = abs(x), z = select(large, fma(a, V(-0.5f), V(0.5f)), a * a), s = select(large, sqrt(z), a);
    const V p = horner(z, 0.1666675248f, 0.07495297628f, 0.04547037763f, 0.02417950714f, 0.04216632049f);
    angle = fma(s * z, p, s);
  }
};
/// pi / 2 as a float, and the share of it that a float of quarter turns lacks.
inline constexpr float quarter_turn = 0x1.921fb6p+0f, turn_rest = -2.78275342e-8f;

}  // namespace detail

/// Arc sine, between -pi / 2 and pi / 2; NaN outside of [-1, 1].
template <class V>
TESSERA_HD V asin(V x) {
  if constexpr (detail::is_f64<V>) {
    return detail::via_f64(x, [](double s) { return libm::asin(s); });
  } else {
    const detail::SmallArc<V> arc(x);
    const V start(detail::quarter_turn);
    return copysign(select(arc.large, start + fma(start, V(detail::turn_rest), arc.angle * V(-2.0f)), arc.angle), x);
  }
}

/// Arc cosine, between 0 and pi; NaN outside of [-1, 1].
template <class V>
TESSERA_HD V acos(V x) {
  if constexpr (detail::is_f64<V>) {
    return detail::via_f64(x, [](double s) { return libm::acos(s); });
  } else {
    const detail::SmallArc<V> arc(x);
    const auto left = x < V(0.0f);
    const V start = select(arc.large, select(left, V(2 * detail::quarter_turn), V(0.0f)), V(detail::quarter_turn));
    const V angle = select(left, -arc.angle, arc.angle);
    return start + fma(start, V(detail::turn_rest), select(arc.large, angle + angle, -angle));
  }
}

/// Arc tangent, between -pi / 2 and pi / 2.
template <class V>
TESSERA_HD V atan(V x) {
  if constexpr (detail::is_f64<V>) {
    return detail::via_f64(x, [](double s) { return libm::atan(s); });
  } else {
    // atan(|x|) = start + atan(t) with |t| <= tan(pi / 8), where the polynomial holds to 7e-10; one division makes t.
    const V a = abs(x), one = V(1.0f);
    const auto middle = a > V(0.414213562f), large = a > V(2.41421356f);
    const V start = select(large, V(1.57079633f), select(middle, V(0.785398163f), V(0.0f)));
    const V t = select(large, -one, select(middle, a - one, a)) / select(large, a, select(middle, a + one, one));
    return copysign(start + detail::atan_small(t), x);
  }
}

/// The angle of the point (x, y), between -pi and pi, with the C library's special cases: of the smaller side by the
/// larger one as in atan(), then the octant.
template <class V>
TESSERA_HD V atan2(V y, V x) {
  if constexpr (detail::is_f64<V>) {
    return map_lanes(y, x, [](double b, double a) { return libm::atan2(b, a); });
  } else if constexpr (native::has<V>) {
    return native::atan2(y, x);
  } else {
    constexpr float quarter = detail::quarter_turn, rest = quarter * detail::turn_rest;
    const V height = abs(y), width = abs(x), zero(0.0f), infinity(__builtin_inff());
    const auto steep = height > width;
    const V unscaled = select(steep, height, width), scale = select(unscaled > V(1.0f), V(0.25f), V(1.0f));
    const V larger = unscaled * scale, smaller = select(steep, width, height) * scale;  // their sum is finite
    const auto middle = smaller > V(0.414213562f) * larger, alike = smaller == larger;  // such as no or infinite ones
    const V t = select(middle, smaller - larger, smaller) / select(middle, smaller + larger, larger);
    V start = select(middle, V(quarter / 2), zero);
    start = select(smaller == infinity, V(quarter / 2), start);
    V angle = start + select(alike, zero, detail::atan_small(t));
    angle = select(steep, V(quarter) + (V(rest) - angle), angle);
    const auto left = vec_bits<rebind_t<V, i32>>(x) < rebind_t<V, i32>(0);
    angle = select(left, V(2 * quarter) + (V(2 * rest) - angle), angle);
    return copysign(angle, y);
  }
}

/// sqrt(a² + b²), without overflow; infinite where one of them is.
template <class V>
TESSERA_HD V hypot(V a, V b) {
  if constexpr (native::has<V>) {
    return native::hypot(a, b);
  } else {
    using T = element_t<V>;
    constexpr bool wide = detail::is_f64<V>;
    constexpr T large = wide ? 0x1p500 : 0x1p60f, down = wide ? 0x1p-600 : 0x1p-70f, up = wide ? 0x1p700 : 0x1p100f;
    const V most = max(abs(a), abs(b)), infinity(static_cast<T>(__builtin_inff()));
    const auto much = most > V(large), little = most < V(1 / large);
    const V scale = select(much, V(down), select(little, V(up), V(T(1))));
    const V back = select(much, V(1 / down), select(little, V(1 / up), V(T(1))));
    const V x = a * scale, y = b * scale;
    const V length = select(abs(a) == infinity, infinity, sqrt(fma(x, x, y * y)) * back);
    return select(abs(b) == infinity, infinity, length);
  }
}

TESSERA_TILE_END
