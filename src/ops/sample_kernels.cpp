#include "ops/sample_kernels.h"

#include <algorithm>
#include <cmath>

#include "core/sample_attrs.h"
#include "ops/check.h"
#include "ops/op_table.h"
#include "ops/reference.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

using reference::Index;

void add_to_element(const Tensor& t, const Index& index, double value) {
  reference::set(t, index, reference::get(t, index) + value);
}

// ---- grid_sample: x [n, c, ...], grid [n, ..., 2 or 3] -> y; the gradients: dy, x, grid -> dx, and -> dgrid

Shape sampled_shape(std::string_view op, const TensorMeta& x, const TensorMeta& grid) {
  const int64_t spatial = x.shape.rank() - 2;
  if (spatial < 2 || spatial > 3) fail(op, "x must have 4 or 5 dims, not shape {}", to_string(x.shape));
  if (!is_floating(x.dtype) || !is_floating(grid.dtype))
    fail(op, "takes floating-point tensors, not {} and {}", describe(x), describe(grid));
  if (grid.shape.rank() != spatial + 2 || provably_different(grid.shape.back(), Dim(spatial)) ||
      !(grid.shape[0] == x.shape[0]))
    fail(op, "grid {} does not fit x {}", to_string(grid.shape), to_string(x.shape));
  for (int64_t d = 2; d < x.shape.rank(); ++d)
    if (x.shape[static_cast<size_t>(d)].high() < 1) fail(op, "{} has no elements", to_string(x.shape));
  Shape y{x.shape[0], x.shape[1]};
  for (size_t d = 1; d + 1 < grid.shape.size(); ++d) y.push_back(grid.shape[d]);
  return y;
}
void require_known_modes(std::string_view op, const Attrs& attrs) {
  const auto& a = attrs.as<GridSampleAttrs>();
  if (a.interpolation < 0 || a.interpolation > 2) fail(op, "interpolation must be 0, 1 or 2, not {}", a.interpolation);
  if (a.beyond < 0 || a.beyond > 2) fail(op, "beyond must be 0, 1 or 2, not {}", a.beyond);
}

Metas infer_grid_sample(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("grid_sample", in);
  require_known_modes("grid_sample", attrs);
  return {{sampled_shape("grid_sample", in[0], in[1]), in[0].dtype, in[0].device}};
}
Metas infer_gradient(std::string_view op, std::span<const TensorMeta> in, const Attrs& attrs, size_t of) {
  require_inputs(op, in);
  require_known_modes(op, attrs);
  require_shape(op, "the gradient", in[0], sampled_shape(op, in[1], in[2]));
  if (in[0].dtype != in[1].dtype) fail(op, "dtypes differ: {} and {}", describe(in[0]), describe(in[1]));
  return {{in[of].shape, in[of].dtype, in[of].device}};
}
Metas infer_input_grad(std::span<const TensorMeta> in, const Attrs& attrs) {
  return infer_gradient("grid_sample_input_grad", in, attrs, 1);
}
Metas infer_grid_grad(std::span<const TensorMeta> in, const Attrs& attrs) {
  return infer_gradient("grid_sample_grid_grad", in, attrs, 2);
}

struct Tap {
  int64_t place;
  double weight, slope;
};

double mirrored(double at, double low, double high, double& slope) {
  if (high <= low) return slope = 0, 0;
  if (at == low || at == high) slope = at == low ? 0 : -1;  // as what is made of operators has it there
  for (; at < low || at > high; slope = -slope) at = at < low ? 2 * low - at : 2 * high - at;
  return at;
}

// Along a dim, for a point from -1 to 1.
std::vector<Tap> taps_along(double point, int64_t size, const GridSampleAttrs& a) {
  const auto last = static_cast<double>(size - 1), n = static_cast<double>(size);
  const double at = a.elements ? point : a.align_corners ? (point + 1) / 2 * last : ((point + 1) * n - 1) / 2;
  const double scale = a.elements ? 1 : a.align_corners ? last / 2 : n / 2;
  const auto inside = [&](double v, double& slope) {
    if (a.beyond == 0) return v;
    if (a.beyond == 2) v = a.align_corners ? mirrored(v, 0, last, slope) : mirrored(v, -0.5, last + 0.5, slope);
    if (v < 0 || v > last) slope = 0;
    return std::clamp(v, 0.0, last);
  };
  std::vector<Tap> taps;
  const auto add = [&](double whole, double weight, double slope) {
    double unused = 1;
    const double place = std::nearbyint(inside(whole, unused));
    if (place >= 0 && place <= last) taps.push_back({static_cast<int64_t>(place), weight, slope * scale});
  };
  if (a.interpolation == 0) add(std::nearbyint(at), 1, 0);
  if (a.interpolation == 1) {
    double slope = 1;
    const double v = inside(at, slope), begin = std::floor(v);
    add(begin, 1 - (v - begin), -slope);
    add(begin + 1, v - begin, slope);
  }
  if (a.interpolation == 2)
    for (int k = -1; k < 3; ++k) {
      const double whole = std::floor(at) + k, d = std::abs(at - whole), sign = at < whole ? -1 : 1;
      if (d <= 1) add(whole, 1.25 * d * d * d - 2.25 * d * d + 1, sign * (3.75 * d * d - 4.5 * d));
      else add(whole, -0.75 * d * d * d + 3.75 * d * d - 6 * d + 3, sign * (-2.25 * d * d + 7.5 * d - 6));
    }
  return taps;
}

