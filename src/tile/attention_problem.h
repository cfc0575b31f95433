// What attention works on, on any processor.
#pragma once
#include "math.h"

TESSERA_TILE_BEGIN

/// [batch, heads, rows, width] with strides in elements.
template <class T>
struct HeadsView {
  T* data;
  i64 strides[4];
  TESSERA_HD T* head(i64 b, i64 h) const { return data + b * strides[0] + h * strides[1]; }
  TESSERA_HD i64 row() const { return strides[2]; }
  TESSERA_HD i64 column() const { return strides[3]; }
};

/// What is added to the scores, or which of them count; broadcast by strides of zero.
struct AttentionMask {
  enum class Kind : u8 { none, allowed /* bool */, added /* of the tensors' type */ };
  Kind kind;
  const void* data;
  i64 strides[4];  // batch, head, query, key; in elements
};

/// Dropout of weights: weight i of all, in row-major order, is kept where word i of a random stream is at least
/// `threshold`. Seed and first block of the stream are read where the kernel runs.
struct AttentionDropout {
  const long long *seed, *block;
  u32 threshold;
  float scale;  // of what is kept
};

struct AttentionProblem {
  i64 batch, heads, kv_heads;  // heads is a multiple of kv_heads
  i64 queries, keys;
  i64 width, value_width;  // of queries and keys, of values; at most 256
  double scale;
  bool causal;  // query i sees keys 0 to i
  AttentionMask mask;
  double alibi = 0;  // the largest exponent of the slopes; 0: none
};

/// What ALiBi adds to the score of a head for each key that lies one further back, Press et al. 2022: powers of two
/// with exponents largest * i / heads. Where heads are no power of two, those of the next lower one, then every second
/// one of the next higher.
template <class C>
TESSERA_HD C alibi_slope(i64 head, i64 heads, double largest) {
  i64 power = 1;
  while (2 * power <= heads) power *= 2;
  const C place = head < power ? static_cast<C>(head + 1) : static_cast<C>(head - power) + C(0.5);
  const C exponent = -static_cast<C>(largest) * place / static_cast<C>(power);
#if defined(__HIP_DEVICE_COMPILE__)
  if constexpr (is_same_v<C, float>)
    return __builtin_amdgcn_exp2f(exponent);  // the polynomial takes too many registers
#endif
  return exp2(exponent);
}

TESSERA_TILE_END
