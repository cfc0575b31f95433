// What functions of spatial windows share: their descriptors with every list filled in.
#pragma once
#include <string_view>

#include "ops/check.h"
#include "tessera/ops_pool.h"

namespace tessera {

/// The list, or `otherwise` for each spatial dim where it is empty. Throws Error where its length differs.
Dims spatial_list(std::string_view op, std::string_view what, const Dims& given, int64_t spatial, int64_t otherwise);

/// Those of x [n, c, ...]. Throws Error unless there are one to three.
int64_t spatial_dims(std::string_view op, const Tensor& x);

/// With every list filled in and checked. The stride of a pool is its window by default.
Windows filled_windows(std::string_view op, const Windows& given, int64_t spatial, bool is_pool);

/// Windows along spatial dim `d` of `size` elements. Throws Error where not one fits.
int64_t window_count(std::string_view op, const Windows& filled, int64_t d, int64_t size);
/// The same of a size that may be a symbol, which is taken to hold a window.
Dim window_count(std::string_view op, const Windows& filled, int64_t d, Dim size);

}  // namespace tessera
