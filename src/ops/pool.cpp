// Pools of one to three spatial dims. Maxima and averages are separable, so they go through the kernels of two dims.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "core/attrs.h"
#include "core/util/allocation_limit.h"
#include "ops/adaptive_mean.h"
#include "ops/capture.h"
#include "ops/gradient.h"
#include "ops/on_card.h"
#include "ops/on_host.h"
#include "ops/op_table.h"
#include "ops/planes.h"
#include "ops/pool_places.h"
#include "ops/sparse_lines.h"
#include "ops/windows.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

// What lies beyond the padding, so that every window is whole.
Dims beyond_padding(std::string_view op, const Tensor& x, const Windows& w) {
  Dims beyond;
  for (int64_t d = 0; d < x.dim() - 2; ++d) {
    const Dim size = x.shape()[2 + d], count = window_count(op, w, d, size);
    if (size.is_symbolic()) {
      beyond.push_back(w.ceil ? w.stride[d] - 1 : 0);
      continue;
    }
    const Dim end = (count - 1) * w.stride[d] + (w.size[d] - 1) * w.dilation[d] + 1;
    beyond.push_back(std::max<int64_t>(0, (end - size).value() - w.low[d] - w.high[d]));
  }
  return beyond;
}

bool is_zero(const Dims& list) {
  return std::all_of(list.begin(), list.end(), [](int64_t n) { return n == 0; });
}

// Pads with `value`, so that windows need no padding any more.
Tensor padded_with(const Tensor& x, Windows& w, const Dims& beyond, double value) {
  Dims high;
  for (size_t d = 0; d < beyond.size(); ++d) high.push_back(w.high[d] + beyond[d]);
  const Tensor y = is_zero(w.low) && is_zero(high) ? x : pad(x, w.low, high, value);
  w.low = w.high = Dims(std::vector<int64_t>(beyond.size(), 0));
  w.ceil = false;
  return y;
}

// Whether the kernels of two dims take the padding as it is.
bool kernels_take(const Windows& w, const Dims& beyond) {
  for (size_t d = 0; d < beyond.size(); ++d)
    if (beyond[d] || w.low[d] != w.high[d] || 2 * w.low[d] > w.size[d]) return false;
  return true;
}

// Pools the last two dims of x [n, c, ...], or the last one, and then the depth.
template <class Pool>
Tensor by_two_dims(const Tensor& x, const Windows& w, Pool pool2d) {
  const size_t last = w.size.size() - 1;
  Pool2dOptions o{.window = {1, w.size[last]},
                  .stride = {1, w.stride[last]},
                  .padding = {0, w.low[last]},
                  .dilation = {1, w.dilation[last]}};
  const auto set_rows = [&](size_t d) {
    o.window[0] = w.size[d], o.stride[0] = w.stride[d], o.padding[0] = w.low[d], o.dilation[0] = w.dilation[d];
  };
  // Kernels on cards want no gaps behind rows.
  if (last == 0) return squeeze(pool2d(unsqueeze(on_card(x) ? contiguous(x) : x, 2), o), 2);
  set_rows(last - 1);
  if (last == 1) return pool2d(x, o);
  const Shape& s = x.shape();
  const Tensor planes = pool2d(reshape(x, {s[0], s[1] * s[2], s[3], s[4]}), o);
  const Dim height = planes.shape()[2], width = planes.shape()[3];
  o = {.window = {1, 1}, .stride = {1, 1}};
  set_rows(0);
  const Tensor y = pool2d(reshape(planes, {s[0], s[1], s[2], height * width}), o);
  return reshape(y, {s[0], s[1], y.shape()[2], height, width});
}

// Below every element.
double lowest_of(DType dtype) {
  if (is_floating(dtype)) return -INFINITY;
  if (dtype == Bool || is_unsigned(dtype)) return 0;
  return -std::ldexp(1, static_cast<int>(size_of(dtype)) * 8 - 1);
}

Dims spatial_places(int64_t spatial, int64_t first) {
  Dims dims;
  for (int64_t d = 0; d < spatial; ++d) dims.push_back(first + d);
  return dims;
}

