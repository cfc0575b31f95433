// Means of adaptive windows by a kernel of their own on GPUs.
#pragma once
#include "ops/sparse_lines.h"

namespace tessera {

/// Whether card_adaptive_mean() takes x [n, c, 1 to 3 spatial dims].
bool card_takes_adaptive_mean(const Tensor& x, const Dims& sizes);
/// adaptive_avg_pool(x, sizes), which are also `products` of x: with these the gradient is made.
Tensor card_adaptive_mean(const Tensor& x, const Dims& sizes, const std::vector<SparseDim>& products);

}  // namespace tessera
