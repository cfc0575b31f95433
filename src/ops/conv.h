// The operators of convolutions, for those that are made of them.
#pragma once
#include "core/op.h"
#include "tessera/ops.h"

namespace tessera {

extern const Op conv2d_op, conv2d_input_grad_op, conv2d_weight_grad_op;

// Each element of y takes a product for every tap, in the padding, too.
double conv2d_flops(std::span<const TensorMeta> in, std::span<const TensorMeta> out, const Attrs&);
double conv2d_weight_grad_flops(std::span<const TensorMeta> in, std::span<const TensorMeta> out, const Attrs&);

ConvAttrs conv_attrs(const Conv2dOptions& options);

}  // namespace tessera
