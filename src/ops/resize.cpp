// Resizing, one dim after the other: each element of the result is a weighted sum of few elements of x, whose places
// and weights depend on sizes alone.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/util/allocation_limit.h"
#include "ops/check.h"
#include "ops/open_sizes.h"
#include "ops/sparse_lines.h"
#include "tessera/ops_image.h"

namespace tessera {
namespace {

// One dim's resizing.
struct ResizedLine {
  int64_t size, count;
  double scale, begin = 0, end = 1;  // the region of TfCropAndResize
};

double coordinate(const ResizedLine& line, int64_t i, Coordinates rule) {
  const auto n = static_cast<double>(line.size), at = static_cast<double>(i), whole = line.scale * n;
  const double half_pixel = (at + 0.5) / line.scale - 0.5;
  switch (rule) {
    case Coordinates::HalfPixelSymmetric:
      return n / 2 * (1 - static_cast<double>(line.count) / whole) + half_pixel;
    case Coordinates::PytorchHalfPixel:
      return whole == 1 ? -0.5 : half_pixel;
    case Coordinates::AlignCorners:
      return whole == 1 ? 0 : at * (n - 1) / (whole - 1);
    case Coordinates::Asymmetric:
      return at / line.scale;
    case Coordinates::TfCropAndResize:
      return line.begin * (n - 1) + (line.end - line.begin) * (n - 1) * (whole == 1 ? 0.5 : at / (whole - 1));
    default:
      return half_pixel;
  }
}

int64_t nearest_place(double at, NearestRule rule) {
  switch (rule) {
    case NearestRule::RoundPreferFloor:
      return static_cast<int64_t>(std::ceil(at - 0.5));
    case NearestRule::RoundPreferCeil:
      return static_cast<int64_t>(std::floor(at + 0.5));
    case NearestRule::Floor:
      return static_cast<int64_t>(std::floor(at));
    default:
      return static_cast<int64_t>(std::ceil(at));
  }
}

double kernel_at(double distance, const ResizeOptions& o) {
  const double x = std::abs(distance), a = o.cubic;
  if (o.interpolation == Interpolation::Linear) return std::max(0.0, 1 - x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

// Each element of the result has `taps` places and weights.
struct Taps {
  int64_t taps = 1;
  std::vector<int64_t> places;
  std::vector<double> weights;
};

Taps nearest_taps(const ResizedLine& line, const ResizeOptions& o) {
  Taps t;
  check_allocation({line.count});
  for (int64_t i = 0; i < line.count; ++i) {
    const int64_t place = nearest_place(coordinate(line, i, o.coordinates), o.nearest);
    t.places.push_back(std::clamp<int64_t>(place, 0, line.size - 1));
  }
  return t;
}

Taps weighted_taps(const ResizedLine& line, const ResizeOptions& o) {
  const double stretch = o.antialias ? std::min(line.scale, 1.0) : 1;  // of distances
  const double reach = (o.interpolation == Interpolation::Linear ? 1 : 2) / stretch;
  const auto first = static_cast<int64_t>(std::floor(-reach) + 1);
  Taps t{.taps = 2 - 2 * first, .places = {}, .weights = {}};
  check_allocation({line.count, t.taps});
  for (int64_t i = 0; i < line.count; ++i) {
    const double at = coordinate(line, i, o.coordinates), floor = std::floor(at);
    const size_t begin = t.weights.size();
    double total = 0;
    for (int64_t tap = first; tap < first + t.taps; ++tap) {
      const int64_t place = static_cast<int64_t>(floor) + tap;
      const bool outside = place < 0 || place >= line.size;
      const double distance = (static_cast<double>(tap) - (at - floor)) * stretch;
      t.places.push_back(std::clamp<int64_t>(place, 0, line.size - 1));
      t.weights.push_back(outside && o.exclude_outside ? 0 : kernel_at(distance, o));
      total += t.weights.back();
    }
    if ((o.antialias || o.exclude_outside) && total != 0)
      for (size_t w = begin; w < t.weights.size(); ++w) t.weights[w] /= total;
  }
  return t;
}

Tensor along(const std::vector<double>& values, const Tensor& x, int64_t dim) {
  Shape shape{static_cast<int64_t>(values.size())};
  for (int64_t d = dim + 1; d < x.dim(); ++d) shape.push_back(1);
  return tensor(values, shape).to(x.dtype()).to(x.device());
}

// By a sum over taps.
Tensor gathered(const Tensor& x, int64_t dim, const Taps& t) {
  const auto count = static_cast<int64_t>(t.places.size()) / t.taps;
  Tensor y;
  for (int64_t tap = 0; tap < t.taps; ++tap) {
    std::vector<int64_t> places;
    std::vector<double> weights;
    for (int64_t i = 0; i < count; ++i) {
      places.push_back(t.places[static_cast<size_t>(i * t.taps + tap)]);
      if (!t.weights.empty()) weights.push_back(t.weights[static_cast<size_t>(i * t.taps + tap)]);
    }
    if (!weights.empty() && std::all_of(weights.begin(), weights.end(), [](double w) { return w == 0; })) continue;
    Tensor one = index_select(x, dim, tensor(places, {count}).to(x.device()));
    if (!weights.empty()) one = mul(one, along(weights, x, dim));
    y = y.defined() ? add(y, one) : one;
  }
  return y;
}

// By a product with the matrix of the weights, where taps are many.
Tensor multiplied(const Tensor& x, int64_t dim, const Taps& t, int64_t size) {
  const auto count = static_cast<int64_t>(t.places.size()) / t.taps;
  check_allocation({size, count});
  std::vector<double> matrix(static_cast<size_t>(size * count), 0);
  for (int64_t i = 0; i < count * t.taps; ++i)
    matrix[static_cast<size_t>(t.places[static_cast<size_t>(i)] * count + i / t.taps)] +=
        t.weights[static_cast<size_t>(i)];
  return transpose(matmul(transpose(x, dim, -1), tensor(matrix, {size, count}).to(x.dtype()).to(x.device())), dim, -1);
}

// With the value for what lies outside.
Tensor extrapolated(const Tensor& y, int64_t dim, const ResizedLine& line, const ResizeOptions& o) {
  std::vector<double> outside;
  for (int64_t i = 0; i < line.count; ++i) {
    const double at = coordinate(line, i, o.coordinates);
    outside.push_back(at < 0 || at > static_cast<double>(line.size - 1) ? 1 : 0);
  }
  if (std::all_of(outside.begin(), outside.end(), [](double is) { return is == 0; })) return y;
  return where(cast(along(outside, y, dim), Bool), full({}, o.extrapolation, y.dtype(), y.device()), y);
}

Taps taps_of(const ResizedLine& line, const ResizeOptions& o) {
  return o.interpolation == Interpolation::Nearest ? nearest_taps(line, o) : weighted_taps(line, o);
}
// ---- sizes that are open: places and weights are computed as tensors, f64

struct OpenLine {
  Dim size, count;
  double scale = 0;  // 0: the quotient of both
};

Tensor number_of(Dim d, Device device) { return size_number(d, Float64, device); }
Tensor real(double value, const Tensor& like) { return full({}, value, Float64, like.device()); }

// Where each element of the result lies on x.
Tensor open_coordinates(const OpenLine& line, const ResizeOptions& o, Device device) {
  const Tensor at = add(cumsum(ones({line.count}, Float64, device), 0), -1), n = number_of(line.size, device);
  const Tensor scale = line.scale > 0 ? real(line.scale, n) : number_of(line.count, device) / n;
  switch (o.coordinates) {
    case Coordinates::AlignCorners: {
      const Tensor last = add(scale * n, -1);
      return at * add(n, -1) / where(eq(last, real(0, n)), real(1, n), last);
    }
    case Coordinates::Asymmetric:
      return at / scale;
    default:
      return add(add(at, 0.5) / scale, -0.5);
  }
}

Tensor open_nearest(const Tensor& at, NearestRule rule) {
  switch (rule) {
    case NearestRule::RoundPreferFloor:
      return ceil(add(at, -0.5));
    case NearestRule::RoundPreferCeil:
      return floor(add(at, 0.5));
    case NearestRule::Floor:
      return floor(at);
    default:
      return ceil(at);
  }
}

// kernel_at() of a tap's distances, which lie on one of its pieces.
Tensor open_weight(const Tensor& distance, bool is_near, const ResizeOptions& o) {
  const Tensor& x = distance;
  const double a = o.cubic;
  if (o.interpolation == Interpolation::Linear) return add(neg(x), 1);
  if (is_near) return add(add(mul(x, a + 2), -(a + 3)) * x * x, 1);
  return add(add(add(mul(x, a), -5 * a) * x, 8 * a) * x, -4 * a);
}

Tensor open_line(const Tensor& x, int64_t dim, const OpenLine& line, const ResizeOptions& o) {
  const Coordinates c = o.coordinates;
  const bool rule = c == Coordinates::HalfPixel || c == Coordinates::AlignCorners || c == Coordinates::Asymmetric;
  if (!rule || o.antialias || o.exclude_outside || o.aspect != AspectRatio::Stretch)
    (line.size.is_symbolic() ? line.size : line.count).value();  // which it must be known for
  const Tensor at = open_coordinates(line, o, x.device()), last = add(number_of(line.size, x.device()), -1);
  const auto taken = [&](const Tensor& place) {
    return index_select(x, dim, cast(minimum(clamp(place, 0, INFINITY), last), Int64));
  };
  if (o.interpolation == Interpolation::Nearest) return taken(open_nearest(at, o.nearest));
  Shape apart(static_cast<size_t>(x.dim() - dim), Dim(1));
  apart[0] = line.count;
  const Tensor below = floor(at), rest = at - below;
  const int64_t beyond = o.interpolation == Interpolation::Linear ? 0 : 1;  // taps
  Tensor y;
  for (int64_t tap = -beyond; tap <= 1 + beyond; ++tap) {
    const auto place = static_cast<double>(tap);
    const Tensor distance = tap > 0 ? add(neg(rest), place) : add(rest, -place);
    const Tensor weight = open_weight(distance, tap == 0 || tap == 1, o);
    const Tensor one = taken(add(below, place)) * reshape(cast(weight, x.dtype()), apart);
    y = y.defined() ? add(y, one) : one;
  }
  return y;
}

bool any_open(const Tensor& x, const std::vector<int64_t>& dims) {
  return std::any_of(dims.begin(), dims.end(), [&](int64_t dim) { return x.shape()[dim].is_symbolic(); });
}

// floor(size * scale), where that is exact.
Dim scaled(Dim size, double scale) {
  constexpr int64_t parts = 64;
  const double times = scale * parts;
  if (size.is_symbolic() && times >= 1 && times < 0x1p40 && times == std::floor(times))
    return size * static_cast<int64_t>(times) / parts;
  return static_cast<int64_t>(std::floor(static_cast<double>(size.value()) * scale));
}

// ---- in memory

// All that the weights come from.
std::string name_of(const ResizedLine& line, const ResizeOptions& o) {
  return fmt::format("resize {} {} {} {} {} {} {} {} {} {} {}", line.size, line.count, line.scale, line.begin, line.end,
                     static_cast<int>(o.interpolation), static_cast<int>(o.coordinates), static_cast<int>(o.nearest),
                     o.antialias, o.exclude_outside, o.cubic);
}

SparseMatrix matrix_of(const ResizedLine& line, const ResizeOptions& o, const Tensor& x) {
  return kept_matrix(name_of(line, o), x.dtype(), x.device(), [&] {
    const Taps t = taps_of(line, o);
    return sparse_matrix(t.places, t.weights, line.count, line.size, x.dtype(), x.device());
  });
}

Tensor composed_line(const Tensor& x, int64_t dim, const ResizedLine& line, const ResizeOptions& o) {
  constexpr int64_t few = 4;
  const Taps t = taps_of(line, o);
  return t.taps > few ? multiplied(x, dim, t, line.size) : gathered(x, dim, t);
}

struct ResizedDim {
  int64_t dim;
  ResizedLine line;
};
Tensor resized(const Tensor& x, const std::vector<ResizedDim>& dims, const ResizeOptions& o) {
  const bool crops = o.coordinates == Coordinates::TfCropAndResize, sparse = takes_sparse_lines(x);
  Tensor y = x;
  std::vector<SparseDim> products;
  for (const auto& [dim, line] : dims) {
    const bool is_whole = !crops || (line.begin == 0 && line.end == 1);
    if (is_whole && line.count == line.size && std::abs(line.scale - 1) < 1e-9) continue;
    if (sparse) products.push_back({dim, matrix_of(line, o, x)});
    else y = composed_line(y, dim, line, o);
    if (!crops) continue;
    y = extrapolated(sparse_products(y, products), dim, line, o);
    products.clear();
  }
  return sparse_products(y, products);
}

/// Before tables are made: results that no memory holds are refused.
void require_possible(std::string_view op, const Tensor& x, double scales) {
  if (!x.shape().is_symbolic() && !(static_cast<double>(x.numel()) * scales < 0x1p40))
    fail(op, "{} becomes {:.3g} times as large", to_string(x.shape()), scales);
}

std::vector<int64_t> checked_dims(std::string_view op, const Tensor& x, const Dims& dims, size_t numbers,
                                  const ResizeOptions& o) {
  if (dims.size() != numbers) fail(op, "{} numbers for {} dims of {}", numbers, dims.size(), to_string(x.shape()));
  if (o.interpolation != Interpolation::Nearest && !is_floating(x.dtype()))
    fail(op, "interpolates floating-point tensors, not {}", describe(x));
  if (o.interpolation == Interpolation::Nearest && o.antialias)
    fail(op, "antialias takes Linear or Cubic, not Nearest");
  if (o.coordinates == Coordinates::TfCropAndResize && o.region.size() != 2 * dims.size())
    fail(op, "the region has {} bounds for {} dims", o.region.size(), dims.size());
  std::vector<int64_t> all;
  for (const int64_t d : dims) {
    all.push_back(normalize_dim(op, d, x.shape()));
    if (std::count(all.begin(), all.end(), all.back()) > 1)
      fail(op, "dim {} of {} is named twice", d, to_string(x.shape()));
    if (x.shape()[all.back()] == Dim(0)) fail(op, "dim {} of {} has no elements", d, to_string(x.shape()));
  }
  return all;
}

ResizedLine line_of(const Tensor& x, int64_t dim, int64_t count, double scale, const ResizeOptions& o, size_t i) {
  ResizedLine line{x.size(dim), count, scale};
  if (o.coordinates == Coordinates::TfCropAndResize) {
    line.begin = o.region[i];
    line.end = o.region[i + o.region.size() / 2];
  }
  return line;
}

}  // namespace

Tensor resize(const Tensor& x, const Dims& dims, const Shape& sizes, const ResizeOptions& o) {
  const auto all = checked_dims("resize", x, dims, sizes.size(), o);
  for (const Dim size : sizes)
    if (size.high() < 1) fail("resize", "a size of {}", size.to_string());
  if (any_open(x, all) || sizes.is_symbolic()) {
    Tensor y = x;
    for (size_t i = 0; i < all.size(); ++i)
      if (const Dim size = x.shape()[all[i]]; !(size == sizes[i])) y = open_line(y, all[i], {size, sizes[i]}, o);
    return y;
  }
  std::vector<double> scales;
  for (size_t i = 0; i < all.size(); ++i)
    scales.push_back(static_cast<double>(sizes[i].value()) / static_cast<double>(x.size(all[i])));
  if (scales.empty()) return x;
  require_possible("resize", x, std::accumulate(scales.begin(), scales.end(), 1.0, std::multiplies<>()));
  const auto [least, most] = std::minmax_element(scales.begin(), scales.end());
  const double common = o.aspect == AspectRatio::NotLarger ? *least : *most;
  std::vector<ResizedDim> lines;
  for (size_t i = 0; i < all.size(); ++i) {
    ResizedLine line = line_of(x, all[i], sizes[i].value(), scales[i], o, i);
    if (o.aspect != AspectRatio::Stretch) {
      line.scale = common;
      line.count = std::max<int64_t>(1, static_cast<int64_t>(common * static_cast<double>(line.size) + 0.5));
    }
    lines.push_back({all[i], line});
  }
  return resized(x, lines, o);
}

Tensor resize_by(const Tensor& x, const Dims& dims, const std::vector<double>& scales, const ResizeOptions& o) {
  const auto all = checked_dims("resize_by", x, dims, scales.size(), o);
  if (any_open(x, all)) {
    Tensor y = x;
    for (size_t i = 0; i < all.size(); ++i)
      if (const Dim size = x.shape()[all[i]]; scales[i] != 1)
        y = open_line(y, all[i], {size, scaled(size, scales[i]), scales[i]}, o);
    return y;
  }
  std::vector<int64_t> counts;
  for (size_t i = 0; i < all.size(); ++i) {
    const double count = std::floor(static_cast<double>(x.size(all[i])) * scales[i]);
    if (!(scales[i] > 0) || !(count >= 1) || count > 1e15)
      fail("resize_by", "a scale of {} for dim {} of {}", scales[i], all[i], to_string(x.shape()));
    counts.push_back(static_cast<int64_t>(count));
  }
  require_possible("resize_by", x, std::accumulate(scales.begin(), scales.end(), 1.0, std::multiplies<>()));
  std::vector<ResizedDim> lines;
  for (size_t i = 0; i < all.size(); ++i) lines.push_back({all[i], line_of(x, all[i], counts[i], scales[i], o, i)});
  return resized(x, lines, o);
}

}  // namespace tessera
