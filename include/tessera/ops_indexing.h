// Indexing, order and scans beyond those of ops.h. All but what says "on CPUs alone" is made of operators that every
// device has. Indices are i64 or i32; out of range they throw Error. Sizes that a function counts with are numbers: it
// throws Error where they are symbols.
#pragma once
#include <optional>
#include <utility>

#include "tessera/tensor.h"

namespace tessera {

// ---- writing to places: src/ops/scatter.cpp -------------------------------------------------------------------------

/// x with source written to the places that gather would read: out[index[i][j]][j] = source[i][j] for dim 0. index and
/// source have one shape, source the dtype of x. The last of several writes to a place stays.
Tensor scatter(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);

enum class ScatterReduction { Sum, Mean, Prod, Max, Min };
/// x combined with what source has for each place, or without `include_self` that alone; elements that no index names
/// stay. A mean of integers is rounded down. Extremes that are equal share the gradient.
Tensor scatter_reduce(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source, ScatterReduction how,
                      bool include_self = true);

// ---- several dims at once: src/ops/places.cpp (negative indices count from the end) --------------------------------

/// x [batch..., n1, ..., nk, rest...], index [batch..., ..., k] -> [batch..., ..., rest...]: what each row of k indices
/// names behind the `batch_dims` dims that both share.
Tensor gather_nd(const Tensor& x, const Tensor& index, int64_t batch_dims = 0);
/// x [n1, ..., nk, rest...] with source [..., rest...] written to the places that gather_nd would read by index
/// [..., k], or combined with what is there. The last of several writes to a place stays.
Tensor scatter_nd(const Tensor& x, const Tensor& index, const Tensor& source, std::optional<ScatterReduction> how = {});
/// gather() of an index that has as many dims as x; all but `dim` broadcast.
Tensor take_along_dim(const Tensor& x, const Tensor& index, int64_t dim);
/// x with values written, or added with `accumulate`, to x[indices[0], indices[1], ...]: one index for each of the
/// first dims, which broadcast; values broadcast to their shape with the rest of x behind it.
Tensor index_put(const Tensor& x, const Tensors& indices, const Tensor& values, bool accumulate = false);
/// x with alpha * source added to the rows along `dim` that the 1-d `index` names. Deterministic.
Tensor index_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source, double alpha = 1);

// ---- order: src/ops/order.cpp ---------------------------------------------------------------------------------------
// Equal elements keep their order, and NaN counts as larger than all else.

/// Values and where they were (i64).
std::pair<Tensor, Tensor> sort(const Tensor& x, int64_t dim = -1, bool descending = false);
/// The values of sort(), ascending, in less time: places are sought for a gradient alone.
Tensor sort_values(const Tensor& x, int64_t dim = -1);
/// The second of sort().
Tensor argsort(const Tensor& x, int64_t dim = -1, bool descending = false);
/// The k-th smallest element along `dim`, k from 1, and its index.
std::pair<Tensor, Tensor> kthvalue(const Tensor& x, int64_t k, int64_t dim = -1, bool keepdim = false);
/// The middle element along `dim`, the smaller of two, and its index; those of the first NaN where there is one.
std::pair<Tensor, Tensor> median(const Tensor& x, int64_t dim, bool keepdim = false);
/// That of all elements; NaN of none.
Tensor median(const Tensor& x);
/// The largest (smallest) element along `dim` and the index of the first such one.
std::pair<Tensor, Tensor> max_with_index(const Tensor& x, int64_t dim, bool keepdim = false);
std::pair<Tensor, Tensor> min_with_index(const Tensor& x, int64_t dim, bool keepdim = false);
/// Index (i64) of the last largest / smallest element.
Tensor argmax_last(const Tensor& x, int64_t dim, bool keepdim = false);
Tensor argmin_last(const Tensor& x, int64_t dim, bool keepdim = false);

/// How many elements of each row of `sorted` (ascending) are below each value, or with `right` not above it: i64 of the
/// shape of values. sorted is 1-d, or has the leading dims of values.
Tensor searchsorted(const Tensor& sorted, const Tensor& values, bool right = false);
/// searchsorted() in 1-d boundaries.
Tensor bucketize(const Tensor& values, const Tensor& boundaries, bool right = false);
/// How many elements lie in each of `bins` equal parts of [low, high], in the dtype of x; others do not count. The
/// range is that of the elements where low == high.
Tensor histc(const Tensor& x, int64_t bins = 100, double low = 0, double high = 0);
/// How often each number from 0 occurs in x [n], integers, or the sums of the weights [n] where they are given. It has
/// `least` elements or more, which depends on values.
Tensor bincount(const Tensor& x, const Tensor& weights = {}, int64_t least = 0);

// Scans along `dim` up to and with each element; the shape of x. They take log2(n) steps.
/// Products; of integers i64, of u64 u64.
Tensor cumprod(const Tensor& x, int64_t dim);
/// Extremes, and the index (i64) where each was last met. NaN stays.
std::pair<Tensor, Tensor> cummax(const Tensor& x, int64_t dim);
std::pair<Tensor, Tensor> cummin(const Tensor& x, int64_t dim);
/// log(sum(exp(x))), without overflow.
Tensor logcumsumexp(const Tensor& x, int64_t dim);

struct UniqueAlong {
  Tensor values;   ///< the slices of x along dim, each once
  Tensor first;    ///< i64 [count]: where each one is first
  Tensor inverse;  ///< i64 [n]: which of them each slice is
  Tensor counts;   ///< i64 [count]: how often each one is there
};
/// Of the slices along `dim`, ascending by their first element, then the next one, or in the order in which they
/// appear. By nonzero().
UniqueAlong unique_along(const Tensor& x, int64_t dim, bool sorted = true);

}  // namespace tessera
