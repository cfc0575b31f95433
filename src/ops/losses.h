// What losses share.
#pragma once
#include <algorithm>

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

/// Each value times its weight, where there are any.
inline Tensor times_weight(std::string_view op, const Tensor& values, const Tensor& weight) {
  if (!weight.defined()) return values;
  require_fits(op, "the weight", weight, values.shape());
  return values * cast(weight, values.dtype());
}

/// f(in..., numbers...) of elements, in f32 at least, times `weight`, reduced, in the dtype of the first two: the input
/// and the target, of one shape, to which others broadcast.
template <size_t n, class F, class... Numbers>
Tensor loss_of_elements(std::string_view op, const Tensor (&in)[n], const Tensor& weight, Reduction reduction, F f,
                        Numbers... numbers) {
  if (!(in[0].shape() == in[1].shape()))
    fail(op, "shapes differ: {} and {}", to_string(in[0].shape()), to_string(in[1].shape()));
  Tensor given[n];
  std::copy(in, in + n, given);
  given[0] = loss_input(op, in[0]);
  const DType dtype = promote(given[0].dtype(), in[1].dtype()), wide = statistics_dtype(dtype);
  const Tensor values = map_elements(given, wide, wide, f, numbers...);
  return cast(reduced(times_weight(op, values, weight), reduction), dtype);
}

}  // namespace tessera
