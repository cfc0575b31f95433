// What `linear` and `mlp` keep of their activation for backward.
#pragma once
#include "tessera/enums.h"
#include "tessera/tensor.h"

namespace tessera {

/// Of a tensor or an operand x: whether that is what the activation is applied to, and not its slope there: NVIDIA's
/// library stores the former beside its result, and either takes the same memory. Not in f16, where the former may be
/// infinite.
template <class T>
bool keeps_activation_input(Activation activation, const T& x) {
  return activation == Activation::GeluTanh && x.dtype() == BFloat16 && x.device().type == DeviceType::CUDA;
}

}  // namespace tessera
