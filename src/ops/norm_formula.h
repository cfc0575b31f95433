// Normalisation in plain operators: the vjps, and the oracle of the kernels. One formula, three ways to look at x.
#pragma once
#include "core/op.h"
#include "ops/check.h"
#include "tessera/ops.h"

namespace tessera {

enum class NormKind { Rows, Groups, Batch };

// x seen so that the reduced dims are fixed: [rows, width] over 1, [n, groups, c / groups, rest] over 2 and 3, or
// [n, c, rest] over 0 and 2; with the shapes of weights and statistics that broadcast to it.
struct Seen {
  NormKind kind;
  Shape x, weight, statistics;

  Tensor average(const Tensor& t) const {
    switch (kind) {
      case NormKind::Rows:
        return mean(t, {1}, true);
      case NormKind::Groups:
        return mean(t, {2, 3}, true);
      case NormKind::Batch:
        break;
    }
    return mean(t, {0, 2}, true);
  }
};

inline Dim product_of(const Dim* first, const Dim* last) { return Shape(first, last).numel(); }

inline Seen rows_of(const Shape& x, int64_t normalized_dims) {
  const Dim* split = x.end() - normalized_dims;
  Dim rows = product_of(x.begin(), split), width = product_of(split, x.end());
  return {NormKind::Rows, {rows, width}, {width}, {rows, Dim(1)}};
}
inline Seen groups_of(const Shape& x, int64_t groups) {
  Dim rest = product_of(x.begin() + 2, x.end()), channels = x[1] / groups;
  return {NormKind::Groups,
          {x[0], Dim(groups), channels, rest},
          {Dim(1), Dim(groups), channels, Dim(1)},
          {x[0], Dim(groups), Dim(1), Dim(1)}};
}
inline Seen channels_of(const Shape& x) {
  Dim rest = product_of(x.begin() + 2, x.end());
  return {NormKind::Batch, {x[0], x[1], rest}, {Dim(1), x[1], Dim(1)}, {Dim(1), x[1], Dim(1)}};
}

struct NormMoments {
  Tensor mean, rstd;  // mean is undefined where it is not subtracted
};
inline NormMoments moments_of(const Seen& seen, const Tensor& x, bool centered, double eps) {
  Tensor t = reshape(x, seen.x), mean = centered ? seen.average(t) : Tensor();
  return {mean, rsqrt(seen.average(square(centered ? t - mean : t)) + eps)};
}

inline Tensor normalized(const Seen& seen, const Tensor& x, const NormMoments& m) {
  Tensor t = reshape(x, seen.x);
  if (m.mean.defined()) t = t - reshape(m.mean, seen.statistics);
  return t * reshape(m.rstd, seen.statistics);
}

inline Tensor scale_and_shift(const Seen& seen, Tensor y, const Tensor& weight, const Tensor& bias,
                              const Shape& shape) {
  if (weight.defined()) y = y * reshape(weight, seen.weight);
  if (bias.defined()) y = y + reshape(bias, seen.weight);
  return reshape(y, shape);
}

// dx, dweight, dbias. Without weight the last two are empty, as the fused kernels give them. `constant`: the moments
// are given and do not depend on x.
inline Tensors norm_gradients(const Seen& seen, const Tensor& g, const Tensor& x, const Tensor& weight,
                              const NormMoments& m, bool constant = false) {
  Tensor dy = reshape(g, seen.x), xhat = normalized(seen, x, m);
  Tensor dxhat = weight.defined() ? dy * reshape(weight, seen.weight) : dy;
  Tensor dx = constant ? dxhat : dxhat - xhat * seen.average(dxhat * xhat);
  if (m.mean.defined() && !constant) dx = dx - seen.average(dxhat);
  dx = cast(reshape(dx * reshape(m.rstd, seen.statistics), x.shape()), x.dtype());
  if (!weight.defined()) return {dx, empty({0}, x.dtype(), x.device()), empty({0}, x.dtype(), x.device())};
  auto weight_gradient = [&](const Tensor& t) {
    return reshape(sum_to(cast(t, weight.dtype()), seen.weight), weight.shape());
  };
  return {dx, weight_gradient(dy * xhat), weight_gradient(dy)};
}

inline Tensors wanted(const Saved& s, Tensors grads, size_t count) {
  grads.resize(count);
  for (size_t i = 0; i < count; ++i)
    if (!s.needs_input(static_cast<int>(i))) grads[i] = {};
  return grads;
}

inline TensorMeta meta_like(const TensorMeta& x, const Shape& shape) { return {shape, x.dtype, x.device}; }
inline TensorMeta statistics_like(const TensorMeta& x, const Shape& shape) {
  return {shape, statistics_dtype(x.dtype), x.device};
}
inline TensorMeta gradient_like(const TensorMeta& x, const TensorMeta& weight) {
  return is_absent(weight) ? meta_like(x, {0}) : TensorMeta{weight.shape, weight.dtype, x.device};
}

// Weights have the dtype of x or, beside halves, that of the statistics.
inline void require_norm_dtypes(std::string_view op, const TensorMeta& x, std::span<const TensorMeta> weights) {
  require_one_floating_dtype(op, {&x, 1}, 1);
  for (const TensorMeta& w : weights)
    if (!is_absent(w) && w.dtype != x.dtype && w.dtype != statistics_dtype(x.dtype))
      fail(op, "dtypes differ: {} and {}", describe(x), describe(w));
}

inline void require_bias_like_weight(std::string_view op, const TensorMeta& weight, const TensorMeta& bias) {
  if (is_absent(bias)) return;
  if (is_absent(weight)) fail(op, "a bias without a weight is not supported");
  require_shape(op, "bias", bias, weight.shape);
  if (bias.dtype != weight.dtype) fail(op, "dtypes differ: weight {} and bias {}", describe(weight), describe(bias));
}

}  // namespace tessera
