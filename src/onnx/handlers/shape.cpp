// Shapes: views, joins and splits.
#include <algorithm>

#include "onnx/handler.h"
#include "tessera/ops.h"
#include "tessera/ops_shape.h"

namespace tessera::onnx {
namespace {

constexpr int64_t kMostDims = 64;  // as weights have

Tensor list_of(const std::vector<int64_t>& values) { return tensor(values, {static_cast<int64_t>(values.size())}); }

Values reshape_to(const Call& c) {
  const Tensor& x = c.in(0);
  std::vector<int64_t> sizes = c.has(1) ? c.ints(1) : c.integers("shape");
  if (sizes.size() > static_cast<size_t>(kMostDims)) c.fail("{} dims are too many", sizes.size());
  const bool zeros_stay = c.flag("allowzero", false);
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] == 0 && !zeros_stay) {
      if (d >= static_cast<size_t>(x.dim())) c.fail("size 0 keeps dim {}, which {} lacks", d, describe(x));
      sizes[d] = x.size(static_cast<int64_t>(d));
    }
  return {reshape(x, Shape(std::span<const int64_t>(sizes)))};
}
Values transpose_dims(const Call& c) {
  std::vector<int64_t> order = c.integers("perm");
  if (order.empty())
    for (int64_t d = c.in(0).dim(); d-- > 0;) order.push_back(d);
  return {permute(c.in(0), order)};
}
Values flatten_to_matrix(const Call& c) {
  const Tensor& x = c.in(0);
  int64_t axis = c.integer("axis", 1);
  if (axis < 0) axis += x.dim();
  if (axis < 0 || axis > x.dim()) c.fail("axis {} is outside of {}", axis, describe(x));
  int64_t rows = 1;
  for (int64_t d = 0; d < axis; ++d) rows *= x.size(d);
  int64_t columns = 1;
  for (int64_t d = axis; d < x.dim(); ++d) columns *= x.size(d);
  return {reshape(x, {rows, columns})};
}
Values squeeze_dims(const Call& c) {
  Tensor x = c.in(0);
  std::vector<int64_t> axes = c.has(1) ? c.ints(1) : c.integers("axes");
  const int64_t rank = x.dim();
  const bool all = !c.has(1) && !c.has_attribute("axes");
  if (all)
    for (int64_t d = 0; d < rank; ++d)
      if (x.size(d) == 1) axes.push_back(d);
  for (int64_t& d : axes) d = c.axis_in(d, rank);
  std::sort(axes.begin(), axes.end(), std::greater<>());
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  for (const int64_t d : axes) x = squeeze(x, d);
  return {x};
}
Values unsqueeze_dims(const Call& c) {
  Tensor x = c.in(0);
  std::vector<int64_t> axes = c.has(1) ? c.ints(1) : c.integers("axes");
  const int64_t rank = x.dim() + static_cast<int64_t>(axes.size());
  if (rank > kMostDims) c.fail("{} dims are too many", rank);
  for (int64_t& d : axes) d = c.axis_in(d, rank);
  std::sort(axes.begin(), axes.end());
  if (std::adjacent_find(axes.begin(), axes.end()) != axes.end()) c.fail("a dim is named twice");
  for (const int64_t d : axes) x = unsqueeze(x, d);
  return {x};
}
Values concat_along(const Call& c) { return {concat(c.tensors(), c.integer("axis", 1))}; }

Values split_along(const Call& c) {
  const Tensor& x = c.in(0);
  const int64_t axis = c.axis(0, x.dim()), size = x.size(axis);
  std::vector<int64_t> sizes = c.has(1) ? c.ints(1) : c.integers("split");
  if (sizes.empty()) {
    const int64_t parts = c.integer("num_outputs", static_cast<int64_t>(c.outputs()));
    if (parts <= 0 || parts != static_cast<int64_t>(c.outputs())) c.fail("{} parts for {} outputs", parts, c.outputs());
    const int64_t each = size / parts + (size % parts != 0);
    for (int64_t i = 0; i < parts; ++i) sizes.push_back(std::clamp<int64_t>(size - i * each, 0, each));
  }
  Values out;
  int64_t at = 0;
  for (const int64_t n : sizes) {
    if (n < 0 || n > size - at) c.fail("parts of {} elements are more than the {} along dim {}", n, size, axis);
    out.emplace_back(slice(x, axis, at, at + n));
    at += n;
  }
  if (at != size) c.fail("parts have {} elements, of {} along dim {}", at, size, axis);
  return out;
}

