// Reductions over any set of dims, and what scans or selects along one.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "ops/check.h"
#include "ops/dim_set.h"
#include "ops/gradient.h"
#include "ops/op_name.h"
#include "ops/op_table.h"
#include "ops/reference.h"
#include "tessera/ops_indexing.h"

namespace tessera {
namespace {

// ---- dtypes and shapes

// The input's dtype; integers become f32; i64, but u64 stays; halves, too, become f32; bool; i64.
enum class Result { Like, Real, Wide, Statistics, Truth, Place };
using enum Result;

constexpr DType result_dtype(Result result, DType in) {
  switch (result) {
    case Real:
      return is_floating(in) ? in : Float32;
    case Wide:
      return is_floating(in) || in == UInt64 ? in : Int64;
    case Statistics:
      return statistics_dtype(in);
    case Truth:
      return Bool;
    case Place:
      return Int64;
    default:
      return in;
  }
}

DimSet reduced_dims(std::string_view op, const Shape& shape, const IntList& dims) {
  if (dims.empty()) return DimSet::all(op, shape);
  DimSet set = DimSet::none(op, shape);
  for (int64_t d : dims) {
    if (shape.empty() && (d == 0 || d == -1)) continue;
    if (!set.insert(normalize_dim(op, d, shape)))
      throw Error(fmt::format("{}: dim {} of {} is named twice", op, d, to_string(shape)));
  }
  return set;
}

Shape reduced_shape(const Shape& in, const DimSet& reduced, bool keepdim) {
  Shape shape;
  for (int64_t d = 0; d < in.rank(); ++d) {
    if (!reduced.contains(d)) shape.push_back(in[d]);
    else if (keepdim) shape.push_back(1);
  }
  return shape;
}

Dim reduced_count(const Shape& in, const DimSet& reduced) {
  Dim n = 1;
  for (int64_t d = 0; d < in.rank(); ++d)
    if (reduced.contains(d)) n = n * in[d];
  return n;
}

template <OpName op, Result result, bool may_be_empty = true>
Metas infer_reduce(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs(op.view(), in);
  const auto& a = attrs.as<ReduceAttrs>();
  const DimSet reduced = reduced_dims(op.view(), in[0].shape, a.dims);
  if (!may_be_empty && reduced_count(in[0].shape, reduced) == Dim(0))
    throw Error(fmt::format("{}: no elements to choose from in {}", op.view(), to_string(in[0].shape)));
  return {{reduced_shape(in[0].shape, reduced, a.keepdim), result_dtype(result, in[0].dtype), in[0].device}};
}

Metas infer_cumsum(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("cumsum", in);
  if (!in[0].shape.empty()) normalize_dim("cumsum", attrs.as<DimAttrs>().dim, in[0].shape);
  return {{in[0].shape, result_dtype(Wide, in[0].dtype), in[0].device}};
}

Metas infer_topk(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("topk", in);
  const auto& a = attrs.as<TopkAttrs>();
  Shape shape = in[0].shape;
  int64_t dim = normalize_dim("topk", a.dim, shape);
  if (a.k < 0 || (!shape[dim].is_symbolic() && a.k > shape[dim].value()))
    throw Error(fmt::format("topk: {} of dim {} of {}", a.k, dim, to_string(shape)));
  shape[dim] = a.k;
  return {{shape, in[0].dtype, in[0].device}, {shape, Int64, in[0].device}};
}
Metas infer_sort_values(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("sort_values", in);
  normalize_dim("sort_values", attrs.as<DimAttrs>().dim, in[0].shape);
  return {{in[0].shape, in[0].dtype, in[0].device}};
}

// ---- references

// value(elements along the reduced dims, in order; parameters)
template <auto value>
Tensors reduce_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<ReduceAttrs>();
  const Shape& shape = in[0].shape();
  const DimSet reduced = reduced_dims("", shape, a.dims);
  Shape kept = reduced_shape(shape, reduced, true), inner = shape;
  for (int64_t d = 0; d < shape.rank(); ++d)
    if (!reduced.contains(d)) inner[d] = 1;
  using Value = decltype(value(std::vector<double>(), a));
  DType dtype = std::is_same_v<Value, bool> ? Bool : std::is_same_v<Value, int64_t> ? Int64 : in[0].dtype();
  std::vector<double> results;
  reference::each_index(kept, [&](auto& base) {
    std::vector<double> elements;
    reference::each_index(inner, [&](auto& step) {
      reference::Index i = base;
      for (size_t d = 0; d < i.size(); ++d) i[d] += step[d];
      elements.push_back(reference::get(in[0], i));
    });
    results.push_back(static_cast<double>(value(elements, a)));
  });
  size_t n = 0;
  return {reference::generate(reduced_shape(shape, reduced, a.keepdim), dtype, [&](auto&) { return results[n++]; })};
}

using Numbers = const std::vector<double>&;
using A = const ReduceAttrs&;

double sum_of(Numbers v, A) { return std::accumulate(v.begin(), v.end(), 0.0); }
double mean_of(Numbers v, A a) { return sum_of(v, a) / static_cast<double>(v.size()); }
double variance_of(Numbers v, A a) {
  double mean = mean_of(v, a), squares = 0;
  for (double x : v) squares += (x - mean) * (x - mean);
  return squares / static_cast<double>(static_cast<int64_t>(v.size()) - a.correction);
}
double logsumexp_of(Numbers v, A) {
  double largest = *std::max_element(v.begin(), v.end()), sum = 0;
  for (double x : v) sum += std::exp(x - largest);
  return largest + std::log(sum);
}

Tensors cumsum_reference(std::span<const Tensor> in, const Attrs& attrs) {
  if (in[0].dim() == 0) return {in[0].clone()};
  int64_t dim = normalize_dim("", attrs.as<DimAttrs>().dim, in[0].shape());
  Tensor out = empty(in[0].shape(), in[0].dtype());
  reference::each_index(in[0].shape(), [&](auto& i) {
    double before = 0;
    if (i[dim] > 0) {
      reference::Index previous = i;
      --previous[dim];
      before = reference::get(out, previous);
    }
    reference::set(out, i, before + reference::get(in[0], i));
  });
  return {out};
}

Tensors topk_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<TopkAttrs>();
  int64_t dim = normalize_dim("", a.dim, in[0].shape());
  Shape shape = in[0].shape();
  shape[dim] = a.k;
  Tensor values = empty(shape, in[0].dtype()), indices = empty(shape, Int64);
  shape[dim] = 1;
  reference::each_index(shape, [&](auto& base) {
    auto at = [&](int64_t n) {
      reference::Index i = base;
      i[dim] = n;
      return i;
    };
    std::vector<int64_t> order(in[0].size(dim));
    std::iota(order.begin(), order.end(), 0);
    const auto less = [](double u, double v) { return u < v || (u == u && v != v); };  // NaN is largest
    std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) {
      const double u = reference::get(in[0], at(x)), v = reference::get(in[0], at(y));
      return a.largest ? less(v, u) : less(u, v);
    });
    for (int64_t n = 0; n < a.k; ++n) {
      reference::set(values, at(n), reference::get(in[0], at(order[n])));
      reference::set(indices, at(n), static_cast<double>(order[n]));
    }
  });
  return {values, indices};
}
Tensors sort_values_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const int64_t dim = normalize_dim("", attrs.as<DimAttrs>().dim, in[0].shape());
  return {topk_reference(in, TopkAttrs{dim, in[0].size(dim), false})[0]};
}

