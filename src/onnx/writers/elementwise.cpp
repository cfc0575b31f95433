// Functions of elements.
#include <cmath>
#include <numbers>

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
TESSERA_ONNX_OP(Asin)
TESSERA_ONNX_OP(Acos)
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

// What ONNX has no operator for is computed in f32 at least.
class Formula {
 public:
  explicit Formula(const OpCall& c) : c_(c), dtype_(c.out().dtype == Float64 ? Float64 : Float32) {}
  DType dtype() const { return dtype_; }
  Name in(size_t i) const { return c_.in_as(i, dtype_); }
  Name number(double value) const { return c_.number(value, dtype_); }
  Name operator()(std::string_view op, const Names& in) const { return c_.node(op, in); }
  Name choose(const Name& condition, const Name& a, const Name& b) const { return c_.node("Where", {condition, a, b}); }
  /// The sum of coefficients[i] x^i.
  Name polynomial(const Name& x, std::initializer_list<double> coefficients) const {
    auto it = std::rbegin(coefficients);
    Name sum = number(*it);
    while (++it != std::rend(coefficients)) sum = c_.node("Add", {c_.node("Mul", {sum, x}), number(*it)});
    return sum;
  }
  Names result(const Name& y) const { return {c_.cast(y, dtype_, c_.out().dtype)}; }

 private:
  const OpCall& c_;
  DType dtype_;
};

// As tile::erfinv; in f64 two of Halley's steps follow.
Names erfinv_of(const OpCall& c) {
  const Formula f(c);
  const Name x = f.in(0), one = f.number(1);
  const Name w = f("Neg", {f("Log", {f("Mul", {f("Sub", {one, x}), f("Add", {one, x})})})});
  const Name inner = f("Less", {w, f.number(5)});
  const Name near =
      f.polynomial(f("Sub", {f("Mul", {w, f.number(0.4)}), one}),
                   {1.50140935, 0.616600692, -0.0261082808, -0.0195735643, 0.0085259345, -0.000487876475,
                    -0.000836468738, 0.000292135779, 2.51574346e-05, -4.14004351e-05, 4.14957776e-06, 2.93113661e-06});
  const Name far = f.polynomial(f("Sub", {f("Sqrt", {f("Max", {w, f.number(5)})}), f.number(3.2)}),
                                {3.03363657, 1.00469241, 0.00597345592, -0.0042936552, 0.0029474937, -0.00199505776,
                                 0.00109252927, -0.000356300635, -3.89268681e-05, 9.88480581e-05, -3.09990533e-05});
  Name y = f("Mul", {x, f.choose(inner, near, far)});
  for (int step = 0; step < (f.dtype() == Float64 ? 2 : 0); ++step) {
    const Name slope = f("Mul", {f("Exp", {f("Mul", {y, y})}), f.number(0.88622692545275801)});
    const Name newton = f("Mul", {f("Sub", {f("Erf", {y}), x}), slope});
    y = f("Sub", {y, f("Div", {newton, f("Add", {f("Mul", {y, newton}), one})})});
  }
  const Name bound = f("Equal", {f("Abs", {x}), one});
  return f.result(f.choose(bound, f("Mul", {x, f.number(INFINITY)}), y));
}

// By the larger side, unless that is 0 or infinite.
Names hypot_of(const OpCall& c) {
  const Formula f(c);
  const Name a = f("Abs", {f.in(0)}), b = f("Abs", {f.in(1)}), larger = f("Max", {a, b});
  const Name none = f("Or", {f("Equal", {larger, f.number(0)}), f("Equal", {larger, f.number(INFINITY)})});
  const Name scale = f.choose(none, f.number(1), larger), x = f("Div", {a, scale}), y = f("Div", {b, scale});
  const Name length = f("Mul", {f("Sqrt", {f("Add", {f("Mul", {x, x}), f("Mul", {y, y})})}), scale});
  return f.result(f.choose(none, larger, length));
}

// The arc tangent of the smaller side by the larger one, then the octant. Zeros have no sign here.
Names atan2_of(const OpCall& c) {
  const Formula f(c);
  const Name y = f.in(0), x = f.in(1), height = f("Abs", {y}), width = f("Abs", {x}), zero = f.number(0);
  const Name larger = f("Max", {height, width}), smaller = f("Min", {height, width}), one = f.number(1);
  const Name ratio = f("Div", {smaller, f.choose(f("Equal", {larger, zero}), one, larger)});
  const Name octant = f("Atan", {f.choose(f("Equal", {smaller, f.number(INFINITY)}), one, ratio)});
  const Name steep =
      f.choose(f("Greater", {height, width}), f("Sub", {f.number(std::numbers::pi / 2), octant}), octant);
  const Name angle = f.choose(f("Less", {x, zero}), f("Sub", {f.number(std::numbers::pi), steep}), steep);
  return f.result(f.choose(f("Less", {y, zero}), f("Neg", {angle}), angle));
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
    {"acos", in_result_type<kAcos>},
    {"add", either<kOr, kAdd>},
    {"add_scalar", with_number<kAdd>},
    {"asin", in_result_type<kAsin>},
    {"atan", in_result_type<kAtan>},
    {"atan2", atan2_of},
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
    {"erfinv", erfinv_of},
    {"exp", in_result_type<kExp>},
    {"exp2", exp2_of},
    {"expm1", expm1_of},
    {"floor", rounded<kFloor>},
    {"floor_div", floor_div_of},
    {"ge", comparison<kGreaterOrEqual>},
    {"gelu", activated<Activation::GeluErf>},
    {"gelu_tanh", activated<Activation::GeluTanh>},
    {"gt", comparison<kGreater>},
    {"hypot", hypot_of},
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
