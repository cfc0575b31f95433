// Sliding windows as views, whose gradient folds them: elements that lie in several windows get the sum.
#include "ops/windows.h"

#include <algorithm>

#include "core/capture_state.h"
#include "ops/elements.h"
#include "ops/fold_on_host.h"
#include "ops/on_host.h"
#include "ops/op_table.h"
#include "ops/planes.h"
#include "ops/reference.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

constexpr int64_t kMostInWindow = int64_t(1) << 31;  // products of two do not overflow

// How many windows there are.
Dim windows_on(const Shape& x, int64_t dim, const WindowAttrs& a) {
  constexpr auto op = "sliding_window";
  if (std::min({a.size, a.stride, a.dilation}) < 1)
    fail(op, "size {}, stride {} and dilation {} must be positive", a.size, a.stride, a.dilation);
  if (std::max({a.size, a.stride, a.dilation}) > kMostInWindow)
    fail(op, "size {}, stride {} and dilation {} must not exceed 2^31", a.size, a.stride, a.dilation);
  const Dim room = x[dim] - (a.size - 1) * a.dilation - 1;
  if (!room.is_symbolic() && room.value() < 0)
    fail(op, "a window of {} with dilation {} exceeds dim {} of {}", a.size, a.dilation, dim, to_string(x));
  return room / a.stride + 1;
}

Shape windowed(const Shape& x, const WindowAttrs& a) {
  Shape shape = x;
  const int64_t dim = normalize_dim("sliding_window", a.dim, x);
  shape[dim] = windows_on(x, dim, a);
  shape.push_back(a.size);
  return shape;
}

Metas infer_sliding_window(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("sliding_window", in);
  return {{windowed(in[0].shape, attrs.as<WindowAttrs>()), in[0].dtype, in[0].device}};
}
std::optional<ViewLayout> view_sliding_window(const TensorImpl& in, const Attrs& attrs) {
  const auto& a = attrs.as<WindowAttrs>();
  ViewLayout out{windowed(in.shape, a), {}, in.symbolic ? in.symbolic->offset : Dim(in.offset)};
  out.strides = in.symbolic ? in.symbolic->strides : DimStrides(in.strides.begin(), in.strides.end());
  const int64_t dim = normalize_dim("sliding_window", a.dim, in.shape);
  const Dim stride = out.strides[dim];
  out.strides[dim] = stride * a.stride;
  out.strides.push_back(stride * a.dilation);
  return out;
}
Tensors sliding_window_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<WindowAttrs>();
  const int64_t dim = normalize_dim("sliding_window", a.dim, in[0].shape());
  return {reference::generate(windowed(in[0].shape(), a), in[0].dtype(), [&](const reference::Index& i) {
    reference::Index from(i.begin(), i.end() - 1);
    from[dim] = i[dim] * a.stride + i.back() * a.dilation;
    return reference::get(in[0], from);
  })};
}

// Places windows [..., places, ..., taps] tap by tap.
Tensor folded_taps(const Tensor& windows, Dim length, const WindowAttrs& a) {
  Tensor out;
  const Op& place = find_op("slice_backward");
  for (int64_t tap = 0; tap < a.size; ++tap) {
    const Tensor one =
        dispatch_one(place, {select(windows, -1, tap)}, ScatterAttrs{a.dim, length, tap * a.dilation, a.stride});
    out = out.defined() ? add(out, one) : one;
  }
  return out;
}

// The same where taps lie next to each other: as many of them as windows are apart fill a line without overlap, so
// that there is a sum for each such block of taps and not for each tap.
Tensor folded_blocks(const Tensor& windows, Dim length, const WindowAttrs& a) {
  const int64_t rank = windows.dim() - 1, after = rank - a.dim - 1;
  const int64_t blocks = (a.size - 1) / a.stride + 1;
  Dims order;
  for (int64_t d = 0; d <= a.dim; ++d) order.push_back(d);
  order.push_back(rank);
  for (int64_t d = a.dim + 1; d < rank; ++d) order.push_back(d);
  const Tensor taps = permute(pad(windows, {0}, {blocks * a.stride - a.size}), order);
  Shape lines = windows.shape();
  lines.pop_back();
  lines[a.dim] = lines[a.dim] * a.stride;
  Dims low(Dims{0}), high(Dims{0});
  for (int64_t d = 0; d < after; ++d) low.push_back(0), high.push_back(0);
  int64_t behind = blocks * a.stride - 1;  // the last window
  if (!length.is_symbolic() && !lines[a.dim].is_symbolic())
    behind = std::max(behind, length.value() - lines[a.dim].value());
  Tensor out;
  for (int64_t b = 0; b < blocks; ++b) {
    const Tensor line = reshape(slice(taps, a.dim + 1, b * a.stride, (b + 1) * a.stride), lines);
    low[0] = b * a.stride;
    high[0] = behind - b * a.stride;
    const Tensor one = pad(line, low, high);
    out = out.defined() ? add(out, one) : one;
  }
  return slice(out, a.dim, Dim(0), length, 1);
}

