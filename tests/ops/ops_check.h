// What tests of operators share.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "cases/cases.h"
#include "ops/call_plan.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera {

/// What a call throws, or "no error".
template <class F>
std::string error_of(F call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

/// Of a product of matrices, m x k by k x n.
struct ProductSize {
  int64_t m, n, k;
};

/// ||got - want|| / ||want||, in float64.
inline double relative_error(const Tensor& got, const Tensor& want) {
  if (!(got.shape() == want.shape())) return INFINITY;
  auto a = got.to_vector<double>(), b = want.to_vector<double>();
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference) / std::max(std::sqrt(size), 1e-30);
}

/// Gradients of <f(inputs), weights> for random weights, with the fused backward or the composed one.
template <class F>
Tensors gradients_of(F f, Tensors inputs, bool composed) {
  for (Tensor& t : inputs)
    if (t.defined()) t = t.detach().set_requires_grad();
  Tensor y = f(inputs);
  Generator generator(99);
  Tensors present;
  for (const Tensor& t : inputs)
    if (t.defined()) present.push_back(t);
  return grad({y}, present, {normal64(y.shape(), generator).to(y.dtype())}, false, composed);
}

/// In a half type, where statistics and sums are f32: outputs and gradients of `f` near those on the same values in
/// f64.
template <class F>
void expect_half_precision_close(F f, const Tensors& exact, double tolerance) {
  for (DType dtype : {Float16, BFloat16}) {
    double limit = dtype == Float16 ? tolerance : 8 * tolerance;
    Tensors half, wide;
    for (const Tensor& t : exact) {
      half.push_back(t.defined() ? t.to(dtype) : Tensor());
      wide.push_back(t.defined() ? half.back().to(Float64) : Tensor());
    }
    EXPECT_LE(relative_error(f(half), f(wide)), limit) << name(dtype);
    Tensors got = gradients_of(f, half, false), want = gradients_of(f, wide, false);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].dtype(), dtype);
      EXPECT_LE(relative_error(got[i], want[i]), 2 * limit) << name(dtype) << " gradient " << i;
    }
  }
}

/// Plans and runs a call on tensors that are there; hidden outputs may be undefined.
inline void run_op(const Op& op, std::span<const Tensor> in, const Attrs& attrs, std::span<const Tensor> out) {
  const auto in_metas = metas_of(in, cpu()), out_metas = metas_of(out, cpu());
  const auto plan = make_plan(op, {in_metas.data(), in_metas.size()}, attrs, {out_metas.data(), out_metas.size()});
  run_as_planned(*plan, in, out);
}

}  // namespace tessera
