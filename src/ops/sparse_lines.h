// Products with a sparse matrix along a dim: what resizing, padding and means of windows are.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tessera/tensor.h"

namespace tessera {

/// A matrix [count, length] by its rows, and the same by its columns, with which gradients are made.
struct SparseMatrix {
  Tensor begins, places, weights;  ///< i32 [count + 1], i32 [entries], f32 or f64 [entries]
  Tensor begins_back, places_back, weights_back;
};
/// As many entries in each row as there are places for it; no weights: 1. Entries of weight 0 are left out.
SparseMatrix sparse_matrix(const std::vector<int64_t>& places, const std::vector<double>& weights, int64_t count,
                           int64_t length, DType dtype, Device device);
/// The same of its `name`, which says all that it is made from; recent ones are kept on their device.
SparseMatrix kept_matrix(const std::string& name, DType dtype, Device device,
                         const std::function<SparseMatrix()>& make);

/// out[.., i, ..] = sum over j of matrix[i, j] x[.., j, ..] along `dim`.
Tensor sparse_lines(const Tensor& x, int64_t dim, const SparseMatrix& matrix);

/// Whether such a product is one call: x is floating and in memory, and nothing is being captured.
bool takes_sparse_lines(const Tensor& x);

}  // namespace tessera