// The same by a kernel, for which other dims are planes of their own.
std::optional<Tensor> card_folded(const Tensor& windows, int64_t length, const WindowAttrs& a) {
  const int64_t rank = windows.dim() - 1, count = windows.size(a.dim);
  const Windows w{.size = {a.size}, .stride = {a.stride}, .low = {0}, .high = {0}, .dilation = {a.dilation}};
  const auto known = plane_windows(w, {length}, {count});
  if (!known || windows.numel() == 0) return {};
  Dims order, back;
  for (int64_t d = 0; d < rank; ++d)
    if (d != a.dim) order.push_back(d);
  Shape lines;
  for (const int64_t d : order) lines.push_back(windows.shape()[d]);
  lines.push_back(length);
  for (int64_t d = 0; d < rank; ++d) back.push_back(d == a.dim ? rank - 1 : d - (d > a.dim));
  order.push_back(rank);
  order.push_back(a.dim);
  const Tensor columns = reshape(permute(windows, order), {windows.numel() / (a.size * count), a.size, count});
  return permute(reshape(fold_planes(columns, *known), lines), back);
}

// The sum of windows along one dim of `length` elements.
Tensor folded(const Tensor& windows, Dim length, WindowAttrs a) {
  Shape lines = windows.shape();
  lines.pop_back();
  a.dim = normalize_dim("fold_windows", a.dim, lines);
  if (lines[a.dim] == Dim(1)) a.stride = a.size * a.dilation;
  if (on_host(windows) && windows.dtype() != Bool) return host_folded(windows, length.value(), a);
  if (windows.device().is_card() && is_floating(windows.dtype()) && !is_capturing() && !length.is_symbolic())
    if (const auto done = card_folded(windows, length.value(), a)) return *done;
  return a.dilation > 1 || lines.rank() - a.dim > 6 ? folded_taps(windows, length, a)
                                                    : folded_blocks(windows, length, a);
}

Tensors sliding_window_vjp(const Saved& s, const Tensors& grads) {
  const auto& a = s.attrs.as<WindowAttrs>();
  const Shape& x = s.metas[0].shape;
  return {folded(grads[0], x[normalize_dim("sliding_window", a.dim, x)], a)};
}

const Op sliding_window_op = {.name = "sliding_window",
                              .inputs = "x",
                              .outputs = "y",
                              .attrs = attrs_of<WindowAttrs>,
                              .infer = infer_sliding_window,
                              .vjp = sliding_window_vjp,
                              .reference = sliding_window_reference,
                              .saves = {.metas = 1},
                              .view = view_sliding_window,
                              .elements = moved<1>};

void require_windows(std::string_view op, const Dims& dims, const Dims& sizes, const Dims& strides,
                     const Dims& dilations) {
  for (const Dims* list : {&strides, &dilations})
    if (!list->empty() && list->size() != dims.size())
      fail(op, "a list of {} numbers for {} dims", list->size(), dims.size());
  if (sizes.size() != dims.size()) fail(op, "a list of {} numbers for {} dims", sizes.size(), dims.size());
}

}  // namespace

std::span<const Op* const> window_ops() {
  static constexpr const Op* ops[] = {&sliding_window_op};
  return ops;
}

Dims spatial_list(std::string_view op, std::string_view what, const Dims& given, int64_t spatial, int64_t otherwise) {
  if (!given.empty() && static_cast<int64_t>(given.size()) != spatial)
    fail(op, "{} has {} numbers for {} spatial dims", what, given.size(), spatial);
  Dims all = given;
  while (static_cast<int64_t>(all.size()) < spatial) all.push_back(otherwise);
  return all;
}

