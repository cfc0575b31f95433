// Where the largest element of each window lies, found by loops of the host.
#pragma once
#include <vector>

#include "tessera/tensor.h"

namespace tessera {

/// Windows along one dim: window i has elements first[i], first[i] + step, ..., count[i] of them, at least one.
struct WindowLine {
  std::vector<int64_t> first, count;
  int64_t step = 1;
};

/// Of floating x [n, c, ...], a line for each spatial dim -> places in planes of x, row-major: of the first of equal
/// elements, or of the last NaN. i64 [n, c, windows...]. x is in the host's memory.
Tensor places_of_largest(const Tensor& x, const std::vector<WindowLine>& lines);

}  // namespace tessera
