// Activations and their slopes by the card's own exponential and reciprocal: a third of the instructions of
// tile/math.h, and exact to about 1e-6, which is enough for results of 16 bits.
#pragma once
#include "kernels/cpu/isa/epilogue.h"
#include "tile/arch/sm90/ptx.h"

namespace tessera::gpu_kernels::quick {

using Both = tile::ValueAndSlope<float>;

inline constexpr float per_ln2 = 1.44269504089f;

/// 1 / (1 + e^-x)
TESSERA_DEVICE float sigmoid(float x) {
  return tile::sm90::quick_reciprocal(1.0f + tile::sm90::quick_exp2(x * -per_ln2));
}
/// x kept where results of activations do not change any more.
TESSERA_DEVICE float bounded(float x, float bound) { return fminf(fmaxf(x, -bound), bound); }

/// x / (1 + e^-u) for u = linear x + cubic x^3, x within +-bound: silu, and gelu_tanh, whose u is twice that of its
/// tanh.
struct Sigmoidal {
  float linear, cubic, bound;
  TESSERA_DEVICE Both operator()(float x) const {
    const float inside = bounded(x, bound), square = inside * inside;
    const float s = sigmoid(inside * tile::fma(square, cubic, linear));
    const float slope = inside * tile::fma(square, 3 * cubic, linear);
    return {x * s, s * tile::fma(slope, 1.0f - s, 1.0f)};
  }
};

/// By the error function of Abramowitz and Stegun, 7.1.26.
TESSERA_DEVICE Both gelu_erf(float x) {
  const float z = fminf(fabsf(x), 14.0f), bell = tile::sm90::quick_exp2(z * z * (-0.5f * per_ln2));
  const float t = tile::sm90::quick_reciprocal(tile::fma(z, 0.3275911f * 0.70710678f, 1.0f));
  float p = tile::fma(t, 1.061405429f * 0.5f, -1.453152027f * 0.5f);
  p = tile::fma(t, p, 1.421413741f * 0.5f);
  p = tile::fma(t, p, -0.284496736f * 0.5f);
  p = tile::fma(t, p, 0.254829592f * 0.5f);
  const float tail = p * t * bell, cdf = x > 0.0f ? 1.0f - tail : tail;
  return {x * cdf, tile::fma(bounded(x, 14.0f) * bell, 0.398942280401f, cdf)};
}

TESSERA_DEVICE Both tanh(float x) {
  const float square = x * x;
  float p = tile::fma(square, -17.0f / 315, 2.0f / 15);
  p = x * tile::fma(square, tile::fma(square, p, -1.0f / 3), 1.0f);
  const float y = fabsf(x) < 0.25f ? p : tile::fma(2.0f, sigmoid(2.0f * x), -1.0f);
  return {y, tile::fma(-y, y, 1.0f)};
}

/// values become activated; use(unit, slopes) gets the derivatives, eight at a time. NaN stays NaN in values.
template <int Count, class Use>
TESSERA_DEVICE void activate(Activation kind, float (&values)[Count], const Use& use) {
  const auto all = [&](const auto& fn) {
    tile::unroll<Count / 8>([&](auto unit) {
      float slopes[8];
      tile::unroll<8>([&](auto i) {
        const Both both = fn(values[unit * 8 + i]);
        values[unit * 8 + i] = both.value;
        slopes[i] = both.slope;
      });
      use(unit, slopes);
    });
  };
  switch (kind) {
    case Activation::gelu_tanh:
    case Activation::silu: {
      const bool silu = kind == Activation::silu;
      return all(Sigmoidal{silu ? 1.0f : 1.59576912161f, silu ? 0.0f : 0.0713548162726f, silu ? 64.0f : 12.0f});
    }
    case Activation::gelu_erf:
      return all(gelu_erf);
    case Activation::tanh:
      return all(tanh);
    default:
      return all([](float x) -> Both { return {x < 0.0f ? 0.0f : x, x > 0.0f ? 1.0f : 0.0f}; });
  }
}

}  // namespace tessera::gpu_kernels::quick
