// Shapes, products over named dims and small matrices beyond ops.h, made of its operators. Sizes that a function counts
// with are numbers: it throws Error where they are symbols.
#pragma once
#include <string_view>

#include "tessera/tensor.h"

namespace tessera {

// ---- shapes: src/ops/shapes.cpp -------------------------------------------------------------------------------------

/// x repeated counts[d] times along each dim, the last counts being those of its dims; others are new leading dims.
/// NumPy's tile.
Tensor repeat(const Tensor& x, const Dims& counts);
/// Each element along `dim` `count` times in a row.
Tensor repeat_interleave(const Tensor& x, int64_t count, int64_t dim);
/// Each element along `dim` as often as counts [n], integers, say. The size of the result depends on values.
Tensor repeat_interleave(const Tensor& x, const Tensor& counts, int64_t dim);
/// Elements moved by `shifts` along `dims`; those that leave at one end enter at the other.
Tensor roll(const Tensor& x, const Dims& shifts, const Dims& dims);
/// The elements x[..., i, i + offset] of the dims `a` and `b`, as the last dim of the result.
Tensor diagonal(const Tensor& x, int64_t offset = 0, int64_t a = 0, int64_t b = 1);
/// Ones on the diagonal `offset` of [rows, columns], and zeros elsewhere; columns -1: as many as rows.
Tensor eye(int64_t rows, int64_t columns = -1, int64_t offset = 0, DType dtype = Float32,
           Device device = default_device());
/// `steps` numbers at equal distances from `start` to `end`, which are both among them.
Tensor linspace(double start, double end, int64_t steps, DType dtype = Float32, Device device = default_device());
/// Of 1-d tensors of n, m, ... elements: as many of shape [n, m, ...], each of which varies along its own dim. With
/// `swapped` the first two dims change places, as in NumPy's "xy".
Tensors meshgrid(const Tensors& tensors, bool swapped = false);
/// Elements start, start + step, ... as in Python: below end, or with a negative step above it. Bounds that are
/// negative count from the end, and both are clamped. Throws Error where step is 0.
Tensor slice_by(const Tensor& x, int64_t dim, int64_t start, int64_t end, int64_t step);
/// The dim `from` moved to `to`; the others keep their order.
Tensor movedim(const Tensor& x, int64_t from, int64_t to);
/// A view of each element along `dim`, which vanishes.
Tensors unbind(const Tensor& x, int64_t dim = 0);

// ---- products over named dims: src/ops/einsum.cpp -------------------------------------------------------------------

/// Einstein's sum: "bij,bjk->bik". A letter names a dim of each operand, "..." all that have no letter; these
/// broadcast, and so do dims of size 1. Letters that are missing in the result are summed over. A letter that an
/// operand has twice takes its diagonal. Without "->" the result has "..." and then the letters that occur once, in
/// alphabetical order.
Tensor einsum(std::string_view equation, const Tensors& operands);
/// The sum of products over dims_a of a and dims_b of b, as many and of one size each; the other dims of a come first.
Tensor tensordot(const Tensor& a, const Tensor& b, const Dims& dims_a, const Dims& dims_b);

// ---- small matrices: src/ops/small_matrices.cpp ---------------------------------------------------------------------
// Of [..., n, n], floating. Each takes n steps of a few operators: made for n of some tens.

/// Determinant [...].
Tensor det(const Tensor& a);
/// x [..., n, m] with a x = b [..., n, m]; leading dims broadcast. Throws Error on the CPU where a is
/// singular; on a GPU, and in a captured function, that gives NaN.
Tensor solve(const Tensor& a, const Tensor& b);
/// Where a is singular as solve().
Tensor inverse(const Tensor& a);
/// The lower triangle l with l lᵀ = a, of which the lower triangle is read. Where a is not positive definite as
/// solve().
Tensor cholesky(const Tensor& a);

}  // namespace tessera
