// Sampling between the elements of images: the elements about each point are rows of channels, which are gathered,
// weighted and summed. So it is differentiable in images and in points.
#include "ops/sample.h"

#include <fmt/ranges.h>

#include <cmath>
#include <numeric>

#include "core/util/allocation_limit.h"
#include "ops/kept.h"
#include "ops/sample_kernels.h"
#include "ops/windows.h"

namespace tessera {
namespace {

Tensor number_of(const Tensor& like, double value) { return full({}, value, like.dtype(), like.device()); }

// Mirrored about `low` and `high` until it lies between them.
Tensor reflected(const Tensor& at, double low, double high) {
  if (high <= low) return mul(at, 0);
  const double span = high - low;
  const Tensor distance = abs(add(at, -low));
  const Tensor turns = floor(mul(distance, 1 / span));
  const Tensor rest = sub(distance, mul(turns, span));
  const Tensor is_odd = ne(remainder(turns, number_of(turns, 2)), number_of(turns, 0));
  return add(where(is_odd, sub(number_of(rest, span), rest), rest), low);
}

Tensor within_image(const Tensor& at, int64_t size, const GridSampleOptions& o) {
  const auto last = static_cast<double>(size - 1);
  if (o.beyond == Beyond::Zeros) return at;
  if (o.beyond == Beyond::Border) return clamp(at, 0, last);
  const Tensor mirrored = o.align_corners ? reflected(at, 0, last) : reflected(at, -0.5, last + 0.5);
  return clamp(mirrored, 0, last);
}

// The tap at whole coordinates. Outside of the image it has no weight, and any place.
AxisTap tap_at(const Tensor& at, const Tensor& weight, int64_t size, const GridSampleOptions& o) {
  const Tensor whole = round(within_image(at.detach(), size, o));
  const auto last = static_cast<double>(size - 1);
  AxisTap tap{clamp(whole, 0, last).to(Int64), weight};
  if (o.beyond != Beyond::Zeros) return tap;
  const Tensor inside = logical_and(ge(whole, number_of(whole, 0)), le(whole, number_of(whole, last)));
  tap.weight = weight.defined() ? where(inside, weight, number_of(weight, 0)) : inside.to(at.dtype());
  return tap;
}

// The weight of an element at that distance. Keys 1981.
Tensor cubic_near(const Tensor& d) { return add(mul(mul(add(mul(d, 1.25), -2.25), d), d), 1); }
Tensor cubic_far(const Tensor& d) { return add(mul(add(mul(add(mul(d, -0.75), 3.75), d), -6), d), 3); }

// Coordinates of elements for points from -1 to 1.
Tensor from_grid(const Tensor& grid, int64_t size, bool align_corners) {
  const auto n = static_cast<double>(size);
  return align_corners ? mul(add(grid, 1), (n - 1) / 2) : mul(add(mul(add(grid, 1), n), -1), 0.5);
}

void require_images(std::string_view op, const Tensor& x) {
  if (!is_floating(x.dtype())) fail(op, "takes floating-point tensors, not {}", describe(x));
  for (int64_t d = 2; d < x.dim(); ++d)
    if (x.size(d) < 1) fail(op, "{} has no elements", to_string(x.shape()));
}

// The first row of each image among rows_of_images: [images, 1, ...] of `rank` dims.
Tensor first_rows(Dim images, int64_t elements, int64_t rank, Device device) {
  Shape shape{images};
  const Tensor each = full(shape, static_cast<double>(elements), Int64, device);
  while (shape.rank() < rank) shape.push_back(1);
  return reshape(sub(cumsum(each, 0), each), shape);
}

// -1 to 1 over `count` elements.
Tensor base_coordinates(int64_t count, bool align_corners) {
  const auto n = static_cast<double>(count);
  check_allocation({count});
  std::vector<double> at;
  for (int64_t i = 0; i < count; ++i) {
    const auto place = static_cast<double>(i);
    at.push_back(!align_corners ? (2 * place + 1) / n - 1 : count == 1 ? 0 : 2 * place / (n - 1) - 1);
  }
  return tensor(at, {count});
}

}  // namespace

AxisTaps axis_taps(const Tensor& at, int64_t size, const GridSampleOptions& o) {
  if (o.interpolation == Interpolation::Nearest) return {tap_at(round(at), {}, size, o)};
  if (o.interpolation == Interpolation::Linear) {
    const Tensor inside = within_image(at, size, o), begin = floor(inside.detach());
    const Tensor part = sub(inside, begin);
    return {tap_at(begin, sub(number_of(part, 1), part), size, o), tap_at(add(begin, 1), part, size, o)};
  }
  const Tensor begin = floor(at.detach()), part = sub(at, begin), rest = sub(number_of(part, 1), part);
  return {tap_at(add(begin, -1), cubic_far(add(part, 1)), size, o), tap_at(begin, cubic_near(part), size, o),
          tap_at(add(begin, 1), cubic_near(rest), size, o), tap_at(add(begin, 2), cubic_far(add(rest, 1)), size, o)};
}

Tensor rows_of_images(const Tensor& x) {
  Dims order{0};
  for (int64_t d = 2; d < x.dim(); ++d) order.push_back(d);
  order.push_back(1);
  return flatten(permute(x, order), 0, -2);
}

std::vector<AxisTap> combined_taps(const Tensor& base, std::span<const AxisTaps> axes, std::span<const int64_t> sizes) {
  std::vector<AxisTap> all{{base, {}}};
  int64_t stride = 1;
  for (size_t d = axes.size(); d-- > 0; stride *= sizes[d]) {
    std::vector<AxisTap> next;
    for (const AxisTap& before : all)
      for (const AxisTap& tap : axes[d]) {
        const Tensor place = add(before.place, mul(tap.place, static_cast<double>(stride)));
        const bool both = before.weight.defined() && tap.weight.defined();
        next.push_back({place, both                   ? mul(before.weight, tap.weight)
                               : tap.weight.defined() ? tap.weight
                                                      : before.weight});
      }
    all = std::move(next);
  }
  return all;
}

Tensor summed_rows(const Tensor& rows, const std::vector<AxisTap>& taps) {
  Tensor sum;
  for (const AxisTap& tap : taps) {
    Shape shape = tap.place.shape();
    shape.push_back(rows.shape()[1]);
    Tensor one = reshape(index_select(rows, 0, flatten(tap.place)), shape);
    if (tap.weight.defined()) one = mul(one, unsqueeze(tap.weight, -1));
    sum = sum.defined() ? add(sum, one) : one;
  }
  return sum;
}

// ---- public functions

Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& options) {
  constexpr std::string_view op = "grid_sample";
  const int64_t spatial = x.dim() - 2;
  if (spatial < 2 || spatial > 3) fail(op, "x must have 4 or 5 dims, not shape {}", to_string(x.shape()));
  if (grid.dim() != x.dim() || grid.size(-1) != spatial || !(grid.shape()[0] == x.shape()[0]))
    fail(op, "grid {} does not fit x {}", to_string(grid.shape()), to_string(x.shape()));
  require_images(op, x);
  if (!is_floating(grid.dtype())) fail(op, "grid must be floating, not {}", describe(grid));
  return grid_sample_by_kernel(x, grid, options);
}

