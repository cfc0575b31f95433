// Padding with elements of the tensor itself, by loops of the host.
#pragma once
#include <vector>

#include "tessera/tensor.h"

namespace tessera {

/// Along the last dims of x, one for each list: the element of x at each place of the result. An empty list leaves its
/// dim as it is. x is in the host's memory.
Tensor repeated_places(const Tensor& x, std::vector<std::vector<int64_t>> places);

}  // namespace tessera
