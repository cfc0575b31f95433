#include <fmt/format.h>

#include "cases/cases.h"
#include "core/plane_attrs.h"
#include "ops/op_table.h"
#include "tessera/ops.h"
#include "tessera/ops_indexing.h"

namespace tessera {
namespace {

Shape planes_of(int64_t n, int64_t c, const PlaneWindowsAttrs& a, const int64_t (&lengths)[3]) {
  Shape shape{n, c};
  for (int64_t d = 3 - a.dims; d < 3; ++d) shape.push_back(lengths[d]);
  return shape;
}

// Of elements that all differ, so that no step of a finite difference changes which one is largest.
Tensor different(const Shape& shape, Generator& g) {
  const int64_t count = shape.numel().value();
  const Tensor order = argsort(uniform64({count}, g));
  return reshape(add(mul(order.to(Float64), 2.0 / static_cast<double>(count)), -1), shape);
}

}  // namespace

std::vector<OpCase> plane_cases() {
  std::vector<OpCase> all;
  const PlaneWindowsAttrs windows[] = {
      {2, {1, 7, 9}, {1, 4, 5}, {1, 3, 3}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}},    // overlapping, with padding
      {1, {1, 1, 11}, {1, 1, 4}, {1, 1, 2}, {1, 1, 3}, {1, 1, 1}, {0, 0, 0}},   // with gaps
      {3, {4, 5, 6}, {3, 4, 2}, {2, 3, 3}, {1, 1, 3}, {1, 1, 2}, {0, 1, 2}},    // dilated
      {2, {1, 2, 3}, {1, 1, 1}, {1, 2, 3}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}},    // the whole plane
      {2, {1, 13, 11}, {1, 3, 2}, {1, 7, 9}, {1, 3, 2}, {1, 1, 1}, {0, 0, 0}},  // many taps
  };
  const PlaneWindowsAttrs adaptive[] = {{1, {1, 1, 11}, {1, 1, 4}, {1, 1, 0}},
                                        {1, {1, 1, 97}, {1, 1, 2}, {1, 1, 0}},
                                        {2, {1, 7, 5}, {1, 3, 8}, {1, 0, 0}},
                                        {3, {5, 6, 7}, {2, 5, 4}, {0, 0, 0}}};
  const auto add_maxima = [&](const PlaneWindowsAttrs& a) {
    const std::string label = fmt::format("{} dims of {} {} {}, windows of {} {} {}", a.dims, a.size[0], a.size[1],
                                          a.size[2], a.window[0], a.window[1], a.window[2]);
    all.push_back({.op = "max_in_windows",
                   .label = label,
                   .attrs = a,
                   .inputs = [=](Generator& g) { return Tensors{different(planes_of(2, 3, a, a.size), g)}; },
                   .gradients = 0b1,
                   .dtypes = {Float32, Float64},
                   .symbolic = false});
    all.push_back({.op = "max_in_windows_backward",
                   .label = label,
                   .attrs = a,
                   .inputs =
                       [=](Generator& g) {
                         const Tensor x = different(planes_of(2, 3, a, a.size), g);
                         const Shape shape = planes_of(2, 3, a, a.count);
                         return Tensors{uniform64(shape, g), find_op("max_in_windows").reference({&x, 1}, a)[1]};
                       },
                   .gradients = 0b1,
                   .symbolic = false});
  };
  for (const PlaneWindowsAttrs& a : windows) add_maxima(a);
  for (const PlaneWindowsAttrs& a : adaptive) add_maxima(a);
  for (const PlaneWindowsAttrs& a : windows) {
    const int64_t taps = a.window[0] * a.window[1] * a.window[2], count = a.count[0] * a.count[1] * a.count[2];
    all.push_back({.op = "fold",
                   .label = fmt::format("{} dims, {} taps", a.dims, taps),
                   .attrs = a,
                   .inputs =
                       [=](Generator& g) {
                         return Tensors{uniform64({2, 3 * taps, count}, g)};
                       },
                   .gradients = 0b1,
                   .symbolic = false});
  }
  return all;
}

}  // namespace tessera