// ---- gradients

// What a vjp needs to know of the reduction it reverses.
struct Reversal {
  const ReduceAttrs& attrs;
  const Shape& shape;
  DimSet reduced;
  Reversal(const Saved& s, const Shape& input)
      : attrs(s.attrs.as<ReduceAttrs>()), shape(input), reduced(reduced_dims("backward", input, attrs.dims)) {}
  /// A result, or its gradient, with the reduced dims as 1.
  Tensor kept(const Tensor& t) const { return reshape(t, reduced_shape(shape, reduced, true)); }
  double count() const { return static_cast<double>(reduced_count(shape, reduced).value()); }
};

Tensor reduce(const Op& op, const Tensor& x, ReduceAttrs attrs) { return dispatch_one(op, {x}, attrs); }
Tensor keep_where(const Tensor& condition, const Tensor& g) { return where(condition, g, number_like(g, 0)); }

extern const Op sum_op, mean_op, prod_op;

Tensors sum_vjp(const Saved& s, const Tensors& grads) {
  Reversal r(s, s.metas[0].shape);
  return {expand(cast(r.kept(grads[0]), s.metas[0].dtype), r.shape)};
}
Tensors mean_vjp(const Saved& s, const Tensors& grads) {
  Reversal r(s, s.metas[0].shape);
  return {expand(r.kept(grads[0]) * (1 / r.count()), r.shape)};
}
// The product of the others: of all where none is zero, at the zero where there is one, and zero elsewhere.
Tensors prod_vjp(const Saved& s, const Tensors& grads) {
  const Tensor& x = s.inputs[0];
  Reversal r(s, x.shape());
  Tensor zero = eq(x, number_like(x, 0)), factors = where(zero, number_like(x, 1), x);
  Tensor product = reduce(prod_op, factors, {r.attrs.dims, true});
  Tensor zeros = reduce(sum_op, cast(zero, x.dtype()), {r.attrs.dims, true});
  Tensor others = where(zero, keep_where(eq(zeros, number_like(x, 1)), product),
                        keep_where(eq(zeros, number_like(x, 0)), product / factors));
  return {r.kept(grads[0]) * others};
}
// Equal extremes share the gradient.
Tensors extreme_vjp(const Saved& s, const Tensors& grads) {
  const Tensor& x = s.inputs[0];
  Reversal r(s, x.shape());
  Tensor chosen = eq(x, r.kept(s.outputs[0]));
  Tensor count = reduce(sum_op, cast(chosen, x.dtype()), {r.attrs.dims, true});
  return {keep_where(chosen, r.kept(grads[0]) / count)};
}
Tensor deviations(const Tensor& x, const Reversal& r) { return x - reduce(mean_op, x, {r.attrs.dims, true}); }
Tensors var_vjp(const Saved& s, const Tensors& grads) {
  const Tensor& x = s.inputs[0];
  Reversal r(s, x.shape());
  return {r.kept(grads[0]) * deviations(x, r) * (2 / (r.count() - static_cast<double>(r.attrs.correction)))};
}
Tensors std_vjp(const Saved& s, const Tensors& grads) {
  const Tensor& x = s.inputs[0];
  Reversal r(s, x.shape());
  const Tensor& y = s.outputs[0];  // of what does not vary, the gradient is 0
  return {r.kept(keep_where(ne(y, number_like(y, 0)), grads[0] / y)) * deviations(x, r) *
          (1 / (r.count() - static_cast<double>(r.attrs.correction)))};
}
Tensors norm_vjp(const Saved& s, const Tensors& grads) {
  Reversal r(s, s.inputs[0].shape());
  const Tensor &y = s.outputs[0], zero = number_like(y, 0), none = eq(y, zero);  // at 0 its slope is 0, and that one's
  return {r.kept(where(none, zero, grads[0] / where(none, number_like(y, 1), y))) * s.inputs[0]};
}
Tensors logsumexp_vjp(const Saved& s, const Tensors& grads) {
  Reversal r(s, s.inputs[0].shape());
  return {r.kept(grads[0]) * exp(s.inputs[0] - r.kept(s.outputs[0]))};
}
Tensors cumsum_vjp(const Saved& s, const Tensors& grads) {
  if (grads[0].dim() == 0) return {grads[0]};
  int64_t dim = s.attrs.as<DimAttrs>().dim;
  return {flip(cumsum(flip(grads[0], {dim}), dim), {dim})};
}
Tensors topk_vjp(const Saved& s, const Tensors& grads) {
  if (!grads[0].defined()) return Tensors(1);
  // No place comes twice.
  return {scatter(zeros_to_copy(s.metas[0]), s.attrs.as<TopkAttrs>().dim, s.outputs[1], grads[0])};
}

