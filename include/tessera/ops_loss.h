// Losses and distances: made of other operators, so that they run on every device, are differentiated and are captured
// as these are. What a loss gives is the value of each example, their mean (by default) or their sum, in the floating
// dtype of x; halves are computed in f32. Every function throws Error naming itself, the shapes and the rule broken.
#pragma once
#include <functional>

#include "tessera/enums.h"
#include "tessera/tensor.h"

namespace tessera {

// ---- element by element: src/ops/losses.cpp (x and target have one shape) -------------------------------------------
/// |x - target|.
Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::Mean);
/// (x - target)²; its mean is also in ops.h.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction);
/// d²/2 of d = |x - target| up to delta, and delta (d - delta/2) beyond it. delta > 0. Huber 1964.
Tensor huber_loss(const Tensor& x, const Tensor& target, double delta = 1, Reduction reduction = Reduction::Mean);
/// huber_loss / beta, and l1_loss where beta is 0. Girshick 2015.
Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, double beta = 1, Reduction reduction = Reduction::Mean);
/// -(target log(x) + (1 - target) log(1 - x)) of probabilities x, times weight, which broadcasts. Logarithms are -100
/// at least, and NaN outside of [0, 1].
Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const Tensor& weight = {},
                            Reduction reduction = Reduction::Mean);
/// The same of sigmoid(x), without overflow; positive_weight multiplies the first term. Both weights broadcast.
Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target, const Tensor& weight = {},
                                        const Tensor& positive_weight = {}, Reduction reduction = Reduction::Mean);
/// target (log(target) - x) of logarithms x, 0 where target is; with `log_target` the target is a logarithm, too.
/// Divide the sum by the batch for the divergence's mean. Kullback & Leibler 1951.
Tensor kl_div(const Tensor& x, const Tensor& target, bool log_target = false, Reduction reduction = Reduction::Mean);
/// exp(x) - target x, or without `log_input` x - target log(x + eps); with `full` also Stirling's approximation of
/// log(target!) where target > 1.
Tensor poisson_nll_loss(const Tensor& x, const Tensor& target, bool log_input = true, bool full = false,
                        double eps = 1e-8, Reduction reduction = Reduction::Mean);
/// (log(variance) + (x - target)² / variance) / 2, and log(2 pi) / 2 with `full`. All three broadcast, or the variance
/// has no last dim; it is eps at least, and the result NaN where it is negative. Nix & Weigend 1994.
Tensor gaussian_nll_loss(const Tensor& x, const Tensor& target, const Tensor& variance, bool full = false,
                         double eps = 1e-6, Reduction reduction = Reduction::Mean);
/// log(1 + exp(-target x)), target -1 or 1.
Tensor soft_margin_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::Mean);
/// x where target is 1, max(0, margin - x) where it is -1, and their sum elsewhere.
Tensor hinge_embedding_loss(const Tensor& x, const Tensor& target, double margin = 1,
                            Reduction reduction = Reduction::Mean);

// ---- classes: src/ops/losses_classes.cpp (targets i64 or i32) -------------------------------------------------------
/// -weight[target] x[target] of logarithms x [n, classes, ...] or [classes]; target [n, ...] or []. The mean divides by
/// the weights' sum; targets that are `ignore_index` count nowhere.
Tensor nll_loss(const Tensor& x, const Tensor& target, const Tensor& weight = {}, int64_t ignore_index = -100,
                Reduction reduction = Reduction::Mean);
struct CrossEntropyOptions {
  Tensor weight = {};           ///< [classes]
  int64_t dim = 1;              ///< of the classes; logits of one dim are classes
  int64_t ignore_index = -100;  ///< of targets that are classes
  double label_smoothing = 0;   ///< of the weight that all classes share. Szegedy et al. 2016
  Reduction reduction = Reduction::Mean;
};
/// logits with classes in `dim`; target: classes in the shape of the other dims (i64 or i32), or probabilities in that
/// of the logits, whose mean divides by the number of examples. Of halves the loss is f32.
Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options);
/// Mean over the classes i != target of weight[target] max(0, margin - x[target] + x[i])^p, p 1 or 2: x [n, classes] or
/// [classes], target [n] or []. Crammer & Singer 2001.
Tensor multi_margin_loss(const Tensor& x, const Tensor& target, int64_t p = 1, double margin = 1,
                         const Tensor& weight = {}, Reduction reduction = Reduction::Mean);
