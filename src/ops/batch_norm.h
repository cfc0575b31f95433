// Batch norm of which something is added to the result, as at the end of a block of a residual network.
#pragma once
#include "tessera/tensor.h"

namespace tessera {

/// batch_norm of x, plus `residual` of its shape and dtype where that is defined, then the activation (none or ReLU).
/// One operator does all of it, and one its backward.
Tensor batch_norm_add(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                      Tensor running_mean, Tensor running_var, bool training, double momentum, double eps,
                      Activation activation);

}  // namespace tessera