// An element that a point is made of: where it lies, its weight, and what that changes by along each dim.
struct Part {
  Index place;
  double weight = 1, slope[3] = {1, 1, 1};
};

// For element `i` of y.
std::vector<Part> parts_of(const Tensor& x, const Tensor& grid, const Index& i, const GridSampleAttrs& a) {
  const int64_t spatial = x.dim() - 2;
  std::vector<Part> parts(1);
  parts[0].place = {i[0], i[1]};
  for (int64_t d = 0; d < spatial; ++d) {
    Index at{i[0]};
    at.insert(at.end(), i.begin() + 2, i.end());
    at.push_back(spatial - 1 - d);
    std::vector<Part> next;
    for (const Tap& tap : taps_along(reference::get(grid, at), x.size(2 + d), a))
      for (Part part : parts) {
        part.place.push_back(tap.place);
        part.weight *= tap.weight;
        for (int64_t k = 0; k < spatial; ++k) part.slope[k] *= k == d ? tap.slope : tap.weight;
        next.push_back(part);
      }
    parts = next;
  }
  return parts;
}

Tensors grid_sample_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor &x = in[0], &grid = in[1];
  return {reference::generate(sampled_shape("grid_sample", x.meta(), grid.meta()), x.dtype(), [&](const Index& i) {
    double sum = 0;
    for (const Part& part : parts_of(x, grid, i, attrs.as<GridSampleAttrs>()))
      sum += part.weight * reference::get(x, part.place);
    return sum;
  })};
}
Tensors input_grad_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor &dy = in[0], &x = in[1], dx = zeros(x.shape(), x.dtype());
  reference::each_index(dy.shape(), [&](const Index& i) {
    for (const Part& part : parts_of(x, in[2], i, attrs.as<GridSampleAttrs>()))
      add_to_element(dx, part.place, part.weight * reference::get(dy, i));
  });
  return {dx};
}
Tensors grid_grad_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor &dy = in[0], &x = in[1], &grid = in[2], dgrid = zeros(grid.shape(), grid.dtype());
  reference::each_index(dy.shape(), [&](const Index& i) {
    Index at{i[0]};
    at.insert(at.end(), i.begin() + 2, i.end());
    at.push_back(0);
    for (const Part& part : parts_of(x, grid, i, attrs.as<GridSampleAttrs>()))
      for (int64_t d = 0; d < x.dim() - 2; ++d) {
        at.back() = x.dim() - 3 - d;
        add_to_element(dgrid, at, part.slope[d] * reference::get(x, part.place) * reference::get(dy, i));
      }
  });
  return {dgrid};
}

const Op grid_sample_input_grad_op = {.name = "grid_sample_input_grad",
                                      .inputs = "dy, x, grid",
                                      .outputs = "dx",
                                      .attrs = attrs_of<GridSampleAttrs>,
                                      .infer = infer_input_grad,
                                      .reference = input_grad_reference,
                                      .pitched = Pitched::None};
const Op grid_sample_grid_grad_op = {.name = "grid_sample_grid_grad",
                                     .inputs = "dy, x, grid",
                                     .outputs = "dgrid",
                                     .attrs = attrs_of<GridSampleAttrs>,
                                     .infer = infer_grid_grad,
                                     .reference = grid_grad_reference,
                                     .pitched = Pitched::None};