// Places are sought where a gradient asks for them.
Tensors sort_values_vjp(const Saved& s, const Tensors& grads) {
  const Tensor& x = s.inputs[0];
  const int64_t dim = normalize_dim("", s.attrs.as<DimAttrs>().dim, x.shape());
  return {scatter(zeros_like(x), dim, topk(x, x.size(dim), dim, false).second, grads[0])};
}

// ---- the ops

using Vjp = Tensors (*)(const Saved&, const Tensors&);
constexpr Saves kShape{.metas = 1}, kInput{.inputs = 1}, kBoth{.inputs = 1, .outputs = 1};
constexpr auto kNone = Autocast::None, kFloat32 = Autocast::Float32;

template <OpName op, Result result, auto value, bool may_be_empty = true>
constexpr Op reduction(Vjp vjp = nullptr, Saves saves = {}, Autocast autocast = kNone) {
  return {.name = op.text,
          .inputs = "x",
          .outputs = "y",
          .attrs = attrs_of<ReduceAttrs>,
          .infer = infer_reduce<op, result, may_be_empty>,
          .vjp = vjp,
          .reference = reduce_reference<value>,
          .saves = saves,
          .autocast = autocast};
}

double product_of(Numbers v, A) { return std::accumulate(v.begin(), v.end(), 1.0, std::multiplies<>()); }
double largest_of(Numbers v, A) { return *std::max_element(v.begin(), v.end()); }
double smallest_of(Numbers v, A) { return *std::min_element(v.begin(), v.end()); }
double deviation_of(Numbers v, A a) { return std::sqrt(variance_of(v, a)); }
double euclidean_length(Numbers v, A) { return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0)); }
bool any_of(Numbers v, A) {
  return std::any_of(v.begin(), v.end(), [](double x) { return x != 0; });
}
bool all_of(Numbers v, A) {
  return std::all_of(v.begin(), v.end(), [](double x) { return x != 0; });
}
int64_t argmax_of(Numbers v, A) { return std::max_element(v.begin(), v.end()) - v.begin(); }
int64_t argmin_of(Numbers v, A) { return std::min_element(v.begin(), v.end()) - v.begin(); }

