// Convolutions and batch norms that share the statistics of what lies between them.
#pragma once
#include <span>

#include "core/op.h"

namespace tessera {

/// norm_conv2d: x [n, c, h, w], filters [f, c / groups, r, s], bias? [f]; mean? [c] and var? [c] (n - 1) of x in
/// training, or the running estimates; weight? [c] and bias? [c] of the norm -> y [n, f, ...] and, in training, mean
/// [f] and var [f] of it. Without a mean, x is convolved as it is. The attributes are NormConvAttrs.
extern const Op norm_conv2d_op;

/// conv2d_moments: x, weight, bias? as of conv2d -> y, and mean [f] and var [f] (n - 1) of its channels.
extern const Op conv2d_moments_op;

/// batch_norm_known: x [n, c, ...], mean [c] and var [c] (n - 1) of it, weight? [c], bias? [c] -> y (or relu(y)), as
/// batch_norm gives it. The statistics are not differentiated: x is, as what they are made of, too.
extern const Op batch_norm_known_op;

/// Running estimates, where they are defined, move towards a batch's mean and variance.
void move_estimates(Tensor running_mean, Tensor running_var, const Tensor& mean, const Tensor& var, double momentum);

/// Whether norm_conv2d, conv2d_moments or batch_norm_known does all of it in one pass on that device: then modules call
/// it, otherwise what it is made of. A rule of shapes, layouts, dtypes, attributes and the architecture alone, so that
/// tensors without memory get the same operators: kernels may refuse what it allows, and the composed one runs.
bool fuses_norm(const Op& op, std::span<const Tensor> inputs, const Attrs& attrs);

std::span<const Op* const> norm_conv_ops();

}  // namespace tessera
