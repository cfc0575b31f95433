#include "ops/planes.h"

#include <algorithm>
#include <cmath>

#include "ops/check.h"
#include "ops/op_table.h"
#include "ops/reference.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

using reference::Index;

// Elements of window i of dim d along it that lie inside.
std::vector<int64_t> elements_of(const PlaneWindowsAttrs& a, size_t d, int64_t i) {
  std::vector<int64_t> all;
  if (a.window[d] == 0) {
    for (int64_t at = i * a.size[d] / a.count[d]; at * a.count[d] < (i + 1) * a.size[d]; ++at) all.push_back(at);
    return all;
  }
  for (int64_t tap = 0; tap < a.window[d]; ++tap) {
    const int64_t at = i * a.stride[d] + tap * a.dilation[d] - a.low[d];
    if (at >= 0 && at < a.size[d]) all.push_back(at);
  }
  return all;
}

// fn(place in the plane, index of the element) for the elements of a window [n, c, ...].
template <class Fn>
void each_in_window(const PlaneWindowsAttrs& a, const Index& window, const Fn& fn) {
  const auto at = [&](size_t d) {
    const int64_t axis = static_cast<int64_t>(d) - 3 + a.dims;
    return axis < 0 ? std::vector<int64_t>{0} : elements_of(a, d, window[static_cast<size_t>(2 + axis)]);
  };
  for (const int64_t i : at(0))
    for (const int64_t j : at(1))
      for (const int64_t k : at(2)) {
        Index element{window[0], window[1]};
        const int64_t all[] = {i, j, k};
        element.insert(element.end(), all + 3 - a.dims, all + 3);
        fn((i * a.size[1] + j) * a.size[2] + k, element);
      }
}

// n, c and the sizes or the counts.
Shape planes_of(const Dim& n, const Dim& c, const PlaneWindowsAttrs& a, const int64_t (&lengths)[3]) {
  Shape shape{n, c};
  for (int64_t d = 3 - a.dims; d < 3; ++d) shape.push_back(lengths[d]);
  return shape;
}

// What is wrong with windows, or nothing.
std::string problem_of(const PlaneWindowsAttrs& a) {
  if (a.dims < 1 || a.dims > 3) return fmt::format("planes of {} dims", a.dims);
  double elements = 1, windows = 1;
  for (int d = 0; d < 3; ++d) {
    if (std::min({a.size[d], a.count[d], a.stride[d], a.dilation[d]}) < 1 || std::min(a.window[d], a.low[d]) < 0)
      return fmt::format("{} windows of {}, stride {}, dilation {} and padding {} on {} elements", a.count[d],
                         a.window[d], a.stride[d], a.dilation[d], a.low[d], a.size[d]);
    const auto product = [](int64_t x, int64_t y) { return static_cast<double>(x) * static_cast<double>(y); };
    const double reach = product(a.count[d], a.stride[d]) + product(a.window[d], a.dilation[d]) + product(a.low[d], 1);
    if (std::max(reach, product(a.size[d], 1)) > 0x1p30) return "windows reach further than 2^30 elements";
    elements *= product(a.size[d], 1);
    windows *= product(a.count[d], std::max<int64_t>(1, a.window[d]));
  }
  return std::max(elements, windows) < 0x1p31 ? "" : "a plane has 2^31 elements, or taps of its windows, or more";
}
void require_known(std::string_view op, const PlaneWindowsAttrs& a) {
  if (const std::string problem = problem_of(a); !problem.empty()) fail(op, "{}", problem);
}

// ---- max_in_windows: x -> y, places; its gradient: dy, places -> dx