// Windows of x, which needs no padding any more: [n, c, windows..., taps...].
Tensor whole_windows(const Tensor& x, const Windows& w) {
  return sliding_windows(x, spatial_places(x.dim() - 2, 2), w.size, w.stride, w.dilation);
}

// What a window's mean over all of its taps is multiplied by, so that it is one over those that count: a factor for
// each window along dim `d`.
std::vector<double> shares_along(const Windows& w, int64_t d, int64_t size, int64_t count, bool include_pad) {
  check_allocation({count});
  std::vector<double> shares;
  const int64_t low = include_pad ? -w.low[d] : 0, high = include_pad ? size + w.high[d] : size;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = i * w.stride[d] - w.low[d], step = w.dilation[d];
    const int64_t first = at >= low ? 0 : (low - at - 1) / step + 1;
    const int64_t end = at >= high ? 0 : std::min(w.size[d], (high - at - 1) / step + 1);
    const int64_t taps = std::max<int64_t>(0, end - first);
    shares.push_back(static_cast<double>(w.size[d]) / static_cast<double>(taps));
  }
  return shares;
}

Tensor scaled_by_shares(Tensor y, const Tensor& x, const Windows& w, bool include_pad) {
  for (int64_t d = 0; d < x.dim() - 2; ++d) {
    const int64_t count = y.size(2 + d);
    const auto shares = shares_along(w, d, x.size(2 + d), count, include_pad);
    if (std::all_of(shares.begin(), shares.end(), [](double s) { return s == 1; })) continue;
    Shape shape{count};
    for (int64_t rest = 3 + d; rest < x.dim(); ++rest) shape.push_back(1);
    y = mul(y, tensor(shares, shape).to(y.dtype()).to(y.device()));
  }
  return y;
}

// The mean of whole windows. The kernel knows no dilation.
Tensor mean_of_windows(const Tensor& x, Windows w) {
  Tensor y = x;
  for (size_t d = 0; d < w.size.size(); ++d) {
    if (w.dilation[d] == 1) continue;
    const auto dim = static_cast<int64_t>(2 + d);
    y = mean(sliding_windows(y, {dim}, {w.size[d]}, {w.stride[d]}, {w.dilation[d]}), {-1});
    w.size[d] = w.stride[d] = w.dilation[d] = 1;
  }
  return by_two_dims(y, w, avg_pool2d);
}

void require_floating(std::string_view op, const Tensor& x) {
  if (!is_floating(x.dtype())) fail(op, "takes floating-point tensors, not {}", describe(x));
}

// Where the taps' maxima lie: places in planes of x, row-major.
Tensor planar_places(const Tensor& taps, const Tensor& x, const Windows& w) {
  Tensor rest = taps, places;
  int64_t plane = 1;
  for (int64_t d = x.dim() - 3; d >= 0; --d) {
    const auto size = static_cast<double>(w.size[d]);
    const Tensor divisor = full({}, size, Int64, taps.device());
    const Tensor next = floor_div(rest, divisor), tap = sub(rest, mul(next, size));
    Shape shape{taps.size(2 + d)};
    for (int64_t i = 3 + d; i < x.dim(); ++i) shape.push_back(1);
    const auto stride = static_cast<double>(w.stride[d]);
    const Tensor starts = add(mul(arange(0, static_cast<double>(taps.size(2 + d)), 1, Int64, taps.device()), stride),
                              -static_cast<double>(w.low[d]));
    const Tensor at = clamp(add(reshape(starts, shape), mul(tap, static_cast<double>(w.dilation[d]))), 0,
                            static_cast<double>(x.size(2 + d) - 1));
    const Tensor scaled = mul(at, static_cast<double>(plane));
    places = places.defined() ? add(places, scaled) : scaled;
    plane *= x.size(2 + d);
    rest = next;
  }
  return places;
}

