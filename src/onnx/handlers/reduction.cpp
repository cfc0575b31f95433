// Reductions, cumulative sums, and which element is the largest.
#include "onnx/handler.h"
#include "tessera/ops.h"
#include "tessera/ops_indexing.h"

namespace tessera::onnx {
namespace {

using Function = Tensor (*)(const Tensor&, const Dims&, bool);

Tensor sum_of_type(const Tensor& x, const Dims& dims, bool keep) { return cast(sum(x, dims, keep), x.dtype()); }
Tensor prod_of_type(const Tensor& x, const Dims& dims, bool keep) { return cast(prod(x, dims, keep), x.dtype()); }
Tensor mean_of_type(const Tensor& x, const Dims& dims, bool keep) { return cast(mean(x, dims, keep), x.dtype()); }
Tensor l1(const Tensor& x, const Dims& dims, bool keep) { return sum_of_type(abs(x), dims, keep); }
Tensor l2(const Tensor& x, const Dims& dims, bool keep) { return cast(norm(x, dims, keep), x.dtype()); }
Tensor sum_square(const Tensor& x, const Dims& dims, bool keep) { return sum_of_type(square(x), dims, keep); }
Tensor log_sum(const Tensor& x, const Dims& dims, bool keep) { return log(sum_of_type(x, dims, keep)); }
Tensor log_sum_exp(const Tensor& x, const Dims& dims, bool keep) { return cast(logsumexp(x, dims, keep), x.dtype()); }

/// Of no elements, the largest is the least that the type has, and the other way round.
template <bool largest>
Tensor extremum(const Tensor& x, const Dims& dims, bool keep) {
  if (x.dtype() == Bool) return largest ? any(x, dims, keep) : all(x, dims, keep);
  if (x.numel() > 0) return largest ? amax(x, dims, keep) : amin(x, dims, keep);
  const Tensor shaped = sum(x, dims, keep);
  const double inf = __builtin_inf();
  if (is_floating(x.dtype())) return full(shaped.shape(), largest ? -inf : inf, x.dtype(), x.device());
  throw Error(fmt::format("the extremum of no elements of {}", describe(x)));
}

/// Axes are an attribute, or from some opset on an input.
template <Function function>
Values reduce(const Call& c) {
  const Tensor& x = c.in(0);
  const std::vector<int64_t> axes = c.has(1) ? c.ints(1) : c.integers("axes");
  if (axes.empty() && c.flag("noop_with_empty_axes", false)) {
    Dims none;  // each element by itself: a dim of 1 is reduced
    none.push_back(0);
    return {function(unsqueeze(x, 0), none, false)};
  }
  if (x.dim() == 0) {
    return {function(unsqueeze(x, 0), {0}, false)};
  }
  return {function(x, axes, c.flag("keepdims", true))};
}

using Choice = Tensor (*)(const Tensor&, int64_t, bool);
template <Choice first, Choice last>
Values arg(const Call& c) {
  const Choice choice = c.flag("select_last_index", false) ? last : first;
  return {choice(c.in(0), c.integer("axis", 0), c.flag("keepdims", true))};
}

Values cumulative_sum(const Call& c) {
  const Tensor& x = c.in(0);
  const std::vector<int64_t> axes = c.ints(1);
  if (axes.size() != 1) c.fail("{} axes", axes.size());
  const int64_t axis = axes[0];
  const bool reverse = c.flag("reverse", false);
  const Tensor along = reverse ? flip(x, {axis}) : x;
  Tensor out = cast(cumsum(along, axis), x.dtype());
  if (c.flag("exclusive", false)) out = sub(out, along);
  return {reverse ? flip(out, {axis}) : out};
}

constexpr Entry entries[] = {
    {"ArgMax", 1, arg<argmax, argmax_last>},
    {"ArgMin", 1, arg<argmin, argmin_last>},
    {"CumSum", 11, cumulative_sum},
    {"ReduceL1", 1, reduce<l1>},
    {"ReduceL2", 1, reduce<l2>},
    {"ReduceLogSum", 1, reduce<log_sum>},
    {"ReduceLogSumExp", 1, reduce<log_sum_exp>},
    {"ReduceMax", 1, reduce<extremum<true>>},
    {"ReduceMean", 1, reduce<mean_of_type>},
    {"ReduceMin", 1, reduce<extremum<false>>},
    {"ReduceProd", 1, reduce<prod_of_type>},
    {"ReduceSum", 1, reduce<sum_of_type>},
    {"ReduceSumSquare", 1, reduce<sum_square>},
};

}  // namespace

std::span<const Entry> reduction_handlers() { return entries; }

}  // namespace tessera::onnx
