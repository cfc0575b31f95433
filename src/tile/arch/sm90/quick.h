// Functions by the card's own exponential and reciprocal: a third of the instructions of tile/math.h, and exact to
// about 1e-6, which is enough for results of 16 bits.
#pragma once
#include "ptx.h"

TESSERA_TILE_BEGIN
namespace sm90 {
namespace quick {

using Both = ValueAndSlope<float>;

inline constexpr float per_ln2 = 1.44269504089f;

/// 1 / (1 + e^-x)
TESSERA_DEVICE float sigmoid(float x) { return quick_reciprocal(1.0f + quick_exp2(x * -per_ln2)); }
/// x kept where results of activations do not change any more.
TESSERA_DEVICE float bounded(float x, float bound) { return fminf(fmaxf(x, -bound), bound); }

/// x / (1 + e^-u) for u = linear x + cubic x^3, x within +-bound: silu, and gelu_tanh, whose u is twice that of its
/// tanh.
struct Sigmoidal {
  float linear, cubic, bound;
  static TESSERA_DEVICE Sigmoidal silu() { return {1.0f, 0.0f, 128.0f}; }  // where 1 + e^-x is infinite
  static TESSERA_DEVICE Sigmoidal gelu_tanh() { return {1.59576912161f, 0.0713548162726f, 12.0f}; }
  /// Without the slope there is no product of 0 and infinity for large x.
  TESSERA_DEVICE float value(float x) const {
    const float inside = fmaxf(x, -bound), l = linear * -per_ln2, c = cubic * -per_ln2;
    const float rate = cubic == 0 ? l : fma(inside * inside, c, l);
    return x * quick_reciprocal(1.0f + quick_exp2(inside * rate));
  }
  TESSERA_DEVICE Both operator()(float x) const {
    const float inside = bounded(x, bound), square = inside * inside, l = linear * -per_ln2, c = cubic * -per_ln2;
    const float s = quick_reciprocal(1.0f + quick_exp2(inside * fma(square, c, l)));
    const float slope = inside * fma(square, 3 * cubic, linear);
    return {x * s, s * fma(slope, 1.0f - s, 1.0f)};
  }
};

/// By the card's own tanh: off by at most 2^-12 of x, which results of 16 bits have by rounding, too.
TESSERA_DEVICE float gelu_tanh(float x) {
  const float half = 0.5f * x;
  return fma(half, quick_tanh(x * fma(x * x, 0.0356774081363f, 0.797884560803f)), half);
}

/// By the error function of Abramowitz and Stegun, 7.1.26.
TESSERA_DEVICE Both gelu_erf(float x) {
  const float z = fminf(fabsf(x), 14.0f), bell = quick_exp2(z * z * (-0.5f * per_ln2));
  const float t = quick_reciprocal(fma(z, 0.3275911f * 0.70710678f, 1.0f));
  float p = fma(t, 1.061405429f * 0.5f, -1.453152027f * 0.5f);
  p = fma(t, p, 1.421413741f * 0.5f);
  p = fma(t, p, -0.284496736f * 0.5f);
  p = fma(t, p, 0.254829592f * 0.5f);
  const float tail = p * t * bell, cdf = x > 0.0f ? 1.0f - tail : tail;
  return {x * cdf, fma(bounded(x, 14.0f) * bell, 0.398942280401f, cdf)};
}

TESSERA_DEVICE Both tanh(float x) {
  const float square = x * x;
  float p = fma(square, -17.0f / 315, 2.0f / 15);
  p = x * fma(square, fma(square, p, -1.0f / 3), 1.0f);
  const float y = fabsf(x) < 0.25f ? p : fma(2.0f, sigmoid(2.0f * x), -1.0f);
  return {y, fma(-y, y, 1.0f)};
}

/// A float whose functions are these. Functions of which there is no quick form are those of tile/math.h.
struct Value {
  float x;
  Value() = default;
  TESSERA_DEVICE Value(float x) : x(x) {}

