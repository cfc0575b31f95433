// Sums of products of 8-bit integers in f32, exact: integers up to 2^24 are, in whichever order they are added.
#pragma once
#include "tessera/ops_quantize.h"

namespace tessera {

/// Whether products of x are computed so. On GPUs f64 is quick, and a captured function says what is meant.
inline bool is_exact_in_f32(const Tensor& x) { return !x.device().is_gpu() && !x.device().meta; }
/// x of 8 bits less its zero point, which may be undefined, in f32.
Tensor integers_in_f32(std::string_view op, const Tensor& x, const Tensor& zero);
/// Whether what is summed up of integers up to 255 with each row of weights [rows, ...] stays below 2^24.
bool sums_fit(const Tensor& weight);
/// weight [n, k] in parts of k of which that holds.
Tensors parts_that_fit(const Tensor& weight);
/// conv() of integers up to 255 in f32 with such weights, i32. `fits`: sums_fit() is known to hold.
Tensor exact_conv(const Tensor& x, const Tensor& weight, const ConvOptions& options, bool fits);

}  // namespace tessera
