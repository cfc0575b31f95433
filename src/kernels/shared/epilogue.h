// Parts of epilogues that are known at run time only.
#pragma once

#include "kernels/args/gemm.h"
#include "tile/expr.h"

namespace tessera::TESSERA_ISA_KERNELS {

/// Whether sums of rows or columns are wanted.
inline bool sums_lines(const GemmArgs& args) { return args.row_sums.data || args.column_sums.data; }

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

  /// The derivative, too.
  template <class V>
  TESSERA_HD tile::ValueAndSlope<V> both(V x) const {
    using T = tile::element_t<V>;
    const V zero(T(0)), one(T(1));
    switch (kind) {
      case Activation::none:
        break;
      case Activation::relu:
        return {tile::relu(x), tile::select(x > zero, one, zero)};
      case Activation::gelu_tanh:
        return tile::gelu_tanh_both(x);
      case Activation::gelu_erf:
        return tile::gelu_erf_both(x);
      case Activation::silu:
        return tile::silu_both(x);
      case Activation::tanh: {
        const V y = tile::tanh(x);
        return {y, one - y * y};
      }
    }
    return {x, one};
  }
};
template <Activation kind>
struct FixedActivation {
  template <class V>
  TESSERA_HD V operator()(V x) const {
    return AnyActivation{kind}(x);
  }
  template <class V>
  TESSERA_HD tile::ValueAndSlope<V> both(V x) const {
    return AnyActivation{kind}.both(x);
  }
};

}  // namespace tessera::TESSERA_ISA_KERNELS
