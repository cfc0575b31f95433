// What vjps are written with.
#pragma once
#include "ops/output_layout.h"
#include "tessera/ops.h"

namespace tessera {

/// A gradient brought to the shape and dtype of the input it belongs to: broadcast dims are summed.
inline Tensor gradient_for(Tensor gradient, const Shape& shape, DType dtype) {
  if (!(gradient.shape() == shape)) gradient = sum_to(gradient, shape);
  return gradient.dtype() == dtype ? std::move(gradient) : cast(gradient, dtype);
}
inline Tensor gradient_for(Tensor gradient, const TensorType& input) {
  return gradient_for(std::move(gradient), input.shape, input.dtype);
}
inline Tensor gradient_for(Tensor gradient, const Tensor& input) {
  return gradient_for(std::move(gradient), input.shape(), input.dtype());
}

/// Whether its elements lie apart, so that it can be overwritten by maps and sums.
inline bool lies_apart(const Tensor& g) {
  return g.is_contiguous() || g.is_contiguous(ChannelsLast) || lies_in_padded_rows(g);
}

inline Tensor zeros_like(const TensorType& t) { return zeros(t.shape, t.dtype, t.device); }
inline Tensor zeros_like(const Tensor& x) { return zeros(x.shape(), x.dtype(), x.device()); }
/// A 0-d tensor, for operators that take tensors only.
inline Tensor number_like(const Tensor& x, double value) { return full({}, value, x.dtype(), x.device()); }
/// Zeros that take no memory, for operators that begin with a copy.
inline Tensor zeros_to_copy(const Shape& shape, DType dtype, Device device) {
  return expand(zeros({}, dtype, device), shape);
}
inline Tensor zeros_to_copy(const TensorType& t) { return zeros_to_copy(t.shape, t.dtype, t.device); }

}  // namespace tessera
