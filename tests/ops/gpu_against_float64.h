// Tests of operators on a GPU, if there is one, against float64.
#pragma once
#include "core/gpu_check.h"
#include "ops/ops_check.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera {

/// fn(inputs): gradients of <fn(inputs), g> by each input.
template <class Fn>
Tensors gradients(const Fn& fn, Tensors inputs, const Tensor& g) {
  for (Tensor& t : inputs) t = t.detach().set_requires_grad();
  return grad({fn(inputs)}, inputs, {g});
}

class GpuAgainstFloat64 : public GpuTest {
 protected:
  /// Values that `dtype` holds exactly, in float64.
  Tensor values(const Shape& shape, DType dtype) { return normal64(shape, generator).to(dtype).to(Float64); }
  static double error(const Tensor& got, const Tensor& want) { return relative_error(got.to(cpu()).to(Float64), want); }

  Generator generator{29};
};

}  // namespace tessera