Tensor composed_grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& options, bool elements) {
  const int64_t spatial = x.dim() - 2;
  std::vector<AxisTaps> axes;
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < spatial; ++d) {
    sizes.push_back(x.size(2 + d));
    const Tensor point = select(grid, -1, spatial - 1 - d);
    const Tensor at = elements ? point : from_grid(point, sizes.back(), options.align_corners);
    axes.push_back(axis_taps(at, sizes.back(), options));
    for (AxisTap& tap : axes.back())
      if (tap.weight.defined()) tap.weight = cast(tap.weight, x.dtype());
  }
  const int64_t plane = std::accumulate(sizes.begin(), sizes.end(), int64_t(1), std::multiplies<>());
  const Tensor base = first_rows(x.shape()[0], plane, grid.dim() - 1, x.device());
  const Tensor y = summed_rows(rows_of_images(x), combined_taps(base, axes, sizes));
  Dims order{0, y.dim() - 1};
  for (int64_t d = 1; d < y.dim() - 1; ++d) order.push_back(d);
  return permute(y, order);
}

Tensor affine_grid(const Tensor& theta, const Dims& sizes, bool align_corners) {
  constexpr std::string_view op = "affine_grid";
  const auto spatial = static_cast<int64_t>(sizes.size());
  if (spatial < 2 || spatial > 3) fail(op, "takes two or three sizes, not {}", spatial);
  if (theta.dim() != 3 || theta.size(1) != spatial || theta.size(2) != spatial + 1)
    fail(op, "theta must have shape [n, {}, {}], not {}", spatial, spatial + 1, to_string(theta.shape()));
  if (!is_floating(theta.dtype())) fail(op, "takes floating-point tensors, not {}", describe(theta));
  Shape shape, whole{theta.shape()[0]};
  for (const int64_t size : sizes) {
    if (size < 1) fail(op, "a size of {}", size);
    shape.push_back(size), whole.push_back(size);
  }
  whole.push_back(spatial);
  Tensors parts;
  for (int64_t d = spatial; d-- > 0;) {
    Shape line{sizes[d]};
    for (int64_t rest = d + 1; rest < spatial; ++rest) line.push_back(1);
    parts.push_back(flatten(expand(reshape(base_coordinates(sizes[d], align_corners), line), shape)));
  }
  parts.push_back(ones(parts[0].shape(), Float64, parts[0].device()));
  const Tensor points = stack(parts, -1).to(theta.dtype()).to(theta.device());  // [points, spatial + 1]
  return reshape(matmul(points, transpose(theta, 1, 2)), whole);
}

