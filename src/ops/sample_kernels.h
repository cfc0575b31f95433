// Sampling and regions as operators with kernels of their own, and made of other operators.
#pragma once
#include "tessera/ops_image.h"

namespace tessera {

/// grid_sample() of arguments that were checked. With `elements` the grid has coordinates of elements.
Tensor grid_sample_by_kernel(const Tensor& x, const Tensor& grid, const GridSampleOptions& options,
                             bool elements = false);
Tensor composed_grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& options,
                            bool elements = false);

/// Whether there is a kernel for such a roi_align(): for means, and regions that need no gradient.
bool has_roi_align_kernel(const Tensor& regions, const RoiAlignOptions& options);
Tensor roi_align_by_kernel(const Tensor& x, const Tensor& regions, const Tensor& batch, const RoiAlignOptions& options);

}  // namespace tessera
