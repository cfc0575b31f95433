// Order, scans, and writing to computed places.
#include <optional>

#include "onnx/handler.h"
#include "tessera/ops.h"
#include "tessera/ops_indexing.h"

namespace tessera::onnx {
namespace {

int64_t checked_axis(const Call& c, int64_t axis, int64_t rank) {
  if (axis < -rank || axis >= rank) c.fail("axis {} is outside of {} dims", axis, rank);
  return axis < 0 ? axis + rank : axis;
}

std::optional<ScatterReduction> reduction_of(const Call& c) {
  const std::string how = c.text("reduction", "none");
  if (how == "none") return {};
  if (how == "add") return ScatterReduction::Sum;
  if (how == "mul") return ScatterReduction::Prod;
  if (how == "max") return ScatterReduction::Max;
  if (how == "min") return ScatterReduction::Min;
  c.fail("reduction '{}' is not known", how);
}

Values scatter_elements(const Call& c) {
  const Tensor &x = c.in(0), &index = c.in(1);
  const int64_t axis = checked_axis(c, c.integer("axis", 0), x.dim());
  const Tensor zero = full({}, 0, index.dtype(), index.device());
  const Tensor from_start = where(lt(index, zero), index + static_cast<double>(x.size(axis)), index);
  if (const auto how = reduction_of(c)) return {scatter_reduce(x, axis, from_start, c.in(2), *how)};
  return {scatter(x, axis, from_start, c.in(2))};
}
Values scatter_slices(const Call& c) { return {scatter_nd(c.in(0), c.in(1), c.in(2), reduction_of(c))}; }
Values gather_slices(const Call& c) { return {gather_nd(c.in(0), c.in(1), c.integer("batch_dims", 0))}; }

Values cumulative_product(const Call& c) {
  const std::vector<int64_t> axes = c.ints(1);
  if (axes.size() != 1) c.fail("{} axes", axes.size());
  const int64_t axis = checked_axis(c, axes[0], c.in(0).dim()), n = c.in(0).size(axis);
  const bool reverse = c.flag("reverse", false);
  Tensor x = reverse ? flip(c.in(0), {axis}) : c.in(0);
  if (c.flag("exclusive", false) && n > 0) {
    Shape one = x.shape();
    one[axis] = 1;
    x = concat({ones(one, x.dtype(), x.device()), slice(x, axis, 0, n - 1)}, axis);
  }
  const Tensor out = cast(cumprod(x, axis), x.dtype());
  return {reverse ? flip(out, {axis}) : out};
}

Values unique_slices(const Call& c) {
  const Tensor& x = c.in(0);
  const bool sorted = c.flag("sorted", true);
  const UniqueAlong u = c.has_attribute("axis")
                            ? unique_along(x, checked_axis(c, c.integer("axis", 0), x.dim()), sorted)
                            : unique_along(flatten(x), 0, sorted);
  return {u.values, u.first, u.inverse, u.counts};
}

constexpr Entry entries[] = {
    {"CumProd", 26, cumulative_product},
    {"GatherND", 11, gather_slices},
    {"Scatter", 9, scatter_elements},
    {"GatherND", 1, gather_slices, "com.microsoft"},
    {"ScatterElements", 11, scatter_elements},
    {"ScatterND", 11, scatter_slices},
    {"Unique", 11, unique_slices},
};

}  // namespace

std::span<const Entry> order_handlers() { return entries; }

}  // namespace tessera::onnx
