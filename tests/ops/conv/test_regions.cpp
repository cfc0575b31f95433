#include "ops/reference.h"
#include "ops/slope_check.h"
#include "tessera/ops_image.h"

namespace tessera {
namespace {

using reference::Index;

// The four elements about a point and their weights.
std::vector<std::pair<Index, double>> corners(double row, double column, int64_t h, int64_t w) {
  if (row < -1 || row > static_cast<double>(h) || column < -1 || column > static_cast<double>(w)) return {};
  row = std::clamp(row, 0.0, static_cast<double>(h - 1)), column = std::clamp(column, 0.0, static_cast<double>(w - 1));
  const double top = std::floor(row), left = std::floor(column), a = row - top, b = column - left;
  std::vector<std::pair<Index, double>> all;
  for (const int down : {0, 1})
    for (const int right : {0, 1})
      all.push_back(
          {{std::min(static_cast<int64_t>(top) + down, h - 1), std::min(static_cast<int64_t>(left) + right, w - 1)},
           (down ? a : 1 - a) * (right ? b : 1 - b)});
  return all;
}

Tensor aligned(const Tensor& x, const Tensor& regions, const std::vector<int64_t>& batch, const RoiAlignOptions& o) {
  return reference::generate({regions.size(0), x.size(1), o.rows, o.columns}, Float64, [&](const Index& i) {
    double bound[4];
    for (int64_t n = 0; n < 4; ++n)
      bound[n] = reference::get(regions, Index{i[0], n}) * o.spatial_scale - (o.aligned ? 0.5 : 0);
    double height = bound[3] - bound[1], width = bound[2] - bound[0];
    if (!o.aligned) height = std::max(height, 1.0), width = std::max(width, 1.0);
    const double bin_h = height / static_cast<double>(o.rows), bin_w = width / static_cast<double>(o.columns);
    const auto down = o.sampling_ratio ? o.sampling_ratio : static_cast<int64_t>(std::ceil(bin_h));
    const auto across = o.sampling_ratio ? o.sampling_ratio : static_cast<int64_t>(std::ceil(bin_w));
    double sum = 0, most = -INFINITY;
    for (int64_t r = 0; r < down; ++r)
      for (int64_t s = 0; s < across; ++s) {
        const double row =
            bound[1] + bin_h * (static_cast<double>(i[2]) + (static_cast<double>(r) + 0.5) / static_cast<double>(down));
        const double column = bound[0] + bin_w * (static_cast<double>(i[3]) +
                                                  (static_cast<double>(s) + 0.5) / static_cast<double>(across));
        const auto all = corners(row, column, x.size(2), x.size(3));
        if (all.empty()) most = std::max(most, 0.0);
        for (const auto& [place, weight] : all) {
          const double part =
              weight * reference::get(x, Index{batch[static_cast<size_t>(i[0])], i[1], place[0], place[1]});
          sum += part;
          most = std::max(most, part);
        }
      }
    return o.max ? most : sum / static_cast<double>(down * across);
  });
}

TEST(RoiAlign, SamplesRegions) {
  Generator g(1);
  const Tensor x = normal64({2, 3, 9, 11}, g);
  const Tensor regions = tensor<double>({1.2, 0.7, 8.9, 7.1, -3, -2.5, 5, 4, 4, 4, 4.25, 4.5, 6, 5, 15.5, 12}, {4, 4});
  const std::vector<int64_t> batch{1, 0, 1, 0};
  for (const bool aligned_form : {false, true})
    for (const int64_t ratio : {0, 1, 3})
      for (const bool max : {false, true}) {
        const RoiAlignOptions o{.rows = 3,
                                .columns = 2,
                                .spatial_scale = 0.9,
                                .sampling_ratio = ratio,
                                .aligned = aligned_form,
                                .max = max};
        const Tensor numbers = tensor(batch, {4});
        EXPECT_LE(relative_error(roi_align(x, regions, numbers, o), aligned(x, regions, batch, o)), 1e-13)
            << aligned_form << ratio << max;
        expect_slopes([&](const Tensors& in) { return roi_align(in[0], regions, numbers, o); }, {x});
      }
}

TEST(RoiMaxPool, TakesTheLargestOfEachBin) {
  Generator g(2);
  const Tensor x = normal64({2, 3, 9, 11}, g);
  const Tensor regions = tensor<double>({1, 2, 1, 9, 7, 0, 3, 3, 3, 3, 0, -4, -3, 2, 20, 1, 12, 2, 14, 5}, {4, 5});
  const Tensor want = reference::generate({4, 3, 3, 2}, Float64, [&](const Index& i) {
    const auto number = [&](int64_t n) { return static_cast<int64_t>(reference::get(regions, Index{i[0], n})); };
    const auto bounds = [&](int64_t from, int64_t to, int64_t bin, int64_t bins, int64_t size) {
      const double part = static_cast<double>(std::max<int64_t>(to - from + 1, 1)) / static_cast<double>(bins);
      const auto at = static_cast<double>(bin);
      return std::pair{std::clamp<int64_t>(from + static_cast<int64_t>(std::floor(at * part)), 0, size),
                       std::clamp<int64_t>(from + static_cast<int64_t>(std::ceil((at + 1) * part)), 0, size)};
    };
    const auto [top, bottom] = bounds(number(2), number(4), i[2], 3, 9);
    const auto [left, right] = bounds(number(1), number(3), i[3], 2, 11);
    if (bottom <= top || right <= left) return 0.0;
    double most = -INFINITY;
    for (int64_t r = top; r < bottom; ++r)
      for (int64_t s = left; s < right; ++s) most = std::max(most, reference::get(x, Index{number(0), i[1], r, s}));
    return most;
  });
  EXPECT_EQ(roi_max_pool(x, regions, 3, 2).to_vector<double>(), want.to_vector<double>());
  const Tensor twice = mul(regions, tensor<double>({1, 2, 2, 2, 2}, {5}));
  EXPECT_EQ(roi_max_pool(x, twice, 3, 2, 0.5).to_vector<double>(), want.to_vector<double>());
  expect_slopes([&](const Tensors& in) { return roi_max_pool(in[0], regions, 3, 2); }, {x});
}

// Whether a suppresses b.
bool overlaps(const double* a, const double* b, double threshold) {
  const double height = std::min(a[2], b[2]) - std::max(a[0], b[0]),
               width = std::min(a[3], b[3]) - std::max(a[1], b[1]);
  if (height <= 0 || width <= 0) return false;
  const double common = height * width;
  return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common) > threshold;
}

TEST(NonMaxSuppression, KeepsTheBestOfThoseThatOverlap) {
  Generator g(3);
  const int64_t n = 2, classes = 3, count = 40;
  const Tensor low = uniform64({n, count, 2}, g, 0, 1), sides = uniform64({n, count, 2}, g, 0.2, 0.8);
  const Tensor boxes = concat({low, add(low, sides)}, 2), scores = uniform64({n, classes, count}, g, 0, 1);
  const auto corner = boxes.to_vector<double>(), score = scores.to_vector<double>();
  std::vector<int64_t> want;
  for (int64_t image = 0; image < n; ++image)
    for (int64_t group = 0; group < classes; ++group) {
      const double* s = score.data() + (image * classes + group) * count;
      std::vector<int64_t> kept;
      std::vector<bool> gone(count, false);
      while (kept.size() < 7) {
        int64_t best = -1;
        for (int64_t i = 0; i < count; ++i)
          if (!gone[i] && s[i] > 0.3 && (best < 0 || s[i] > s[best])) best = i;
        if (best < 0) break;
        kept.push_back(best);
        want.insert(want.end(), {image, group, best});
        for (int64_t i = 0; i < count; ++i)
          gone[i] = gone[i] || i == best ||
                    overlaps(corner.data() + (image * count + best) * 4, corner.data() + (image * count + i) * 4, 0.4);
      }
    }
  const SuppressionOptions o{.most = 7, .iou_threshold = 0.4, .score_threshold = 0.3};
  EXPECT_EQ(non_max_suppression(boxes, scores, o).to_vector<int64_t>(), want);
  // The same boxes with their corners exchanged, and by their middles.
  const Tensor turned = concat({slice(boxes, 2, 2, 4), slice(boxes, 2, 0, 2)}, 2);
  EXPECT_EQ(non_max_suppression(turned, scores, o).to_vector<int64_t>(), want);
  const Tensor middle = concat({flip(add(low, mul(sides, 0.5)), {2}), flip(sides, {2})}, 2);
  SuppressionOptions centered = o;
  centered.centered = true;
  EXPECT_EQ(non_max_suppression(middle, scores, centered).to_vector<int64_t>(), want);
  EXPECT_EQ(non_max_suppression(boxes, scores, {.iou_threshold = 0.4}).shape(), (Shape{0, 3}));
}

TEST(Regions, NameTheRuleThatIsBroken) {
  const Tensor x = zeros({1, 2, 3, 4}), regions = zeros({2, 4});
  EXPECT_EQ(error_of([&] {
              roi_align(x, zeros({2, 5}), zeros({2}, Int64));
            }),
            "roi_align: regions must have shape [r, 4], not [2, 5]");
  EXPECT_EQ(error_of([&] { roi_align(x, regions, zeros({3}, Int64)); }),
            "roi_align: batch must be integers of shape [2], not i64[3] on cpu");
  EXPECT_EQ(error_of([&] { roi_align(x, regions, ones({2}, Int64), {.sampling_ratio = 1}); }),
            "roi_align: a region is of image 1 of [1, 2, 3, 4]");
  EXPECT_EQ(error_of([&] { roi_align(x, regions, zeros({2}, Int64), {.rows = 0}); }),
            "roi_align: 0 rows and 1 columns");
  EXPECT_EQ(error_of([&] {
              roi_max_pool(x, zeros({1, 5}), int64_t{1} << 31, 1);
            }),
            "roi_max_pool: 2147483648 rows and 1 columns are too many");
  EXPECT_EQ(error_of([&] { roi_align(x, regions, zeros({2}, Int64), {.sampling_ratio = int64_t{1} << 40}); }),
            "roi_align: 1 rows, 1 columns and 1099511627776 samples are not from 0 to 2^20");
  EXPECT_EQ(error_of([&] {
              roi_max_pool(x, full({1, 5}, NAN), 1, 1);
            }),
            "roi_max_pool: region 0 is of image nan of [1, 2, 3, 4]");
  EXPECT_EQ(error_of([&] {
              roi_max_pool(x, ones({1, 5}), 1, 1);
            }),
            "roi_max_pool: region 0 is of image 1 of [1, 2, 3, 4]");
  EXPECT_EQ(error_of([&] {
              non_max_suppression(zeros({1, 2, 3}), zeros({1, 1, 2}), {});
            }),
            "non_max_suppression: boxes must have shape [n, boxes, 4], not [1, 2, 3]");
  EXPECT_EQ(error_of([&] {
              non_max_suppression(zeros({1, 2, 4}), zeros({1, 1, 3}), {});
            }),
            "non_max_suppression: scores [1, 1, 3] do not fit boxes [1, 2, 4]");
}

}  // namespace
}  // namespace tessera
