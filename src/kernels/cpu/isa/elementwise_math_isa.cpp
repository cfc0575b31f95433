#include "strips.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

tile::StripFn math_strip(MapOp op, Scalar compute) {
  namespace f = tile::op;
  switch (op) {
    case MapOp::exp:
      return float_strip<f::Exp, 1>(compute);
    case MapOp::log:
      return float_strip<f::Log, 1>(compute);
    case MapOp::log1p:
      return float_strip<f::Log1p, 1>(compute);
    case MapOp::expm1:
      return float_strip<f::Expm1, 1>(compute);
    case MapOp::sin:
      return float_strip<f::Sin, 1>(compute);
    case MapOp::cos:
      return float_strip<f::Cos, 1>(compute);
    case MapOp::tanh:
      return float_strip<f::Tanh, 1>(compute);
    case MapOp::sigmoid:
      return float_strip<f::Sigmoid, 1>(compute);
    case MapOp::erf:
      return float_strip<f::Erf, 1>(compute);
    case MapOp::gelu_erf:
      return float_strip<f::GeluErf, 1>(compute);
    case MapOp::gelu_tanh:
      return float_strip<f::GeluTanh, 1>(compute);
    case MapOp::silu:
      return float_strip<f::Silu, 1>(compute);
    case MapOp::softplus:
      return float_strip<f::Softplus, 1>(compute);
    case MapOp::pow_scalar:
      return float_strip<f::PowScalar, 1>(compute);
    case MapOp::gelu_erf_grad:
      return float_strip<f::GeluErfGrad, 2>(compute);
    case MapOp::gelu_tanh_grad:
      return float_strip<f::GeluTanhGrad, 2>(compute);
    case MapOp::silu_grad:
      return float_strip<f::SiluGrad, 2>(compute);
    case MapOp::softplus_grad:
      return float_strip<f::SoftplusGrad, 2>(compute);
    default:
      return nullptr;
  }
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
