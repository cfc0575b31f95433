// Convolutions of one to three spatial dims, made of conv2d: one dim is two of which the first has one row, and three
// are two whose channels are those of all depths that a window reaches.
#include <algorithm>

#include "ops/windows.h"

namespace tessera {
namespace {

// A window's descriptor with what the weight [out, in, ...] and the options say.
Windows windows_of_weight(std::string_view op, const Tensor& weight, const Dims& stride, const Dims& dilation,
                          int64_t spatial) {
  if (weight.dim() != 2 + spatial)
    fail(op, "weight must have {} dims, not shape {}", 2 + spatial, to_string(weight.shape()));
  Windows w{.stride = stride, .dilation = dilation};
  for (int64_t d = 0; d < spatial; ++d) w.size.push_back(weight.size(2 + d));
  return filled_windows(op, w, spatial, false);
}

void require_split(std::string_view op, int64_t channels, int64_t groups) {
  if (groups < 1) fail(op, "groups must be positive, not {}", groups);
  if (channels % groups) fail(op, "{} channels do not split into {} groups", channels, groups);
}

Tensor with_bias(const Tensor& y, const Tensor& bias, int64_t spatial) {
  if (!bias.defined()) return y;
  Shape shape{bias.numel()};
  for (int64_t d = 0; d < spatial; ++d) shape.push_back(1);
  return add(y, reshape(cast(bias, y.dtype()), shape));
}

// [n, c, d, h, w] -> [n * windows, c * taps, h, w]: as channels all depths that a window reaches.
Tensor depths_as_channels(const Tensor& x, const Windows& w) {
  const Tensor windows =
      permute(sliding_windows(x, {2}, {w.size[0]}, {w.stride[0]}, {w.dilation[0]}), {0, 2, 1, 5, 3, 4});
  const Shape& s = windows.shape();
  return reshape(windows, {s[0] * s[1], s[2] * s[3], s[4], s[5]});
}
Tensor depth_taps_as_channels(const Tensor& weight) {
  const Shape& s = weight.shape();
  return reshape(weight, {s[0], s[1] * s[2], s[3], s[4]});
}

Tensor conv3d_by_depths(const Tensor& x, const Tensor& weight, const Tensor& bias, const Windows& w, int64_t groups) {
  const Dim depth = window_count("conv", w, 0, x.shape()[2]);
  const Tensor padded = w.low[0] || w.high[0] ? pad(x, {w.low[0], 0, 0}, {w.high[0], 0, 0}) : x;
  const Tensor y = conv(depths_as_channels(padded, w), depth_taps_as_channels(weight), bias,
                        {.stride = {w.stride[1], w.stride[2]},
                         .low = {w.low[1], w.low[2]},
                         .high = {w.high[1], w.high[2]},
                         .dilation = {w.dilation[1], w.dilation[2]},
                         .groups = groups});
  const Shape& s = y.shape();
  return permute(reshape(y, {x.shape()[0], depth, s[1], s[2], s[3]}), {0, 2, 1, 3, 4});
}

// Without padding: every element of the result that a product reaches.
Tensor whole_transpose2d(const Tensor& x, const Tensor& weight, const Windows& w, int64_t groups) {
  const size_t last = w.size.size() - 1;
  ConvTranspose2dOptions o{.groups = groups};
  for (size_t d = 0; d < 2; ++d) {
    o.stride[d] = w.stride[last - 1 + d];
    o.dilation[d] = w.dilation[last - 1 + d];
  }
  return conv_transpose2d(x, weight, {}, o);
}

Tensor whole_transpose3d(const Tensor& x, const Tensor& weight, const Windows& w, int64_t groups) {
  const Shape& s = x.shape();
  const Tensor images = reshape(permute(x, {0, 2, 1, 3, 4}), {s[0] * s[2], s[1], s[3], s[4]});
  const Tensor taps = whole_transpose2d(images, depth_taps_as_channels(weight), w, groups);
  const Shape& t = taps.shape();
  const Tensor split = reshape(taps, {s[0], s[2], t[1] / w.size[0], w.size[0], t[2], t[3]});
  const int64_t depth = (x.size(2) - 1) * w.stride[0] + (w.size[0] - 1) * w.dilation[0] + 1;
  return fold_windows(permute(split, {0, 2, 1, 4, 5, 3}), {2}, {depth}, {w.stride[0]}, {w.dilation[0]});
}

// Cuts `low` and `high` elements off the spatial dims, or adds zeros.
Tensor cropped(Tensor y, const Dims& low, const Dims& high) {
  Dims before, behind;
  bool grows = false;
  for (size_t d = 0; d < low.size(); ++d) {
    const auto dim = static_cast<int64_t>(2 + d);
    const Dim left = y.shape()[dim] - (low[d] + high[d]);
    if (left.high() < 1)
      fail("conv_transpose", "padding {} and {} leaves {} of dim {} of the result", low[d], high[d], left.to_string(),
           dim);
    before.push_back(std::max<int64_t>(0, -low[d]));
    behind.push_back(std::max<int64_t>(0, -high[d]));
    grows = grows || before[d] || behind[d];
  }
  if (grows) y = pad(y, before, behind);
  for (size_t d = 0; d < low.size(); ++d) {
    const auto dim = static_cast<int64_t>(2 + d);
    y = slice(y, dim, Dim(low[d] + before[d]), y.shape()[dim] - (high[d] + behind[d]));
  }
  return y;
}

Tensor with_row(const Tensor& t) { return unsqueeze(t, 2); }
Dims with_first(Dims list, int64_t first) { return {first, list[0]}; }

// Whether conv_transpose2d takes the padding as it is.
bool is_symmetric(const ConvTransposeOptions& o, const Windows& w) {
  for (size_t d = 0; d < 2; ++d)
    if (o.low[d] != o.high[d] || o.low[d] < 0 || o.output_padding[d] >= w.stride[d]) return false;
  return true;
}

Tensor plain_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvTransposeOptions& o,
                         const Windows& w) {
  ConvTranspose2dOptions plain{.groups = o.groups};
  for (size_t d = 0; d < 2; ++d) {
    plain.stride[d] = w.stride[d];
    plain.padding[d] = o.low[d];
    plain.output_padding[d] = o.output_padding[d];
    plain.dilation[d] = w.dilation[d];
  }
  return conv_transpose2d(x, weight, bias, plain);
}

constexpr std::string_view kTransposed = "conv_transpose";

ConvTransposeOptions filled_options(const ConvTransposeOptions& given, int64_t spatial) {
  ConvTransposeOptions o = given;
  o.low = spatial_list(kTransposed, "low", o.low, spatial, 0);
  o.high = spatial_list(kTransposed, "high", o.high, spatial, 0);
  o.output_padding = spatial_list(kTransposed, "output_padding", o.output_padding, spatial, 0);
  constexpr int64_t most = int64_t(1) << 31;
  for (int64_t d = 0; d < spatial; ++d) {
    if (o.output_padding[d] < 0 || o.output_padding[d] > most)
      fail(kTransposed, "output_padding {} is negative or exceeds 2^31", o.output_padding[d]);
    if (std::min(o.low[d], o.high[d]) < -most || std::max(o.low[d], o.high[d]) > most)
      fail(kTransposed, "padding {} and {} exceeds 2^31", o.low[d], o.high[d]);
  }
  return o;
}

}  // namespace