Metas infer_max(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr std::string_view op = "max_in_windows";
  require_inputs(op, in);
  const auto& a = attrs.as<PlaneWindowsAttrs>();
  require_known(op, a);
  require_one_floating_dtype(op, in, 1);
  require_rank(op, "x", in[0], 2 + a.dims);
  require_shape(op, "x", in[0], planes_of(in[0].shape[0], in[0].shape[1], a, a.size));
  const Shape shape = planes_of(in[0].shape[0], in[0].shape[1], a, a.count);
  return {{shape, in[0].dtype, in[0].device}, {shape, Int64, in[0].device}};
}
Metas infer_max_backward(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr std::string_view op = "max_in_windows_backward";
  require_inputs(op, in);
  const auto& a = attrs.as<PlaneWindowsAttrs>();
  require_known(op, a);
  require_one_floating_dtype(op, in, 1);
  require_rank(op, "dy", in[0], 2 + a.dims);
  require_shape(op, "dy", in[0], planes_of(in[0].shape[0], in[0].shape[1], a, a.count));
  require_shape(op, "places", in[1], in[0].shape);
  if (in[1].dtype != Int64) fail(op, "places must be i64, not {}", describe(in[1]));
  return {{planes_of(in[0].shape[0], in[0].shape[1], a, a.size), in[0].dtype, in[0].device}};
}

Tensors max_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<PlaneWindowsAttrs>();
  const Shape shape = planes_of(in[0].shape()[0], in[0].shape()[1], a, a.count);
  const auto find = [&](const Index& i) {
    std::pair<double, int64_t> best{-INFINITY, -1};
    each_in_window(a, i, [&](int64_t place, const Index& element) {
      const double v = reference::get(in[0], element);
      if (best.second < 0 || std::isnan(v) || v > best.first) best = {v, place};
    });
    return best;
  };
  return {reference::generate(shape, in[0].dtype(), [&](const Index& i) { return find(i).first; }),
          reference::generate(shape, Int64, [&](const Index& i) { return static_cast<double>(find(i).second); })};
}
Tensors max_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<PlaneWindowsAttrs>();
  const Tensor dx = zeros(planes_of(in[0].shape()[0], in[0].shape()[1], a, a.size), in[0].dtype());
  reference::each_index(in[0].shape(), [&](const Index& i) {
    each_in_window(a, i, [&](int64_t place, const Index& element) {
      if (static_cast<double>(place) == reference::get(in[1], i))
        reference::set(dx, element, reference::get(dx, element) + reference::get(in[0], i));
    });
  });
  return {dx};
}

// The gradient of the scatter is the gather from the same places.
Tensors max_backward_vjp(const Saved& s, const Tensors& grads) {
  const Tensor& places = s.inputs[1];
  return {reshape(gather(flatten(grads[0], 2), 2, flatten(places, 2)), places.shape()), {}};
}
const Op max_in_windows_backward_op = {.name = "max_in_windows_backward",
                                       .inputs = "dy, places",
                                       .outputs = "dx",
                                       .attrs = attrs_of<PlaneWindowsAttrs>,
                                       .infer = infer_max_backward,
                                       .vjp = max_backward_vjp,
                                       .reference = max_backward_reference,
                                       .saves = {.inputs = 0b10},
                                       .pitched = Pitched::None};
Tensors max_vjp(const Saved& s, const Tensors& grads) {
  return {dispatch_one(max_in_windows_backward_op, {grads[0], s.outputs[1].detach()}, s.attrs)};
}
const Op max_in_windows_op = {.name = "max_in_windows",
                              .inputs = "x",
                              .outputs = "y, places",
                              .attrs = attrs_of<PlaneWindowsAttrs>,
                              .infer = infer_max,
                              .vjp = max_vjp,
                              .reference = max_reference,
                              .saves = {.outputs = 0b10},
                              .pitched = Pitched::None};

// ---- fold: columns [n, c taps, windows] -> planes [n, c, ...], each element the sum of the taps that lie on it

