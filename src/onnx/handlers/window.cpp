// Convolutions and pools.
#include "onnx/handlers/window.h"

#include "ops/exact_products.h"
#include "ops/map_graph.h"
#include "tessera/ops_shape.h"

namespace tessera::onnx {
namespace {

// Numbers of an attribute for windows of `rank` dims, or `otherwise` for each.
Dims each(const Call& c, std::string_view name, int64_t rank, int64_t otherwise) {
  const auto given = c.integers(name, std::vector<int64_t>(static_cast<size_t>(rank), otherwise));
  if (static_cast<int64_t>(given.size()) != rank) c.fail("{} has {} numbers for {} dims", name, given.size(), rank);
  return given;
}

std::string auto_pad(const Call& c) {
  const std::string how = c.text("auto_pad", "NOTSET");
  if (how != "NOTSET" && how != "VALID" && how != "SAME_UPPER" && how != "SAME_LOWER") c.fail("auto_pad is '{}'", how);
  return how;
}

// Windows of x: strides, dilations, and paddings as they are given or as auto_pad says.
Windows windows_of(const Call& c, const Shape& x, Dims size) {
  const int64_t rank = x.rank() - 2;
  if (rank < 1) c.fail("{} has no spatial dims", to_string(x));
  if (static_cast<int64_t>(size.size()) != rank) c.fail("windows of {} dims on {}", size.size(), to_string(x));
  Windows w{.size = size, .stride = each(c, "strides", rank, 1), .dilation = each(c, "dilations", rank, 1)};
  w.ceil = c.flag("ceil_mode", false);
  const std::string how = auto_pad(c);
  if (how == "SAME_UPPER" || how == "SAME_LOWER") return same_padding(w, x, how == "SAME_UPPER");
  const Dims pads =
      how == "VALID" ? Dims(std::vector<int64_t>(2 * static_cast<size_t>(rank), 0)) : each(c, "pads", 2 * rank, 0);
  w.low = std::vector<int64_t>(pads.begin(), pads.begin() + rank);
  w.high = std::vector<int64_t>(pads.begin() + rank, pads.end());
  return w;
}

Dims spatial_sizes(const Tensor& weight) {
  Dims size;
  for (int64_t d = 2; d < weight.dim(); ++d) size.push_back(weight.size(d));
  return size;
}
}  // namespace

Windows pool_windows(const Call& c, const Shape& x) {
  const Windows w = windows_of(c, x, c.integers("kernel_shape"));
  for (size_t d = 0; d < w.size.size() && d < w.low.size(); ++d)
    if (std::max(w.low[d], w.high[d]) >= w.size[d])
      c.fail("padding {} is not below the window's {}", std::max(w.low[d], w.high[d]), w.size[d]);
  return w;
}

void check_kernel_shape(const Call& c, const Tensor& weight) {
  const Dims size = spatial_sizes(weight);
  const std::vector<int64_t> said = c.integers("kernel_shape", {size.begin(), size.end()});
  if (!std::equal(said.begin(), said.end(), size.begin(), size.end()))
    c.fail("kernel_shape is not that of the weight {}", describe(weight));
}

ConvOptions conv_options(const Call& c, const Shape& x, const Tensor& weight) {
  check_kernel_shape(c, weight);
  const Windows w = windows_of(c, x, spatial_sizes(weight));
  return {.stride = w.stride, .low = w.low, .high = w.high, .dilation = w.dilation, .groups = c.integer("group", 1)};
}

namespace {

Values convolve(const Call& c) {
  Tensor x = c.in(0);
  if (c.channels_last() && x.dim() == 4) x = x.to(ChannelsLast);  // what follows lies so, too
  return {conv(x, c.in(1), c.optional(2), conv_options(c, x.shape(), c.in(1)))};
}

// A number for each filter.
Tensor of_filters(const Tensor& t, const Tensor& weight) {
  if (!t.defined() || t.numel() == 1) return t;
  Shape shape{t.numel()};
  while (shape.rank() < weight.dim()) shape.push_back(1);
  return reshape(t, shape);
}
/// Of x and a weight less their zero points, in i32.
Tensor integer_sums(const Call& c, const Tensor& x, const Tensor& x_zero, const Tensor& weight, const Tensor& zero) {
  const ConvOptions options = conv_options(c, x.shape(), weight);
  if (!is_exact_in_f32(x)) return integer_conv(x, weight, x_zero, zero, options);
  return exact_conv(integers_in_f32(c.op(), x, x_zero), integers_in_f32(c.op(), weight, of_filters(zero, weight)),
                    options, c.flag("sums_fit", false));
}
Values convolve_integers(const Call& c) { return {integer_sums(c, c.in(0), c.optional(2), c.in(1), c.optional(3))}; }
/// x: the input, with channels before its pixels.
Tensor convolved_quantised(const Call& c, const Tensor& x) {
  const Tensor sums = integer_sums(c, x, c.in(2), c.in(3), c.in(5));
  const auto of_channels = [&](const Tensor& t) {
    const Tensor wide = of_filters(t, sums);
    return wide.numel() == 1 ? reshape(wide, {}) : squeeze(wide, wide.dim() - 1);
  };
  const Tensor bias = c.has(8) ? of_channels(c.in(8)) : zeros({}, Int32, x.device());
  const bool is_signed = c.in(7).dtype() == Int8;
  return map_elements(
      {sums, bias, reshape(c.in(1), {}), of_channels(c.in(4)), reshape(c.in(6), {}), reshape(c.in(7), {})}, Float64,
      c.in(7).dtype(),
      [](const Tensor& v, const Tensor& b, const Tensor& of_x, const Tensor& of_weight, const Tensor& of_y,
         const Tensor& zero, double low,
         double high) { return clamp(add(round(div(mul(add(v, b), mul(of_x, of_weight)), of_y)), zero), low, high); },
      is_signed ? -128.0 : 0.0, is_signed ? 127.0 : 255.0);
}
Values convolve_quantised(const Call& c) { return {convolved_quantised(c, c.in(0))}; }
/// ONNX Runtime's, whose images may lie channels last.
Values convolve_quantised_last(const Call& c) {
  if (!c.flag("channels_last", false)) return convolve_quantised(c);
  return {movedim(convolved_quantised(c, movedim(c.in(0), -1, 1)), 1, -1)};
}

Values convolve_transposed(const Call& c) {
  const Tensor &x = c.in(0), &weight = c.in(1);
  const int64_t rank = x.dim() - 2;
  if (rank < 1) c.fail("{} has no spatial dims", describe(x));
  check_kernel_shape(c, weight);
  ConvTransposeOptions o{.stride = each(c, "strides", rank, 1),
                         .output_padding = each(c, "output_padding", rank, 0),
                         .dilation = each(c, "dilations", rank, 1),
                         .groups = c.integer("group", 1)};
  const std::string how = auto_pad(c);
  const bool is_same = how == "SAME_UPPER" || how == "SAME_LOWER";
  if (c.has_attribute("output_shape") || is_same) {
    std::vector<int64_t> sizes = c.integers("output_shape");
    for (int64_t d = 0; d < rank && !c.has_attribute("output_shape"); ++d) sizes.push_back(x.size(2 + d) * o.stride[d]);
    if (static_cast<int64_t>(sizes.size()) == rank + 2) sizes.erase(sizes.begin(), sizes.begin() + 2);
    o = with_output_sizes(o, x.shape(), weight.shape(), sizes, how == "SAME_UPPER");
  } else if (how != "VALID") {
    const Dims pads = each(c, "pads", 2 * rank, 0);
    o.low = std::vector<int64_t>(pads.begin(), pads.begin() + rank);
    o.high = std::vector<int64_t>(pads.begin() + rank, pads.end());
  }
  return {conv_transpose(x, weight, c.optional(2), o)};
}

// ---- pools

Tensor numbers_of_planes(const Tensor& x) {
  const int64_t planes = x.size(0) * x.size(1);
  Shape shape{x.shape()[0], x.shape()[1]};
  while (shape.rank() < x.dim()) shape.push_back(1);
  return reshape(arange(0, static_cast<double>(planes), 1, Int64, x.device()), shape);
}
int64_t plane_size(const Tensor& x) { return x.numel() / std::max<int64_t>(1, x.size(0) * x.size(1)); }

// Row-major places of planes as column-major ones.
Tensor by_columns(const Tensor& places, const Tensor& x) {
  Tensor rest = places, sum;
  std::vector<Tensor> at(static_cast<size_t>(x.dim() - 2));
  for (int64_t d = x.dim() - 3; d >= 0; --d) {
    const auto size = static_cast<double>(x.size(2 + d));
    const Tensor next = floor_div(rest, full({}, size, Int64, x.device()));
    at[static_cast<size_t>(d)] = sub(rest, mul(next, size));
    rest = next;
  }
  double stride = 1;
  for (int64_t d = 0; d < x.dim() - 2; ++d) {
    const Tensor part = mul(at[static_cast<size_t>(d)], stride);
    sum = sum.defined() ? add(sum, part) : part;
    stride *= static_cast<double>(x.size(2 + d));
  }
  return sum;
}

Values pool_maxima(const Call& c) {
  const Tensor& x = c.in(0);
  const Windows w = pool_windows(c, x.shape());
  if (!c.wants(1)) return {max_pool(x, w)};
  const auto [values, places] = max_pool_with_indices(x, w);
  const Tensor in_plane = c.flag("storage_order", false) ? by_columns(places, x) : places;
  return {values, add(in_plane, mul(numbers_of_planes(x), static_cast<double>(plane_size(x))))};
}
Values pool_averages(const Call& c) {
  return {avg_pool(c.in(0), pool_windows(c, c.in(0).shape()), c.flag("count_include_pad", false))};
}
double power_of(const Call& c) { return c.opset() < 2 ? c.real("p", 2) : static_cast<double>(c.integer("p", 2)); }
Values pool_powers(const Call& c) { return {lp_pool(c.in(0), pool_windows(c, c.in(0).shape()), power_of(c))}; }
Values pool_all_powers(const Call& c) { return {global_lp_pool(c.in(0), power_of(c))}; }
template <Tensor (*pool)(const Tensor&)>
Values pool_all(const Call& c) {
  return {pool(c.in(0))};
}

// Indices count over all planes of what was pooled, whose sizes windows and paddings tell; larger sizes add zeros.
Values unpool_maxima(const Call& c) {
  const Tensor &x = c.in(0), &places = c.in(1);
  const Dims kernel = c.integers("kernel_shape");
  const int64_t rank = x.dim() - 2;
  if (static_cast<int64_t>(kernel.size()) != rank) c.fail("windows of {} dims on {}", kernel.size(), describe(x));
  const Dims stride = each(c, "strides", rank, 1), pads = each(c, "pads", 2 * rank, 0);
  constexpr int64_t kMostPixels = int64_t{1} << 40;
  Dims sizes;
  int64_t plane = 1;
  for (int64_t d = 0; d < rank; ++d) {
    const __int128 size = (x.size(2 + d) - 1) * static_cast<__int128>(stride[d]) - pads[d] - pads[rank + d] + kernel[d];
    if (size < 1 || size > kMostPixels / plane) c.fail("a plane has no or too many pixels along dim {}", 2 + d);
    sizes.push_back(static_cast<int64_t>(size));
    plane *= sizes[d];
  }
  const Tensor y = max_unpool(x, sub(places, mul(numbers_of_planes(x), static_cast<double>(plane))), sizes);
  if (!c.has(2)) return {y};
  const auto wanted = c.ints(2);
  if (static_cast<int64_t>(wanted.size()) != x.dim()) c.fail("{} sizes for {}", wanted.size(), describe(x));
  Dims low, high;
  for (int64_t d = 0; d < rank; ++d) {
    if (wanted[static_cast<size_t>(2 + d)] < 0) c.fail("a size of {}", wanted[static_cast<size_t>(2 + d)]);
    low.push_back(0);
    high.push_back(wanted[static_cast<size_t>(2 + d)] - sizes[d]);
  }
  return {pad(y, low, high)};
}

Values columns_to_image(const Call& c) {
  const std::vector<int64_t> sizes = c.ints(1), block = c.ints(2);
  const auto rank = static_cast<int64_t>(sizes.size());
  Windows w{.size = block, .stride = each(c, "strides", rank, 1), .dilation = each(c, "dilations", rank, 1)};
  const Dims pads = each(c, "pads", 2 * rank, 0);
  w.low = std::vector<int64_t>(pads.begin(), pads.begin() + rank);
  w.high = std::vector<int64_t>(pads.begin() + rank, pads.end());
  return {fold(c.in(0), sizes, w)};
}

constexpr Entry entries[] = {
    {"AveragePool", 1, pool_averages},
    {"Col2Im", 18, columns_to_image},
    {"Conv", 1, convolve},
    {"ConvInteger", 10, convolve_integers},
    {"ConvTranspose", 1, convolve_transposed},
    {"GlobalAveragePool", 1, pool_all<global_avg_pool>},
    {"GlobalLpPool", 1, pool_all_powers},
    {"GlobalMaxPool", 1, pool_all<global_max_pool>},
    {"LpPool", 1, pool_powers},
    {"MaxPool", 1, pool_maxima},
    {"MaxUnpool", 9, unpool_maxima},
    {"QLinearConv", 10, convolve_quantised},
    {"QLinearConv", 1, convolve_quantised_last, "com.microsoft"},
};

}  // namespace

std::span<const Entry> window_handlers() { return entries; }

}  // namespace tessera::onnx
