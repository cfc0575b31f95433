// Functors for elementwise maps, made of their expressions in maps.h: one source for vectors of every type they make
// sense for.
#pragma once

#include "../math.h"

TESSERA_TILE_BEGIN
namespace op {

template <class T>
inline constexpr bool has_sign = static_cast<T>(-1) < static_cast<T>(0);
/// A number as an element; the nearest one where integers end.
template <class T>
TESSERA_HD T nearest(double x) {
  if constexpr (static_cast<T>(0.5) == 0) {
    constexpr T most = static_cast<T>(~u64(0) >> (64 - 8 * static_cast<int>(sizeof(T)) + has_sign<T>));
    constexpr T least = has_sign<T> ? static_cast<T>(-most - 1) : T(0);
    if (x >= static_cast<double>(most)) return most;
    if (x <= static_cast<double>(least)) return least;
  }
  return static_cast<T>(x);
}
template <class V>
TESSERA_HD V number(double x) {
  return V(nearest<element_t<V>>(x));
}
template <class V>
TESSERA_HD auto is_true(V x) {
  return x != V(element_t<V>(0));
}
template <class V>
inline constexpr bool is_integer = static_cast<element_t<V>>(0.5) == 0;

/// What a condition is converted to before it chooses among elements of V.
template <class V>
using mask_element_t = typename SignedOfSize<sizeof(element_t<V>)>::type;

/// log(1 + x) and e^x - 1 without cancellation: the rounding of 1 + x (of e^x in f64) is divided out again
/// (Kahan; Higham, Accuracy and Stability of Numerical Algorithms, 1.14.1).
template <class V>
TESSERA_HD V log_of_one_plus(V x) {
  if constexpr (native::has<V>) {
    return native::log1p(x);
  } else {
    const V one = V(1), u = one + x;
    const V corrected = log(u) * (x / (u - one));
    return select(u == one, x, select(u < number<V>(__builtin_inf()), corrected, log(u)));
  }
}
template <class V>
TESSERA_HD V exp_less_one(V x) {
  const V one = V(1);
  if constexpr (is_same_v<element_t<V>, double>) {
    const V u = exp(x), less = u - one;
    const V corrected = less * (x / log(u));
    return select(abs(less) < one, select(u == one, x, corrected), less);
  } else {  // x = k ln 2 + r: 2^k (e^r - 1 + 1 - 2^-k), in which nothing cancels
    using I = rebind_t<V, i32>;
    const V bounded = min(max(x, V(-20.0f)), V(89.0f));
    const V shift = V(0x1.8p23f), shifted = fma(bounded, V(1.44269504f), shift), n = shifted - shift;
    const V r = fma(n, V(-1.42860677e-6f), fma(n, V(-0x1.62e4p-1f), bounded));
    const I k = vec_bits<I>(shifted) - vec_bits<I>(shift);
    return tile::detail::scaled_exp(r, k, one - tile::detail::pow2<V>(max(I(0) - k, I(-126))));
  }
}

namespace detail {
template <class T>
TESSERA_HD T floor_quotient(T x, T y) {
  if constexpr (is_integer<T>) {
    if (y == 0) return 0;
    if constexpr (!has_sign<T>) return x / y;
    if (y == T(-1)) return static_cast<T>(u64(0) - static_cast<u64>(x));
    const T q = x / y;
    return q * y != x && (x < 0) != (y < 0) ? q - 1 : q;
  } else {
    if (y == 0) return x / y;
    T r = static_cast<T>(__builtin_fmod(x, y));
    T q = (x - r) / y;
    if (r != 0 && (r < 0) != (y < 0)) q -= 1;
    const T down = static_cast<T>(__builtin_floor(q));
    return q - down > T(0.5) ? down + 1 : down;
  }
}
template <class T>
TESSERA_HD T floor_remainder(T x, T y) {
  T r = x;
  if constexpr (is_integer<T>) {
    if (y == 0) return x;
    if constexpr (!has_sign<T>) return x % y;
    r = y == T(-1) ? 0 : x % y;
  } else {
    r = static_cast<T>(__builtin_fmod(x, y));
  }
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

#if defined(__FMA__)
inline constexpr double exact_quotient = 0x1p52;
#else
inline constexpr double exact_quotient = 0x1p29;  // its product with a float is exact
#endif
/// x = q y + r for floats, |r| < |y|, q towards zero and r of the sign of x: exact where is_exact() says so.
template <class V>
struct Division {
  using D = rebind_t<V, double>;
  D divisor, q, r;
  Division(V x, V y) : divisor(convert<double>(y)) {
    const D wide = convert<double>(x), sign = copysign(D(1), wide);
    q = trunc(wide / divisor);
    r = fma(-q, divisor, wide);
    const auto over = r * sign < D(0);  // a quotient just below a whole number was rounded to it
    q = select(over, q - sign * copysign(D(1), divisor), q);
    r = copysign(select(over, r + abs(divisor) * sign, r), wide);
  }
  bool is_exact() const { return all((abs(q) < D(exact_quotient)) & (abs(r) < abs(divisor))); }
  auto opposite() const { return (r != D(0)) & ((r < D(0)) ^ (divisor < D(0))); }
  V floor_quotient() const { return convert<float>(select(opposite(), q - D(1), q)); }
  V floor_remainder() const { return convert<float>(select(opposite(), r + divisor, r)); }
};
/// The same in f32, with a fused product: exact below 2^24, where the rounded quotient is a whole number too far at
/// most.
template <class V>
struct NarrowDivision {
  V divisor, q, r;
  NarrowDivision(V x, V y) : divisor(y) {
    q = trunc(x / y);
    r = fma(-q, y, x);
    const V sign = copysign(V(1), x);
    const auto over = r * sign < V(0);
    q = select(over, q - sign * copysign(V(1), y), q);
    r = copysign(select(over, r + abs(y) * sign, r), x);
  }
  bool is_exact() const { return all((abs(q) < V(0x1p24f)) & (abs(r) < abs(divisor))); }
  auto opposite() const { return (r != V(0)) & ((r < V(0)) ^ (divisor < V(0))); }
  V floor_quotient() const { return select(opposite(), q - V(1), q); }
  V floor_remainder() const { return select(opposite(), r + divisor, r); }
};
#if defined(__FMA__) && !TESSERA_GPU_COMPILER
template <class V>
inline constexpr bool divides_in_f32 = is_same_v<element_t<V>, float> && (lanes_v<V> > 1);
#else
template <class V>
inline constexpr bool divides_in_f32 = false;
#endif
template <class V>
inline constexpr bool divides_in_f64 = is_same_v<element_t<V>, float> && (lanes_v<V> > 1) && !TESSERA_GPU_COMPILER;

template <class T>
TESSERA_HD T integer_power(T x, T y) {
  if constexpr (has_sign<T>)
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 ? -1 : 1) : 0;
  u64 base = static_cast<u64>(x), result = 1;
  for (; y > 0; y /= 2, base *= base) {
    if (y % 2) result *= base;
  }
  return static_cast<T>(result);
}
}  // namespace detail

/// Division towards minus infinity and its remainder, which has the sign of b (as Python's // and %). Integers:
/// by zero the quotient is 0 and the remainder a; a result out of range wraps.
template <class V>
TESSERA_HD V floor_quotient(V a, V b) {
  if constexpr (detail::divides_in_f32<V>)
    if (const detail::NarrowDivision<V> d(a, b); d.is_exact()) return d.floor_quotient();
  if constexpr (detail::divides_in_f64<V> && is_wide<rebind_t<V, double>>)
    return tile::detail::by_halves<V>([](auto x, auto y) { return floor_quotient(x, y); }, a, b);
  else if constexpr (detail::divides_in_f64<V>)
    if (const detail::Division<V> d(a, b); d.is_exact()) return d.floor_quotient();
  return map_lanes(a, b, [](auto x, auto y) { return detail::floor_quotient(x, y); });
}
template <class V>
TESSERA_HD V floor_remainder(V a, V b) {
  if constexpr (detail::divides_in_f32<V>)
    if (const detail::NarrowDivision<V> d(a, b); d.is_exact()) return d.floor_remainder();
  if constexpr (detail::divides_in_f64<V> && is_wide<rebind_t<V, double>>)
    return tile::detail::by_halves<V>([](auto x, auto y) { return floor_remainder(x, y); }, a, b);
  else if constexpr (detail::divides_in_f64<V>)
    if (const detail::Division<V> d(a, b); d.is_exact()) return d.floor_remainder();
  return map_lanes(a, b, [](auto x, auto y) { return detail::floor_remainder(x, y); });
}

/// a^b; integers wrap, and a negative exponent gives 0 unless a is 1 or -1.
template <class V>
TESSERA_HD V power(V a, V b) {
  if constexpr (is_integer<V>) {
    return map_lanes(a, b, [](auto x, auto y) { return detail::integer_power(x, y); });
  } else {
    return pow(a, b);
  }
}

// The first input of three, a condition, may have a type of its own.
#define TESSERA_INPUTS_1 \
  template <class V>     \
  TESSERA_HD auto operator()(V x) const
#define TESSERA_INPUTS_2 \
  template <class V>     \
  TESSERA_HD auto operator()(V a, V b) const
#define TESSERA_INPUTS_3      \
  template <class C, class V> \
  TESSERA_HD auto operator()(C a, V b, V c) const
#define TESSERA_NUMBERS(...) double __VA_ARGS__
#define TESSERA_MAP(name, Functor, inputs, types, unit, ...) \
  struct Functor {                                           \
    TESSERA_INPUTS_##inputs { return __VA_ARGS__; }          \
  };
#define TESSERA_GRADIENT_MAP TESSERA_MAP
#define TESSERA_NUMBER_MAP(name, Functor, inputs, types, unit, numbers, ...) \
  struct Functor {                                                           \
    TESSERA_NUMBERS numbers;                                                 \
    TESSERA_INPUTS_##inputs { return __VA_ARGS__; }                          \
  };
#include "maps.h"
#undef TESSERA_INPUTS_1
#undef TESSERA_INPUTS_2
#undef TESSERA_INPUTS_3
#undef TESSERA_NUMBERS

}  // namespace op
TESSERA_TILE_END