const Op sum_op = reduction<"sum", Wide, sum_of>(sum_vjp, kShape, kFloat32);
// With the sums of halves in f32, as the gradient of an f32 bias is wanted under autocast.
const Op sum_wide_op = reduction<"sum_wide", Statistics, sum_of>(sum_vjp, kShape);
const Op mean_op = reduction<"mean", Real, mean_of>(mean_vjp, kShape);
const Op prod_op = reduction<"prod", Wide, product_of>(prod_vjp, kInput, kFloat32);
const Op amax_op = reduction<"amax", Like, largest_of, false>(extreme_vjp, kBoth);
const Op amin_op = reduction<"amin", Like, smallest_of, false>(extreme_vjp, kBoth);
const Op var_op = reduction<"var", Real, variance_of>(var_vjp, kInput);
const Op std_op = reduction<"std_dev", Real, deviation_of>(std_vjp, kBoth);
const Op norm_op = reduction<"norm", Real, euclidean_length>(norm_vjp, kBoth, kFloat32);
const Op logsumexp_op = reduction<"logsumexp", Real, logsumexp_of>(logsumexp_vjp, kBoth, kFloat32);
const Op any_op = reduction<"any", Truth, any_of>();
const Op all_op = reduction<"all", Truth, all_of>();
const Op argmax_op = reduction<"argmax", Place, argmax_of, false>();
const Op argmin_op = reduction<"argmin", Place, argmin_of, false>();

const Op cumsum_op = {.name = "cumsum",
                      .inputs = "x",
                      .outputs = "y",
                      .attrs = attrs_of<DimAttrs>,
                      .infer = infer_cumsum,
                      .vjp = cumsum_vjp,
                      .reference = cumsum_reference,
                      .autocast = kFloat32};