namespace {

// What deform_conv is called with, each list filled in.
struct Deformed {
  Windows w;
  int64_t rows, columns, taps, parts;  // of the result; offsets of its own for each part of the channels
};

Deformed checked_deformed(const Tensor& x, const Tensor& weight, const Tensor& offset, const Tensor& mask,
                          const ConvOptions& o) {
  constexpr std::string_view op = "deform_conv";
  if (x.dim() != 4 || weight.dim() != 4 || offset.dim() != 4)
    fail(op, "x, weight and offset must have 4 dims, not shapes {}, {} and {}", to_string(x.shape()),
         to_string(weight.shape()), to_string(offset.shape()));
  require_images(op, x);
  if (x.dtype() != offset.dtype()) fail(op, "offset is {} for x of {}", name(offset.dtype()), name(x.dtype()));
  const Windows given{.size = {weight.size(2), weight.size(3)},
                      .stride = o.stride,
                      .low = o.low,
                      .high = o.high,
                      .dilation = o.dilation};
  Deformed d{filled_windows(op, given, 2, false), 0, 0, weight.size(2) * weight.size(3), 0};
  d.rows = window_count(op, d.w, 0, x.size(2));
  d.columns = window_count(op, d.w, 1, x.size(3));
  if (o.groups < 1 || weight.size(1) * o.groups != x.size(1) || weight.size(0) % o.groups)
    fail(op, "weight {} in {} groups does not fit {}", to_string(weight.shape()), o.groups, to_string(x.shape()));
  d.parts = offset.size(1) / (2 * d.taps);
  if (d.parts < 1 || offset.size(1) % (2 * d.taps) || x.size(1) % d.parts)
    fail(op, "offset {} does not fit {} taps and {} channels", to_string(offset.shape()), d.taps, x.size(1));
  if (!(offset.shape() == Shape{x.shape()[0], offset.shape()[1], d.rows, d.columns}))
    fail(op, "offset has shape {}, not [{}, {}, {}, {}]", to_string(offset.shape()), x.size(0), offset.size(1), d.rows,
         d.columns);
  if (mask.defined() && !(mask.shape() == Shape{x.shape()[0], d.parts * d.taps, d.rows, d.columns}))
    fail(op, "mask has shape {}, not [{}, {}, {}, {}]", to_string(mask.shape()), x.size(0), d.parts * d.taps, d.rows,
         d.columns);
  return d;
}

// Where the taps of undeformed windows lie, columns first: [taps, rows, columns, 2].
Tensor window_places(const Deformed& d, DType dtype) {
  const Tensor places = empty_host({d.taps, d.rows, d.columns, 2}, Float64);
  double* to = places.data<double>();
  for (int64_t tap = 0; tap < d.taps; ++tap)
    for (int64_t row = 0; row < d.rows; ++row)
      for (int64_t column = 0; column < d.columns; ++column) {
        const auto along = [&](size_t dim, int64_t window, int64_t t) {
          return static_cast<double>(window * d.w.stride[dim] - d.w.low[dim] + t * d.w.dilation[dim]);
        };
        *to++ = along(1, column, tap % d.w.size[1]);
        *to++ = along(0, row, tap / d.w.size[1]);
      }
  return places.to(dtype);
}

// A grid of coordinates of elements for each part of the channels: [images, taps, rows, columns, 2].
Tensor deformed_grid(const Deformed& d, const Tensor& offset, Dim images) {
  const Tensor shifts = reshape(offset, {images, Dim(d.taps), Dim(2), Dim(d.rows), Dim(d.columns)});
  const Tensor columns_first = stack({select(shifts, 2, 1), select(shifts, 2, 0)}, -1);
  const DType dtype = offset.dtype() == Float64 ? Float64 : Float32;
  const auto list = [](const Dims& numbers) { return fmt::format("{}", fmt::join(numbers, " ")); };
  const auto name = fmt::format("deformed {} {} {} {} {} {}", list(d.w.size), list(d.w.stride), list(d.w.low),
                                list(d.w.dilation), d.rows, d.columns);
  return add(cast(columns_first, dtype),
             kept(name, dtype, offset.device(), [&] { return window_places(d, dtype).to(offset.device()); }));
}

}  // namespace

Tensor deform_conv(const Tensor& x, const Tensor& weight, const Tensor& offset, const Tensor& mask, const Tensor& bias,
                   const ConvOptions& options) {
  const Deformed d = checked_deformed(x, weight, offset, mask, options);
  const int64_t c = x.size(1), groups = options.groups, out = weight.size(0), in = c / groups * d.taps;
  const Dim n = x.shape()[0], images = n * d.parts, part = c / d.parts, taps = d.taps, rows = d.rows,
            columns = d.columns;
  const Tensor grid = reshape(deformed_grid(d, offset, images), {images, taps, rows * columns, Dim(2)});
  Tensor sampled = grid_sample_by_kernel(reshape(x, {images, part, x.shape()[2], x.shape()[3]}), grid, {}, true);
  if (mask.defined()) sampled = mul(sampled, reshape(mask, {images, Dim(1), taps, rows * columns}));
  const Tensor filters = reshape(weight, {groups, out / groups, in});
  const Tensor y = reshape(matmul(filters, reshape(sampled, {n, Dim(groups), Dim(in), rows * columns})),
                           {n, Dim(out), rows, columns});
  return bias.defined() ? add(y, reshape(cast(bias, y.dtype()), {out, 1, 1})) : y;
}

}  // namespace tessera