// The elements of each window along `dim`, the last of each window repeated: [..., windows, most, ...] as two dims.
struct AdaptiveWindows {
  std::vector<int64_t> places;
  int64_t count, most = 1;
};
AdaptiveWindows adaptive_windows(int64_t size, int64_t count) {
  AdaptiveWindows w{{}, count};
  const auto begin = [&](int64_t i) { return i * size / count; };
  const auto end = [&](int64_t i) { return ((i + 1) * size + count - 1) / count; };
  for (int64_t i = 0; i < count; ++i) w.most = std::max(w.most, end(i) - begin(i));
  for (int64_t i = 0; i < count; ++i)
    for (int64_t tap = 0; tap < w.most; ++tap) w.places.push_back(std::min(begin(i) + tap, end(i) - 1));
  return w;
}

void require_adaptive(std::string_view op, const Tensor& x, const Dims& sizes) {
  const int64_t spatial = spatial_dims(op, x);
  if (static_cast<int64_t>(sizes.size()) != spatial) fail(op, "{} sizes for {} spatial dims", sizes.size(), spatial);
  for (int64_t d = 0; d < spatial; ++d)
    if (sizes[d] < 1 || x.shape()[2 + d] == Dim(0))
      fail(op, "{} windows on dim {} of {}", sizes[d], 2 + d, to_string(x.shape()));
}

// fn(windows [..., count, most, ...], dim of the taps, the windows) for each dim.
template <class F>
Tensor adaptive(const Tensor& x, const Dims& sizes, F fn) {
  Tensor y = x;
  for (int64_t dim = 2; dim < x.dim(); ++dim) {
    const int64_t size = x.size(dim), count = sizes[dim - 2];
    if (count == size) continue;
    const AdaptiveWindows w = adaptive_windows(size, count);
    const Tensor places = tensor(w.places, {static_cast<int64_t>(w.places.size())}).to(x.device());
    Shape shape = y.shape();
    shape[dim] = w.count;
    shape.insert(shape.begin() + dim + 1, Dim(w.most));
    y = fn(reshape(index_select(y, dim, places), shape), dim + 1, w);
  }
  return y;
}

bool takes_plane_windows(const Tensor& x) { return x.device().is_card() && is_floating(x.dtype()) && !is_capturing(); }
Dims spatial_sizes(const Tensor& x) {
  Dims sizes;
  for (int64_t d = 2; d < x.dim(); ++d) sizes.push_back(x.size(d));
  return sizes;
}
// Whether a window lies in the padding alone: only those can that do not begin on an element.
bool has_empty_window(std::string_view op, const Tensor& x, const Windows& w) {
  for (int64_t d = 0; d < x.dim() - 2; ++d) {
    const int64_t size = x.size(2 + d), step = w.dilation[d], count = window_count(op, w, d, size);
    if ((count - 1) * w.stride[d] - w.low[d] >= size) return true;
    for (int64_t begin = -w.low[d], i = 0; begin < 0 && i < count; begin += w.stride[d], ++i) {
      const int64_t first = (-begin + step - 1) / step;
      if (first >= w.size[d] || begin + first * step >= size) return true;
    }
  }
  return false;
}

// The maxima and their places by one kernel, where a card has x.
std::optional<std::pair<Tensor, Tensor>> maxima_on_card(std::string_view op, const Tensor& x, const Windows& w) {
  if (!takes_plane_windows(x) || has_empty_window(op, x, w)) return {};
  Dims counts;
  for (int64_t d = 0; d < x.dim() - 2; ++d) counts.push_back(window_count(op, w, d, x.size(2 + d)));
  const auto windows = plane_windows(w, spatial_sizes(x), counts);
  return windows ? std::optional(max_in_windows(x, *windows)) : std::nullopt;
}

Dims all_but_two(const Tensor& x, std::string_view op) {
  if (x.dim() < 3) fail(op, "{} has no spatial dims", to_string(x.shape()));
  return spatial_places(x.dim() - 2, 2);
}

}  // namespace

Tensor max_pool(const Tensor& x, const Windows& windows) {
  constexpr std::string_view op = "max_pool";
  Windows w = filled_windows(op, windows, spatial_dims(op, x), true);
  const Dims beyond = beyond_padding(op, x, w);
  constexpr int64_t few = 1 << 20;  // so that two calls take longer than one that looks at all taps
  if (takes_plane_windows(x) && (!kernels_take(w, beyond) || (x.dim() == 5 && x.numel() < few)))
    if (const auto found = maxima_on_card(op, x, w)) return found->first;
  const bool kernels = is_floating(x.dtype());
  const Tensor y = kernels && kernels_take(w, beyond) ? x : padded_with(x, w, beyond, lowest_of(x.dtype()));
  if (kernels) return by_two_dims(y, w, max_pool2d);
  Dims taps;
  for (int64_t d = 0; d < x.dim() - 2; ++d) taps.push_back(-1 - d);
  return amax(whole_windows(y, w), taps);
}

