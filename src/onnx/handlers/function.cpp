// Trigonometric and hyperbolic functions, bits, and small matrices.
#include "onnx/handler.h"
#include "tessera/ops_math.h"
#include "tessera/ops_shape.h"

namespace tessera::onnx {
namespace {

template <Tensor (*function)(const Tensor&)>
Values of_one(const Call& c) {
  return {function(c.in(0))};
}
template <Tensor (*function)(const Tensor&, const Tensor&)>
Values of_two(const Call& c) {
  c.check_types();
  return {function(c.in(0), c.in(1))};
}

Values bit_shift(const Call& c) {
  const std::string direction = c.text("direction", "");
  if (direction == "LEFT") return of_two<left_shift>(c);
  if (direction != "RIGHT") c.fail("direction '{}' is neither LEFT nor RIGHT", direction);
  return of_two<right_shift>(c);
}

Values bit_cast(const Call& c) {
  const DType from = c.in(0).dtype(), to = c.dtype("to", from);
  if (size_of(from) != size_of(to)) c.fail("{} and {} have not one size", name(from), name(to));
  return {bitcast(c.in(0), to)};
}

Values einstein_sum(const Call& c) { return {einsum(c.text("equation", ""), c.tensors())}; }

constexpr Entry entries[] = {
    {"Acosh", 9, of_one<tessera::acosh>},
    {"Asinh", 9, of_one<tessera::asinh>},
    {"Atanh", 9, of_one<tessera::atanh>},
    {"BitCast", 26, bit_cast},
    {"BitShift", 11, bit_shift},
    {"BitwiseAnd", 18, of_two<bitwise_and>},
    {"BitwiseNot", 18, of_one<bitwise_not>},
    {"BitwiseOr", 18, of_two<bitwise_or>},
    {"BitwiseXor", 18, of_two<bitwise_xor>},
    {"Cosh", 9, of_one<tessera::cosh>},
    {"Det", 11, of_one<det>},
    {"Einsum", 12, einstein_sum},
    {"Sinh", 9, of_one<tessera::sinh>},
};

}  // namespace

std::span<const Entry> function_handlers() { return entries; }

}  // namespace tessera::onnx