const Op topk_op = {.name = "topk",
                    .inputs = "x",
                    .outputs = "values, index",
                    .attrs = attrs_of<TopkAttrs>,
                    .infer = infer_topk,
                    .vjp = topk_vjp,
                    .reference = topk_reference,
                    .saves = {.outputs = 2, .metas = 1}};
const Op sort_values_op = {.name = "sort_values",
                           .inputs = "x",
                           .outputs = "y",
                           .attrs = attrs_of<DimAttrs>,
                           .infer = infer_sort_values,
                           .vjp = sort_values_vjp,
                           .reference = sort_values_reference,
                           .saves = kInput};

}  // namespace

std::span<const Op* const> reduction_ops() {
  static constexpr const Op* ops[] = {&sum_op,    &sum_wide_op, &mean_op,   &prod_op,      &amax_op,       &amin_op,
                                      &var_op,    &std_op,      &norm_op,   &logsumexp_op, &any_op,        &all_op,
                                      &argmax_op, &argmin_op,   &cumsum_op, &topk_op,      &sort_values_op};
  return ops;
}

// ---- public functions

Tensor sum(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(sum_op, x, {dim_list(sum_op.name, dims), keepdim});
}
Tensor mean(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(mean_op, x, {dim_list(mean_op.name, dims), keepdim});
}
Tensor prod(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(prod_op, x, {dim_list(prod_op.name, dims), keepdim});
}
Tensor amax(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(amax_op, x, {dim_list(amax_op.name, dims), keepdim});
}
Tensor amin(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(amin_op, x, {dim_list(amin_op.name, dims), keepdim});
}
Tensor var(const Tensor& x, const Dims& dims, int64_t correction, bool keepdim) {
  return reduce(var_op, x, {dim_list(var_op.name, dims), keepdim, correction});
}
Tensor std_dev(const Tensor& x, const Dims& dims, int64_t correction, bool keepdim) {
  return reduce(std_op, x, {dim_list(std_op.name, dims), keepdim, correction});
}
Tensor norm(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(norm_op, x, {dim_list(norm_op.name, dims), keepdim});
}
Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(logsumexp_op, x, {dim_list(logsumexp_op.name, dims), keepdim});
}
Tensor any(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(any_op, x, {dim_list(any_op.name, dims), keepdim});
}
Tensor all(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(all_op, x, {dim_list(all_op.name, dims), keepdim});
}
Tensor argmax(const Tensor& x, int64_t dim, bool keepdim) { return reduce(argmax_op, x, {{dim}, keepdim}); }
Tensor argmin(const Tensor& x, int64_t dim, bool keepdim) { return reduce(argmin_op, x, {{dim}, keepdim}); }
Tensor cumsum(const Tensor& x, int64_t dim) { return dispatch_one(cumsum_op, {x}, DimAttrs{dim}); }

std::pair<Tensor, Tensor> topk(const Tensor& x, int64_t k, int64_t dim, bool largest) {
  Tensors out = dispatch(topk_op, {x}, TopkAttrs{dim, k, largest});
  return {out[0], out[1]};
}

Tensor sort_values(const Tensor& x, int64_t dim) { return dispatch_one(sort_values_op, {x}, DimAttrs{dim}); }

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  IntList dims;
  int64_t shift = x.dim() - shape.rank();
  bool fits = shift >= 0;
  for (int64_t d = 0; fits && d < x.dim(); ++d) {
    bool same = d >= shift && shape[d - shift] == x.shape()[d];
    fits = d < shift || same || shape[d - shift] == Dim(1);
    if (!same) dims.push_back(d);
  }
  if (!fits) throw Error(fmt::format("sum_to: {} does not broadcast to {}", to_string(shape), to_string(x.shape())));
  return reshape(reduce(sum_op, x, {dim_list(sum_op.name, dims), true}), shape);
}

}  // namespace tessera
