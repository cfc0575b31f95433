// Windows of planes as operators with kernels of their own.
#pragma once
#include <utility>

#include "core/plane_attrs.h"
#include "tessera/ops_pool.h"

namespace tessera {

/// The windows `w`, with every list filled in, of planes of such sizes, `counts` of them. Nothing where kernels, which
/// count in 32 bits, do not take them.
std::optional<PlaneWindowsAttrs> plane_windows(const Windows& w, const Dims& sizes, const Dims& counts);
/// Windows that share the elements of each dim.
std::optional<PlaneWindowsAttrs> adaptive_plane_windows(const Dims& sizes, const Dims& counts);

/// Of floating x [n, c, ...]: the largest of each window and its place in the plane, i64. Of equal elements it is the
/// first, of those that are NaN the last. No window is empty.
std::pair<Tensor, Tensor> max_in_windows(const Tensor& x, const PlaneWindowsAttrs& windows);
/// fold() of arguments that were checked.
Tensor fold_planes(const Tensor& x, const PlaneWindowsAttrs& windows);

}  // namespace tessera
