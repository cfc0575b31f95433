// Images rearranged and padded, and norms over channels.
#include <algorithm>
#include <cmath>

#include "core/util/allocation_limit.h"
#include "ops/check.h"
#include "ops/on_host.h"
#include "ops/open_sizes.h"
#include "ops/pad_on_host.h"
#include "ops/sparse_lines.h"
#include "tessera/ops_image.h"
#include "tessera/ops_shape.h"

namespace tessera {
namespace {

void require_image(std::string_view op, const Tensor& x, int64_t factor) {
  if (x.dim() != 4) fail(op, "x must have 4 dims, not shape {}", to_string(x.shape()));
  if (factor < 1 || factor > int64_t(1) << 20) fail(op, "a factor of {}", factor);
}

// [n, c, h, w] -> [n, c / factor², h factor, w factor], where `order` brings the dims of a split x to n, c, h, row, w,
// column.
Tensor squares_of_channels(std::string_view op, const Tensor& x, int64_t factor, bool outer) {
  require_image(op, x, factor);
  const Shape& s = x.shape();
  const int64_t square = factor * factor, channels = x.size(1) / square;
  if (x.size(1) % square) fail(op, "{} channels do not split into squares of {}", x.size(1), square);
  const Shape inner{s[0], Dim(channels), Dim(factor), Dim(factor), s[2], s[3]};
  const Tensor split =
      outer ? permute(reshape(x, {s[0], Dim(factor), Dim(factor), Dim(channels), s[2], s[3]}), {0, 3, 1, 2, 4, 5})
            : reshape(x, inner);
  return reshape(permute(split, {0, 1, 4, 2, 5, 3}), {s[0], Dim(channels), s[2] * factor, s[3] * factor});
}

Tensor channels_of_squares(std::string_view op, const Tensor& x, int64_t factor, bool outer) {
  require_image(op, x, factor);
  const Shape& s = x.shape();
  if (!(s[2] / factor * factor == s[2] && s[3] / factor * factor == s[3]))
    fail(op, "{} does not split into squares of {} x {}", to_string(s), factor, factor);
  const Tensor split = reshape(x, {s[0], s[1], s[2] / factor, Dim(factor), s[3] / factor, Dim(factor)});
  return reshape(permute(split, outer ? Dims{0, 3, 5, 1, 2, 4} : Dims{0, 1, 3, 5, 2, 4}),
                 {s[0], s[1] * (factor * factor), s[2] / factor, s[3] / factor});
}

// With elements repeated beyond the ends of a dim whose size is open.
Tensor open_border(const Tensor& x, int64_t dim, int64_t before, int64_t behind, Padding padding) {
  const Dim size = x.shape()[dim];
  const Tensor n = size_number(size, Int64, x.device()), last = add(n, -1);
  Tensor at = add(cumsum(ones({size + (before + behind)}, Int64, x.device()), 0), static_cast<double>(-1 - before));
  if (padding == Padding::Edge) at = minimum(clamp(at, 0, INFINITY), last);
  else if (padding == Padding::Wrap) at = remainder(at, n);
  else at = last - abs(last - abs(at));
  return index_select(x, dim, at);
}

// `count` elements that lie before x along dim, or behind it.
Tensor border(const Tensor& x, int64_t dim, int64_t count, bool behind, Padding padding) {
  const int64_t size = x.size(dim);
  if (padding == Padding::Edge) {
    Shape shape = x.shape();
    shape[dim] = count;
    return expand(behind ? slice(x, dim, size - 1, size) : slice(x, dim, 0, 1), shape);
  }
  if (padding == Padding::Reflect)
    return flip(behind ? slice(x, dim, size - 1 - count, size - 1) : slice(x, dim, 1, count + 1), {dim});
  const int64_t rest = count % size;
  const Tensor part = behind ? slice(x, dim, 0, rest) : slice(x, dim, size - rest, size);
  if (count < size) return part;
  Dims turns(std::vector<int64_t>(static_cast<size_t>(x.dim()), 1));
  turns[dim] = count / size;
  return concat(behind ? Tensors{repeat(x, turns), part} : Tensors{part, repeat(x, turns)}, dim);
}

// The element that is repeated at a place beyond the border.
int64_t repeated_place(int64_t at, int64_t size, Padding padding) {
  if (padding == Padding::Edge) return std::clamp<int64_t>(at, 0, size - 1);
  if (padding == Padding::Wrap) return (at % size + size) % size;
  return at < 0 ? -at : at < size ? at : 2 * (size - 1) - at;
}
SparseMatrix padded_lines(const Tensor& y, int64_t size, int64_t before, int64_t behind, Padding padding) {
  const std::string name = fmt::format("pad {} {} {} {}", size, before, behind, static_cast<int>(padding));
  return kept_matrix(name, y.dtype(), y.device(), [&] {
    std::vector<int64_t> places;
    for (int64_t at = -before; at < size + behind; ++at) places.push_back(repeated_place(at, size, padding));
    return sparse_matrix(places, {}, before + size + behind, size, y.dtype(), y.device());
  });
}

void require_floats(std::string_view op, const Tensor& x) {
  if (!is_floating(x.dtype())) fail(op, "takes floating-point tensors, not {}", describe(x));
}

// For images with any dims before theirs, or none, as PyTorch's.
template <class F>
Tensor image_by_image(std::string_view op, const Tensor& x, const F& f) {
  if (x.dim() == 4) return f(x);
  if (x.dim() < 3) fail(op, "x must have at least 3 dims, not shape {}", to_string(x.shape()));
  const Shape &s = x.shape(), outer(s.begin(), s.end() - 3);
  const Tensor y = f(reshape(x, {outer.numel(), s[x.dim() - 3], s[x.dim() - 2], s[x.dim() - 1]}));
  Shape shape = outer;
  shape.append(y.shape().begin() + 1, y.shape().end());
  return reshape(y, shape);
}
}  // namespace

Tensor pixel_shuffle(const Tensor& x, int64_t factor) {
  return image_by_image("pixel_shuffle", x,
                        [&](const Tensor& t) { return squares_of_channels("pixel_shuffle", t, factor, false); });
}
Tensor depth_to_space(const Tensor& x, int64_t factor) {
  return squares_of_channels("depth_to_space", x, factor, true);
}
Tensor pixel_unshuffle(const Tensor& x, int64_t factor) {
  return image_by_image("pixel_unshuffle", x,
                        [&](const Tensor& t) { return channels_of_squares("pixel_unshuffle", t, factor, false); });
}
Tensor space_to_depth(const Tensor& x, int64_t factor) {
  return channels_of_squares("space_to_depth", x, factor, true);
}

Tensor channel_shuffle(const Tensor& x, int64_t groups) {
  if (x.dim() < 2) fail("channel_shuffle", "{} has no channels", to_string(x.shape()));
  if (groups < 1 || x.size(1) % groups)
    fail("channel_shuffle", "{} channels do not split into {} groups", x.size(1), groups);
  Shape split = x.shape();
  split[1] = x.size(1) / groups;
  split.insert(split.begin() + 1, Dim(groups));
  return reshape(transpose(reshape(x, split), 1, 2), x.shape());
}

Tensor pad(const Tensor& x, const Dims& low, const Dims& high, Padding padding, double value) {
  if (low.size() != high.size() || static_cast<int64_t>(low.size()) > x.dim())
    fail("pad", "{} low and {} high paddings for {}", low.size(), high.size(), to_string(x.shape()));
  const auto count = static_cast<int64_t>(low.size());
  constexpr int64_t most = int64_t(1) << 48;
  Tensor y = x;
  Dims before, behind;
  std::vector<SparseDim> lines;
  std::vector<std::vector<int64_t>> places(static_cast<size_t>(count));  // of the host's, empty where none is repeated
  for (int64_t i = 0; i < count; ++i) {
    const int64_t dim = x.dim() - count + i;
    before.push_back(std::max<int64_t>(0, low[i]));
    behind.push_back(std::max<int64_t>(0, high[i]));
    if (x.shape()[dim].is_symbolic() && std::max(low[i], high[i]) <= most) {
      if (low[i] < 0 || high[i] < 0) y = slice(y, dim, Dim(before[i] - low[i]), x.shape()[dim] - (behind[i] - high[i]));
      if (padding != Padding::Constant && before[i] + behind[i] > 0)
        y = open_border(y, dim, before[i], behind[i], padding);
      continue;
    }
    const int64_t size = x.size(dim);
    if (std::min(low[i], high[i]) < -size || size + std::min<int64_t>(0, low[i]) + std::min<int64_t>(0, high[i]) < 0)
      fail("pad", "padding {} and {} cuts more than dim {} of {} has", low[i], high[i], dim, to_string(x.shape()));
    if (std::max(low[i], high[i]) > most) fail("pad", "padding {} and {} exceeds 2^48", low[i], high[i]);
    if (low[i] < 0 || high[i] < 0)
      y = slice(y, dim, std::max<int64_t>(0, -low[i]), size - std::max<int64_t>(0, -high[i]));
    if (padding == Padding::Constant || before[i] + behind[i] == 0) continue;
    const int64_t left = y.size(dim);
    if (left < 1) fail("pad", "dim {} of {} has no elements to repeat", dim, to_string(x.shape()));
    if (padding == Padding::Reflect && std::max(before[i], behind[i]) >= left)
      fail("pad", "reflections of {} and {} elements do not fit dim {} of {}, which has {} beside its end", before[i],
           behind[i], dim, to_string(x.shape()), left - 1);
    check_allocation({left + before[i] + behind[i]});
    if (on_host(y)) {
      for (int64_t at = -before[i]; at < left + behind[i]; ++at)
        places[static_cast<size_t>(i)].push_back(repeated_place(at, left, padding));
    } else if (takes_sparse_lines(y)) {
      lines.push_back({dim, padded_lines(y, left, before[i], behind[i], padding)});
    } else {
      Tensors parts{y};
      if (before[i] > 0) parts.insert(parts.begin(), border(y, dim, before[i], false, padding));
      if (behind[i] > 0) parts.push_back(border(y, dim, behind[i], true, padding));
      y = concat(parts, dim);
    }
  }
  if (std::any_of(places.begin(), places.end(), [](const auto& list) { return !list.empty(); }))
    y = repeated_places(y, std::move(places));
  y = sparse_products(y, lines);
  const auto grows = [](const Dims& list) {
    return std::any_of(list.begin(), list.end(), [](int64_t n) { return n > 0; });
  };
  return padding == Padding::Constant && (grows(before) || grows(behind)) ? pad(y, before, behind, value) : y;
}

Tensor center_crop_pad(const Tensor& x, const Dims& dims, const Dims& sizes) {
  constexpr std::string_view op = "center_crop_pad";
  if (dims.size() != sizes.size()) fail(op, "{} sizes for {} dims", sizes.size(), dims.size());
  Dims low(std::vector<int64_t>(static_cast<size_t>(x.dim()), 0)), high = low;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t dim = normalize_dim(op, dims[i], x.shape()), size = x.size(dim);
    if (sizes[i] < 0) fail(op, "a size of {}", sizes[i]);
    const int64_t cut = (size - std::min(size, sizes[i])) / 2, added = (std::max(size, sizes[i]) - size) / 2;
    low[dim] = added - cut;
    high[dim] = sizes[i] - size - low[dim];
  }
  return pad(x, low, high, Padding::Constant);
}

