#include "ops/elements.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/capture_state.h"
#include "ops/capture.h"
#include "ops/op_table.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

const std::vector<Dim>& known(const TensorMeta& meta) {
  if (!meta.elements) throw Error("elements are not known");
  return *meta.elements;
}

Tensor host_tensor(const Shape& shape, const std::function<int64_t(size_t)>& element) {
  Tensor t = empty_host(shape, Int64);
  for (int64_t i = 0; i < t.numel(); ++i) t.data<int64_t>()[i] = element(static_cast<size_t>(i));
  return t;
}

// Which element of the input meets element `i` of a result of that shape.
size_t place_of(size_t i, const Shape& result, const Shape& input) {
  size_t place = 0, step = 1;
  for (size_t d = result.size(), at = input.size(); d-- > 0 && at > 0;) {
    const auto length = static_cast<size_t>(result[d].value()), own = static_cast<size_t>(input[--at].value());
    if (own != 1) place += i % length * step;
    i /= length;
    step *= own;
  }
  return place;
}

bool fits(const std::vector<Dim>& elements, DType dtype) {
  if (dtype == Int64) return true;
  using Limits = std::numeric_limits<int32_t>;
  for (const Dim e : elements)
    if (e.low() < Limits::min() || e.high() > Limits::max()) return false;
  return true;
}

}  // namespace

Elements carried_elements(const Op& op, std::span<const TensorMeta> in, const Attrs& attrs, const TensorMeta& out) {
  if (!op.elements || (out.dtype != Int64 && out.dtype != Int32) || out.shape.is_symbolic() ||
      out.shape.numel().value() > kMostElements)
    return {};
  try {
    Elements found = op.elements(op, in, attrs, out);
    return found && fits(*found, out.dtype) ? found : Elements();
  } catch (const Error&) {
    return {};  // overflow, or a place that is none: the call will say so when it runs
  }
}

// The operator itself, on numbers of elements.
Elements moved_elements(const Op& op, std::span<const TensorMeta> in, const Attrs& attrs, uint32_t data) {
  const PauseCapture now;
  const NoGrad plain;
  std::vector<Dim> all;
  Tensors numbers;
  for (size_t i = 0; i < in.size(); ++i) {
    const std::vector<Dim>& own = known(in[i]);
    const bool moves = i > 31 || (data >> i & 1);
    const size_t first = all.size();
    numbers.push_back(
        host_tensor(in[i].shape, [&](size_t e) { return moves ? static_cast<int64_t>(first + e) : own[e].value(); }));
    if (moves) all.insert(all.end(), own.begin(), own.end());
  }
  std::vector<Dim> found;
  for (const int64_t which : execute(op, numbers, attrs, false)[0].to_vector<int64_t>())
    found.push_back(all.at(static_cast<size_t>(which)));
  return std::make_shared<const std::vector<Dim>>(std::move(found));
}

Elements mapped_elements(std::span<const TensorMeta> in, const TensorMeta& out,
                         const std::function<Dim(std::span<const Dim>)>& fn) {
  std::vector<Dim> found(static_cast<size_t>(out.shape.numel().value()));
  for (size_t i = 0; i < found.size(); ++i) {
    SmallVector<Dim, 4> at;
    for (const TensorMeta& meta : in) at.push_back(known(meta)[place_of(i, out.shape, meta.shape)]);
    found[i] = fn({at.data(), at.size()});
  }
  return std::make_shared<const std::vector<Dim>>(std::move(found));
}

Dim whole_number(double value) {
  if (value != std::floor(value) || std::abs(value) > 0x1p53) throw Error(fmt::format("{} is no whole number", value));
  return static_cast<int64_t>(value);
}

Shape shape_from(const Tensor& sizes) {
  if (sizes.dim() != 1 || (sizes.dtype() != Int64 && sizes.dtype() != Int32))
    throw Error(fmt::format("shape_from: sizes are i64 or i32 [rank], not {}", describe(sizes)));
  const TensorMeta meta = sizes.meta();
  if (meta.elements) return Shape(meta.elements->begin(), meta.elements->end());
  if (meta.device.meta)
    throw Error(fmt::format("shape_from: the elements of {} depend on values, and here is no memory to read them from",
                            describe(sizes)));
  const std::vector<int64_t> values = sizes.to_vector<int64_t>();
  return Shape(std::span<const int64_t>(values));
}

}  // namespace tessera
