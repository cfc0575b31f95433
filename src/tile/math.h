// Elementary functions, one source for a scalar or a Vec of any width. For float they are polynomials with an
// error of a few units in the last place (tests/tile/test_math.cpp); double goes to the C library per lane.
// The polynomials are minimax fits made for this file. Angles and their sides are in trigonometry.h.
#pragma once

#include "lookup.h"
#include "vec.h"

#if defined(__HIPCC__)
extern "C" {
__device__ double __ocml_exp_f64(double);
__device__ double __ocml_exp2_f64(double);
__device__ double __ocml_log_f64(double);
__device__ double __ocml_tanh_f64(double);
__device__ double __ocml_erf_f64(double);
__device__ double __ocml_erfc_f64(double);
__device__ double __ocml_sin_f64(double);
__device__ double __ocml_cos_f64(double);
__device__ double __ocml_tan_f64(double);
__device__ double __ocml_asin_f64(double);
__device__ double __ocml_acos_f64(double);
__device__ double __ocml_atan_f64(double);
__device__ double __ocml_erfinv_f64(double);
__device__ double __ocml_atan2_f64(double, double);
__device__ double __ocml_pow_f64(double, double);
}
#endif

TESSERA_TILE_BEGIN

namespace libm {

#if defined(__HIPCC__)
#define TESSERA_LIBM(name) \
  TESSERA_HD double name(double x) { return __ocml_##name##_f64(x); }
TESSERA_HD double pow(double x, double y) { return __ocml_pow_f64(x, y); }
TESSERA_HD double atan2(double y, double x) { return __ocml_atan2_f64(y, x); }
#elif TESSERA_GPU_COMPILER
#define TESSERA_LIBM(name) \
  TESSERA_HD double name(double x) { return ::name(x); }
TESSERA_HD double pow(double x, double y) { return ::pow(x, y); }
TESSERA_HD double atan2(double y, double x) { return ::atan2(y, x); }
#else
#define TESSERA_LIBM(name) \
  TESSERA_HD double name(double x) { return __builtin_##name(x); }
TESSERA_HD double pow(double x, double y) { return __builtin_pow(x, y); }
TESSERA_HD double atan2(double y, double x) { return __builtin_atan2(y, x); }
#endif
TESSERA_LIBM(exp)
TESSERA_LIBM(exp2)
TESSERA_LIBM(log)
TESSERA_LIBM(tanh)
TESSERA_LIBM(erf)
TESSERA_LIBM(erfc)
TESSERA_LIBM(sin)
TESSERA_LIBM(cos)
TESSERA_LIBM(tan)
TESSERA_LIBM(asin)
TESSERA_LIBM(acos)
TESSERA_LIBM(atan)
#if !defined(__HIPCC__)
TESSERA_LIBM(sinh)
TESSERA_LIBM(cosh)
TESSERA_LIBM(expm1)
TESSERA_LIBM(log1p)
#endif
#if TESSERA_GPU_COMPILER
TESSERA_LIBM(erfinv)
#else
/// Halley's method, each step of which has three times as many right digits as the one before, begun with Winitzki's
/// approximation. Infinite at 1 and -1, NaN beyond them.
inline double erfinv(double x) {
  constexpr double a = 0.147, per_pi = 0.31830988618379067154, slope = 0.88622692545275801365;
  const double size = __builtin_fabs(x);
  if (!(size < 1)) return size == 1 ? x * __builtin_inf() : __builtin_nan("");
  const double l = log1p(-x * x), t = l * 0.5 + 2 * per_pi / a;
  double y = __builtin_copysign(__builtin_sqrt(-l / a / (__builtin_sqrt(t * t - l / a) + t)), x);
  for (int step = 0; step < 3; ++step) {
    const double newton = (erf(y) - x) * exp(y * y) * slope;
    y -= newton / (y * newton + 1);
  }
  return y;
}
#endif
#undef TESSERA_LIBM

}  // namespace libm

/// Functions of a float by the vendor, which has instructions for powers of two and logarithms: an error of one or two
/// units in the last place, too, in a third of the instructions.
namespace native {
#if defined(__CUDA_ARCH__)
template <class V>
inline constexpr bool has = is_same_v<V, float>;
TESSERA_HD float exp(float x) { return ::expf(x); }
TESSERA_HD float log(float x) { return ::logf(x); }
TESSERA_HD float log1p(float x) { return ::log1pf(x); }
TESSERA_HD float tanh(float x) { return ::tanhf(x); }
TESSERA_HD float sin(float x) { return ::sinf(x); }
TESSERA_HD float cos(float x) { return ::cosf(x); }
TESSERA_HD float tan(float x) { return ::tanf(x); }
TESSERA_HD float erfinv(float x) { return ::erfinvf(x); }
TESSERA_HD float atan2(float y, float x) { return ::atan2f(y, x); }
TESSERA_HD float hypot(float a, float b) { return ::hypotf(a, b); }
#else
template <class V>
inline constexpr bool has = false;
template <class V>
V exp(V);
template <class V>
V log(V);
template <class V>
V log1p(V);
template <class V>
V tanh(V);
template <class V>
V sin(V);
template <class V>
V cos(V);
template <class V>
V tan(V);
template <class V>
V erfinv(V);
template <class V>
V atan2(V, V);
template <class V>
V hypot(V, V);
#endif
}  // namespace native

namespace detail {

template <class V>
inline constexpr bool is_f64 = is_same_v<element_t<V>, double>;

/// Every lane through a function of doubles.
template <class V, class F>
TESSERA_HD V via_f64(V x, F f) {
  using T = element_t<V>;
  return map_lanes(x, [&](T s) { return static_cast<T>(f(static_cast<double>(s))); });
}

template <class V>
TESSERA_HD V horner(V, float c) {
  return V(c);
}
/// c0 + x (c1 + x (c2 + ...))
template <class V, class... C>
TESSERA_HD V horner(V x, float c0, C... c) {
  return fma(x, horner(x, c...), V(c0));
}

template <class V>
TESSERA_HD V pow2(rebind_t<V, i32> n) {  // for -126 <= n <= 127
  using I = rebind_t<V, i32>;
  return vec_bits<V>((n + I(127)) << I(23));
}

}  // namespace detail

template <class V>
TESSERA_HD V abs(V x) {
  if constexpr (is_same_v<V, i32> || is_same_v<V, i64>) {
    return x < 0 ? -x : x;
  } else if constexpr (element_t<V>(-1) > element_t<V>(0)) {
    return x;
  } else if constexpr (is_same_v<element_t<V>, float> || detail::is_f64<V>) {
    using I = rebind_t<V, typename SignedOfSize<sizeof(element_t<V>)>::type>;
    using E = element_t<I>;
    return vec_bits<V>(vec_bits<I>(x) & ~(I(E(1)) << I(E(sizeof(E) * 8 - 1))));
  } else {
    return max(x, -x);
  }
}

/// |x| with the sign of s.
template <class V>
TESSERA_HD V copysign(V x, V s) {
  using I = rebind_t<V, typename SignedOfSize<sizeof(element_t<V>)>::type>;
  using E = element_t<I>;
  const I sign = I(E(1)) << I(E(sizeof(E) * 8 - 1));
  return vec_bits<V>((vec_bits<I>(x) & ~sign) | (vec_bits<I>(s) & sign));
}

namespace detail {
/// Whether vectors become integers by one instruction.
#if TESSERA_X86 && defined(__AVX2__) && defined(__FMA__)
template <class V>
inline constexpr bool rounds = has_simd<V> || is_wide<V>;
template <int how, class V>
TESSERA_HD V rounded(V x) {
  if constexpr (has_simd<V>) return V::of(simd::rounded<how>(x.v));
  else return by_halves<V>([](auto half) { return rounded<how>(half); }, x);
}
#else
template <class V>
inline constexpr bool rounds = false;
template <int how, class V>
V rounded(V);
#endif
}  // namespace detail

/// To the nearest integer, halves to even.
template <class V>
TESSERA_HD V round(V x) {
  if constexpr (detail::rounds<V>) return detail::rounded<0>(x);
  using T = element_t<V>;
  const V big = V(is_same_v<T, float> ? T(0x1p23) : T(0x1p52));  // from here on every number is an integer
  const V a = abs(x);
  return select(a < big, copysign((a + big) - big, x), x);
}
template <class V>
TESSERA_HD V floor(V x) {
  if constexpr (detail::rounds<V>) return detail::rounded<1>(x);
  const V r = round(x);
  return select(r > x, r - V(element_t<V>(1)), r);
}
template <class V>
TESSERA_HD V ceil(V x) {
  if constexpr (detail::rounds<V>) return detail::rounded<2>(x);
  return -floor(-x);
}
template <class V>
TESSERA_HD V trunc(V x) {
  if constexpr (detail::rounds<V>) return detail::rounded<3>(x);
  return copysign(floor(abs(x)), x);
}

template <class V>
TESSERA_HD V square(V x) {
  return x * x;
}
template <class V>
TESSERA_HD V rsqrt(V x) {
  return V(element_t<V>(1)) / sqrt(x);
}
template <class V>
TESSERA_HD V reciprocal(V x) {
  return V(element_t<V>(1)) / x;
}
template <class V>
TESSERA_HD V relu(V x) {
  return max(x, V(element_t<V>(0)));
}

namespace detail {
/// 2^k (e^r - 1 + rest) for |r| <= ln 2 / 2, in two steps, so that 2^k may lie outside the normal range.
template <class V>
TESSERA_HD V scaled_exp(V r, rebind_t<V, i32> k, V rest) {
  using I = rebind_t<V, i32>;
  const V p = horner(r, 4.999999305e-01f, 1.666651479e-01f, 4.166845683e-02f, 8.369419044e-03f, 1.381314237e-03f);
  const V y = fma(r * r, p, r) + rest;
  const I half = k >> I(1);
  return y * pow2<V>(half) * pow2<V>(k - half);
}
}  // namespace detail

/// e^x. Overflows to infinity, keeps NaN; subnormal results are exact to their last bit or two.
template <class V>
TESSERA_HD V exp(V x) {
  if constexpr (detail::is_f64<V>) {
    return detail::via_f64(x, [](double s) { return libm::exp(s); });
  } else if constexpr (native::has<V>) {
    return native::exp(x);
  } else {
    using I = rebind_t<V, i32>;
    x = min(max(x, V(-104.0f)), V(89.0f));
    const V shift = V(0x1.8p23f);  // adding it leaves round(x / ln 2) in the low bits
    const V shifted = fma(x, V(1.44269504f), shift);
    const V n = shifted - shift;
    V r = fma(n, V(-0x1.62e4p-1f), x);  // ln 2 in two parts: the product with the first is exact
    r = fma(n, V(-1.42860677e-6f), r);
    return detail::scaled_exp(r, vec_bits<I>(shifted) - vec_bits<I>(shift), V(1.0f));
  }
}

namespace detail {

/// The bits of 2^(i / 8) as a float, less those of i and of the bias in the exponent: adding n << 20 for an n that is
/// i more than a multiple of 8 gives 2^(n / 8 - 127).
inline constexpr i32 eighths_of_2[8] = {0, -289342, -509968, -655657, -719629, -694486, -572163, -343865};

/// 2^x is taken as 2^n 2^f, n in eighths where a register holds the eight powers between 1 and 2. Added to x, this
/// leaves n + 127 in the low bits; f = x + (pow2_shift - sum).
template <class V>
inline constexpr float pow2_shift = has_lookup8<lanes_v<V>> ? 0x1.8p20f + 127 : 0x1.8p23f + 127;

/// 2^f and 2^n for -127 <= n <= 127, 0 for -127; the relative error of the polynomial in f is below 1e-7.
template <class V>
struct Pow2Parts {
  V fraction, power;
  TESSERA_HD Pow2Parts(V shifted, V f) {
    using I = rebind_t<V, i32>;
    const I n = vec_bits<I>(shifted);
    if constexpr (has_lookup8<lanes_v<V>>) {
      fraction = horner(f, 1.0f, 0x1.62e432p-1f, 0x1.ec0c32p-3f, 0x1.c6a004p-5f);
      power = vec_bits<V>(lookup8(eighths_of_2, n) + (n << I(20)));
    } else {
      fraction = horner(f, 1.0f, 0x1.62e42ap-1f, 0x1.ebf9bcp-3f, 0x1.c6b752p-5f, 0x1.3cea88p-7f, 0x1.5bba14p-10f);
      power = vec_bits<V>(n << I(23));
    }
  }
};
template <class V>
TESSERA_HD V pow2_parts(V shifted, V f) {
  const Pow2Parts<V> parts(shifted, f);
  return parts.fraction * parts.power;
}

}  // namespace detail

/// exp(x) for x <= 0 (up to 88 it holds, too), as softmax needs it: half the instructions of exp(). Results below
/// 2^-126 are 0.
template <class V>
TESSERA_HD V exp_nonpositive(V x) {
  if constexpr (is_same_v<element_t<V>, float>) {
    const V bounded = max(x, V(-88.0f)), per_ln2 = V(0x1.715476p0f), shift = V(detail::pow2_shift<V>);
    const V shifted = fma(bounded, per_ln2, shift);
    return detail::pow2_parts(shifted, fma(bounded, per_ln2, shift - shifted));
  } else {
    return exp(x);
  }
}

/// exp(x) times a power of two for which exp(largest) is about 1, for rows that are divided by their sum: neither x -
/// largest nor a bound costs an instruction. In float, where products are fused.
template <class V>
class ScaledExp {
 public:
  static constexpr float span = 86;  // exp(-span) is nothing beside 1
  /// Whether it holds for x between these; others want exp_nonpositive(x - largest).
  static TESSERA_HD bool takes(float least, float largest) { return abs(largest) < 0x1p16f && largest - least < span; }
  explicit TESSERA_HD ScaledExp(float largest) : offset_(detail::pow2_shift<V> - round(largest * 0x1.715476p0f)) {}
  TESSERA_HD V operator()(V x) const {
    const V per_ln2 = V(0x1.715476p0f), shifted = fma(x, per_ln2, offset_);
    return detail::pow2_parts(shifted, fma(x, per_ln2, offset_ - shifted));
  }

 private:
  V offset_;
};

/// Natural logarithm; -infinity at 0, NaN below.
template <class V>
TESSERA_HD V log(V x) {
  if constexpr (detail::is_f64<V>) {
    return detail::via_f64(x, [](double s) { return libm::log(s); });
  } else if constexpr (native::has<V>) {
    return native::log(x);
  } else {
    using I = rebind_t<V, i32>;
    const auto tiny = x < V(1.17549435e-38f);
    const V scaled = select(tiny, x * V(0x1p23f), x);
    const I bits = vec_bits<I>(scaled);
    const I k = (bits - I(0x3f3504f3)) >> I(23);  // the significand then lies in [sqrt(1/2), sqrt(2))
    const V f = vec_bits<V>(bits - (k << I(23))) - V(1.0f);
    const V e = convert<float>(k) - select(tiny, V(23.0f), V(0.0f));
    const V p =
        detail::horner(f, 3.333331241e-01f, -2.500000964e-01f, 2.000213366e-01f, -1.666800669e-01f, 1.421922294e-01f,
                       -1.240513808e-01f, 1.189033601e-01f, -1.167964302e-01f, 6.746559441e-02f);
    const V f2 = f * f;
    V y = fma(f * f2, p, fma(e, V(1.42860677e-6f), V(-0.5f) * f2));
    y = fma(e, V(0x1.62e4p-1f), y + f);
    const V infinity = V(__builtin_inff());
    y = select(x < infinity, y, x);  // infinity and NaN pass
    y = select(x == V(0.0f), -infinity, y);
    return select(x < V(0.0f), V(__builtin_nanf("")), y);
  }
}

template <class V>
TESSERA_HD V exp2(V x) {
  if constexpr (detail::is_f64<V>) {
    return detail::via_f64(x, [](double s) { return libm::exp2(s); });
  } else {
    using I = rebind_t<V, i32>;
    x = min(max(x, V(-151.0f)), V(129.0f));
    const V shift = V(0x1.8p23f), shifted = x + shift;  // which leaves round(x) in the low bits
    const V r = (x - (shifted - shift)) * V(0.693147181f);
    return detail::scaled_exp(r, vec_bits<I>(shifted) - vec_bits<I>(shift), V(1.0f));
  }
}
template <class V>
TESSERA_HD V log2(V x) {
  return log(x) * V(static_cast<element_t<V>>(1.442695040888963407));
}

/// x^y with the C library's special cases.
template <class V>
TESSERA_HD V pow(V x, V y) {
  using T = element_t<V>;
  return map_lanes(x, y,
                   [](T a, T b) { return static_cast<T>(libm::pow(static_cast<double>(a), static_cast<double>(b))); });
}

namespace detail {
/// 1 + e^-x. The bound changes no bit of it and keeps e^-x from underflowing, which is slow.
template <class V>
TESSERA_HD V one_plus_exp(V x) {
  using T = element_t<V>;
  return V(T(1)) + exp(max(-x, V(T(-60))));
}
}  // namespace detail

/// 1 / (1 + e^-x). Where registers hold the powers between 1 and 2, results below e^-87 are 0.
template <class V>
TESSERA_HD V sigmoid(V x) {
  if constexpr (is_same_v<element_t<V>, float> && has_lookup8<lanes_v<V>>) {
    const V least(-87.0f), bounded = min(max(x, least), V(60.0f)), per_ln2(-0x1.715476p0f);
    const V shift(detail::pow2_shift<V>), shifted = fma(bounded, per_ln2, shift);
    const V f = fma(bounded, V(-0x1.4ae0bep-26f), fma(bounded, per_ln2, shift - shifted));  // 1 / ln 2 in two parts
    const detail::Pow2Parts<V> parts(shifted, f);
    const V s = inverse(fma(parts.fraction, parts.power, V(1.0f)));
    return select(x < least, V(0.0f), s);
  } else {
    return V(element_t<V>(1)) / detail::one_plus_exp(x);
  }
}
/// x sigmoid(x), also called swish.
template <class V>
TESSERA_HD V silu(V x) {
  if constexpr (is_same_v<element_t<V>, float> && has_lookup8<lanes_v<V>>) return x * sigmoid(x);
  else return x / detail::one_plus_exp(x);
}

template <class V>
TESSERA_HD V tanh(V x) {
  if constexpr (detail::is_f64<V>) {
    return detail::via_f64(x, [](double s) { return libm::tanh(s); });
  } else if constexpr (native::has<V>) {
    return native::tanh(x);
  } else {
    const V a = abs(x), z = x * x;
    const V p =
        detail::horner(z, -3.333328392e-01f, 1.333149125e-01f, -5.374349526e-02f, 2.065057899e-02f, -5.717036547e-03f);
    const V large = V(1.0f) - V(2.0f) * inverse(exp(min(a + a, V(80.0f))) + V(1.0f));
    return copysign(select(a < V(0.625f), fma(a * z, p, a), large), x);
  }
}

namespace detail {

/// erf(x) for |x| <= 1.
template <class V>
TESSERA_HD V erf_small(V x) {
  const V p = horner(x * x, 1.283791672e-01f, -3.761263843e-01f, 1.128378197e-01f, -2.686540003e-02f, 5.220945412e-03f,
                     -8.482828563e-04f, 1.125694599e-04f, -9.641510861e-06f);
  return fma(x, p, x);
}

/// x * x - high, where high is x * x rounded.
template <class V>
TESSERA_HD V square_error(V x, V high) {
#if defined(__FMA__) || TESSERA_GPU_COMPILER
  return fma(x, x, -high);
#else  // split by hand where no fused product exists
  using I = rebind_t<V, i32>;
  const V a = vec_bits<V>(vec_bits<I>(x) & I(~0xfff)), b = x - a;
  return ((a * a - high) + (a * b + a * b)) + b * b;
#endif
}

/// erfc(x) for x >= 0.92: e^-x^2, with the square in two parts, times a polynomial in 1 / (1 + x / 2).
template <class V>
TESSERA_HD V erfc_large(V x) {
  x = min(x, V(15.0f));  // beyond, the result is zero
  const V t = inverse(fma(x, V(0.5f), V(1.0f)));
  const V p = horner(t, -4.380525326e-06f, 2.822085714e-01f, 2.808706493e-01f, 2.538008415e-01f, 1.546497344e-01f,
                     1.137030183e-01f, 1.278970770e-02f, -1.751846838e-01f, 7.755938299e-02f);
  const V high = x * x, low = square_error(x, high);
  return exp(-high) * (p - low * p);
}

}  // namespace detail

/// Error function.
template <class V>
TESSERA_HD V erf(V x) {
  if constexpr (detail::is_f64<V>) {
    return detail::via_f64(x, [](double s) { return libm::erf(s); });
  } else {
    const V a = abs(x);
    return select(a < V(1.0f), detail::erf_small(x), copysign(V(1.0f) - detail::erfc_large(a), x));
  }
}

/// The inverse of erf, infinite at 1 and -1 and NaN beyond them: as Giles 2010 a function of w = -log(1 - x²) times x,
/// in two parts, of which the second is rare.
template <class V>
TESSERA_HD V erfinv(V x) {
  if constexpr (detail::is_f64<V>) {
    return detail::via_f64(x, [](double s) { return libm::erfinv(s); });
  } else if constexpr (native::has<V>) {
    return native::erfinv(x);
  } else {
    const V one = V(1.0f), w = -log((one - x) * (x + one));
    const auto inner = w < V(5.0f);
    V p = detail::horner(fma(w, V(0.4f), -one), 1.50140935f, 0.616600692f, -0.0261082808f, -0.0195735643f,
                         0.0085259345f, -0.000487876475f, -0.000836468738f, 0.000292135779f, 2.51574346e-05f,
                         -4.14004351e-05f, 4.14957776e-06f, 2.93113661e-06f);
    if (!all(inner)) {
      const V outer = detail::horner(sqrt(w) - V(3.2f), 3.03363657f, 1.00469241f, 0.00597345592f, -0.0042936552f,
                                     0.0029474937f, -0.00199505776f, 0.00109252927f, -0.000356300635f, -3.89268681e-05f,
                                     9.88480581e-05f, -3.09990533e-05f);
      p = select(inner, p, outer);
      p = select(abs(x) == one, V(__builtin_inff()), p);
    }
    return p * x;
  }
}

/// Standard normal distribution function, accurate in the far tail too, and e^(-x^2 / 2).
template <class V>
struct Normal {
  V cdf, bell;
};
template <class V>
TESSERA_HD Normal<V> normal(V x) {
  using T = element_t<V>;
  if constexpr (detail::is_f64<V>) {
    const V cdf = detail::via_f64(x, [](double s) { return 0.5 * libm::erfc(-0.70710678118654752440 * s); });
    return {cdf, exp(x * x * V(T(-0.5)))};
  } else {
    const V a = min(abs(x), V(13.2665f));  // from there on the bell is zero
    const V high = a * a, shift = V(detail::pow2_shift<V>), per_ln2 = V(0x1.715476p0f);
    const V shifted = fma(high, V(-0x1.715476p-1f), shift), n = shifted - shift;
    const V rest =
        fma(n, V(-1.42860677e-6f), fma(n, V(-0x1.62e4p-1f), high * V(-0.5f)));  // ln 2 in two parts, as in exp()
    const V bell = detail::pow2_parts(shifted, fma(detail::square_error(a, high), V(-0x1.715476p-1f), rest * per_ln2));
    const V t = V(1.0f) / fma(a, V(0.295f), V(1.0f));
    const V tail = bell * detail::horner(t, 1.812968003e-05f, 1.172685847e-01f, 1.218604371e-01f, 8.405993134e-02f,
                                         1.680370569e-01f, -1.198178157e-01f, 2.736164331e-01f, -1.847645491e-01f,
                                         3.972181305e-02f);
    return {select(x < V(0.0f), tail, V(1.0f) - tail), bell};
  }
}

/// A function and its derivative at one place.
template <class V>
struct ValueAndSlope {
  V value, slope;
};

/// Gaussian error linear unit x Phi(x) (Hendrycks and Gimpel, arXiv:1606.08415), its derivative Phi(x) + x phi(x), and
/// both for little more than one of them.
template <class V>
TESSERA_HD ValueAndSlope<V> gelu_erf_both(V x) {
  const auto n = normal(x);
  return {x * n.cdf, fma(x * n.bell, V(element_t<V>(0.39894228040143267794)), n.cdf)};
}
template <class V>
TESSERA_HD V gelu_erf(V x) {
  return gelu_erf_both(x).value;
}
template <class V>
TESSERA_HD V gelu_erf_grad(V x) {
  return gelu_erf_both(x).slope;
}

namespace detail {
/// 1 + e^-u for u = sqrt(8 / pi) (x + 0.044715 x^3) and |x| <= 10, or 19 in double. A float's exponential is taken as a
/// power of two from the start.
template <class V>
TESSERA_HD V one_plus_exp_gelu(V x) {
  using T = element_t<V>;
  constexpr bool base_2 = is_same_v<T, float>;
  constexpr double linear = 1.59576912160573071176 * (base_2 ? 1.442695040888963407 : 1);
  const V factor = fma(x * x, V(T(-0.044715 * linear)), V(T(-linear)));
  if constexpr (base_2) {
    const V shift(pow2_shift<V>), shifted = fma(x, factor, shift);
    const Pow2Parts<V> parts(shifted, fma(x, factor, shift - shifted));
    return fma(parts.fraction, parts.power, V(1.0f));
  } else {
    return V(T(1)) + exp(x * factor);
  }
}
}  // namespace detail

/// The tanh approximation of GELU ("FastGeLU"), 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), from the
/// same paper; written as x sigmoid(2 u), which loses nothing for negative x.
template <class V>
TESSERA_HD ValueAndSlope<V> gelu_tanh_both(V x) {
  using T = element_t<V>;
  // From here on the result is x, or nearer to 0 than 2e-37.
  const V bound(is_same_v<T, float> ? T(10) : T(19)), above = max(x, -bound), inside = min(above, bound);
  const V s = inverse(detail::one_plus_exp_gelu(inside));
  const V slope = fma(inside * inside, V(T(3 * 1.59576912160573071176 * 0.044715)), V(T(1.59576912160573071176)));
  return {above * s, fma(inside * slope, fma(-s, s, s), s)};
}
template <class V>
TESSERA_HD V gelu_tanh(V x) {
  return gelu_tanh_both(x).value;
}
template <class V>
TESSERA_HD V gelu_tanh_grad(V x) {
  return gelu_tanh_both(x).slope;
}
/// x sigmoid(x)
template <class V>
TESSERA_HD ValueAndSlope<V> silu_both(V x) {
  const V one = V(element_t<V>(1)), s = sigmoid(x);
  return {x * s, s * fma(x, one - s, one)};
}
template <class V>
TESSERA_HD V silu_grad(V x) {
  return silu_both(x).slope;
}

#if !defined(__HIPCC__)  // rare enough to go through the C library, one lane at a time
#define TESSERA_BY_LANE(name)                                          \
  template <class V>                                                   \
  TESSERA_HD V name(V x) {                                             \
    return detail::via_f64(x, [](double s) { return libm::name(s); }); \
  }
TESSERA_BY_LANE(sinh)
TESSERA_BY_LANE(cosh)
TESSERA_BY_LANE(expm1)
TESSERA_BY_LANE(log1p)
#undef TESSERA_BY_LANE
#endif

TESSERA_TILE_END

#include "trigonometry.h"