Tensor conv(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvOptions& options) {
  constexpr std::string_view op = "conv";
  const int64_t spatial = spatial_dims(op, x);
  Windows w = windows_of_weight(op, weight, options.stride, options.dilation, spatial);
  w.low = options.low, w.high = options.high;
  w = filled_windows(op, w, spatial, false);
  require_split(op, x.size(1), options.groups);
  if (weight.size(1) * options.groups != x.size(1) || weight.size(0) % options.groups)
    fail(op, "weight {} in {} groups does not fit {}", to_string(weight.shape()), options.groups, to_string(x.shape()));
  if (spatial == 3) return conv3d_by_depths(x, weight, bias, w, options.groups);
  if (spatial == 1)
    return squeeze(conv(with_row(x), with_row(weight), bias,
                        {.stride = with_first(w.stride, 1),
                         .low = with_first(w.low, 0),
                         .high = with_first(w.high, 0),
                         .dilation = with_first(w.dilation, 1),
                         .groups = options.groups}),
                   2);
  Conv2dOptions o{.groups = options.groups};
  Dims low{0, 0}, high{0, 0};
  for (size_t d = 0; d < 2; ++d) {
    window_count(op, w, static_cast<int64_t>(d), x.shape()[2 + d]);
    o.stride[d] = w.stride[d];
    o.dilation[d] = w.dilation[d];
    o.padding[d] = std::min(w.low[d], w.high[d]);
    low[d] = w.low[d] - o.padding[d];
    high[d] = w.high[d] - o.padding[d];
  }
  const bool is_uneven = low[0] || low[1] || high[0] || high[1];
  return conv2d(is_uneven ? pad(x, low, high) : x, weight, bias, o);
}

