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
    const float inside = bounded(x, bound), square = inside * inside;
    const float s = sigmoid(inside * fma(square, cubic, linear));
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

}  // namespace quick
}  // namespace sm90
TESSERA_TILE_END