namespace {

// Lines of windows that begin at `begin`, of which elements within [0, size) count; nothing where a window has none.
std::optional<WindowLine> line_of_windows(const Windows& w, int64_t d, int64_t size, int64_t count) {
  WindowLine line{{}, {}, w.dilation[d]};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = i * w.stride[d] - w.low[d], step = w.dilation[d];
    const int64_t first = begin < 0 ? (-begin + step - 1) / step : 0;
    const int64_t end = begin < size ? std::min(w.size[d], (size - begin - 1) / step + 1) : 0;
    if (end <= first) return {};
    line.first.push_back(begin + first * step);
    line.count.push_back(end - first);
  }
  return line;
}
std::optional<std::vector<WindowLine>> lines_of_windows(std::string_view op, const Tensor& x, const Windows& w) {
  if (!on_host(x) || !is_floating(x.dtype())) return {};
  std::vector<WindowLine> lines;
  for (int64_t d = 0; d < x.dim() - 2; ++d) {
    const int64_t size = x.size(2 + d), count = window_count(op, w, d, size);
    check_allocation({count});
    auto line = line_of_windows(w, d, size, count);
    if (!line) return {};
    lines.push_back(std::move(*line));
  }
  return lines;
}

Tensor elements_at(const Tensor& x, const Tensor& places) {
  return reshape(gather(flatten(x, 2), 2, flatten(places, 2)), places.shape());
}

// Of x [n, c, h, w], by the kernel, which says which tap of its window each maximum is.
std::pair<Tensor, Tensor> largest_and_places(const Tensor& given, const PoolAttrs& a) {
  const auto forward = [a](const Tensors& in) {
    const Tensor& x = in[0];
    const Tensors found = execute(find_op("max_pool2d"), {x}, a, true);
    const Tensor taps = contiguous(found[1]), places = empty(taps.shape(), Int64);
    const int64_t rows = taps.size(2), columns = taps.size(3), width = x.size(3), count = a.window[0] * a.window[1];
    const auto offset_of = [&](int64_t tap) {
      if (tap == count) return int64_t(0);  // padding alone
      return tap / a.window[1] * a.dilation[0] * width + tap % a.window[1] * a.dilation[1];
    };
    const auto run = [&](const auto* from, const auto& offset) {
      each_part(taps.size(0) * taps.size(1) * rows, 4 * columns, [&](int64_t begin, int64_t end) {
        int64_t* to = places.data<int64_t>() + begin * columns;
        const auto* tap = from + begin * columns;
        for (int64_t line = begin; line < end; ++line) {
          const int64_t first = (line % rows * a.stride[0] - a.padding[0]) * width - a.padding[1];
          for (int64_t j = 0; j < columns; ++j)
            *to++ = std::max<int64_t>(0, first + j * a.stride[1] + offset(static_cast<int64_t>(*tap++)));
        }
      });
    };
    if (taps.dtype() == UInt8) {
      std::array<int64_t, 256> offsets{};
      for (int64_t tap = 0; tap <= count; ++tap) offsets[static_cast<size_t>(tap)] = offset_of(tap);
      run(taps.data<uint8_t>(), [&](int64_t tap) { return offsets[static_cast<size_t>(tap)]; });
    } else {
      run(taps.data<int64_t>(), offset_of);
    }
    return Tensors{found[0], places};
  };
  const auto backward = [](const Tensors& in, const Tensors& out, const Tensors& grads) {
    const Shape& s = in[0].shape();
    const Tensor planes = zeros_to_copy({s[0], s[1], s[2] * s[3]}, in[0].dtype(), in[0].device());
    return Tensors{reshape(scatter_add(planes, 2, flatten(out[1], 2), flatten(grads[0], 2)), s)};
  };
  const Tensors out = custom_function("max_pool_with_indices", {given}, forward, backward);
  return {out[0], out[1]};
}

}  // namespace

