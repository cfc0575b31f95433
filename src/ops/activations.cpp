// Activations that are made of operators.
#include <cmath>

#include <fmt/format.h>

#include "ops/gradient.h"
#include "ops/precise.h"
#include "tessera/ops_math.h"

namespace tessera {
namespace {

/// x above 0 and where it is NaN, `otherwise` elsewhere.
Tensor unless_positive(const Tensor& x, const Tensor& otherwise) {
  return where(le(x, number_like(x, 0)), otherwise, x);
}
/// exp(x) - 1 of what is not above 0: nothing overflows where it is not asked for.
Tensor expm1_below(const Tensor& x, double scale = 1) {
  const Tensor zero = number_like(x, 0);
  return expm1(where(le(x, zero), x, zero) * scale);
}

void require_not_negative(std::string_view op, double lambda) {
  if (!(lambda >= 0)) throw Error(fmt::format("{}: lambda is {}, negative", op, lambda));
}

}  // namespace

Tensor elu(const Tensor& x, double alpha) {
  return in_single(x, [&](const Tensor& v) { return unless_positive(v, expm1_below(v) * alpha); });
}
Tensor selu(const Tensor& x, double alpha, double gamma) {
  return in_single(x, [&](const Tensor& v) { return unless_positive(v, expm1_below(v) * alpha) * gamma; });
}
Tensor celu(const Tensor& x, double alpha) {
  if (alpha == 0) throw Error("celu: alpha is 0, which x is divided by");
  return in_single(x, [&](const Tensor& v) { return unless_positive(v, expm1_below(v, 1 / alpha) * alpha); });
}
Tensor leaky_relu(const Tensor& x, double slope) {
  const Tensor real = cast(x, real_dtype(x.dtype()));
  return unless_positive(real, real * slope);
}
Tensor prelu(const Tensor& x, const Tensor& weight) {
  const bool one = weight.shape().numel() == Dim(1);
  if (!one && !(weight.dim() == 1 && x.dim() > 1 && weight.shape()[0] == x.shape()[1]))
    throw Error(fmt::format("prelu: the weight {} has neither one element nor one for each channel of {}",
                            to_string(weight.shape()), to_string(x.shape())));
  Shape channels(static_cast<size_t>(one ? 0 : x.dim() - 1), Dim(1));
  if (!one) channels[0] = weight.shape()[0];
  return unless_positive(x, x * reshape(weight, channels));
}
Tensor thresholded_relu(const Tensor& x, double threshold) {
  return in_single(x, [&](const Tensor& v) { return where(gt(v, number_like(v, threshold)), v, number_like(v, 0)); });
}
Tensor relu6(const Tensor& x) { return clamp(x, 0, 6); }

Tensor hardsigmoid(const Tensor& x, double slope, double offset) {
  return in_single(x, [&](const Tensor& v) { return clamp(v * slope + offset, 0, 1); });
}
Tensor hardswish(const Tensor& x) {
  return in_single(x, [](const Tensor& v) { return v * hardsigmoid(v); });
}
Tensor hardtanh(const Tensor& x, double low, double high) {
  if (!(low <= high)) throw Error(fmt::format("hardtanh: {} is not below {}", low, high));
  return clamp(x, low, high);
}
Tensor mish(const Tensor& x) {
  return in_single(x, [](const Tensor& v) { return v * tanh(softplus(v)); });
}
Tensor softsign(const Tensor& x) {
  return in_single(x, [](const Tensor& v) { return v / (abs(v) + 1.0); });
}
Tensor softshrink(const Tensor& x, double lambda) {
  require_not_negative("softshrink", lambda);
  return in_single(x, [&](const Tensor& v) {
    const Tensor zero = number_like(v, 0), moved = where(lt(v, zero), v + lambda, v + -lambda);
    return where(le(abs(v), number_like(v, lambda)), zero, moved);
  });
}
Tensor hardshrink(const Tensor& x, double lambda) {
  require_not_negative("hardshrink", lambda);
  return in_single(x, [&](const Tensor& v) { return where(le(abs(v), number_like(v, lambda)), number_like(v, 0), v); });
}
Tensor tanhshrink(const Tensor& x) {
  return in_single(x, [](const Tensor& v) { return v - tanh(v); });
}
Tensor log_sigmoid(const Tensor& x) { return -softplus(-cast(x, real_dtype(x.dtype()))); }

Tensor glu(const Tensor& x, int64_t dim) {
  dim = normalize_dim("glu", dim, x.shape());
  const Dim size = x.shape()[dim], half = size / 2;
  if (!(half * 2 == size)) throw Error(fmt::format("glu: dim {} of {} is not even", dim, to_string(x.shape())));
  return slice(x, dim, Dim(0), half) * sigmoid(slice(x, dim, half, size));
}

}  // namespace tessera
