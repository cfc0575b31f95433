// A 1x1 convolution of what batch norm makes of its input.
#pragma once
#include <span>

#include "core/op.h"

namespace tessera {

/// norm_conv1x1: x [n, c, h, w], filters [f, c, 1, 1], bias? [f]; mean? [c] and var? [c] (n - 1) of x in training, or
/// the running estimates; weight? [c] and bias? [c] of the norm -> y [n, f, h, w] and, in training, mean [f] and
/// var [f] of it. Without a mean, x is convolved as it is. The attributes are NormAttrs.
extern const Op norm_conv1x1_op;

/// Whether a kernel does all of it in one pass; otherwise batch_norm and conv2d are better called by themselves.
bool takes_one_pass(std::span<const Tensor> norm_conv1x1_inputs, const Attrs& attrs);

std::span<const Op* const> norm_conv_ops();

}  // namespace tessera