std::pair<Tensor, Tensor> max_pool_with_indices(const Tensor& x, const Windows& windows) {
  constexpr std::string_view op = "max_pool_with_indices";
  const int64_t spatial = spatial_dims(op, x);
  const Windows w = filled_windows(op, windows, spatial, true);
  if (on_host(x) && is_floating(x.dtype()) && spatial < 3 && kernels_take(w, beyond_padding(op, x, w))) {
    PoolAttrs a;
    a.window[0] = a.stride[0] = a.dilation[0] = 1;
    a.padding[0] = 0;
    for (int64_t d = 0; d < spatial; ++d) {
      const auto at = static_cast<size_t>(2 - spatial + d);
      a.window[at] = w.size[d], a.stride[at] = w.stride[d], a.padding[at] = w.low[d], a.dilation[at] = w.dilation[d];
    }
    const auto [y, places] = largest_and_places(spatial == 1 ? unsqueeze(x, 2) : x, a);
    return spatial == 1 ? std::pair(squeeze(y, 2), squeeze(places, 2)) : std::pair(y, places);
  }
  if (const auto lines = lines_of_windows(op, x, w)) {
    const Tensor places = places_of_largest(x, *lines);
    return {elements_at(x, places), places};
  }
  if (const auto found = maxima_on_card(op, x, w)) return *found;
  Windows whole = w;
  const Tensor padded = padded_with(x.detach(), whole, beyond_padding(op, x, w), lowest_of(x.dtype()));
  const Tensor taps = argmax(flatten(whole_windows(padded, whole), 2 + spatial), -1);
  return {max_pool(x, windows), planar_places(taps, x, w)};
}

Tensor avg_pool(const Tensor& x, const Windows& windows, bool count_include_pad) {
  constexpr std::string_view op = "avg_pool";
  const Windows w = filled_windows(op, windows, spatial_dims(op, x), true);
  require_floating(op, x);
  const Dims beyond = beyond_padding(op, x, w);
  const bool dilated = std::any_of(w.dilation.begin(), w.dilation.end(), [](int64_t d) { return d != 1; });
  if (!dilated && kernels_take(w, beyond))
    return by_two_dims(x, w, [&](const Tensor& image, Pool2dOptions o) {
      o.count_include_pad = count_include_pad;
      return avg_pool2d(image, o);
    });
  Windows whole = w;
  const Tensor padded = padded_with(x, whole, beyond, 0);
  return scaled_by_shares(mean_of_windows(padded, whole), x, w, count_include_pad);
}

Tensor lp_pool(const Tensor& x, const Windows& windows, double p) {
  constexpr std::string_view op = "lp_pool";
  Windows w = filled_windows(op, windows, spatial_dims(op, x), true);
  require_floating(op, x);
  if (!(p > 0)) fail(op, "p must be positive, not {}", p);
  const Dims beyond = beyond_padding(op, x, w);
  const Tensor powers = padded_with(p == 2 ? square(x) : pow(abs(x), p), w, beyond, 0);
  const auto taps = std::accumulate(w.size.begin(), w.size.end(), int64_t(1), std::multiplies<>());
  const Tensor sums = mul(mean_of_windows(powers, w), static_cast<double>(taps));
  return p == 1 ? sums : p == 2 ? sqrt(sums) : pow(sums, 1 / p);
}

Tensor adaptive_max_pool(const Tensor& x, const Dims& sizes) {
  require_adaptive("adaptive_max_pool", x, sizes);
  const bool is_open = Shape(x.shape().begin() + 2, x.shape().end()).is_symbolic();
  if (is_open && std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size == 1; }))
    return global_max_pool(x);
  if (on_host(x) && is_floating(x.dtype())) {
    std::vector<WindowLine> lines;
    for (int64_t d = 2; d < x.dim(); ++d) {
      const int64_t size = x.size(d), count = sizes[d - 2];
      WindowLine& line = lines.emplace_back();
      for (int64_t i = 0; i < count; ++i) {
        line.first.push_back(i * size / count);
        line.count.push_back(((i + 1) * size + count - 1) / count - line.first.back());
      }
    }
    return elements_at(x, places_of_largest(x, lines));
  }
  if (takes_plane_windows(x))
    if (const auto windows = adaptive_plane_windows(spatial_sizes(x), sizes)) return max_in_windows(x, *windows).first;
  return adaptive(x, sizes,
                  [](const Tensor& windows, int64_t taps, const AdaptiveWindows&) { return amax(windows, {taps}); });
}

