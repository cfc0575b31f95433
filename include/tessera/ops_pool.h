// Windows on images and sequences: views of them, convolutions and pools of one, two and three spatial dims. A list has
// a number for each spatial dim; an empty one stands for the default. Every function throws Error naming itself, the
// shapes and the rule broken.
#pragma once
#include <utility>

#include "tessera/ops.h"

namespace tessera {

// ---- views: src/ops/windows.cpp -------------------------------------------------------------------------------------
/// Windows of `sizes` elements along `dims`, as a view: each of these dims counts windows instead of elements, and the
/// windows' own dims are appended in the order of `dims`. Elements of a window are `dilations` apart, and windows begin
/// `strides` apart; both are 1 by default. Windows may overlap, so do not write to the result.
Tensor sliding_windows(const Tensor& x, const Dims& dims, const Dims& sizes, const Dims& strides = {},
                       const Dims& dilations = {});
/// The reverse of sliding_windows on a tensor whose `dims` have `lengths` elements: elements that lie in several
/// windows are sums, and those in none are 0.
Tensor fold_windows(const Tensor& windows, const Dims& dims, const Dims& lengths, const Dims& strides = {},
                    const Dims& dilations = {});

/// How windows lie on the spatial dims of x [n, c, ...]. `stride` and `dilation` are 1 by default, but the stride of a
/// pool is its window; `low` and `high`, the padding before and after each dim, are 0. With `ceil` a last window may
/// reach beyond the padding, if it begins before its end.
struct Windows {
  Dims size = {}, stride = {}, low = {}, high = {}, dilation = {};
  bool ceil = false;
};
/// The same with the padding that makes ceil(size / stride) windows along each spatial dim of x [n, c, ...]. Of an odd
/// padding the larger half comes behind with `upper`, and before without: SAME_UPPER and SAME_LOWER of ONNX.
Windows same_padding(Windows windows, const Shape& x, bool upper = true);
/// Columns of windows: x [n, c, ...] -> [n, c * taps, windows], padded with zeros, both row-major. im2col.
Tensor unfold(const Tensor& x, const Windows& windows);
/// The reverse on images of `sizes`: x [n, c * taps, windows] -> [n, c, sizes...], sums where windows overlap. col2im.
Tensor fold(const Tensor& x, const Dims& sizes, const Windows& windows);

// ---- pools: src/ops/pool.cpp (x [n, c, ...] -> [n, c, windows...]) --------------------------------------------------
// Along each dim there are floor((size + low + high - dilation (window - 1) - 1) / stride) + 1 windows, or one more
// with `ceil`, as in PyTorch and ONNX.

/// Padding never is the maximum. Integers, too.
Tensor max_pool(const Tensor& x, const Windows& windows);
/// Also where each maximum lies in its plane: i64, row-major over the spatial dims.
std::pair<Tensor, Tensor> max_pool_with_indices(const Tensor& x, const Windows& windows);
/// Padding counts as zeros, or with `count_include_pad` off not at all; what lies beyond it never counts.
Tensor avg_pool(const Tensor& x, const Windows& windows, bool count_include_pad = true);
/// (sum of |x|^p)^(1/p), p > 0.
Tensor lp_pool(const Tensor& x, const Windows& windows, double p = 2);
/// Pools of windows that split each spatial dim as evenly as it goes: window i of m on n elements reaches from
/// floor(i n / m) to ceil((i + 1) n / m).
Tensor adaptive_max_pool(const Tensor& x, const Dims& sizes);
Tensor adaptive_avg_pool(const Tensor& x, const Dims& sizes);
// Of all spatial dims, which stay as 1; any number of them.
Tensor global_max_pool(const Tensor& x);
Tensor global_avg_pool(const Tensor& x);
Tensor global_lp_pool(const Tensor& x, double p = 2);
/// Puts x [n, c, ...] where the indices of max_pool_with_indices say, on planes of `sizes`, and 0 elsewhere. What comes
/// to one place is summed.
Tensor max_unpool(const Tensor& x, const Tensor& indices, const Dims& sizes);

// ---- convolutions: src/ops/convolution.cpp --------------------------------------------------------------------------
/// Of one to three spatial dims; `low` and `high` are the padding before and after each.
struct ConvOptions {
  Dims stride = {}, low = {}, high = {}, dilation = {};
  int64_t groups = 1;
};
/// x [n, c, ...], weight [out, c / groups, ...], bias [out] or undefined -> [n, out, ...], along each dim
/// floor((size + low + high - dilation (window - 1) - 1) / stride) + 1. By conv2d; three dims multiply the memory of x
/// by the depth of the weight.
Tensor conv(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const ConvOptions& options = {});
/// `low` and `high` are cut off the result, negative ones are added. `output_padding` is added behind.
struct ConvTransposeOptions {
  Dims stride = {}, low = {}, high = {}, output_padding = {}, dilation = {};
  int64_t groups = 1;
};
/// The gradient of conv with regard to its input: x [n, c, ...], weight [c, out / groups, ...], bias [out] or
/// undefined -> [n, out, ...], along each dim
/// (size - 1) stride + dilation (window - 1) + 1 + output_padding - low - high.
Tensor conv_transpose(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                      const ConvTransposeOptions& options = {});
/// The same with `low` and `high` such that x and weight give `sizes`. Of an odd sum the larger half is behind with
/// `upper`, and before without.
ConvTransposeOptions with_output_sizes(ConvTransposeOptions options, const Shape& x, const Shape& weight,
                                       const Dims& sizes, bool upper = false);

}  // namespace tessera
