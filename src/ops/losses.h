// What losses share.
#pragma once
#include "ops/autocast.h"
#include "ops/check.h"
#include "ops/gradient.h"
#include "ops/precise.h"
#include "tessera/ops.h"

namespace tessera {

/// The input of a loss, which halves are no more under autocast.
inline Tensor loss_input(std::string_view op, const Tensor& x) {
  if (!is_floating(x.dtype())) fail(op, "takes floating-point tensors, not {}", describe(x));
  return amp::autocast_to_float32(x);
}
/// In the dtype that losses compute in.
inline Tensor in_loss_dtype(const Tensor& x) { return cast(x, statistics_dtype(x.dtype())); }

/// Throws Error unless `t` broadcasts to `shape`.
inline void require_fits(std::string_view op, std::string_view what, const Tensor& t, const Shape& shape) {
  if (!(broadcast_shapes(op, t.shape(), shape) == shape))
    fail(op, "{} {} does not broadcast to {}", what, to_string(t.shape()), to_string(shape));
}

inline Tensor reduced(const Tensor& values, Reduction reduction) {
  if (reduction == Reduction::None) return values;
  return reduction == Reduction::Mean ? mean(values) : sum(values);
}
/// The same, where examples count as much as their weights say.
inline Tensor reduced(const Tensor& values, const Tensor& weights, Reduction reduction) {
  return reduction == Reduction::Mean ? sum(values) / sum(weights) : reduced(values, reduction);
}

/// f(x, target) of tensors of one shape, in f32 at least, reduced, in their dtype.
template <class F>
Tensor loss_of_elements(std::string_view op, const Tensor& x, const Tensor& target, Reduction reduction, const F& f) {
  if (!(x.shape() == target.shape()))
    fail(op, "shapes differ: {} and {}", to_string(x.shape()), to_string(target.shape()));
  const Tensor in = loss_input(op, x);
  const DType dtype = promote(in.dtype(), target.dtype()), wide = statistics_dtype(dtype);
  return cast(reduced(f(cast(in, wide), cast(target, wide)), reduction), dtype);
}

}  // namespace tessera
