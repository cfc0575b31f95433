// Attention beyond ops.h: caches of keys and values, windows, bounded scores, positions as rotations, and linear
// attention. Made of its operators, as ops_math.h. Every function throws Error naming itself, the shapes and the rule
// broken.
#pragma once
#include <vector>

#include "tessera/tensor.h"

namespace tessera {

// ---- attention: src/ops/cached_attention.cpp ------------------------------------------------------------------------
/// Which scores are given back, too, [batch, heads, queries, keys].
enum class Scores { None, Products, Bounded, Masked, Weights };
struct CachedAttentionOptions {
  Tensor past_keys = {}, past_values = {};  ///< [batch, kv_heads, past, d], before k and v; both or none
  Tensor mask = {};           ///< broadcasts to [batch, heads, queries, keys]: bool (true attends) or floating (added);
                              ///< keys beyond its last dim are not seen
  bool causal = false;        ///< a query attends keys up to its own, which is behind those that are past
  int64_t left_window = -1;   ///< how many keys before its own a query attends; negative: all
  int64_t right_window = -1;  ///< the same behind its own
  Tensor lengths = {};  ///< i64 or i32 [batch]: only so many keys of each sample count; without past keys, its last
                        ///< ones are those of the queries
  double scale = 0;     ///< 0 means 1/sqrt(head dim)
  double soft_cap = 0;  ///< scores become cap tanh(score / cap), as in Gemma 2; 0: they stay
  Scores scores = Scores::None;
};
struct CachedAttention {
  Tensor output;        ///< [batch, heads, queries, dv]; 0 where a query attends nothing
  Tensor keys, values;  ///< with those that are past
  Tensor scores;        ///< where they are asked for
};
/// softmax(scale q kᵀ + mask) v: q [batch, heads, queries, d], k [batch, kv_heads, keys, d], v [batch, kv_heads, keys,
/// dv]; heads is a multiple of kv_heads. By scaled_dot_product_attention() where it can. Windows: Beltagy et al. 2020.
CachedAttention cached_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const CachedAttentionOptions& options = {});
/// `update` written over a cache along `dim`, for sample b from begins[b] on; a circular one goes on at its start.
Tensor write_cache(const Tensor& cache, const Tensor& update, const std::vector<int64_t>& begins, int64_t dim = -2,
                   bool circular = false);

// ---- positions: src/ops/rotary.cpp ----------------------------------------------------------------------------------
struct RotaryAngles {
  Tensor cosine, sine;  ///< f32 [..., d / 2]
};
/// Of positions [...], integers: position / base^(2 i / d) for i < d / 2.
RotaryAngles rotary_angles(const Tensor& positions, int64_t d, double base = 10000);
/// Pairs of the first 2 r elements of x [batch, heads, tokens, d] turned by angles, cosine and sine [tokens, r] or
/// [batch, tokens, r]: neighbours where they are interleaved, else those of two halves. Su et al. 2021.
Tensor rotary_embedding(const Tensor& x, const Tensor& cosine, const Tensor& sine, bool interleaved = false);

// ---- linear attention: src/ops/linear_attention.cpp -----------------------------------------------------------------
struct LinearAttentionOptions {
  Tensor state = {};  ///< [batch, kv_heads, d, dv]: before the first token; undefined: 0
  Tensor decay = {};  ///< [batch, kv_heads, tokens, d or 1]: logarithms of what each token leaves of the state
  Tensor beta =
      {};  ///< [batch, kv_heads or 1, tokens, 1]: share by which the state's value of a key becomes the new one
  double scale = 0;  ///< of the output; 0 means 1/sqrt(d)
};
struct LinearAttention {
  Tensor output;  ///< [batch, heads, tokens, dv]
  Tensor state;   ///< f32, behind the last token
};
/// state += kᵀ v, output = scale q state, a token after the other, in f32: q [batch, heads, tokens, d], k and v [batch,
/// kv_heads, tokens, d and dv]. Katharopoulos et al. 2020; with decay and beta the gated delta rule, Yang et al. 2024.
LinearAttention linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const LinearAttentionOptions& options = {});

}  // namespace tessera
