// Functions of elements.
#include <cmath>

#include "onnx/tensors.h"
#include "onnx/writer.h"
#include "tessera/dtype.h"

namespace tessera::onnx {
namespace {

// The operands in the type of the result, which is ONNX's rule. It has no arithmetic of bools.
template <const char* op>
Names in_result_type(const OpCall& c) {
  if (c.out().dtype == Bool) c.refuse("of bools has no counterpart in ONNX");
  Names in;
  for (size_t i = 0; i < c.inputs(); ++i) in.push_back(c.in_as(i, c.out().dtype));
  return {c.node(op, in)};
}
// Those of integers are integers already.
template <const char* op>
Names rounded(const OpCall& c) {
  return {is_floating(c.out().dtype) ? c.node(op, {c.in(0)}) : c.in(0)};
}
template <Activation activation>
Names activated(const OpCall& c) {
  return {c.activation(c.in_as(0, c.out().dtype), activation, c.out().dtype)};
}

#define TESSERA_ONNX_OP(Name) constexpr char k##Name[] = #Name;
TESSERA_ONNX_OP(Neg)
TESSERA_ONNX_OP(Abs)
TESSERA_ONNX_OP(Sign)
TESSERA_ONNX_OP(Sqrt)
TESSERA_ONNX_OP(Reciprocal)
TESSERA_ONNX_OP(Floor)
TESSERA_ONNX_OP(Ceil)
TESSERA_ONNX_OP(Round)
TESSERA_ONNX_OP(Exp)
TESSERA_ONNX_OP(Log)
TESSERA_ONNX_OP(Sin)
TESSERA_ONNX_OP(Cos)
TESSERA_ONNX_OP(Tan)
TESSERA_ONNX_OP(Atan)
TESSERA_ONNX_OP(Sigmoid)
TESSERA_ONNX_OP(Erf)
TESSERA_ONNX_OP(Softplus)
TESSERA_ONNX_OP(Add)
TESSERA_ONNX_OP(Sub)
TESSERA_ONNX_OP(Mul)
TESSERA_ONNX_OP(Div)
TESSERA_ONNX_OP(Pow)
TESSERA_ONNX_OP(Max)
TESSERA_ONNX_OP(Min)
TESSERA_ONNX_OP(Equal)
TESSERA_ONNX_OP(Less)
TESSERA_ONNX_OP(LessOrEqual)
TESSERA_ONNX_OP(Greater)
TESSERA_ONNX_OP(GreaterOrEqual)
TESSERA_ONNX_OP(And)
TESSERA_ONNX_OP(Or)
TESSERA_ONNX_OP(Xor)
TESSERA_ONNX_OP(BitwiseAnd)
TESSERA_ONNX_OP(BitwiseOr)
TESSERA_ONNX_OP(BitwiseXor)
#undef TESSERA_ONNX_OP

// ---- one operand

// ONNX Runtime knows Relu of floats alone.
Names relu_of(const OpCall& c) {
  const DType dtype = c.out().dtype;
  return {is_floating(dtype) ? c.node("Relu", {c.in(0)}) : c.node("Max", {c.in(0), c.number(0, dtype)})};
}
Names square_of(const OpCall& c) { return {c.node("Mul", {c.in(0), c.in(0)})}; }
Names rsqrt_of(const OpCall& c) { return {c.node("Reciprocal", {c.node("Sqrt", {c.in_as(0, c.out().dtype)})})}; }
Names trunc_of(const OpCall& c) {
  if (!is_floating(c.out().dtype)) return {c.in(0)};
  return {c.node("Mul", {c.node("Sign", {c.in(0)}), c.node("Floor", {c.node("Abs", {c.in(0)})})})};
}
Names exp2_of(const OpCall& c) { return {c.node("Pow", {c.number(2, c.out().dtype), c.in_as(0, c.out().dtype)})}; }
// tanh(x / 2) (exp(x) + 1), exact for small x, too.
Names expm1_of(const OpCall& c) {
  const DType dtype = c.out().dtype;
  const Name x = c.in_as(0, dtype), half = c.node("Mul", {x, c.number(0.5, dtype)});
  return {c.node("Mul", {c.node("Tanh", {half}), c.node("Add", {c.node("Exp", {x}), c.number(1, dtype)})})};
}
// log(u) x / (u - 1) with u = 1 + x as it is rounded; x where that is 1.
Names log1p_of(const OpCall& c) {
  const DType dtype = c.out().dtype;
  const Name x = c.in_as(0, dtype), one = c.number(1, dtype), u = c.node("Add", {x, one}), log = c.node("Log", {u});
  const Name small = c.node("Mul", {log, c.node("Div", {x, c.node("Sub", {u, one})})});
  const Name exact = c.node("Where", {c.node("Equal", {u, one}), x, small});
  return {c.node("Where", {c.node("Greater", {x, one}), log, exact})};
}
Name test(const OpCall& c, std::string_view op) {
  return c.node(op, {is_floating(c.type(0).dtype) ? c.in(0) : c.in_as(0, Float32)});
}
Names isnan_of(const OpCall& c) { return {test(c, "IsNaN")}; }
Names isinf_of(const OpCall& c) { return {test(c, "IsInf")}; }
Names isfinite_of(const OpCall& c) { return {c.node("Not", {c.node("Or", {test(c, "IsNaN"), test(c, "IsInf")})})}; }
Names not_of(const OpCall& c) { return {c.node("Not", {c.in_as(0, Bool)})}; }
Names bitcast_of(const OpCall& c) {
  if (c.opset() < 26) c.refuse("has no counterpart in ONNX before opset 26");
  if (size_of(c.type(0).dtype) != size_of(c.out().dtype)) c.refuse("has no counterpart in ONNX between sizes");
  return {c.node("BitCast", {c.in(0)}, {integer("to", data_type_of(c.out().dtype))})};
}
Names cast_of(const OpCall& c) { return {c.in_as(0, c.out().dtype)}; }

// ---- two operands

// What both are compared in: as in PyTorch, a 0-d tensor does not widen a tensor of the same kind.
DType common_type(const OpCall& c) {
  const auto kind = [](DType t) { return is_floating(t) ? 2 : t == Bool ? 0 : 1; };
  const TensorMeta &a = c.type(0), &b = c.type(1);
  if (a.shape.empty() && !b.shape.empty() && kind(a.dtype) <= kind(b.dtype)) return b.dtype;
  if (b.shape.empty() && !a.shape.empty() && kind(b.dtype) <= kind(a.dtype)) return a.dtype;
  return promote(a.dtype, b.dtype);
}
Name compared(const OpCall& c, std::string_view op) {
  DType dtype = common_type(c);
  if (dtype == Bool && op != "Equal") dtype = Int32;
  return c.node(op, {c.in_as(0, dtype), c.in_as(1, dtype)});
}
template <const char* op>
Names comparison(const OpCall& c) {
  return {compared(c, op)};
}
Names unequal(const OpCall& c) { return {c.node("Not", {compared(c, "Equal")})}; }
template <const char* op>
Names logical(const OpCall& c) {
  return {c.node(op, {c.in_as(0, Bool), c.in_as(1, Bool)})};
}
// What ONNX calls otherwise of bools.
template <const char* of_bools, const char* of_numbers>
Names either(const OpCall& c) {
  return c.out().dtype == Bool ? logical<of_bools>(c) : in_result_type<of_numbers>(c);
}

// Mod has the sign of the divisor for integers, and that of the dividend for floats.
Name remainder_in(const OpCall& c, const Name& a, const Name& b, DType dtype) {
  if (!is_floating(dtype)) return c.node("Mod", {a, b});
  const Name rest = c.node("Mod", {a, b}, {integer("fmod", 1)}), zero = c.number(0, dtype);
  const Name opposite = c.node("Xor", {c.node("Less", {rest, zero}), c.node("Less", {b, zero})});
  const Name other = c.node("And", {opposite, c.node("Not", {c.node("Equal", {rest, zero})})});
  return c.node("Where", {other, c.node("Add", {rest, b}), rest});
}
Names remainder_of(const OpCall& c) {
  const DType dtype = c.out().dtype;
  return {remainder_in(c, c.in_as(0, dtype), c.in_as(1, dtype), dtype)};
}
// Div of integers truncates, so what is divided is a multiple.
Names floor_div_of(const OpCall& c) {
  const DType dtype = c.out().dtype;
  const Name a = c.in_as(0, dtype), b = c.in_as(1, dtype);
  if (is_floating(dtype)) return {c.node("Floor", {c.node("Div", {a, b})})};
  return {c.node("Div", {c.node("Sub", {a, remainder_in(c, a, b, dtype)}), b})};
}
Names where_of(const OpCall& c) {
  return {c.node("Where", {c.in(0), c.in_as(1, c.out().dtype), c.in_as(2, c.out().dtype)})};
}

// ---- with numbers

template <const char* op>
Names with_number(const OpCall& c) {
  const DType dtype = c.out().dtype;
  return {c.node(op, {c.in_as(0, dtype), c.number(c.attrs<ScalarAttrs>().value, dtype)})};
}
Names clamp_to(const OpCall& c) {
  const auto [low, high] = c.attrs<ClampAttrs>();
  const DType dtype = c.out().dtype;
  const auto bound = [&](double b) { return std::isinf(b) ? Name() : c.number(b, dtype); };
  if (low == 0 && high == INFINITY) return relu_of(c);
  return {c.node(
      "Clip", {c.in(0), low < 0 ? bound(low) : c.number(low, dtype), high > 0 ? bound(high) : c.number(high, dtype)})};
}

constexpr WriterEntry entries[] = {
    {"abs", in_result_type<kAbs>},
    {"add", either<kOr, kAdd>},
    {"add_scalar", with_number<kAdd>},
    {"atan", in_result_type<kAtan>},
    {"bitcast", bitcast_of},
    {"bitwise_and", either<kAnd, kBitwiseAnd>},
    {"bitwise_or", either<kOr, kBitwiseOr>},
    {"bitwise_xor", either<kXor, kBitwiseXor>},
    {"cast", cast_of},
    {"ceil", rounded<kCeil>},
    {"clamp", clamp_to},
    {"cos", in_result_type<kCos>},
    {"div", in_result_type<kDiv>},
    {"eq", comparison<kEqual>},
    {"erf", in_result_type<kErf>},
    {"exp", in_result_type<kExp>},
    {"exp2", exp2_of},
    {"expm1", expm1_of},
    {"floor", rounded<kFloor>},
    {"floor_div", floor_div_of},
    {"ge", comparison<kGreaterOrEqual>},
    {"gelu", activated<Activation::GeluErf>},
    {"gelu_tanh", activated<Activation::GeluTanh>},
    {"gt", comparison<kGreater>},
    {"isfinite", isfinite_of},
    {"isinf", isinf_of},
    {"isnan", isnan_of},
    {"le", comparison<kLessOrEqual>},
    {"log", in_result_type<kLog>},
    {"log1p", log1p_of},
    {"logical_and", logical<kAnd>},
    {"logical_not", not_of},
    {"logical_or", logical<kOr>},
    {"logical_xor", logical<kXor>},
    {"lt", comparison<kLess>},
    {"maximum", either<kOr, kMax>},
    {"minimum", either<kAnd, kMin>},
    {"mul", either<kAnd, kMul>},
    {"mul_scalar", with_number<kMul>},
    {"ne", unequal},
    {"neg", in_result_type<kNeg>},
    {"pow", in_result_type<kPow>},
    {"pow_scalar", with_number<kPow>},
    {"reciprocal", in_result_type<kReciprocal>},
    {"relu", relu_of},
    {"remainder", remainder_of},
    {"round", rounded<kRound>},
    {"rsqrt", rsqrt_of},
    {"sigmoid", in_result_type<kSigmoid>},
    {"sign", in_result_type<kSign>},
    {"silu", activated<Activation::Silu>},
    {"sin", in_result_type<kSin>},
    {"softplus", in_result_type<kSoftplus>},
    {"sqrt", in_result_type<kSqrt>},
    {"square", square_of},
    {"sub", in_result_type<kSub>},
    {"tan", in_result_type<kTan>},
    {"tanh", activated<Activation::Tanh>},
    {"trunc", trunc_of},
    {"where", where_of},
};

}  // namespace

std::span<const WriterEntry> elementwise_writers() { return entries; }

}  // namespace tessera::onnx