Tensor conv_transpose(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvTransposeOptions& options) {
  const int64_t spatial = spatial_dims(kTransposed, x);
  const Windows w = windows_of_weight(kTransposed, weight, options.stride, options.dilation, spatial);
  const ConvTransposeOptions o = filled_options(options, spatial);
  require_split(kTransposed, x.size(1), options.groups);
  if (weight.size(0) != x.size(1))
    fail(kTransposed, "weight {} does not fit {}", to_string(weight.shape()), to_string(x.shape()));
  if (bias.defined() && !(bias.shape() == Shape{weight.shape()[1] * o.groups}))
    fail(kTransposed, "bias has shape {}, not [{}]", to_string(bias.shape()), weight.size(1) * o.groups);
  if (spatial == 1)
    return squeeze(conv_transpose(with_row(x), with_row(weight), bias,
                                  {.stride = with_first(w.stride, 1),
                                   .low = with_first(o.low, 0),
                                   .high = with_first(o.high, 0),
                                   .output_padding = with_first(o.output_padding, 0),
                                   .dilation = with_first(w.dilation, 1),
                                   .groups = o.groups}),
                   2);
  if (spatial == 2 && is_symmetric(o, w)) return plain_transpose2d(x, weight, bias, o, w);
  const Tensor y = spatial == 2 ? whole_transpose2d(x, weight, w, o.groups) : whole_transpose3d(x, weight, w, o.groups);
  Dims behind;
  for (size_t d = 0; d < o.high.size(); ++d) behind.push_back(o.high[d] - o.output_padding[d]);
  return with_bias(cropped(y, o.low, behind), bias, spatial);
}

ConvTransposeOptions with_output_sizes(ConvTransposeOptions options, const Shape& x, const Shape& weight,
                                       const Dims& sizes, bool upper) {
  constexpr std::string_view op = "with_output_sizes";
  const int64_t spatial = x.rank() - 2;
  if (spatial < 1 || weight.rank() != x.rank()) fail(op, "weight {} does not fit {}", to_string(weight), to_string(x));
  if (static_cast<int64_t>(sizes.size()) != spatial) fail(op, "{} sizes for {}", sizes.size(), to_string(x));
  const Dims stride = spatial_list(op, "stride", options.stride, spatial, 1),
             dilation = spatial_list(op, "dilation", options.dilation, spatial, 1),
             behind = spatial_list(op, "output_padding", options.output_padding, spatial, 0);
  options.low.clear(), options.high.clear();
  for (int64_t d = 0; d < spatial; ++d) {
    const Dim whole = (x[2 + d] - 1) * stride[d] + behind[d] + (weight[2 + d] - 1) * dilation[d] + 1;
    const int64_t total = (whole - sizes[d]).value();
    const int64_t half = (total - (total < 0)) / 2;  // rounded down
    options.low.push_back(upper ? half : total - half);
    options.high.push_back(total - options.low.back());
  }
  return options;
}

}  // namespace tessera
