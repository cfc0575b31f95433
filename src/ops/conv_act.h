// A convolution with what is behind it in one pass.
#pragma once
#include "core/op.h"
#include "tessera/ops.h"

namespace tessera {

/// conv2d_act: x, weight, bias? as of conv2d, residual? of the shape of y -> y. The attributes are ConvActAttrs.
extern const Op conv2d_act_op;

/// act(conv2d(x, weight, bias) + residual): bias and residual may be undefined. ReLU gives at most `high`, which other
/// activations do not take. On CPUs one call, elsewhere what it is made of. Throws what conv2d throws.
Tensor conv2d_act(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options,
                  Activation activation, double high = __builtin_inf(), const Tensor& residual = {});
/// The activation alone.
Tensor activated(const Tensor& x, Activation activation, double high = __builtin_inf());

/// Filters [out, in, 1, 1] for a convolution in one group on images that lie channels last, as the kernel of their
/// device wants them; other filters, and those of which no kernel wants anything else, as they are. As pack_linear().
Tensor pack_filters(const Tensor& weight);

std::span<const Op* const> conv_act_ops();

}  // namespace tessera