Values slices(const Call& c) {
  Tensor x = c.in(0);
  const bool by_inputs = c.has(1);
  const std::vector<int64_t> starts = by_inputs ? c.ints(1) : c.integers("starts"),
                             ends = by_inputs ? c.ints(2) : c.integers("ends");
  std::vector<int64_t> axes = by_inputs ? c.ints(3, {}) : c.integers("axes"), steps = c.ints(4, {});
  if (axes.empty())
    for (size_t i = 0; i < starts.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  if (steps.empty()) steps.assign(starts.size(), 1);
  if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size())
    c.fail("starts, ends, axes and steps are of different lengths");
  for (size_t i = 0; i < starts.size(); ++i) x = slice_by(x, c.axis_in(axes[i], x.dim()), starts[i], ends[i], steps[i]);
  return {x};
}

Values expand_to(const Call& c) {
  const Tensor& x = c.in(0);
  std::vector<int64_t> sizes = c.ints(1);
  if (sizes.size() > static_cast<size_t>(kMostDims)) c.fail("{} dims are too many", sizes.size());
  const int64_t rank = std::max<int64_t>(x.dim(), static_cast<int64_t>(sizes.size()));
  sizes.insert(sizes.begin(), static_cast<size_t>(rank) - sizes.size(), 1);
  for (int64_t d = 0; d < x.dim(); ++d) {
    int64_t& size = sizes[static_cast<size_t>(rank - x.dim() + d)];
    if (size == 1) size = x.size(d);
  }
  return {expand(x, Shape(std::span<const int64_t>(sizes)))};
}
Values tile_dims(const Call& c) {
  const std::vector<int64_t> repeats = c.ints(1);
  if (repeats.size() != static_cast<size_t>(c.in(0).dim()))
    c.fail("{} repeats for {}", repeats.size(), describe(c.in(0)));
  return {repeat(c.in(0), repeats)};
}
Values shape_of_input(const Call& c) {
  const Value& v = c.value(0);
  const Tensor& x = v.tensor();
  const auto bound = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + x.dim() : i, 0, x.dim()); };
  const int64_t start = bound(c.integer("start", 0)), end = bound(c.integer("end", x.dim()));
  std::vector<int64_t> sizes;
  for (int64_t d = start; d < end; ++d) sizes.push_back(x.size(d));
  return {list_of(sizes)};
}
Values size_of_input(const Call& c) { return {tensor(std::vector<int64_t>{c.in(0).numel()}, {})}; }

constexpr int64_t kMostDiagonals = int64_t{1} << 62;
Values triangle(const Call& c) {
  const int64_t k = c.has(1) ? c.whole(1, -kMostDiagonals, kMostDiagonals) : 0;
  return {c.flag("upper", true) ? triu(c.in(0), k) : tril(c.in(0), k)};
}

Values reverse_sequence(const Call& c) {
  const Tensor& x = c.in(0);
  const std::vector<int64_t> lengths = c.ints(1);
  const int64_t batch = c.axis_in(c.integer("batch_axis", 1), x.dim()),
                time = c.axis_in(c.integer("time_axis", 0), x.dim());
  if (static_cast<int64_t>(lengths.size()) != x.size(batch)) c.fail("{} lengths for {}", lengths.size(), describe(x));
  Tensors parts;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i), n = lengths[i];
    if (n < 0 || n > x.size(time)) c.fail("a length of {}", n);
    const Tensor one = slice(x, batch, at, at + 1);
    parts.push_back(concat({flip(slice(one, time, 0, n), {time}), slice(one, time, n, x.size(time))}, time));
  }
  return {concat(parts, batch)};
}

constexpr Entry entries[] = {
    {"Concat", 1, concat_along},
    {"Expand", 8, expand_to},
    {"Flatten", 1, flatten_to_matrix},
    {"Reshape", 1, reshape_to},
    {"ReverseSequence", 10, reverse_sequence},
    {"Shape", 1, shape_of_input},
    {"Size", 1, size_of_input},
    {"Slice", 1, slices},
    {"Split", 1, split_along},
    {"Squeeze", 1, squeeze_dims},
    {"Tile", 6, tile_dims},
    {"Transpose", 1, transpose_dims},
    {"Trilu", 14, triangle},
    {"Trilu", 1, triangle, "com.microsoft"},
    {"Unsqueeze", 1, unsqueeze_dims},
};

}  // namespace

std::span<const Entry> shape_handlers() { return entries; }

}  // namespace tessera::onnx
