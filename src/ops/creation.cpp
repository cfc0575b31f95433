// Tensors made from numbers.
#include <cmath>

#include <fmt/format.h>

#include "core/capture_state.h"
#include "ops/check.h"
#include "ops/elements.h"
#include "ops/op_table.h"
#include "ops/reference.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

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

Elements full_elements(const Op&, std::span<const TensorMeta>, const Attrs& attrs, const TensorMeta& out) {
  return std::make_shared<const std::vector<Dim>>(static_cast<size_t>(out.shape.numel().value()),
                                                  whole_number(attrs.as<CreateAttrs>().a));
}
Elements arange_elements(const Op&, std::span<const TensorMeta>, const Attrs& attrs, const TensorMeta& out) {
  const auto& a = attrs.as<CreateAttrs>();
  std::vector<Dim> all;
  for (int64_t i = 0; i < out.shape.numel().value(); ++i) all.push_back(whole_number(a.a) + whole_number(a.b) * i);
  return std::make_shared<const std::vector<Dim>>(std::move(all));
}

const Op full_op = {.name = "full",
                    .outputs = "y",
                    .attrs = attrs_of<CreateAttrs>,
                    .infer = infer_create,
                    .reference = full_reference,
                    .elements = full_elements};
const Op arange_op = {.name = "arange",
                      .outputs = "y",
                      .attrs = attrs_of<CreateAttrs>,
                      .infer = infer_create,
                      .reference = arange_reference,
                      .elements = arange_elements};

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

// What a graph knows by itself.
Metas infer_constant(std::span<const TensorMeta>, const Attrs& attrs) {
  const Tensor& value = attrs.as<ConstantAttrs>().value;
  if (!value.defined()) throw Error("constant: there is no value");
  if (value.device() != cpu()) throw Error(fmt::format("constant: the value {} is not on the host", describe(value)));
  return {{value.shape(), value.dtype(), cpu()}};
}
Tensors constant_compute(std::span<const Tensor>, const Attrs& attrs) {
  const NoGrad plain;
  return {attrs.as<ConstantAttrs>().value.clone()};
}
Elements constant_elements(const Op&, std::span<const TensorMeta>, const Attrs& attrs, const TensorMeta&) {
  const std::vector<int64_t> values = attrs.as<ConstantAttrs>().value.to_vector<int64_t>();
  return std::make_shared<const std::vector<Dim>>(values.begin(), values.end());
}
const Op constant_op = {.name = "constant",
                        .outputs = "y",
                        .attrs = attrs_of<ConstantAttrs>,
                        .infer = infer_constant,
                        .reference = constant_compute,
                        .elements = constant_elements,
                        .compute = constant_compute};

Tensor create(const Op& op, const Shape& shape, DType dtype, Device device, double a, double b = 0) {
  return dispatch_one(op, {}, CreateAttrs{DimList(shape), dtype, a, b, device});
}

}  // namespace

std::span<const Op* const> creation_ops() {
  static constexpr const Op* ops[] = {&full_op, &arange_op, &empty_op, &constant_op};
  return ops;
}

Tensor full(const Shape& shape, double value, DType dtype, Device device) {
  return create(full_op, shape, dtype, device, value);
}
Tensor zeros(const Shape& shape, DType dtype, Device device) { return full(shape, 0, dtype, device); }
Tensor ones(const Shape& shape, DType dtype, Device device) { return full(shape, 1, dtype, device); }

Tensor constant(const Tensor& value) {
  Tensor own;  // nobody else's, and no value of a captured function
  {
    const PauseCapture now;
    const NoGrad plain;
    own = value.to(cpu()).clone();
  }
  return dispatch_one(constant_op, {}, ConstantAttrs{std::move(own)});
}

Tensor arange(double start, double end, double step, DType dtype, Device device) {
  double count = std::max(0.0, std::ceil((end - start) / step));
  if (!(count < 0x1p62))  // also NaN
    throw Error(fmt::format("arange: no finite number of steps of {} from {} to {}", step, start, end));
  return create(arange_op, {static_cast<int64_t>(count)}, dtype, device, start, step);
}

}  // namespace tessera
