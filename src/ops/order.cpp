// What sorts, ranks, counts and scans, made of topk, gather and sums.
#include <bit>
#include <cmath>

#include <fmt/format.h>

#include "ops/gradient.h"
#include "ops/precise.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_shape.h"

namespace tessera {
namespace {

Tensor index_numbers(int64_t n, Device device) { return arange(0, static_cast<double>(n), 1, Int64, device); }

// A dim of x, and its size; a 0-d tensor counts as one element.
struct Line {
  Tensor x;
  int64_t dim, size;
  bool number;
  Line(std::string_view op, const Tensor& given, int64_t d) : x(given), number(given.dim() == 0) {
    if (number && (d == 0 || d == -1)) x = reshape(given, {1});
    dim = normalize_dim(op, d, x.shape());
    size = x.size(dim);
  }
  Tensor back(const Tensor& y) const { return number ? reshape(y, {}) : y; }
};

using Chosen = std::pair<Tensor, Tensor>;

Chosen kept_or_dropped(const Line& line, const Tensor& value, const Tensor& index, bool keepdim) {
  if (line.number) return {line.back(value), line.back(index)};
  if (keepdim) return {value, index};
  return {squeeze(value, line.dim), squeeze(index, line.dim)};
}

}  // namespace

// ---- sorting

std::pair<Tensor, Tensor> sort(const Tensor& x, int64_t dim, bool descending) {
  const Line line("sort", x, dim);
  const auto [values, index] = topk(line.x, line.size, line.dim, descending);
  return {line.back(values), line.back(index)};
}
Tensor argsort(const Tensor& x, int64_t dim, bool descending) { return sort(x, dim, descending).second; }

std::pair<Tensor, Tensor> kthvalue(const Tensor& x, int64_t k, int64_t dim, bool keepdim) {
  const Line line("kthvalue", x, dim);
  if (k < 1 || k > line.size)
    throw Error(fmt::format("kthvalue: no element {} among {} along dim {} of {}", k, line.size, line.dim,
                            to_string(x.shape())));
  const auto [values, index] = topk(line.x, k, line.dim, false);
  return kept_or_dropped(line, slice(values, line.dim, k - 1, k), slice(index, line.dim, k - 1, k), keepdim);
}

std::pair<Tensor, Tensor> median(const Tensor& x, int64_t dim, bool keepdim) {
  const Line line("median", x, dim);
  if (line.size == 0)
    throw Error(fmt::format("median: no elements to choose from along dim {} of {}", line.dim, to_string(x.shape())));
  const Chosen middle = kthvalue(x, (line.size + 1) / 2, dim, keepdim);
  if (!is_floating(x.dtype())) return middle;
  const auto [largest, index] = max_with_index(x, dim, keepdim);  // NaN, where there is one
  const Tensor bad = isnan(largest);
  return {where(bad, largest, middle.first), where(bad, index, middle.second)};
}
Tensor median(const Tensor& x) {
  if (is_floating(x.dtype()) && x.shape().numel() == Dim(0)) return full({}, NAN, x.dtype(), x.device());
  return median(flatten(x), 0).first;
}

namespace {
Chosen extreme_with_index(std::string_view op, const Tensor& x, int64_t dim, bool keepdim, bool largest) {
  const Line line(op, x, dim);
  const Tensor index = largest ? argmax(line.x, line.dim, true) : argmin(line.x, line.dim, true);
  return kept_or_dropped(line, gather(line.x, line.dim, index), index, keepdim);
}
Tensor last_extreme(std::string_view op, const Tensor& x, int64_t dim, bool keepdim, bool largest) {
  const Line line(op, x, dim);
  const Tensor turned = flip(line.x, {line.dim});
  const Tensor index = largest ? argmax(turned, line.dim, keepdim) : argmin(turned, line.dim, keepdim);
  const Tensor last = static_cast<double>(line.size - 1) - index;
  return line.number ? reshape(last, {}) : last;
}
}  // namespace

std::pair<Tensor, Tensor> max_with_index(const Tensor& x, int64_t dim, bool keepdim) {
  return extreme_with_index("max_with_index", x, dim, keepdim, true);
}
std::pair<Tensor, Tensor> min_with_index(const Tensor& x, int64_t dim, bool keepdim) {
  return extreme_with_index("min_with_index", x, dim, keepdim, false);
}
Tensor argmax_last(const Tensor& x, int64_t dim, bool keepdim) {
  return last_extreme("argmax_last", x, dim, keepdim, true);
}
Tensor argmin_last(const Tensor& x, int64_t dim, bool keepdim) {
  return last_extreme("argmin_last", x, dim, keepdim, false);
}

// ---- places in what is sorted

// By halves: low and high enclose each place, until they meet.
Tensor searchsorted(const Tensor& sorted, const Tensor& values, bool right) {
  const bool one = sorted.dim() == 1;
  bool fits = sorted.dim() > 0 && (one || sorted.dim() == values.dim());
  for (int64_t d = 0; fits && !one && d < sorted.dim() - 1; ++d) fits = sorted.shape()[d] == values.shape()[d];
  if (!fits)
    throw Error(fmt::format("searchsorted: rows of {} do not match those of {}", to_string(values.shape()),
                            to_string(sorted.shape())));
  const Tensor wanted = one ? flatten(values) : values;
  const int64_t n = sorted.size(-1);
  Tensor low = zeros(wanted.shape(), Int64, values.device());
  Tensor high = full(wanted.shape(), static_cast<double>(n), Int64, values.device());
  for (int step = std::bit_width(static_cast<uint64_t>(n)); step > 0; --step) {
    const Tensor open = lt(low, high);
    const Tensor middle =
        minimum(floor_div(low + high, number_like(low, 2)), number_like(low, static_cast<double>(n - 1)));
    const Tensor at = gather(sorted, -1, middle);
    const Tensor after = logical_not(right ? gt(at, wanted) : ge(at, wanted));  // NaN comes behind all
    low = where(logical_and(open, after), middle + 1.0, low);
    high = where(logical_and(open, logical_not(after)), middle, high);
  }
  return reshape(low, values.shape());
}

Tensor bucketize(const Tensor& values, const Tensor& boundaries, bool right) {
  if (boundaries.dim() != 1)
    throw Error(fmt::format("bucketize: the boundaries {} are not 1-d", to_string(boundaries.shape())));
  return searchsorted(boundaries, values, right);
}

Tensor histc(const Tensor& x, int64_t bins, double low, double high) {
  if (bins < 1) throw Error(fmt::format("histc: {} bins", bins));
  if (!is_floating(x.dtype())) throw Error(fmt::format("histc: takes floating-point tensors, not {}", describe(x)));
  const Tensor flat = cast(flatten(x), Float64);
  if (low == high && !(flat.shape()[0] == Dim(0))) low = amin(flat).item(), high = amax(flat).item();
  if (low == high) low -= 1, high += 1;
  if (!(low < high) || !std::isfinite(low) || !std::isfinite(high))
    throw Error(fmt::format("histc: no range from {} to {}", low, high));
  const Tensor inside = logical_and(ge(flat, number_like(flat, low)), le(flat, number_like(flat, high)));
  const auto count = static_cast<double>(bins);
  const Tensor bin = floor((where(inside, flat, number_like(flat, low)) - low) * (count / (high - low)));
  const Tensor counts = zeros({bins}, Int64, x.device());
  return cast(scatter_add(counts, 0, cast(clamp(bin, 0, count - 1), Int64), cast(inside, Int64)), x.dtype());
}

Tensor bincount(const Tensor& x, const Tensor& weights, int64_t least) {
  if (x.dim() != 1 || is_floating(x.dtype()) || x.dtype() == Bool)
    throw Error(fmt::format("bincount: takes a 1-d tensor of integers, not {}", describe(x)));
  if (weights.defined() && !(weights.shape() == x.shape()))
    throw Error(fmt::format("bincount: weights {} for {}", to_string(weights.shape()), to_string(x.shape())));
  const int64_t size = std::max<int64_t>(least, x.numel() == 0 ? 0 : amax(x).item<int64_t>() + 1);
  const Tensor each = weights.defined() ? weights : ones(x.shape(), Int64, x.device());
  return scatter_add(zeros({size}, each.dtype(), x.device()), 0, cast(x, Int64), each);
}

// ---- scans

namespace {

// Of a state at each element: after step i it is that of 2^i elements, combine(earlier ones, later ones).
template <class Combine>
Tensors scan_by_doubling(Tensors state, int64_t dim, int64_t size, const Combine& combine) {
  for (int64_t reach = 1; reach < size; reach *= 2) {
    Tensors earlier, later;
    for (const Tensor& t : state) {
      earlier.push_back(slice(t, dim, 0, size - reach));
      later.push_back(slice(t, dim, reach, size));
    }
    const Tensors combined = combine(earlier, later);
    for (size_t i = 0; i < state.size(); ++i) state[i] = concat({slice(state[i], dim, 0, reach), combined[i]}, dim);
  }
  return state;
}

// The values where the extreme was last met. NaN is the extreme of what it is among.
Chosen running_extreme(std::string_view op, const Tensor& x, int64_t dim, bool largest) {
  const Line line(op, x, dim);
  Shape along(static_cast<size_t>(line.x.dim()), Dim(1));
  along[line.dim] = line.size;
  const Tensor index = expand(reshape(index_numbers(line.size, x.device()), along), line.x.shape());
  const auto later_one = [&](const Tensor& a, const Tensor& b) {
    const Tensor beyond = largest ? ge(b, a) : le(b, a);
    return is_floating(x.dtype()) ? logical_or(beyond, isnan(b)) : beyond;
  };
  const Tensors found = scan_by_doubling({line.x.detach(), index}, line.dim, line.size,
                                         [&](const Tensors& a, const Tensors& b) -> Tensors {
                                           const Tensor taken = later_one(a[0], b[0]);
                                           return {where(taken, b[0], a[0]), where(taken, b[1], a[1])};
                                         });
  const Tensor places = contiguous(found[1]);
  return {line.back(gather(line.x, line.dim, places)), line.back(places)};
}

Tensor log_of_sum(const Tensor& a, const Tensor& b) {
  const Tensor larger = maximum(a, b), smaller = minimum(a, b);
  return larger + log1p(exp(where(eq(larger, smaller), number_like(a, 0), smaller - larger)));
}

}  // namespace

Tensor cumprod(const Tensor& x, int64_t dim) {
  const Line line("cumprod", x, dim);
  const auto scan = [&](const Tensor& v) {
    return scan_by_doubling({v}, line.dim, line.size,
                            [](const Tensors& a, const Tensors& b) -> Tensors { return {a[0] * b[0]}; })[0];
  };
  return line.back(is_floating(x.dtype()) ? in_single(line.x, scan)
                                          : scan(cast(line.x, x.dtype() == UInt64 ? UInt64 : Int64)));
}

std::pair<Tensor, Tensor> cummax(const Tensor& x, int64_t dim) { return running_extreme("cummax", x, dim, true); }
std::pair<Tensor, Tensor> cummin(const Tensor& x, int64_t dim) { return running_extreme("cummin", x, dim, false); }

Tensor logcumsumexp(const Tensor& x, int64_t dim) {
  const Line line("logcumsumexp", x, dim);
  return line.back(in_single(line.x, [&](const Tensor& v) {
    return scan_by_doubling({v}, line.dim, line.size,
                            [](const Tensors& a, const Tensors& b) -> Tensors { return {log_of_sum(a[0], b[0])}; })[0];
  }));
}

// ---- what is there once

namespace {

// The order of rows, the first column first, stable: sorted by each column, from the last one.
Tensor order_of_rows(const Tensor& rows) {
  Tensor order = index_numbers(rows.size(0), rows.device());
  for (int64_t column = rows.size(1); column-- > 0;)
    order = index_select(order, 0, argsort(index_select(select(rows, 1, column), 0, order), 0));
  return order;
}

UniqueAlong in_order_of_appearance(const UniqueAlong& u, int64_t dim) {
  const Tensor order = argsort(u.first, 0);
  const Tensor rank =
      scatter_add(zeros(order.shape(), Int64, order.device()), 0, order, index_numbers(order.size(0), order.device()));
  return {index_select(u.values, dim, order), index_select(u.first, 0, order), index_select(rank, 0, u.inverse),
          index_select(u.counts, 0, order)};
}

}  // namespace

UniqueAlong unique_along(const Tensor& x, int64_t dim, bool sorted) {
  dim = normalize_dim("unique_along", dim, x.shape());
  const int64_t n = x.size(dim);
  const Tensor none = empty({0}, Int64, x.device());
  if (n == 0) return {x, none, none, none};
  const Tensor rows = reshape(movedim(x, dim, 0), {n, x.numel() / n});
  const Tensor order = order_of_rows(rows), in_order = index_select(rows, 0, order);
  const Tensor changes = any(ne(slice(in_order, 0, 1, n), slice(in_order, 0, 0, n - 1)), {1});
  const Tensor begins = concat({ones({1}, Bool, x.device()), changes}, 0), starts = flatten(nonzero(begins));
  const Tensor run = cumsum(cast(begins, Int64), 0) + -1.0;
  const Tensor end = full({1}, static_cast<double>(n), Int64, x.device());
  const Tensor ends = concat({slice(starts, 0, Dim(1), starts.shape()[0]), end}, 0);
  const Tensor first = index_select(order, 0, starts);
  const UniqueAlong u = {index_select(x, dim, first), first, scatter_add(zeros({n}, Int64, x.device()), 0, order, run),
                         ends - starts};
  return sorted ? u : in_order_of_appearance(u, dim);
}

}  // namespace tessera
