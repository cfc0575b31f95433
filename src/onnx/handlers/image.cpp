// Images: resized, sampled, rearranged, padded and cut into regions.
#include "tessera/ops_image.h"

#include <array>
#include <numeric>

#include "onnx/handlers/window.h"

namespace tessera::onnx {
namespace {

// The value that belongs to the text of an attribute.
template <class T, size_t n>
T choice(const Call& c, std::string_view name, std::string_view otherwise,
         const std::array<std::pair<std::string_view, T>, n>& choices) {
  const std::string text = c.text(name, otherwise);
  for (const auto& [word, value] : choices)
    if (word == text) return value;
  c.fail("{} is '{}'", name, text);
}

constexpr auto kInterpolations = std::to_array<std::pair<std::string_view, Interpolation>>({
    {"nearest", Interpolation::Nearest},
    {"linear", Interpolation::Linear},
    {"bilinear", Interpolation::Linear},
    {"cubic", Interpolation::Cubic},
    {"bicubic", Interpolation::Cubic},
});
constexpr auto kCoordinates = std::to_array<std::pair<std::string_view, Coordinates>>({
    {"half_pixel", Coordinates::HalfPixel},
    {"half_pixel_symmetric", Coordinates::HalfPixelSymmetric},
    {"pytorch_half_pixel", Coordinates::PytorchHalfPixel},
    {"align_corners", Coordinates::AlignCorners},
    {"asymmetric", Coordinates::Asymmetric},
    {"tf_crop_and_resize", Coordinates::TfCropAndResize},
});
constexpr auto kNearest = std::to_array<std::pair<std::string_view, NearestRule>>({
    {"round_prefer_floor", NearestRule::RoundPreferFloor},
    {"round_prefer_ceil", NearestRule::RoundPreferCeil},
    {"floor", NearestRule::Floor},
    {"ceil", NearestRule::Ceil},
});
constexpr auto kAspects = std::to_array<std::pair<std::string_view, AspectRatio>>({
    {"stretch", AspectRatio::Stretch},
    {"not_larger", AspectRatio::NotLarger},
    {"not_smaller", AspectRatio::NotSmaller},
});
constexpr auto kBeyond = std::to_array<std::pair<std::string_view, Beyond>>({
    {"zeros", Beyond::Zeros},
    {"border", Beyond::Border},
    {"reflection", Beyond::Reflection},
});
constexpr auto kPaddings = std::to_array<std::pair<std::string_view, Padding>>({
    {"constant", Padding::Constant},
    {"reflect", Padding::Reflect},
    {"edge", Padding::Edge},
    {"wrap", Padding::Wrap},
});

// The dims that an attribute or an input names, or all.
Dims axes_of(const Tensor& x, const std::vector<int64_t>& given) {
  if (!given.empty()) return given;
  std::vector<int64_t> all(static_cast<size_t>(x.dim()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}
bool has_elements(const Call& c, size_t i) { return c.has(i) && c.in(i).numel() > 0; }

// Integers are interpolated as f32.
template <class F>
Tensor interpolated(const Tensor& x, const ResizeOptions& o, F resize_it) {
  if (is_floating(x.dtype()) || o.interpolation == Interpolation::Nearest) return resize_it(x);
  return cast(resize_it(cast(x, Float32)), x.dtype());
}
Tensor by_scales(const Tensor& x, const Dims& dims, const std::vector<double>& scales, const ResizeOptions& o) {
  return interpolated(x, o, [&](const Tensor& t) { return resize_by(t, dims, scales, o); });
}

Values resize_images(const Call& c) {
  const Tensor& x = c.in(0);
  ResizeOptions o{.interpolation = choice(c, "mode", "nearest", kInterpolations),
                  .coordinates = choice(c, "coordinate_transformation_mode", "half_pixel", kCoordinates),
                  .nearest = choice(c, "nearest_mode", "round_prefer_floor", kNearest),
                  .cubic = c.real("cubic_coeff_a", -0.75),
                  .exclude_outside = c.flag("exclude_outside", false),
                  .antialias = c.flag("antialias", false),
                  .aspect = choice(c, "keep_aspect_ratio_policy", "stretch", kAspects),
                  .extrapolation = c.real("extrapolation_value", 0)};
  const Dims dims = axes_of(x, c.integers("axes"));
  if (o.coordinates == Coordinates::TfCropAndResize) o.region = c.numbers(1);
  if (has_elements(c, 2)) return {by_scales(x, dims, c.numbers(2), o)};
  if (!has_elements(c, 3)) c.fail("neither scales nor sizes are given");
  const Dims numbers = c.ints(3);
  const Shape sizes(numbers.begin(), numbers.end());
  return {interpolated(x, o, [&](const Tensor& t) { return resize(t, dims, sizes, o); })};
}
// Before opset 11, and as Upsample.
Values resize_plainly(const Call& c) {
  const ResizeOptions o{.interpolation = choice(c, "mode", "nearest", kInterpolations),
                        .coordinates = Coordinates::Asymmetric,
                        .nearest = NearestRule::Floor};
  const Tensor& x = c.in(0);
  return {by_scales(x, axes_of(x, {}), c.has(1) ? c.numbers(1) : c.reals("scales"), o)};
}

Values sample_by_grid(const Call& c) {
  const GridSampleOptions o{.interpolation = choice(c, "mode", "linear", kInterpolations),
                            .beyond = choice(c, "padding_mode", "zeros", kBeyond),
                            .align_corners = c.flag("align_corners", false)};
  return {grid_sample(c.in(0), c.in(1), o)};
}
Values grid_of_affine(const Call& c) {
  const std::vector<int64_t> sizes = c.ints(1);
  if (sizes.size() < 3) c.fail("sizes of {} dims", sizes.size());
  return {affine_grid(c.in(0), std::vector<int64_t>(sizes.begin() + 2, sizes.end()), c.flag("align_corners", false))};
}

bool is_depth_first(const Call& c) {
  return choice(c, "mode", "DCR", std::to_array<std::pair<std::string_view, bool>>({{"DCR", true}, {"CRD", false}}));
}
Values depths_to_space(const Call& c) {
  const int64_t block = c.integer("blocksize", 0);
  return {is_depth_first(c) ? depth_to_space(c.in(0), block) : pixel_shuffle(c.in(0), block)};
}
Values space_to_depths(const Call& c) {
  const int64_t block = c.integer("blocksize", 0);
  return {is_depth_first(c) ? space_to_depth(c.in(0), block) : pixel_unshuffle(c.in(0), block)};
}

Values pad_dims(const Call& c) {
  const Tensor& x = c.in(0);
  const std::vector<int64_t> pads = c.has(1)                  ? c.ints(1)
                                    : c.has_attribute("pads") ? c.integers("pads")
                                                              : c.integers("paddings");
  const Dims dims = axes_of(x, c.ints(3, {}));
  if (pads.size() != 2 * dims.size()) c.fail("{} paddings for {} dims", pads.size(), dims.size());
  Dims low(std::vector<int64_t>(static_cast<size_t>(x.dim()), 0)), high = low;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t dim = normalize_dim("Pad", dims[i], x.shape());
    low[dim] = pads[i];
    high[dim] = pads[i + dims.size()];
  }
  const double value = has_elements(c, 2) ? c.number(2) : c.real("value", 0);
  return {pad(x, low, high, choice(c, "mode", "constant", kPaddings), value)};
}
Values crop_or_pad_middle(const Call& c) {
  return {center_crop_pad(c.in(0), axes_of(c.in(0), c.integers("axes")), c.ints(1))};
}

Values align_regions(const Call& c) {
  const std::string how = c.text("coordinate_transformation_mode", c.opset() < 16 ? "output_half_pixel" : "half_pixel");
  const std::string mode = c.text("mode", "avg");
  if (mode != "avg" && mode != "max") c.fail("mode is '{}'", mode);
  const RoiAlignOptions o{.rows = c.integer("output_height", 1),
                          .columns = c.integer("output_width", 1),
                          .spatial_scale = c.real("spatial_scale", 1),
                          .sampling_ratio = c.integer("sampling_ratio", 0),
                          .aligned = how == "half_pixel",
                          .max = mode == "max"};
  if (how != "half_pixel" && how != "output_half_pixel") c.fail("coordinate_transformation_mode is '{}'", how);
  return {roi_align(c.in(0), c.in(1), c.in(2), o)};
}
Values pool_regions(const Call& c) {
  const auto sizes = c.integers("pooled_shape");
  if (sizes.size() != 2) c.fail("pooled_shape has {} numbers", sizes.size());
  return {roi_max_pool(c.in(0), c.in(1), sizes[0], sizes[1], c.real("spatial_scale", 1))};
}
Values suppress_boxes(const Call& c) {
  SuppressionOptions o{.most = c.has(2) ? c.whole(2, INT64_MIN, INT64_MAX) : 0,
                       .iou_threshold = c.has(3) ? c.number(3) : 0,
                       .centered = c.flag("center_point_box", false)};
  if (c.has(4)) o.score_threshold = c.number(4);
  // On the host, where values decide how many boxes remain.
  return {non_max_suppression(c.in(0).to(cpu()), c.in(1).to(cpu()), o).to(c.device())};
}

Values convolve_deformed(const Call& c) {
  const std::vector<int64_t> pads = c.integers("pads", {0, 0, 0, 0});
  if (pads.size() != 4) c.fail("{} paddings for 2 dims", pads.size());
  const Tensor &weight = c.in(1), &offsets = c.in(2);
  check_kernel_shape(c, weight);
  const int64_t groups = c.integer("offset_group", 1);
  if (weight.dim() != 4 || offsets.dim() != 4 || groups < 1 || offsets.size(1) % groups ||
      offsets.size(1) / groups != 2 * weight.size(2) * weight.size(3))
    c.fail("offsets {} of {} groups for {}", describe(offsets), groups, describe(weight));
  const ConvOptions o{.stride = c.integers("strides", {1, 1}),
                      .low = {pads[0], pads[1]},
                      .high = {pads[2], pads[3]},
                      .dilation = c.integers("dilations", {1, 1}),
                      .groups = c.integer("group", 1)};
  return {deform_conv(c.in(0), c.in(1), c.in(2), c.optional(4), c.optional(3), o)};
}

// ---- norms

Values normalize_responses(const Call& c) {
  return {local_response_norm(c.in(0), c.integer("size", 0), c.real("alpha", 1e-4f), c.real("beta", 0.75),
                              c.real("bias", 1))};
}
Values normalize_lengths(const Call& c) {
  return {lp_normalize(c.in(0), static_cast<double>(c.integer("p", 2)), c.integer("axis", -1))};
}
Values normalize_moments(const Call& c) { return {mean_variance_norm(c.in(0), c.integers("axes", {0, 2, 3}))}; }

constexpr Entry entries[] = {
    {"AffineGrid", 20, grid_of_affine},
    {"CenterCropPad", 18, crop_or_pad_middle},
    {"DeformConv", 19, convolve_deformed},
    {"DepthToSpace", 1, depths_to_space},
    {"GridSample", 16, sample_by_grid},
    {"GridSample", 1, sample_by_grid, "com.microsoft"},
    {"LRN", 1, normalize_responses},
    {"LpNormalization", 1, normalize_lengths},
    {"MaxRoiPool", 1, pool_regions},
    {"MeanVarianceNormalization", 9, normalize_moments},
    {"NonMaxSuppression", 10, suppress_boxes},
    {"Pad", 1, pad_dims},
    {"Pad", 1, pad_dims, "com.microsoft"},
    {"Resize", 10, resize_plainly},
    {"Resize", 11, resize_images},
    {"RoiAlign", 10, align_regions},
    {"SpaceToDepth", 1, space_to_depths},
    {"Upsample", 7, resize_plainly},
};

}  // namespace

std::span<const Entry> image_handlers() { return entries; }

}  // namespace tessera::onnx