// What can be differentiated again: the gradient of the same made of operators.
Tensors grid_sample_vjp(const Saved& s, const Tensors& grads) {
  const auto& a = s.attrs.as<GridSampleAttrs>();
  Tensors wanted, all(2);
  for (int i = 0; i < 2; ++i)
    if (s.needs_input(i)) wanted.push_back(s.inputs[static_cast<size_t>(i)]);
  const Tensor y = composed_grid_sample(
      s.inputs[0], s.inputs[1],
      {static_cast<Interpolation>(a.interpolation), static_cast<Beyond>(a.beyond), a.align_corners}, a.elements);
  const Tensors found = grad({y}, wanted, {grads[0]}, false, true, true);
  for (size_t i = 0, at = 0; i < 2; ++i)
    if (s.needs_input(static_cast<int>(i))) all[i] = found[at++];
  return all;
}
Tensors grid_sample_fused_vjp(const Saved& s, const Tensors& grads) {
  Tensors all(2);
  if (s.needs_input(0)) all[0] = dispatch_one(grid_sample_input_grad_op, {grads[0], s.inputs[0], s.inputs[1]}, s.attrs);
  if (s.needs_input(1)) all[1] = dispatch_one(grid_sample_grid_grad_op, {grads[0], s.inputs[0], s.inputs[1]}, s.attrs);
  return all;
}

const Op grid_sample_op = {.name = "grid_sample",
                           .inputs = "x, grid",
                           .outputs = "y",
                           .attrs = attrs_of<GridSampleAttrs>,
                           .infer = infer_grid_sample,
                           .vjp = grid_sample_vjp,
                           .fused_vjp = grid_sample_fused_vjp,
                           .reference = grid_sample_reference,
                           .saves = {.inputs = 0b11},
                           .pitched = Pitched::None};

// ---- roi_align: x [n, c, h, w], regions [r, 4], batch [r] -> y [r, c, rows, columns]; its gradient: dy, x, regions,
// batch -> dx

Shape aligned_shape(std::string_view op, const TensorMeta& x, const TensorMeta& regions, const TensorMeta& batch,
                    const Attrs& attrs) {
  const auto& a = attrs.as<RoiAlignAttrs>();
  require_rank(op, "x", x, 4);
  require_rank(op, "regions", regions, 2);
  if (!is_floating(x.dtype) || !is_floating(regions.dtype))
    fail(op, "takes floating-point tensors, not {} and {}", describe(x), describe(regions));
  if (provably_different(regions.shape[1], Dim(4)))
    fail(op, "regions must have shape [r, 4], not {}", to_string(regions.shape));
  if (batch.dtype != Int64 && batch.dtype != Int32) fail(op, "batch must be i64 or i32, not {}", describe(batch));
  require_shape(op, "batch", batch, {regions.shape[0]});
  if (a.rows < 1 || a.columns < 1) fail(op, "{} rows and {} columns", a.rows, a.columns);
  constexpr int64_t most = 1 << 20;
  if (a.rows > most || a.columns > most || a.sampling_ratio < 0 || a.sampling_ratio > most)
    fail(op, "{} rows, {} columns and {} samples are not from 0 to 2^20", a.rows, a.columns, a.sampling_ratio);
  if (x.shape[2].high() < 1 || x.shape[3].high() < 1) fail(op, "{} has no elements", to_string(x.shape));
  return {regions.shape[0], x.shape[1], Dim(a.rows), Dim(a.columns)};
}

Metas infer_roi_align(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("roi_align", in);
  return {{aligned_shape("roi_align", in[0], in[1], in[2], attrs), in[0].dtype, in[0].device}};
}
Metas infer_roi_align_input_grad(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr std::string_view op = "roi_align_input_grad";
  require_inputs(op, in);
  require_shape(op, "the gradient", in[0], aligned_shape(op, in[1], in[2], in[3], attrs));
  if (in[0].dtype != in[1].dtype) fail(op, "dtypes differ: {} and {}", describe(in[0]), describe(in[1]));
  return {{in[1].shape, in[1].dtype, in[1].device}};
}

// fn(row, column, weight) for what bin (i, j) of a region is the sum of.
template <class F>
void each_part_of_bin(const Tensor& x, const Tensor& regions, const Index& i, const RoiAlignAttrs& a, const F& fn) {
  struct Sample {
    std::vector<std::pair<int64_t, double>> taps;
  };
  const auto samples_along = [&](int64_t column, int64_t bins, int64_t bin, int64_t size) {
    const double shift = a.aligned ? 0.5 : 0;
    const double begin = reference::get(regions, Index{i[0], column}) * a.spatial_scale - shift;
    double length = reference::get(regions, Index{i[0], column + 2}) * a.spatial_scale - shift - begin;
    if (!a.aligned) length = std::max(length, 1.0);
    const double width = length / static_cast<double>(bins);
    const int64_t count = a.sampling_ratio ? a.sampling_ratio : static_cast<int64_t>(std::ceil(width));
    std::vector<Sample> all;
    for (int64_t k = 0; k < count; ++k) {
      const double at =
          begin + (static_cast<double>(bin) + (static_cast<double>(k) + 0.5) / static_cast<double>(count)) * width;
      Sample sample;
      if (at >= -1 && at <= static_cast<double>(size)) {
        const double inside = std::clamp(at, 0.0, static_cast<double>(size - 1)), low = std::floor(inside);
        const auto place = static_cast<int64_t>(low);
        sample.taps = {{place, 1 - (inside - low)}, {std::min(place + 1, size - 1), inside - low}};
      }
      all.push_back(sample);
    }
    return all;
  };
  const auto rows = samples_along(1, a.rows, i[2], x.size(2)), columns = samples_along(0, a.columns, i[3], x.size(3));
  const auto count = static_cast<double>(rows.size() * columns.size());
  for (const Sample& row : rows)
    for (const Sample& column : columns)
      for (const auto& [r, down] : row.taps)
        for (const auto& [s, across] : column.taps) fn(r, s, down * across / count);
}