/// x and target [n, classes] or [classes]; a row of target begins with classes, up to the first -1. The sum over these
/// j and all other classes i of max(0, 1 - x[j] + x[i]), by the number of classes. Memory grows with classes².
Tensor multilabel_margin_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::Mean);
/// Mean over the last dim of binary_cross_entropy_with_logits, times weight, which broadcasts.
Tensor multilabel_soft_margin_loss(const Tensor& x, const Tensor& target, const Tensor& weight = {},
                                   Reduction reduction = Reduction::Mean);
struct CtcOptions {
  int64_t blank = 0;
  Reduction reduction = Reduction::Mean;  ///< the mean divides each loss by its target's length (at least 1) first
  bool zero_infinity = false;             ///< 0 for targets that do not fit into their input, and not infinity
};
/// -log of the probability that x [steps, n, classes] or [steps, classes], logarithms, spells target: [n, length], or
/// all targets one after the other [sum of lengths], without blanks. Lengths are i64 or i32 [n] or []. On CPUs alone;
/// it has no second derivative. Its gradient is that of x itself: PyTorch's adds exp(x), which log_softmax takes away
/// again. Graves et al. 2006.
Tensor ctc_loss(const Tensor& x, const Tensor& target, const Tensor& input_lengths, const Tensor& target_lengths,
                const CtcOptions& options = {});

// ---- pairs and triplets: src/ops/distances.cpp ----------------------------------------------------------------------
/// max(0, margin - target (x1 - x2)), target -1 or 1; all three broadcast.
Tensor margin_ranking_loss(const Tensor& x1, const Tensor& x2, const Tensor& target, double margin = 0,
                           Reduction reduction = Reduction::Mean);
/// 1 - cos(x1, x2) where target is 1, max(0, cos(x1, x2) - margin) where it is -1: x1 and x2 [n, width] or [width],
/// target [n] or [].
Tensor cosine_embedding_loss(const Tensor& x1, const Tensor& x2, const Tensor& target, double margin = 0,
                             Reduction reduction = Reduction::Mean);
struct TripletOptions {
  double margin = 1, p = 2, eps = 1e-6;
  bool swap = false;  ///< the negative's distance is that from the positive where this is smaller. Balntas et al. 2016
  Reduction reduction = Reduction::Mean;
  std::function<Tensor(const Tensor&, const Tensor&)> distance = {};  ///< instead of pairwise_distance by p and eps
};
/// max(0, margin + distance(anchor, positive) - distance(anchor, negative)); the three have one shape. Schroff et al.
/// 2015.
Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletOptions& options = {});

// Of p in [0, infinity], or negative where nothing refuses it; 0 counts elements that differ. Where a distance is 0, so
// is its gradient.
/// (sum of |x1 - x2 + eps|^p)^(1/p) over the last dim; x1 and x2 broadcast.
Tensor pairwise_distance(const Tensor& x1, const Tensor& x2, double p = 2, double eps = 1e-6, bool keepdim = false);
/// From each row of x1 [..., n, width] to each of x2 [..., m, width]: [..., n, m]; leading dims broadcast. For p 2 and
/// more than 25 rows by a product, which loses digits of small distances; otherwise memory grows with n m width.
Tensor cdist(const Tensor& x1, const Tensor& x2, double p = 2);
/// Between the rows i < j of x [n, width]: [n (n - 1) / 2], in the order (0, 1), (0, 2), ...
Tensor pdist(const Tensor& x, double p = 2);
/// The cosine along `dim`: the product of x1 and x2, each divided by its length, which is eps at least. They broadcast.
Tensor cosine_similarity(const Tensor& x1, const Tensor& x2, int64_t dim = 1, double eps = 1e-8);
/// x / max(eps, (sum of |x|^p)^(1/p)) along `dim`; p may be infinite or negative.
Tensor normalize(const Tensor& x, double p = 2, int64_t dim = 1, double eps = 1e-12);

}  // namespace tessera
