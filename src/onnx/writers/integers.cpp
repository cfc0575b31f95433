// Exact products of 8-bit integers: here in f64, in ONNX operators of their own.
#include "onnx/writers/integers.h"

#include "core/conv_attrs.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

// A zero point as ONNX has it: one, or [n]. Empty where ONNX Runtime has no such.
std::optional<Name> zero_of(const OpCall& c, const OpCall::Bytes8& x, bool takes_columns) {
  if (x.zero.empty()) return Name();
  const Dim n = x.zero_type.shape.numel();
  if (n == Dim(1)) return c.reshape(x.zero, x.zero_type.shape, {});
  if (x.same_zero.defined()) return c.constant(x.same_zero);
  if (!takes_columns || x.zero_type.shape.rank() != 1) return {};
  return x.zero;
}

// Convolutions take u8 alone: i8 moves by 128.
Name as_u8(const OpCall& c, const Name& x) {
  const Name moved = c.node("Add", {c.cast(x, Int8, Int32), c.number(128, Int32)});
  return c.cast(moved, Int32, UInt8);
}

}  // namespace

Name integer_product(const OpCall& c) {
  const auto a = c.bytes(0), b = c.bytes(1);
  if (c.out().dtype != Float64 || !a || !b) return {};
  const auto a_zero = zero_of(c, *a, false), b_zero = zero_of(c, *b, true);
  if (!a_zero || !b_zero) return {};
  return c.cast(c.node("MatMulInteger", {a->values, b->values, *a_zero, *b_zero}), Int32, Float64);
}

Name integer_convolution(const OpCall& c) {
  const auto x = c.bytes(0), weight = c.bytes(1);
  if (c.out().dtype != Float64 || !x || !weight || c.has(2)) return {};
  const auto x_zero = zero_of(c, *x, false), zero = zero_of(c, *weight, false);
  if (!x_zero || !zero) return {};
  const auto& a = c.attrs<ConvAttrs>();
  const bool is_signed = x->type.dtype == Int8;
  Name values = x->values, at = *x_zero;
  if (is_signed) {
    values = as_u8(c, values);
    at = at.empty() ? c.number(128, UInt8) : as_u8(c, at);
  }
  const Name sums = c.node("ConvInteger", {values, weight->values, at, *zero},
                           {integers("strides", {a.stride[0], a.stride[1]}),
                            integers("pads", {a.padding[0] + x->low[0], a.padding[1] + x->low[1],
                                              a.padding[0] + x->high[0], a.padding[1] + x->high[1]}),
                            integers("dilations", {a.dilation[0], a.dilation[1]}), integer("group", a.groups)});
  return c.cast(sums, Int32, Float64);
}

}  // namespace tessera::onnx
