// What layers of networks are made of beyond ops.h: activations, dropout of channels, embeddings of bags. Made of its
// operators, as ops_math.h. Every function throws Error naming itself, the shapes and the rule broken.
#pragma once
#include <optional>

#include "tessera/random.h"
#include "tessera/tensor.h"

namespace tessera {

// ---- activations and dropout: src/ops/layers.cpp --------------------------------------------------------------------
/// x above `limit`, `value` elsewhere.
Tensor threshold(const Tensor& x, double limit, double value);
/// softmax(-x).
Tensor softmin(const Tensor& x, int64_t dim);
/// x above 0, slope x elsewhere: slopes are drawn between low and high, or all are their mean without `training`. Xu et
/// al. 2015.
Tensor rrelu(const Tensor& x, double low = 1.0 / 8, double high = 1.0 / 3, bool training = false,
             Generator& generator = default_generator());
/// softmax((logits + noise) / tau) with Gumbel's noise; `hard` gives the one-hot vector of its largest element with the
/// gradient of the softmax. tau > 0. Jang et al. 2017.
Tensor gumbel_softmax(const Tensor& logits, double tau = 1, bool hard = false, int64_t dim = -1,
                      Generator& generator = default_generator());
/// Whole channels of x [n, c, ...] zeroed with probability p, the rest scaled by 1/(1-p). Tompson et al. 2015.
Tensor feature_dropout(const Tensor& x, double p = 0.5, bool training = true,
                       Generator& generator = default_generator());
/// For selu: elements become its negative limit with probability p, and all are scaled and moved such that mean and
/// variance stay. Klambauer et al. 2017.
Tensor alpha_dropout(const Tensor& x, double p = 0.5, bool training = true, Generator& generator = default_generator());
/// The same of whole channels of x [n, c, ...].
Tensor feature_alpha_dropout(const Tensor& x, double p = 0.5, bool training = true,
                             Generator& generator = default_generator());
/// x1ᵀ weight[k] x2 + bias[k]: x1 [..., n], x2 [..., m], weight [out, n, m], bias [out] or undefined -> [..., out].
Tensor bilinear(const Tensor& x1, const Tensor& x2, const Tensor& weight, const Tensor& bias = {});

// ---- embeddings: src/ops/embedding_bag.cpp --------------------------------------------------------------------------
/// weight[index] as embedding() of ops.h, but the row `padding_idx`, which counts from the end where it is negative,
/// gets no gradient.
Tensor embedding(const Tensor& index, const Tensor& weight, int64_t padding_idx);

enum class BagMode { Sum, Mean, Max };
struct EmbeddingBagOptions {
  BagMode mode = BagMode::Mean;
  Tensor offsets = {};                      ///< of a 1-d index: where bags begin, i64 or i32 [bags], ascending from 0
  bool include_last_offset = false;         ///< the last of the offsets is the end of the last bag
  Tensor per_sample_weights = {};           ///< in the shape of the index: factors of a sum
  std::optional<int64_t> padding_idx = {};  ///< a row that counts in no bag
};
/// Rows of weight [rows, width] reduced by bags: index [bags, n], or [n] with offsets -> [bags, width]. An empty bag is
/// 0. Rows that are equal share the gradient of a maximum.
Tensor embedding_bag(const Tensor& index, const Tensor& weight, const EmbeddingBagOptions& options = {});

}  // namespace tessera
