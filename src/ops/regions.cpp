// Regions of images: their elements sampled or pooled, and those boxes that others do not suppress.
#include <algorithm>
#include <cmath>

#include "core/capture_state.h"
#include "ops/check.h"
#include "ops/sample.h"
#include "ops/sample_kernels.h"

namespace tessera {
namespace {

// Of all regions: where they begin along one dim, and how far they reach, [r, 1].
struct Extent {
  Tensor begin, length;
};
Extent extent_of(const Tensor& regions, int64_t from, const RoiAlignOptions& o) {
  const auto bound = [&](int64_t column) {
    return add(mul(slice(regions, 1, column, column + 1), o.spatial_scale), o.aligned ? -0.5 : 0);
  };
  const Tensor begin = bound(from), length = sub(bound(from + 2), begin);
  return {begin, o.aligned ? length : maximum(length, full({}, 1, length.dtype(), length.device()))};
}

// Along one dim of a region; lists of them lie on the host.
constexpr int64_t kMostBins = 1 << 16, kMostSamples = 1 << 22;

// Coordinates of `samples` points in each of `bins`, [r, bins * samples].
Tensor sample_coordinates(const Extent& e, int64_t bins, int64_t samples) {
  if (samples > kMostSamples / bins) fail("roi_align", "{} samples in each of {} bins", samples, bins);
  std::vector<double> parts;
  for (int64_t i = 0; i < bins * samples; ++i)
    parts.push_back((static_cast<double>(i) + 0.5) / static_cast<double>(bins * samples));
  const Tensor at = tensor(parts, {1, bins * samples}).to(e.begin.dtype()).to(e.begin.device());
  return add(mul(at, e.length), e.begin);
}

// The border repeats up to one element beyond the image; farther points are 0.
AxisTaps region_taps(const Tensor& at, int64_t size, int64_t dim) {
  const auto number = [&](double value) { return full({}, value, at.dtype(), at.device()); };
  const Tensor inside = logical_and(ge(at, number(-1)), le(at, number(static_cast<double>(size))));
  AxisTaps taps = axis_taps(at, size, {.beyond = Beyond::Border});
  for (AxisTap& tap : taps) {
    tap.weight = unsqueeze(where(inside, tap.weight, number(0)), dim);
    tap.place = unsqueeze(tap.place, dim);
  }
  return taps;
}

// The products of elements and weights of each sample, [r, points, c] for each of four elements, made one.
Tensor largest_product(const Tensor& rows, const std::vector<AxisTap>& taps) {
  Tensor most;
  for (const AxisTap& tap : taps) {
    const Tensor one = summed_rows(rows, {tap});
    most = most.defined() ? maximum(most, one) : one;
  }
  return most;
}

// With `across` x `down` samples in each bin.
Tensor aligned_regions(const Tensor& rows, const Tensor& x, const Tensor& regions, const Tensor& batch,
                       const RoiAlignOptions& o, int64_t down, int64_t across) {
  const int64_t count = regions.size(0), c = x.size(1);
  if (down < 1 || across < 1) return zeros({count, c, o.rows, o.columns}, x.dtype(), x.device());
  const std::vector<int64_t> sizes{x.size(2), x.size(3)};
  const std::vector<AxisTaps> axes{
      region_taps(sample_coordinates(extent_of(regions, 1, o), o.rows, down), sizes[0], 2),
      region_taps(sample_coordinates(extent_of(regions, 0, o), o.columns, across), sizes[1], 1)};
  const Tensor base = reshape(mul(batch.to(Int64), static_cast<double>(sizes[0] * sizes[1])), {count, 1, 1});
  const auto taps = combined_taps(base, axes, sizes);
  const Tensor samples = reshape(o.max ? largest_product(rows, taps) : summed_rows(rows, taps),
                                 {count, o.rows, down, o.columns, across, c});
  return permute(o.max ? amax(samples, {2, 4}) : mean(samples, {2, 4}), {0, 3, 1, 2});
}

void require_regions(std::string_view op, const Tensor& x, const Tensor& regions, int64_t width, int64_t rows,
                     int64_t columns) {
  if (x.dim() != 4) fail(op, "x must have 4 dims, not shape {}", to_string(x.shape()));
  if (!is_floating(x.dtype())) fail(op, "takes floating-point tensors, not {}", describe(x));
  if (regions.dim() != 2 || regions.size(1) != width)
    fail(op, "regions must have shape [r, {}], not {}", width, to_string(regions.shape()));
  if (regions.dtype() != x.dtype()) fail(op, "regions are {} for x of {}", name(regions.dtype()), name(x.dtype()));
  if (rows < 1 || columns < 1) fail(op, "{} rows and {} columns", rows, columns);
  if (rows > kMostBins || columns > kMostBins) fail(op, "{} rows and {} columns are too many", rows, columns);
  if (x.size(2) < 1 || x.size(3) < 1) fail(op, "{} has no elements", to_string(x.shape()));
}

// Elements of each bin along one dim, the last repeated; a bin without any has `is_empty`.
struct Bins {
  std::vector<int64_t> places;
  std::vector<bool> is_empty;
  int64_t most = 1;
};
Bins bins_between(int64_t first, int64_t last, int64_t count, int64_t size) {
  const double width = static_cast<double>(std::max<int64_t>(last - first + 1, 1)) / static_cast<double>(count);
  std::vector<std::pair<int64_t, int64_t>> bounds;
  Bins bins;
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<double>(i);
    const int64_t begin = std::clamp<int64_t>(static_cast<int64_t>(std::floor(at * width)) + first, 0, size),
                  end = std::clamp<int64_t>(static_cast<int64_t>(std::ceil((at + 1) * width)) + first, 0, size);
    bounds.push_back({begin, end});
    bins.is_empty.push_back(end <= begin);
    bins.most = std::max(bins.most, end - begin);
  }
  for (const auto& [begin, end] : bounds)
    for (int64_t i = 0; i < bins.most; ++i)
      bins.places.push_back(std::clamp<int64_t>(std::min(begin + i, end - 1), 0, size - 1));
  return bins;
}

// The largest element of each bin along `dim`.
Tensor most_of_bins(const Tensor& x, int64_t dim, const Bins& bins) {
  const auto count = static_cast<int64_t>(bins.is_empty.size());
  const Tensor places = tensor(bins.places, {count * bins.most}).to(x.device());
  Shape split = x.shape();
  split[dim] = count;
  split.insert(split.begin() + dim + 1, Dim(bins.most));
  const Tensor most = amax(reshape(index_select(x, dim, places), split), {dim + 1});
  Shape line{count};
  for (int64_t d = dim + 1; d < x.dim(); ++d) line.push_back(1);
  Tensor empty = empty_host(line, Bool);
  std::copy(bins.is_empty.begin(), bins.is_empty.end(), empty.data<bool>());
  return where(empty.to(x.device()), full({}, 0, x.dtype(), x.device()), most);
}

// Corners of a box, and what two boxes share.
struct Box {
  double top, left, bottom, right;
  double area() const { return (bottom - top) * (right - left); }
};
Box box_at(const double* numbers, bool centered) {
  if (centered)
    return {numbers[1] - numbers[3] / 2, numbers[0] - numbers[2] / 2, numbers[1] + numbers[3] / 2,
            numbers[0] + numbers[2] / 2};
  return {std::min(numbers[0], numbers[2]), std::min(numbers[1], numbers[3]), std::max(numbers[0], numbers[2]),
          std::max(numbers[1], numbers[3])};
}
double overlap(const Box& a, const Box& b) {
  const Box common{std::max(a.top, b.top), std::max(a.left, b.left), std::min(a.bottom, b.bottom),
                   std::min(a.right, b.right)};
  if (common.bottom <= common.top || common.right <= common.left || a.area() <= 0 || b.area() <= 0) return 0;
  return common.area() / (a.area() + b.area() - common.area());
}

// Of one class: numbers of the boxes that remain, best first.
std::vector<int64_t> remaining_boxes(const std::vector<Box>& boxes, const double* scores, const SuppressionOptions& o) {
  std::vector<int64_t> order, kept;
  for (size_t i = 0; i < boxes.size(); ++i)
    if (scores[i] > o.score_threshold) order.push_back(static_cast<int64_t>(i));
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  for (const int64_t i : order) {
    if (static_cast<int64_t>(kept.size()) >= o.most) break;
    const bool is_free = std::all_of(kept.begin(), kept.end(), [&](int64_t k) {
      return overlap(boxes[static_cast<size_t>(k)], boxes[static_cast<size_t>(i)]) <= o.iou_threshold;
    });
    if (is_free) kept.push_back(i);
  }
  return kept;
}

// On the host, where values may be read: a card takes regions of images that are not there as empty.
void require_images_of_regions(std::string_view op, const Tensor& x, const Tensor& batch) {
  if (batch.device() != cpu() || is_capturing()) return;
  for (const int64_t image : batch.to_vector<int64_t>())
    if (image < 0 || image >= x.size(0)) fail(op, "a region is of image {} of {}", image, to_string(x.shape()));
}

}  // namespace

