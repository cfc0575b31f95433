// Products with a sparse matrix along a dim: what resizing, padding and means of windows are.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/tensor.h"

namespace tessera {

/// A matrix [count, length] by its rows, and the same by its columns, with which gradients are made.
struct SparseMatrix {
  Tensor begins, places, weights;  ///< i32 [count + 1], i32 [entries], f32 or f64 [entries]
  Tensor begins_back, places_back, weights_back;
  bool selects = false, selects_back = false;  ///< every row has one entry, of weight 1; every column

  SparseMatrix transposed() const {
    return {begins_back, places_back, weights_back, begins, places, weights, selects_back, selects};
  }
};
/// As many entries in each row as there are places for it; no weights: 1. Entries of weight 0 are left out.
SparseMatrix sparse_matrix(const std::vector<int64_t>& places, const std::vector<double>& weights, int64_t count,
                           int64_t length, DType dtype, Device device);
/// The same of its `name`, which says all that it is made from; recent ones are kept on their device.
SparseMatrix kept_matrix(const std::string& name, DType dtype, Device device,
                         const std::function<SparseMatrix()>& make);

/// out[.., i, ..] = sum over j of matrix[i, j] x[.., j, ..] along `dim`.
Tensor sparse_lines(const Tensor& x, int64_t dim, const SparseMatrix& matrix);

/// The same along several dims, one after the other; on a card along the last two at once, where rows have few entries.
struct SparseDim {
  int64_t dim;
  SparseMatrix matrix;
};
Tensor sparse_products(const Tensor& x, std::span<const SparseDim> dims);
/// The gradient of x, from that of sparse_products(x, dims).
Tensor sparse_slopes(const Tensor& g, std::vector<SparseDim> dims);

/// Whether such a product is one call: x is floating and in memory, and nothing is being captured.
bool takes_sparse_lines(const Tensor& x);

}  // namespace tessera
