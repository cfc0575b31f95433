// Pools of one to three spatial dims. Maxima and averages are separable, so they go through the kernels of two dims.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/util/allocation_limit.h"
#include "ops/windows.h"

namespace tessera {
namespace {

// What lies beyond the padding, so that every window is whole.
Dims beyond_padding(std::string_view op, const Tensor& x, const Windows& w) {
  Dims beyond;
  for (int64_t d = 0; d < x.dim() - 2; ++d) {
    const int64_t size = x.size(2 + d), count = window_count(op, w, d, size);
    beyond.push_back(std::max<int64_t>(
        0, (count - 1) * w.stride[d] + (w.size[d] - 1) * w.dilation[d] + 1 - size - w.low[d] - w.high[d]));
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
  if (last == 0) return squeeze(pool2d(unsqueeze(x, 2), o), 2);
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

// fn(windows [..., count, most, ...], dim of the taps, their weights [count, most]) for each dim.
template <class F>
Tensor adaptive(std::string_view op, const Tensor& x, const Dims& sizes, F fn) {
  const int64_t spatial = spatial_dims(op, x);
  if (static_cast<int64_t>(sizes.size()) != spatial) fail(op, "{} sizes for {} spatial dims", sizes.size(), spatial);
  Tensor y = x;
  for (int64_t d = 0; d < spatial; ++d) {
    const int64_t dim = 2 + d, size = x.size(dim);
    if (sizes[d] < 1 || size < 1) fail(op, "{} windows on dim {} of {}", sizes[d], dim, to_string(x.shape()));
    if (sizes[d] == size) continue;
    const AdaptiveWindows w = adaptive_windows(size, sizes[d]);
    const Tensor places = tensor(w.places, {static_cast<int64_t>(w.places.size())}).to(x.device());
    Shape shape = y.shape();
    shape[dim] = w.count;
    shape.insert(shape.begin() + dim + 1, Dim(w.most));
    y = fn(reshape(index_select(y, dim, places), shape), dim + 1, w);
  }
  return y;
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
  const bool kernels = is_floating(x.dtype());
  const Tensor y = kernels && kernels_take(w, beyond) ? x : padded_with(x, w, beyond, lowest_of(x.dtype()));
  if (kernels) return by_two_dims(y, w, max_pool2d);
  Dims taps;
  for (int64_t d = 0; d < x.dim() - 2; ++d) taps.push_back(-1 - d);
  return amax(whole_windows(y, w), taps);
}

std::pair<Tensor, Tensor> max_pool_with_indices(const Tensor& x, const Windows& windows) {
  constexpr std::string_view op = "max_pool_with_indices";
  const int64_t spatial = spatial_dims(op, x);
  const Windows w = filled_windows(op, windows, spatial, true);
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
  return adaptive("adaptive_max_pool", x, sizes,
                  [](const Tensor& windows, int64_t taps, const AdaptiveWindows&) { return amax(windows, {taps}); });
}

Tensor adaptive_avg_pool(const Tensor& x, const Dims& sizes) {
  require_floating("adaptive_avg_pool", x);
  return adaptive("adaptive_avg_pool", x, sizes, [](const Tensor& windows, int64_t taps, const AdaptiveWindows& w) {
    std::vector<double> weights;
    for (int64_t i = 0; i < w.count; ++i) {
      const auto first = w.places.begin() + i * w.most;
      const auto size = static_cast<double>(*(first + w.most - 1) - *first + 1);
      for (int64_t tap = 0; tap < w.most; ++tap) weights.push_back(static_cast<double>(tap) < size ? 1 / size : 0);
    }
    Shape shape{w.count, w.most};
    for (int64_t d = taps + 1; d < windows.dim(); ++d) shape.push_back(1);
    return sum(mul(windows, tensor(weights, shape).to(windows.dtype()).to(windows.device())), {taps});
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
  return reshape(scatter_add(zeros(flat, x.dtype(), x.device()), 2, flatten(indices, 2), flatten(x, 2)), shape);
}

}  // namespace tessera
