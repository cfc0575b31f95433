// Sums of windows along one dim as a loop, where operators would be a pass for each stride of a window.
#pragma once
#include "core/attrs.h"
#include "tessera/tensor.h"

namespace tessera {

/// windows [..., count, ..., size] -> [..., length, ...]: window i of dim a.dim lies at i * a.stride, its elements
/// a.dilation apart; what several have is added up.
Tensor host_folded(const Tensor& windows, int64_t length, const WindowAttrs& a);

}  // namespace tessera
