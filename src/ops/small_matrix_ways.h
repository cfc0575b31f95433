// What is done to batches of small matrices by one function: a loop on the host, a kernel of its own on a GPU.
#pragma once
#include "tessera/autograd.h"

namespace tessera {

/// All work on contiguous or other batches of f32 or f64: a, l [batch, n, n], b, x [batch, n, m].
struct SmallMatrixWays {
  CustomForward determinants;   ///< a -> [batch]
  CustomForward solutions;      ///< a, b -> x, NaN where a is singular, and whether it is, [batch]
  CustomForward slopes;         ///< a, x, the gradient of x -> those of a and b
  CustomForward factors;        ///< a -> l, NaN where there is none, and whether there is none, [batch]
  CustomForward factor_slopes;  ///< l, its gradient -> that of the lower triangle of a
};

/// Null where matrices are too large for one thread, or there is no such function: they are eliminated step by step.
const SmallMatrixWays* small_matrix_ways(const Tensor& a);

}  // namespace tessera