namespace {

// What the elements of each window are multiplied by, so that their sum is their mean.
std::vector<double> mean_weights(const AdaptiveWindows& w) {
  std::vector<double> weights;
  for (int64_t i = 0; i < w.count; ++i) {
    const auto first = w.places.begin() + i * w.most;
    const auto size = static_cast<double>(*(first + w.most - 1) - *first + 1);
    for (int64_t tap = 0; tap < w.most; ++tap) weights.push_back(static_cast<double>(tap) < size ? 1 / size : 0);
  }
  return weights;
}

SparseMatrix mean_matrix(const Tensor& x, int64_t size, int64_t count) {
  return kept_matrix(fmt::format("means {} {}", size, count), x.dtype(), x.device(), [&] {
    const AdaptiveWindows w = adaptive_windows(size, count);
    return sparse_matrix(w.places, mean_weights(w), count, size, x.dtype(), x.device());
  });
}

}  // namespace

Tensor adaptive_avg_pool(const Tensor& x, const Dims& sizes) {
  constexpr std::string_view op = "adaptive_avg_pool";
  require_floating(op, x);
  require_adaptive(op, x, sizes);
  if (std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size == 1; })) return global_avg_pool(x);
  if (takes_sparse_lines(x)) {
    std::vector<SparseDim> dims;
    for (int64_t d = 2; d < x.dim(); ++d)
      if (sizes[d - 2] != x.size(d)) dims.push_back({d, mean_matrix(x, x.size(d), sizes[d - 2])});
    return card_takes_adaptive_mean(x, sizes) ? card_adaptive_mean(x, sizes, dims) : sparse_products(x, dims);
  }
  return adaptive(x, sizes, [](const Tensor& windows, int64_t taps, const AdaptiveWindows& w) {
    Shape shape{w.count, w.most};
    for (int64_t d = taps + 1; d < windows.dim(); ++d) shape.push_back(1);
    return sum(mul(windows, tensor(mean_weights(w), shape).to(windows.dtype()).to(windows.device())), {taps});
  });
}

Tensor global_max_pool(const Tensor& x) { return amax(x, all_but_two(x, "global_max_pool"), true); }
Tensor global_avg_pool(const Tensor& x) { return mean(x, all_but_two(x, "global_avg_pool"), true); }
Tensor global_lp_pool(const Tensor& x, double p) {
  const Dims dims = all_but_two(x, "global_lp_pool");
  if (!(p > 0)) fail("global_lp_pool", "p must be positive, not {}", p);
  return p == 2 ? norm(x, dims, true) : pow(sum(pow(abs(x), p), dims, true), 1 / p);
}

Tensor max_unpool(const Tensor& x, const Tensor& indices, const Dims& sizes) {
  constexpr std::string_view op = "max_unpool";
  const int64_t spatial = spatial_dims(op, x);
  if (!(indices.shape() == x.shape()))
    fail(op, "indices have shape {}, not {}", to_string(indices.shape()), to_string(x.shape()));
  if (static_cast<int64_t>(sizes.size()) != spatial) fail(op, "{} sizes for {} spatial dims", sizes.size(), spatial);
  Shape shape{x.shape()[0], x.shape()[1]};
  for (const int64_t size : sizes) {
    if (size < 1) fail(op, "a size of {}", size);
    shape.push_back(size);
  }
  const Shape flat{shape[0], shape[1], Shape(shape.begin() + 2, shape.end()).numel()};
  return reshape(scatter_add(zeros_to_copy(flat, x.dtype(), x.device()), 2, flatten(indices, 2), flatten(x, 2)), shape);
}

}  // namespace tessera
