// Functions of several roundings: halves and integers are computed in a wider dtype.
#pragma once
#include "ops/map_graph.h"

namespace tessera {

/// The floating dtype that a function gives: that of x, f32 of integers.
inline DType real_dtype(DType x) { return is_floating(x) ? x : Float32; }

/// f(x) in f32 at least, back in the dtype that a function of x gives.
template <class F>
Tensor in_single(const Tensor& x, const F& f) {
  return cast(f(cast(x, x.dtype() == Float64 ? Float64 : Float32)), real_dtype(x.dtype()));
}

/// The dtype of a sum of both, numbers not widening tensors, floating.
inline DType real_dtype(const Tensor& a, const Tensor& b) {
  const bool number = a.dim() == 0 && b.dim() > 0 && is_floating(b.dtype());
  const bool other = b.dim() == 0 && a.dim() > 0 && is_floating(a.dtype());
  return number ? b.dtype() : other ? a.dtype() : real_dtype(promote(a.dtype(), b.dtype()));
}
/// f(a, b) in f32 at least, back in that dtype.
template <class F>
Tensor in_single(const Tensor& a, const Tensor& b, const F& f) {
  const DType dtype = real_dtype(a, b), wide = dtype == Float64 ? Float64 : Float32;
  return cast(f(cast(a, wide), cast(b, wide)), dtype);
}

// The same of functions of elements, which capture nothing, and take the numbers that follow them.

template <class F, class... Numbers>
Tensor map_in_single(const Tensor& x, F f, Numbers... numbers) {
  return map_elements({x}, x.dtype() == Float64 ? Float64 : Float32, real_dtype(x.dtype()), f, numbers...);
}
template <class F, class... Numbers>
Tensor map_in_double(const Tensor& x, F f, Numbers... numbers) {
  return map_elements({x}, Float64, real_dtype(x.dtype()), f, numbers...);
}
template <class F, class... Numbers>
Tensor map_in_single(const Tensor& a, const Tensor& b, F f, Numbers... numbers) {
  const DType dtype = real_dtype(a, b);
  return map_elements({a, b}, dtype == Float64 ? Float64 : Float32, dtype, f, numbers...);
}

}  // namespace tessera
