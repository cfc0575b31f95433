// Images sampled at points that lie between their elements.
#pragma once
#include <span>
#include <vector>

#include "tessera/ops_image.h"

namespace tessera {

/// An element that a sample is made of along one dim: where it lies (i64) and its weight, which an undefined one leaves
/// at 1. Both have the points' shape, or one that broadcasts to it.
struct AxisTap {
  Tensor place, weight;
};
using AxisTaps = std::vector<AxisTap>;

/// The elements about the coordinates `at` along a dim of `size`. Beyond it those of `beyond`.
AxisTaps axis_taps(const Tensor& at, int64_t size, const GridSampleOptions& options);

/// x [n, c, ...] as rows of channels: [n * elements, c].
Tensor rows_of_images(const Tensor& x);
/// The rows of every combination of taps and their weights (undefined: 1), for sizes of the spatial dims and the first
/// row of each point's image.
std::vector<AxisTap> combined_taps(const Tensor& base, std::span<const AxisTaps> axes, std::span<const int64_t> sizes);
/// The sum of rows times weights: [points..., c].
Tensor summed_rows(const Tensor& rows, const std::vector<AxisTap>& taps);

}  // namespace tessera
