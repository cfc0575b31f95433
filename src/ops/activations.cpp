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
  return map_in_single(
      x, [](const Tensor& v, double a) { return unless_positive(v, expm1_below(v) * a); }, alpha);
}
Tensor selu(const Tensor& x, double alpha, double gamma) {
  const auto f = [](const Tensor& v, double a, double c) { return unless_positive(v, expm1_below(v) * a) * c; };
  return map_in_single(x, f, alpha, gamma);
}
Tensor celu(const Tensor& x, double alpha) {
  if (alpha == 0) throw Error("celu: alpha is 0, which x is divided by");
  const auto f = [](const Tensor& v, double a) { return unless_positive(v, expm1_below(v, 1 / a) * a); };
  return map_in_single(x, f, alpha);
}
Tensor leaky_relu(const Tensor& x, double slope) {
  return map_in_single(
      x, [](const Tensor& v, double k) { return unless_positive(v, v * k); }, slope);
}
Tensor prelu(const Tensor& x, const Tensor& weight) {
  const bool one = weight.shape().numel() == Dim(1);
  if (!one && !(weight.dim() == 1 && x.dim() > 1 && weight.shape()[0] == x.shape()[1]))
    throw Error(fmt::format("prelu: the weight {} has neither one element nor one for each channel of {}",
                            to_string(weight.shape()), to_string(x.shape())));
  Shape channels(static_cast<size_t>(one ? 0 : x.dim() - 1), Dim(1));
  if (!one) channels[0] = weight.shape()[0];
  const DType dtype = real_dtype(x, weight);
  if (x.dtype() != dtype || weight.dtype() != dtype) return unless_positive(x, x * reshape(weight, channels));
  return map_in_single(x, reshape(weight, channels),
                       [](const Tensor& v, const Tensor& slope) { return unless_positive(v, v * slope); });
}
Tensor thresholded_relu(const Tensor& x, double threshold) {
  const auto f = [](const Tensor& v, double bound) {
    return where(gt(v, number_like(v, bound)), v, number_like(v, 0));
  };
  return map_in_single(x, f, threshold);
}
Tensor relu6(const Tensor& x) { return clamp(x, 0, 6); }

Tensor hardsigmoid(const Tensor& x, double slope, double offset) {
  const auto f = [](const Tensor& v, double a, double b) { return clamp(v * a + b, 0, 1); };
  return map_in_single(x, f, slope, offset);
}
Tensor hardswish(const Tensor& x) {
  return map_in_single(x, [](const Tensor& v) { return v * hardsigmoid(v); });
}
Tensor hardtanh(const Tensor& x, double low, double high) {
  if (!(low <= high)) throw Error(fmt::format("hardtanh: {} is not below {}", low, high));
  return clamp(x, low, high);
}
Tensor mish(const Tensor& x) {
  return map_in_single(x, [](const Tensor& v) { return v * tanh(softplus(v)); });
}
Tensor softsign(const Tensor& x) {
  return map_in_single(x, [](const Tensor& v) { return v / (abs(v) + 1.0); });
}
Tensor softshrink(const Tensor& x, double lambda) {
  require_not_negative("softshrink", lambda);
  const auto f = [](const Tensor& v, double by) {
    return where(le(abs(v), number_like(v, by)), number_like(v, 0), v - clamp(v, -by, by));
  };
  return map_in_single(x, f, lambda);
}
Tensor hardshrink(const Tensor& x, double lambda) {
  require_not_negative("hardshrink", lambda);
  const auto f = [](const Tensor& v, double bound) {
    return where(le(abs(v), number_like(v, bound)), number_like(v, 0), v);
  };
  return map_in_single(x, f, lambda);
}
Tensor tanhshrink(const Tensor& x) {
  return map_in_single(x, [](const Tensor& v) { return v - tanh(v); });
}
Tensor log_sigmoid(const Tensor& x) {
  return map_in_single(x, [](const Tensor& v) { return -softplus(-v); });
}

Tensor glu(const Tensor& x, int64_t dim) {
  dim = normalize_dim("glu", dim, x.shape());
  const Dim size = x.shape()[dim], half = size / 2;
  if (!(half * 2 == size)) throw Error(fmt::format("glu: dim {} of {} is not even", dim, to_string(x.shape())));
  return map_in_single(slice(x, dim, Dim(0), half), slice(x, dim, half, size),
                       [](const Tensor& v, const Tensor& gate) { return v * sigmoid(gate); });
}

}  // namespace tessera