Tensors roi_align_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor& x = in[0];
  const Shape shape = aligned_shape("roi_align", x.meta(), in[1].meta(), in[2].meta(), attrs);
  return {reference::generate(shape, x.dtype(), [&](const Index& i) {
    double sum = 0;
    const auto n = static_cast<int64_t>(reference::get(in[2], Index{i[0]}));
    each_part_of_bin(x, in[1], i, attrs.as<RoiAlignAttrs>(), [&](int64_t row, int64_t column, double weight) {
      sum += weight * reference::get(x, Index{n, i[1], row, column});
    });
    return sum;
  })};
}
Tensors roi_align_input_grad_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor &dy = in[0], &x = in[1], dx = zeros(x.shape(), x.dtype());
  reference::each_index(dy.shape(), [&](const Index& i) {
    const auto n = static_cast<int64_t>(reference::get(in[3], Index{i[0]}));
    each_part_of_bin(x, in[2], i, attrs.as<RoiAlignAttrs>(), [&](int64_t row, int64_t column, double weight) {
      add_to_element(dx, {n, i[1], row, column}, weight * reference::get(dy, i));
    });
  });
  return {dx};
}

extern const Op roi_align_op;
Tensors roi_align_input_grad_vjp(const Saved& s, const Tensors& grads) {
  return {dispatch_one(roi_align_op, {grads[0], s.inputs[2], s.inputs[3]}, s.attrs), {}, {}, {}};
}
const Op roi_align_input_grad_op = {.name = "roi_align_input_grad",
                                    .inputs = "dy, x, regions, batch",
                                    .outputs = "dx",
                                    .attrs = attrs_of<RoiAlignAttrs>,
                                    .infer = infer_roi_align_input_grad,
                                    .vjp = roi_align_input_grad_vjp,
                                    .reference = roi_align_input_grad_reference,
                                    .saves = {.inputs = 0b1100},
                                    .pitched = Pitched::None};

Tensors roi_align_vjp(const Saved& s, const Tensors& grads) {
  return {dispatch_one(roi_align_input_grad_op, {grads[0], s.inputs[0].detach(), s.inputs[1], s.inputs[2]}, s.attrs),
          {},
          {}};
}
const Op roi_align_op = {.name = "roi_align",
                         .inputs = "x, regions, batch",
                         .outputs = "y",
                         .attrs = attrs_of<RoiAlignAttrs>,
                         .infer = infer_roi_align,
                         .vjp = roi_align_vjp,
                         .reference = roi_align_reference,
                         .saves = {.inputs = 0b111},
                         .pitched = Pitched::None};

}  // namespace

std::span<const Op* const> sample_ops() {
  static constexpr const Op* ops[] = {&grid_sample_op, &grid_sample_input_grad_op, &grid_sample_grid_grad_op,
                                      &roi_align_op, &roi_align_input_grad_op};
  return ops;
}

Tensor grid_sample_by_kernel(const Tensor& x, const Tensor& grid, const GridSampleOptions& options, bool elements) {
  return dispatch_one(grid_sample_op, {x, grid},
                      GridSampleAttrs{static_cast<int64_t>(options.interpolation), static_cast<int64_t>(options.beyond),
                                      options.align_corners, elements});
}

bool has_roi_align_kernel(const Tensor& regions, const RoiAlignOptions& options) {
  return !options.max && !(grad_enabled() && regions.requires_grad());
}
Tensor roi_align_by_kernel(const Tensor& x, const Tensor& regions, const Tensor& batch,
                           const RoiAlignOptions& options) {
  return dispatch_one(roi_align_op, {x, regions, batch},
                      RoiAlignAttrs{options.rows, options.columns, options.spatial_scale,
                                    std::max<int64_t>(options.sampling_ratio, 0), options.aligned});
}

}  // namespace tessera
