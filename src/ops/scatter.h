#pragma once
#include "tessera/tensor.h"

namespace tessera {

/// scatter() of sums and a stable sort, for devices without a kernel of its own.
Tensor scatter_by_sorting(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);

}  // namespace tessera