Tensor roi_align(const Tensor& x, const Tensor& regions, const Tensor& batch, const RoiAlignOptions& o) {
  constexpr std::string_view op = "roi_align";
  require_regions(op, x, regions, 4, o.rows, o.columns);
  const int64_t count = regions.size(0);
  if (batch.dim() != 1 || batch.size(0) != count || is_floating(batch.dtype()))
    fail(op, "batch must be integers of shape [{}], not {}", count, describe(batch));
  require_images_of_regions(op, x, batch);
  if (has_roi_align_kernel(regions, o)) return roi_align_by_kernel(x, regions, batch, o);
  const Tensor rows = rows_of_images(x);
  if (o.sampling_ratio > 0) return aligned_regions(rows, x, regions, batch, o, o.sampling_ratio, o.sampling_ratio);
  if (count == 0) return zeros({0, x.size(1), o.rows, o.columns}, x.dtype(), x.device());
  const auto samples = [&](int64_t column, int64_t bins) {
    const auto lengths = extent_of(regions.detach(), column, o).length.to(cpu()).to_vector<double>();
    std::vector<int64_t> all;
    for (const double length : lengths) {
      if (!(length <= static_cast<double>(kMostSamples))) fail(op, "a region of length {}", length);
      all.push_back(static_cast<int64_t>(std::ceil(length / static_cast<double>(bins))));
    }
    return all;
  };
  const auto down = samples(1, o.rows), across = samples(0, o.columns);
  Tensors all;
  for (int64_t i = 0; i < count; ++i)
    all.push_back(aligned_regions(rows, x, slice(regions, 0, i, i + 1), slice(batch, 0, i, i + 1), o,
                                  down[static_cast<size_t>(i)], across[static_cast<size_t>(i)]));
  return concat(all, 0);
}

