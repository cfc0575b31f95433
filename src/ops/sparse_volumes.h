// Products with three sparse matrices along three dims at once, by a kernel of their own on GPUs.
#pragma once
#include "ops/sparse_lines.h"

namespace tessera {

/// Along the last three dims of x, as sparse_products(), where it is f32 or f64 and on_card(x).
bool card_takes_volumes(const Tensor& x);
Tensor sparse_volumes(const Tensor& x, std::span<const SparseDim> dims);

}  // namespace tessera
