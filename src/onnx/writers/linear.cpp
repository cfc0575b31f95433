// Products, with what follows in the same pass here.
#include "onnx/writer.h"
#include "onnx/writers/integers.h"

namespace tessera::onnx {
namespace {

Names matmul_of(const OpCall& c) {
  if (const Name exact = integer_product(c); !exact.empty()) return {exact};
  return {c.node("MatMul", {c.in_as(0, c.out().dtype), c.in_as(1, c.out().dtype)})};
}

// x weightᵀ + bias. Gemm takes matrices alone.
Name product(const OpCall& c, const Name& x, size_t weight, const Name& bias) {
  if (c.type(0).shape.rank() == 2)
    return c.node("Gemm", bias.empty() ? Names{x, c.in(weight)} : Names{x, c.in(weight), bias}, {integer("transB", 1)});
  const Name y = c.node("MatMul", {x, c.transpose(c.in(weight), {1, 0})});
  return bias.empty() ? y : c.node("Add", {y, bias});
}
Name plus(const OpCall& c, const Name& y, const Name& residual) {
  return residual.empty() ? y : c.node("Add", {residual, y});
}

// x, weight, bias?, residual?
Names linear_of(const OpCall& c) {
  const Name y = product(c, c.in(0), 1, c.in(2));
  return {plus(c, c.activation(y, c.attrs<LinearAttrs>().activation, c.out().dtype), c.in(3))};
}
// x, up, up_bias?, down, down_bias?, residual?
Names mlp_of(const OpCall& c) {
  const Name up = product(c, c.in(0), 1, c.in(2));
  const Name hidden = c.activation(up, c.attrs<LinearAttrs>().activation, c.out().dtype);
  return {plus(c, product(c, hidden, 3, c.in(4)), c.in(5))};
}

constexpr WriterEntry entries[] = {
    {"linear", linear_of},
    {"matmul", matmul_of},
    {"matmul_wide", matmul_of},
    {"mlp", mlp_of},
};

}  // namespace

std::span<const WriterEntry> linear_writers() { return entries; }

}  // namespace tessera::onnx