  friend TESSERA_DEVICE Value operator+(Value a, Value b) { return a.x + b.x; }
  friend TESSERA_DEVICE Value operator-(Value a, Value b) { return a.x - b.x; }
  friend TESSERA_DEVICE Value operator*(Value a, Value b) { return a.x * b.x; }
  friend TESSERA_DEVICE Value operator/(Value a, Value b) { return a.x / b.x; }
  friend TESSERA_DEVICE Value max(Value a, Value b) { return tile::max(a.x, b.x); }
  friend TESSERA_DEVICE Value min(Value a, Value b) { return tile::min(a.x, b.x); }
  friend TESSERA_DEVICE Value abs(Value a) { return tile::abs(a.x); }
  friend TESSERA_DEVICE Value square(Value a) { return a.x * a.x; }
  friend TESSERA_DEVICE Value relu(Value a) { return tile::relu(a.x); }
  friend TESSERA_DEVICE Value gelu_tanh(Value a) { return quick::gelu_tanh(a.x); }
  friend TESSERA_DEVICE Value gelu_erf(Value a) { return quick::gelu_erf(a.x).value; }
  friend TESSERA_DEVICE Value silu(Value a) { return Sigmoidal::silu().value(a.x); }
  friend TESSERA_DEVICE Value sigmoid(Value a) { return quick::sigmoid(a.x); }
  friend TESSERA_DEVICE Value tanh(Value a) { return quick::tanh(a.x).value; }
  friend TESSERA_DEVICE Value exp(Value a) { return tile::exp(a.x); }
  friend TESSERA_DEVICE Value log(Value a) { return tile::log(a.x); }
  friend TESSERA_DEVICE Value sqrt(Value a) { return tile::sqrt(a.x); }
  friend TESSERA_DEVICE Value rsqrt(Value a) { return tile::rsqrt(a.x); }
};

/// Two results in f16.
struct Halves {
  u32 both;
};
/// Two values in f32, of which results in f16 are made.
struct Pair {
  Value x, y;
  TESSERA_DEVICE Pair(float both) : x(both), y(both) {}
  TESSERA_DEVICE Pair(Value x, Value y) : x(x), y(y) {}
  TESSERA_DEVICE Pair(Halves h)
      : x(detail::f16_to_f32(static_cast<u16>(h.both))), y(detail::f16_to_f32(static_cast<u16>(h.both >> 16))) {}
  TESSERA_DEVICE Halves rounded() const {
    Halves h;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(h.both) : "f"(y.x), "f"(x.x));
    return h;
  }
};
TESSERA_DEVICE Pair operator+(Pair a, Pair b) { return {a.x + b.x, a.y + b.y}; }
TESSERA_DEVICE Pair operator-(Pair a, Pair b) { return {a.x - b.x, a.y - b.y}; }
TESSERA_DEVICE Pair operator*(Pair a, Pair b) { return {a.x * b.x, a.y * b.y}; }
TESSERA_DEVICE Pair operator/(Pair a, Pair b) { return {a.x / b.x, a.y / b.y}; }
TESSERA_DEVICE Pair max(Pair a, Pair b) { return {max(a.x, b.x), max(a.y, b.y)}; }
TESSERA_DEVICE Pair min(Pair a, Pair b) { return {min(a.x, b.x), min(a.y, b.y)}; }
TESSERA_DEVICE Pair abs(Pair a) { return {abs(a.x), abs(a.y)}; }
TESSERA_DEVICE Pair square(Pair a) { return {square(a.x), square(a.y)}; }
TESSERA_DEVICE Pair relu(Pair a) { return {relu(a.x), relu(a.y)}; }
TESSERA_DEVICE Pair gelu_erf(Pair a) { return {gelu_erf(a.x), gelu_erf(a.y)}; }
TESSERA_DEVICE Pair silu(Pair a) { return {silu(a.x), silu(a.y)}; }
TESSERA_DEVICE Pair sigmoid(Pair a) { return {sigmoid(a.x), sigmoid(a.y)}; }
TESSERA_DEVICE Pair tanh(Pair a) { return {tanh(a.x), tanh(a.y)}; }
TESSERA_DEVICE Pair exp(Pair a) { return {exp(a.x), exp(a.y)}; }
TESSERA_DEVICE Pair log(Pair a) { return {log(a.x), log(a.y)}; }
TESSERA_DEVICE Pair sqrt(Pair a) { return {sqrt(a.x), sqrt(a.y)}; }
TESSERA_DEVICE Pair rsqrt(Pair a) { return {rsqrt(a.x), rsqrt(a.y)}; }
/// Two by one instruction, of rounded x: 3.5e-4 of the result, of which rounding that is 2e-4.
TESSERA_DEVICE Halves gelu_tanh(Pair a) {
  Halves y;
  asm("{\n.reg .b32 x, u, h;\n"
      "max.NaN.f16x2 x, %1, %2;\n"  // there is no 0 times infinity
      "mul.rn.f16x2 u, x, x;\nfma.rn.f16x2 u, u, %3, %4;\nmul.rn.f16x2 u, u, x;\ntanh.approx.f16x2 u, u;\n"
      "mul.rn.f16x2 h, x, %5;\nfma.rn.f16x2 %0, h, u, h;\n}"
      : "=r"(y.both)
      : "r"(a.rounded().both), "r"(0xd400d400u), "r"(0x28912891u), "r"(0x3a623a62u), "r"(0x38003800u));
  return y;
}

/// What an epilogue makes of `acc`, as a Value; of a Pair, as a Pair or Halves.
TESSERA_DEVICE Value made(const Value&, Value x) { return x; }
TESSERA_DEVICE Pair made(const Pair&, Pair x) { return x; }
TESSERA_DEVICE Halves made(const Pair&, Halves x) { return x; }
TESSERA_DEVICE Halves rounded(Pair x) { return x.rounded(); }
TESSERA_DEVICE Halves rounded(Halves x) { return x; }

}  // namespace quick
}  // namespace sm90
TESSERA_TILE_END