int64_t spatial_dims(std::string_view op, const Tensor& x) {
  const int64_t spatial = x.dim() - 2;
  if (spatial < 1 || spatial > 3) fail(op, "x must have one to three spatial dims, not shape {}", to_string(x.shape()));
  return spatial;
}

Windows filled_windows(std::string_view op, const Windows& given, int64_t spatial, bool is_pool) {
  if (given.size.empty()) fail(op, "the window has no size");
  Windows w = given;
  w.size = spatial_list(op, "size", given.size, spatial, 1);
  w.stride = given.stride.empty() && is_pool ? w.size : spatial_list(op, "stride", given.stride, spatial, 1);
  w.low = spatial_list(op, "low", given.low, spatial, 0);
  w.high = spatial_list(op, "high", given.high, spatial, 0);
  w.dilation = spatial_list(op, "dilation", given.dilation, spatial, 1);
  for (int64_t d = 0; d < spatial; ++d) {
    if (std::min({w.size[d], w.stride[d], w.dilation[d]}) < 1)
      fail(op, "size {}, stride {} and dilation {} must be positive", w.size[d], w.stride[d], w.dilation[d]);
    if (std::min(w.low[d], w.high[d]) < 0) fail(op, "padding {} and {} is negative", w.low[d], w.high[d]);
    if (std::max({w.size[d], w.stride[d], w.dilation[d], w.low[d], w.high[d]}) > kMostInWindow)
      fail(op, "size {}, stride {}, dilation {} and padding {} and {} must not exceed 2^31", w.size[d], w.stride[d],
           w.dilation[d], w.low[d], w.high[d]);
  }
  return w;
}

int64_t window_count(std::string_view op, const Windows& w, int64_t d, int64_t size) {
  const int64_t room = size + w.low[d] + w.high[d] - (w.size[d] - 1) * w.dilation[d] - 1;
  if (room < 0)
    fail(op, "a window of {} with dilation {} exceeds the size {} padded by {} and {}", w.size[d], w.dilation[d], size,
         w.low[d], w.high[d]);
  int64_t count = room / w.stride[d] + 1;
  if (w.ceil && room % w.stride[d] && count * w.stride[d] < size + w.low[d]) ++count;
  return count;
}

Dim window_count(std::string_view op, const Windows& w, int64_t d, Dim size) {
  if (!size.is_symbolic()) return window_count(op, w, d, size.value());
  const int64_t reach = (w.size[d] - 1) * w.dilation[d] + 1;
  // A last window that does not fit begins before the padding behind.
  if (w.ceil && w.high[d] + w.stride[d] > reach) size.value();
  return (size + (w.low[d] + w.high[d] - reach + (w.ceil ? w.stride[d] - 1 : 0))) / w.stride[d] + 1;
}

// ---- public functions

Tensor sliding_windows(const Tensor& x, const Dims& dims, const Dims& sizes, const Dims& strides,
                       const Dims& dilations) {
  require_windows("sliding_windows", dims, sizes, strides, dilations);
  Tensor y = x;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t dim = normalize_dim("sliding_windows", dims[i], x.shape());
    y = dispatch_one(
        sliding_window_op, {y},
        WindowAttrs{dim, sizes[i], strides.empty() ? 1 : strides[i], dilations.empty() ? 1 : dilations[i]});
  }
  return y;
}

Tensor fold_windows(const Tensor& windows, const Dims& dims, const Dims& lengths, const Dims& strides,
                    const Dims& dilations) {
  constexpr auto op = "fold_windows";
  require_windows(op, dims, lengths, strides, dilations);
  const auto count = static_cast<int64_t>(dims.size()), rank = windows.dim() - count;
  if (rank < count) fail(op, "{} has no windows of {} dims", to_string(windows.shape()), count);
  const Shape lines(windows.shape().begin(), windows.shape().end() - count);
  Tensor x = windows;
  for (int64_t i = count; i-- > 0;) {
    const int64_t dim = normalize_dim(op, dims[i], lines);
    const WindowAttrs a{dim, windows.size(rank + i), strides.empty() ? 1 : strides[i],
                        dilations.empty() ? 1 : dilations[i]};
    Shape line = x.shape();
    line.pop_back();
    line[dim] = lengths[i];
    if (provably_different(windows_on(line, dim, a), x.shape()[dim]))
      fail(op, "{} windows of {} do not lie on {} elements of dim {}", x.shape()[dim].to_string(), a.size, lengths[i],
           dim);
    x = folded(x, lengths[i], a);
  }
  return x;
}

