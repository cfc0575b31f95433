// Tensors that are made of nothing.
#include "onnx/writer.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

constexpr int64_t kMostElementsInFile = 1024;  // of a tensor that a node makes as well

Names constant_of(const OpCall& c) { return {c.constant(c.attrs<ConstantAttrs>().value)}; }

Names full_of(const OpCall& c) {
  const TensorMeta& y = c.out();
  const double value = c.attrs<CreateAttrs>().a;
  if (!y.shape.is_symbolic() && y.shape.numel().value() <= kMostElementsInFile)
    return {c.constant(full(y.shape, value, y.dtype, cpu()))};
  return {c.node("Expand", {c.number(value, y.dtype), c.sizes(y.shape)})};
}

// start + i * step
Names arange_of(const OpCall& c) {
  const auto& a = c.attrs<CreateAttrs>();
  const TensorMeta& y = c.out();
  const Dim count = y.shape[0];
  const auto places = [&](const Name& i, DType dtype) {
    const Name scaled = a.b == 1 ? i : c.node("Mul", {i, c.number(a.b, dtype)});
    return a.a == 0 ? scaled : c.node("Add", {scaled, c.number(a.a, dtype)});
  };
  const Name i = c.places(count);
  const DType dtype = is_floating(y.dtype) ? Float64 : Int64;
  return {c.cast(places(c.cast(i, Int64, dtype), dtype), dtype, y.dtype)};
}

constexpr WriterEntry entries[] = {
    {"arange", arange_of},
    {"constant", constant_of},
    {"empty", full_of},  // of 0: what is read was written before
    {"full", full_of},
};

}  // namespace

std::span<const WriterEntry> creation_writers() { return entries; }

}  // namespace tessera::onnx
