// Parts of epilogues that are known at run time only.
#pragma once

#include "gemm.h"
#include "tile/expr.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

/// An activation known at run time.
struct AnyActivation {
  Activation kind;
  template <class V>
  TESSERA_HD V operator()(V x) const {
    switch (kind) {
      case Activation::none:
        break;
      case Activation::relu:
        return tile::relu(x);
      case Activation::gelu_tanh:
        return tile::gelu_tanh(x);
      case Activation::gelu_erf:
        return tile::gelu_erf(x);
      case Activation::silu:
        return tile::silu(x);
      case Activation::tanh:
        return tile::tanh(x);
    }
    return x;
  }
};
template <Activation kind>
struct FixedActivation {
  template <class V>
  TESSERA_HD V operator()(V x) const {
    return AnyActivation{kind}(x);
  }
};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