Tensor local_response_norm(const Tensor& x, int64_t size, double alpha, double beta, double bias) {
  constexpr std::string_view op = "local_response_norm";
  require_floats(op, x);
  if (x.dim() < 2) fail(op, "{} has no channels", to_string(x.shape()));
  if (size < 1) fail(op, "a size of {}", size);
  const Shape& shape = x.shape();
  const Dim rest = Shape(shape.begin() + 2, shape.end()).numel();
  const Tensor planes = reshape(square(x), {shape[0], Dim(1), shape[1], rest});
  const Windows w{.size = {size, 1}, .stride = {1, 1}, .low = {(size - 1) / 2, 0}, .high = {size / 2, 0}};
  const Tensor means = reshape(avg_pool(planes, w), x.shape());
  return div(x, pow(add(mul(means, alpha), bias), beta));
}

Tensor instance_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  if (x.dim() < 3) fail("instance_norm", "{} has no spatial dims", to_string(x.shape()));
  return group_norm(x, x.size(1), weight, bias, eps);
}

Tensor lp_normalize(const Tensor& x, double p, int64_t dim) {
  require_floats("lp_normalize", x);
  if (!(p > 0)) fail("lp_normalize", "p must be positive, not {}", p);
  const Tensor length = p == 2 ? norm(x, {dim}, true) : pow(sum(p == 1 ? abs(x) : pow(abs(x), p), {dim}, true), 1 / p);
  const Tensor none = full({}, 0, x.dtype(), x.device());
  return where(eq(length, none), none, div(x, length));
}

Tensor mean_variance_norm(const Tensor& x, const Dims& dims, double eps) {
  require_floats("mean_variance_norm", x);
  return div(sub(x, mean(x, dims, true)), add(std_dev(x, dims, 0, true), eps));
}

}  // namespace tessera