Tensor roi_max_pool(const Tensor& x, const Tensor& regions, int64_t rows, int64_t columns, double spatial_scale) {
  constexpr std::string_view op = "roi_max_pool";
  constexpr double kFarthest = 1e12;  // pixels
  require_regions(op, x, regions, 5, rows, columns);
  const auto numbers = regions.detach().to(cpu()).to_vector<double>();
  Tensors all;
  for (size_t i = 0; i < numbers.size(); i += 5) {
    const double image = numbers[i];
    if (!(image >= 0) || image >= static_cast<double>(x.size(0)))
      fail(op, "region {} is of image {} of {}", i / 5, image, to_string(x.shape()));
    const auto bound = [&](size_t n) {
      const double at = std::round(numbers[i + n] * spatial_scale);
      if (!(std::abs(at) <= kFarthest)) fail(op, "region {} ends at {}", i / 5, at);
      return static_cast<int64_t>(at);
    };
    const Tensor one = slice(x, 0, static_cast<int64_t>(image), static_cast<int64_t>(image) + 1);
    const Tensor lines = most_of_bins(one, 2, bins_between(bound(2), bound(4), rows, x.size(2)));
    all.push_back(most_of_bins(lines, 3, bins_between(bound(1), bound(3), columns, x.size(3))));
  }
  return all.empty() ? zeros({0, x.size(1), rows, columns}, x.dtype(), x.device()) : concat(all, 0);
}

Tensor non_max_suppression(const Tensor& boxes, const Tensor& scores, const SuppressionOptions& o) {
  constexpr std::string_view op = "non_max_suppression";
  if (boxes.device().type != DeviceType::CPU || scores.device().type != DeviceType::CPU)
    fail(op, "runs on CPUs alone, since values decide how many boxes remain; boxes are {}", describe(boxes));
  if (boxes.dim() != 3 || boxes.size(2) != 4)
    fail(op, "boxes must have shape [n, boxes, 4], not {}", to_string(boxes.shape()));
  if (scores.dim() != 3 || scores.size(0) != boxes.size(0) || scores.size(2) != boxes.size(1))
    fail(op, "scores {} do not fit boxes {}", to_string(scores.shape()), to_string(boxes.shape()));
  const int64_t count = boxes.size(1), classes = scores.size(1);
  const auto corners = boxes.to_vector<double>(), values = scores.to_vector<double>();
  std::vector<int64_t> found;
  for (int64_t image = 0; image < boxes.size(0); ++image) {
    std::vector<Box> all;
    for (int64_t i = 0; i < count; ++i) all.push_back(box_at(corners.data() + (image * count + i) * 4, o.centered));
    for (int64_t group = 0; group < classes; ++group)
      for (const int64_t box : remaining_boxes(all, values.data() + (image * classes + group) * count, o))
        found.insert(found.end(), {image, group, box});
  }
  return tensor(found, {static_cast<int64_t>(found.size()) / 3, 3});
}

}  // namespace tessera