Metas infer_fold(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr std::string_view op = "fold";
  require_inputs(op, in);
  const auto& a = attrs.as<PlaneWindowsAttrs>();
  require_known(op, a);
  require_one_floating_dtype(op, in, 1);
  require_rank(op, "x", in[0], 3);
  const int64_t taps = a.window[0] * a.window[1] * a.window[2];
  if (taps < 1) fail(op, "adaptive windows have no taps");
  const Dim channels = in[0].shape[1] / taps;
  require_shape(op, "x", in[0], {in[0].shape[0], channels * taps, Dim(a.count[0] * a.count[1] * a.count[2])});
  return {{planes_of(in[0].shape[0], channels, a, a.size), in[0].dtype, in[0].device}};
}
Tensors fold_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<PlaneWindowsAttrs>();
  const Tensor& x = in[0];
  const int64_t taps = a.window[0] * a.window[1] * a.window[2];
  const Tensor y = zeros(planes_of(x.shape()[0], x.size(1) / taps, a, a.size), x.dtype());
  reference::each_index(x.shape(), [&](const Index& i) {
    int64_t tap = i[1] % taps, window = i[2], at[3];
    for (int d = 2; d >= 0; --d) {
      at[d] = window % a.count[d] * a.stride[d] + tap % a.window[d] * a.dilation[d] - a.low[d];
      if (at[d] < 0 || at[d] >= a.size[d]) return;
      tap /= a.window[d];
      window /= a.count[d];
    }
    Index to{i[0], i[1] / taps};
    to.insert(to.end(), at + 3 - a.dims, at + 3);
    reference::set(y, to, reference::get(y, to) + reference::get(x, i));
  });
  return {y};
}
Tensors fold_vjp(const Saved& s, const Tensors& grads) {
  const auto& a = s.attrs.as<PlaneWindowsAttrs>();
  Windows w;
  for (int64_t d = 3 - a.dims; d < 3; ++d) {
    w.size.push_back(a.window[d]);
    w.stride.push_back(a.stride[d]);
    w.dilation.push_back(a.dilation[d]);
    w.low.push_back(a.low[d]);
    const int64_t reach = (a.count[d] - 1) * a.stride[d] + (a.window[d] - 1) * a.dilation[d] + 1;
    w.high.push_back(std::max<int64_t>(0, reach - a.size[d] - a.low[d]));
  }
  return {unfold(grads[0], w)};
}
const Op fold_op = {.name = "fold",
                    .inputs = "x",
                    .outputs = "y",
                    .attrs = attrs_of<PlaneWindowsAttrs>,
                    .infer = infer_fold,
                    .vjp = fold_vjp,
                    .reference = fold_reference,
                    .pitched = Pitched::None};

std::optional<PlaneWindowsAttrs> where_known(const PlaneWindowsAttrs& a) {
  return problem_of(a).empty() ? std::optional(a) : std::nullopt;
}

}  // namespace

std::span<const Op* const> plane_ops() {
  static constexpr const Op* ops[] = {&max_in_windows_op, &max_in_windows_backward_op, &fold_op};
  return ops;
}

std::optional<PlaneWindowsAttrs> plane_windows(const Windows& w, const Dims& sizes, const Dims& counts) {
  PlaneWindowsAttrs a;
  a.dims = static_cast<int64_t>(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    const size_t d = 3 - sizes.size() + i;
    a.size[d] = sizes[i], a.count[d] = counts[i], a.window[d] = w.size[i];
    a.stride[d] = w.stride[i], a.dilation[d] = w.dilation[i], a.low[d] = w.low[i];
  }
  return where_known(a);
}
std::optional<PlaneWindowsAttrs> adaptive_plane_windows(const Dims& sizes, const Dims& counts) {
  PlaneWindowsAttrs a;
  a.dims = static_cast<int64_t>(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    const size_t d = 3 - sizes.size() + i;
    a.size[d] = sizes[i], a.count[d] = counts[i], a.window[d] = 0;
  }
  return where_known(a);
}

std::pair<Tensor, Tensor> max_in_windows(const Tensor& x, const PlaneWindowsAttrs& windows) {
  const Tensors out = dispatch(max_in_windows_op, {x}, windows);
  return {out[0], out[1]};
}
Tensor fold_planes(const Tensor& x, const PlaneWindowsAttrs& windows) { return dispatch_one(fold_op, {x}, windows); }

}  // namespace tessera
