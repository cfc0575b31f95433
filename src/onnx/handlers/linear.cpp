// Products.
#include "onnx/handlers/microsoft.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

/// Products of integers are exact in f64 as long as sums stay below 2^53.
Tensor product(const Tensor& a, const Tensor& b) {
  if (is_floating(a.dtype())) return matmul(a, b);
  return cast(matmul(cast(a, Float64), cast(b, Float64)), a.dtype());
}
Values matrix_product(const Call& c) {
  const Tensor &a = c.in(0), &b = c.in(1);
  c.check_types();
  return {product(a, b)};
}

}  // namespace

Values gemm(const Call& c) {
  const Tensor &a = c.in(0), &b = c.in(1);
  if (a.dim() != 2 || b.dim() != 2) c.fail("{} and {} are no matrices", describe(a), describe(b));
  const bool a_turned = c.flag("transA", false), b_turned = c.flag("transB", false);
  const double alpha = c.real("alpha", 1), beta = c.real("beta", 1);
  const Tensor left = a_turned ? transpose(a, 0, 1) : a;
  const bool plain_bias = c.has(2) && c.in(2).dim() == 1 && beta == 1 && alpha == 1 && is_floating(a.dtype()) &&
                          c.in(2).size(0) == b.size(b_turned ? 0 : 1);
  if (plain_bias) return {linear(left, b_turned ? b : transpose(b, 0, 1), c.in(2))};
  Tensor out = product(left, b_turned ? transpose(b, 0, 1) : b);
  if (alpha != 1) out = cast(out * alpha, a.dtype());
  if (!c.has(2) || beta == 0) return {out};
  return {add(out, beta == 1 ? c.in(2) : cast(c.in(2) * beta, a.dtype()))};
}

namespace {

constexpr Entry entries[] = {
    {"Gemm", 1, gemm},
    {"MatMul", 1, matrix_product},
};

}  // namespace

std::span<const Entry> linear_handlers() { return entries; }

}  // namespace tessera::onnx
