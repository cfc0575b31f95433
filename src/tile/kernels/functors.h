// Functors for elementwise maps: one source for vectors of every type they make sense for.
#pragma once

#include "../math.h"

TESSERA_TILE_BEGIN
namespace op {

template <class V>
TESSERA_HD V number(double x) {
  return V(static_cast<element_t<V>>(x));
}
template <class V>
TESSERA_HD auto is_true(V x) {
  return x != V(element_t<V>(0));
}
template <class V>
inline constexpr bool is_integer = static_cast<element_t<V>>(0.5) == 0;

// clang-format off
#define TESSERA_UNARY(Name, expression) \
  struct Name { template <class V> TESSERA_HD auto operator()(V x) const { return expression; } };
#define TESSERA_BINARY(Name, expression) \
  struct Name { template <class V> TESSERA_HD auto operator()(V a, V b) const { return expression; } };

TESSERA_UNARY(Neg, -x)
TESSERA_UNARY(Abs, abs(x))
TESSERA_UNARY(Square, x * x)
TESSERA_UNARY(Sign, select(x > V(0), V(1), select(x < V(0), V(-1), x)))
TESSERA_UNARY(Relu, max(x, V(0)))
TESSERA_UNARY(Exp, exp(x))
TESSERA_UNARY(Log, log(x))
TESSERA_UNARY(Sqrt, sqrt(x))
TESSERA_UNARY(Rsqrt, rsqrt(x))
TESSERA_UNARY(Reciprocal, reciprocal(x))
TESSERA_UNARY(Sin, sin(x))
TESSERA_UNARY(Cos, cos(x))
TESSERA_UNARY(Tanh, tanh(x))
TESSERA_UNARY(Sigmoid, sigmoid(x))
TESSERA_UNARY(Erf, erf(x))
TESSERA_UNARY(GeluErf, gelu_erf(x))
TESSERA_UNARY(GeluTanh, gelu_tanh(x))
TESSERA_UNARY(Silu, silu(x))
TESSERA_UNARY(Floor, floor(x))
TESSERA_UNARY(Ceil, ceil(x))
TESSERA_UNARY(Round, round(x))
TESSERA_UNARY(Trunc, trunc(x))
TESSERA_UNARY(LogicalNot, x == V(0))
TESSERA_UNARY(IsNan, x != x)
TESSERA_UNARY(IsInf, abs(x) == number<V>(__builtin_inf()))
TESSERA_UNARY(IsFinite, abs(x) < number<V>(__builtin_inf()))

TESSERA_BINARY(Add, a + b)
TESSERA_BINARY(Sub, a - b)
TESSERA_BINARY(Mul, a * b)
TESSERA_BINARY(Div, a / b)
TESSERA_BINARY(Equal, a == b)
TESSERA_BINARY(NotEqual, a != b)
TESSERA_BINARY(Less, a < b)
TESSERA_BINARY(LessEqual, a <= b)
TESSERA_BINARY(Greater, a > b)
TESSERA_BINARY(GreaterEqual, a >= b)
TESSERA_BINARY(LogicalAnd, is_true(a) & is_true(b))
TESSERA_BINARY(LogicalOr, is_true(a) | is_true(b))
TESSERA_BINARY(LogicalXor, is_true(a) ^ is_true(b))
TESSERA_BINARY(BitAnd, a & b)
TESSERA_BINARY(BitOr, a | b)
TESSERA_BINARY(BitXor, a ^ b)

// Gradients in one pass: a is the gradient of the result, b what the comment says.
TESSERA_BINARY(GeluErfGrad, a * gelu_erf_grad(b))                      // the input
TESSERA_BINARY(GeluTanhGrad, a * gelu_tanh_grad(b))                    // the input
TESSERA_BINARY(SiluGrad, a * silu_grad(b))                             // the input
TESSERA_BINARY(SoftplusGrad, a * sigmoid(b))                           // the input
TESSERA_BINARY(ReluGrad, select(b > V(0), a, V(0)))                    // the input or the result
TESSERA_BINARY(TanhGrad, a * (V(1) - b * b))                           // the result
TESSERA_BINARY(SigmoidGrad, a * (b * (V(1) - b)))                      // the result
#undef TESSERA_UNARY
#undef TESSERA_BINARY
// clang-format on

/// log(1 + x) and e^x - 1 without cancellation: the rounding of 1 + x (of e^x) is divided out again
/// (Kahan; Higham, Accuracy and Stability of Numerical Algorithms, 1.14.1).
struct Log1p {
  template <class V>
  TESSERA_HD V operator()(V x) const {
    const V one = V(1), u = one + x;
    const V corrected = log(u) * (x / (u - one));
    return select(u == one, x, select(u < number<V>(__builtin_inf()), corrected, log(u)));
  }
};
struct Expm1 {
  template <class V>
  TESSERA_HD V operator()(V x) const {
    const V one = V(1), u = exp(x), less = u - one;
    const V corrected = less * (x / log(u));
    return select(abs(less) < one, select(u == one, x, corrected), less);
  }
};
struct Softplus {
  template <class V>
  TESSERA_HD V operator()(V x) const {
    return max(x, V(0)) + Log1p{}(exp(-abs(x)));
  }
};

/// NaN wins, as in every framework.
struct Maximum {
  template <class V>
  TESSERA_HD V operator()(V a, V b) const {
    return select(b == b, max(a, b), b);
  }
};
struct Minimum {
  template <class V>
  TESSERA_HD V operator()(V a, V b) const {
    return select(b == b, min(a, b), b);
  }
};

/// Division towards minus infinity and its remainder, which has the sign of b (as Python's // and %). Integers:
/// by zero the quotient is 0 and the remainder a; a result out of range wraps.
struct FloorDiv {
  template <class V>
  TESSERA_HD V operator()(V a, V b) const {
    return map_lanes(a, b, [](auto x, auto y) { return quotient(x, y); });
  }
  template <class T>
  static TESSERA_HD T quotient(T x, T y) {
    if constexpr (is_integer<T>) {
      if (y == 0) return 0;
      if (y == -1) return static_cast<T>(u64(0) - static_cast<u64>(x));
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
};
struct Remainder {
  template <class V>
  TESSERA_HD V operator()(V a, V b) const {
    return map_lanes(a, b, [](auto x, auto y) { return remainder(x, y); });
  }
  template <class T>
  static TESSERA_HD T remainder(T x, T y) {
    T r = x;
    if constexpr (is_integer<T>) {
      if (y == 0) return x;
      r = y == -1 ? 0 : x % y;
    } else {
      r = static_cast<T>(__builtin_fmod(x, y));
    }
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
  }
};

/// a^b; integers wrap, and a negative exponent gives 0 unless a is 1 or -1.
struct Pow {
  template <class V>
  TESSERA_HD V operator()(V a, V b) const {
    if constexpr (is_integer<V>) {
      return map_lanes(a, b, [](auto x, auto y) { return power(x, y); });
    } else {
      return pow(a, b);
    }
  }
  template <class T>
  static TESSERA_HD T power(T x, T y) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 ? -1 : 1) : 0;
    u64 base = static_cast<u64>(x), result = 1;
    for (; y > 0; y /= 2, base *= base) {
      if (y % 2) result *= base;
    }
    return static_cast<T>(result);
  }
};

/// x limited to [low, high]; NaN stays.
struct Clamp {
  double low, high;
  template <class V>
  TESSERA_HD V operator()(V x) const {
    return min(max(x, number<V>(low)), number<V>(high));
  }
};
/// The gradient of Clamp: a where the input b was inside.
struct ClampGrad {
  double low, high;
  template <class V>
  TESSERA_HD V operator()(V a, V b) const {
    return select(b >= number<V>(low), select(b <= number<V>(high), a, V(0)), V(0));
  }
};
/// scale * x + shift
struct ScaleShift {
  double scale, shift;
  template <class V>
  TESSERA_HD V operator()(V x) const {
    return fma(x, number<V>(scale), number<V>(shift));
  }
};
/// a + scale * b
struct AddScaled {
  double scale;
  template <class V>
  TESSERA_HD V operator()(V a, V b) const {
    return fma(b, number<V>(scale), a);
  }
};
/// x^exponent for one exponent.
struct PowScalar {
  double exponent;
  template <class V>
  TESSERA_HD V operator()(V x) const {
    return pow(x, number<V>(exponent));
  }
};

/// a * b + c
struct MulAdd {
  template <class V>
  TESSERA_HD V operator()(V a, V b, V c) const {
    return fma(a, b, c);
  }
};
/// condition ? a : b
struct Where {
  template <class C, class V>
  TESSERA_HD V operator()(C condition, V a, V b) const {
    using M = typename SignedOfSize<sizeof(element_t<V>)>::type;
    return select(is_true(convert<M>(condition)), a, b);
  }
};

}  // namespace op
TESSERA_TILE_END
