// Tensors made from numbers.
#include <cmath>

#include <fmt/format.h>

#include "ops/check.h"
#include "ops/op_table.h"
#include "ops/reference.h"

namespace tessera {
namespace {

Metas infer_create(std::span<const TensorMeta>, const Attrs& attrs) {
  const auto& a = attrs.as<CreateAttrs>();
  return {{require_sizes(a.shape.shape()), a.dtype, a.device}};
}

Tensors full_reference(std::span<const Tensor>, const Attrs& attrs) {
  const auto& a = attrs.as<CreateAttrs>();
  return {reference::generate(a.shape.shape(), a.dtype, [&](auto&) { return a.a; })};
}

Tensors arange_reference(std::span<const Tensor>, const Attrs& attrs) {
  const auto& a = attrs.as<CreateAttrs>();
  return {
      reference::generate(a.shape.shape(), a.dtype, [&](auto& i) { return a.a + static_cast<double>(i[0]) * a.b; })};
}

const Op full_op = {
    .name = "full", .outputs = "y", .attrs = attrs_of<CreateAttrs>, .infer = infer_create, .reference = full_reference};
const Op arange_op = {.name = "arange",
                      .outputs = "y",
                      .attrs = attrs_of<CreateAttrs>,
                      .infer = infer_create,
                      .reference = arange_reference};

// Elements are undefined: what a graph writes to before it reads.
Tensors empty_compute(std::span<const Tensor>, const Attrs& attrs) {
  const auto& a = attrs.as<CreateAttrs>();
  return {empty(a.shape.shape(), a.dtype, a.device)};
}
const Op empty_op = {.name = "empty",
                     .outputs = "y",
                     .attrs = attrs_of<CreateAttrs>,
                     .infer = infer_create,
                     .reference = full_reference,
                     .compute = empty_compute};

Tensor create(const Op& op, const Shape& shape, DType dtype, Device device, double a, double b = 0) {
  return dispatch_one(op, {}, CreateAttrs{DimList(shape), dtype, a, b, device});
}

}  // namespace

std::span<const Op* const> creation_ops() {
  static constexpr const Op* ops[] = {&full_op, &arange_op, &empty_op};
  return ops;
}

Tensor full(const Shape& shape, double value, DType dtype, Device device) {
  return create(full_op, shape, dtype, device, value);
}
Tensor zeros(const Shape& shape, DType dtype, Device device) { return full(shape, 0, dtype, device); }
Tensor ones(const Shape& shape, DType dtype, Device device) { return full(shape, 1, dtype, device); }

Tensor arange(double start, double end, double step, DType dtype, Device device) {
  double count = std::max(0.0, std::ceil((end - start) / step));
  if (!(count < 0x1p62))  // also NaN
    throw Error(fmt::format("arange: no finite number of steps of {} from {} to {}", step, start, end));
  return create(arange_op, {static_cast<int64_t>(count)}, dtype, device, start, step);
}

}  // namespace tessera
