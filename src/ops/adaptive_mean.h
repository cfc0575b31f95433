// Means of adaptive windows by a kernel of their own on GPUs.
#pragma once
#include <functional>

#include "tessera/tensor.h"

namespace tessera {

/// Whether card_adaptive_mean() takes x [n, c, 1 to 3 spatial dims].
bool card_takes_adaptive_mean(const Tensor& x);
/// adaptive_avg_pool(x, sizes). `composed` is the same made of operators, for gradients that are differentiated again.
Tensor card_adaptive_mean(const Tensor& x, const Dims& sizes, const std::function<Tensor(const Tensor&)>& composed);

}  // namespace tessera