Windows same_padding(Windows windows, const Shape& x, bool upper) {
  const int64_t spatial = x.rank() - 2;
  if (spatial < 1) fail("same_padding", "{} has no spatial dims", to_string(x));
  const Windows w = filled_windows("same_padding", windows, spatial, false);
  windows.low.clear(), windows.high.clear();
  for (int64_t d = 0; d < spatial; ++d) {
    const int64_t size = x[2 + d].value(), count = (size + w.stride[d] - 1) / w.stride[d];
    const int64_t total = std::max<int64_t>(0, (count - 1) * w.stride[d] + (w.size[d] - 1) * w.dilation[d] + 1 - size);
    windows.low.push_back(upper ? total / 2 : total - total / 2);
    windows.high.push_back(total - windows.low.back());
  }
  return windows;
}

Tensor unfold(const Tensor& x, const Windows& windows) {
  const int64_t spatial = spatial_dims("unfold", x);
  const Windows w = filled_windows("unfold", windows, spatial, false);
  Dims dims, order{0, 1};
  int64_t taps = 1;
  Dim count = 1;
  for (int64_t d = 0; d < spatial; ++d) {
    dims.push_back(2 + d);
    order.push_back(2 + spatial + d);
    taps *= w.size[d];
    count = count * window_count("unfold", w, d, x.shape()[2 + d]);
  }
  for (int64_t d = 0; d < spatial; ++d) order.push_back(2 + d);
  const Tensor all = sliding_windows(pad(x, w.low, w.high), dims, w.size, w.stride, w.dilation);
  return reshape(permute(all, order), {x.shape()[0], x.shape()[1] * taps, count});
}

Tensor fold(const Tensor& x, const Dims& sizes, const Windows& windows) {
  constexpr auto op = "fold";
  const auto spatial = static_cast<int64_t>(sizes.size());
  if (x.dim() != 3) fail(op, "x must have 3 dims, not shape {}", to_string(x.shape()));
  if (spatial < 1 || spatial > 3) fail(op, "takes one to three spatial dims, not {}", spatial);
  const Windows w = filled_windows(op, windows, spatial, false);
  Dims dims, lengths, counts;
  Dim count = 1;
  int64_t taps = 1;
  for (int64_t d = 0; d < spatial; ++d) taps *= w.size[d];
  if (x.size(1) % taps) fail(op, "{} channels do not split into windows of {} taps", x.size(1), taps);
  Shape split{x.shape()[0], x.size(1) / taps};
  for (int64_t d = 0; d < spatial; ++d) split.push_back(w.size[d]);
  Dims order{0, 1};
  for (int64_t d = 0; d < spatial; ++d) {
    if (sizes[d] < 0 || sizes[d] > INT64_MAX / 4) fail(op, "size {} is out of range", sizes[d]);
    counts.push_back(window_count(op, w, d, sizes[d]));
    split.push_back(counts.back());
    count = count * split.back();
    lengths.push_back(sizes[d] + w.low[d] + w.high[d]);
    dims.push_back(2 + d);
    order.push_back(2 + spatial + d);
  }
  if (x.size(2) != count.value()) fail(op, "{} has {} windows, not {}", to_string(x.shape()), x.size(2), count.value());
  if (is_floating(x.dtype()) && !is_capturing())
    if (const auto known = plane_windows(w, sizes, counts)) return fold_planes(x, *known);
  for (int64_t d = 0; d < spatial; ++d) order.push_back(2 + d);
  Tensor y = fold_windows(permute(reshape(x, split), order), dims, lengths, w.stride, w.dilation);
  for (int64_t d = 0; d < spatial; ++d) y = slice(y, 2 + d, w.low[d], w.low[d] + sizes[d]);
  return y;
}

}  // namespace tessera
