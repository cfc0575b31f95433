#include "map.h"

namespace tessera::gpu_kernels {

MapLaunch math_map(MapOp op, Scalar compute, Scalar memory) {
  namespace f = tile::op;
  switch (op) {
    case MapOp::exp:
      return float_map<f::Exp, 1>(compute, memory);
    case MapOp::log:
      return float_map<f::Log, 1>(compute, memory);
    case MapOp::log1p:
      return float_map<f::Log1p, 1>(compute, memory);
    case MapOp::expm1:
      return float_map<f::Expm1, 1>(compute, memory);
    case MapOp::sqrt:
      return float_map<f::Sqrt, 1>(compute, memory);
    case MapOp::rsqrt:
      return float_map<f::Rsqrt, 1>(compute, memory);
    case MapOp::reciprocal:
      return float_map<f::Reciprocal, 1>(compute, memory);
    case MapOp::sin:
      return float_map<f::Sin, 1>(compute, memory);
    case MapOp::cos:
      return float_map<f::Cos, 1>(compute, memory);
    case MapOp::tanh:
      return float_map<f::Tanh, 1>(compute, memory);
    case MapOp::sigmoid:
      return float_map<f::Sigmoid, 1>(compute, memory);
    case MapOp::erf:
      return float_map<f::Erf, 1>(compute, memory);
    case MapOp::gelu_erf:
      return float_map<f::GeluErf, 1>(compute, memory);
    case MapOp::gelu_tanh:
      return float_map<f::GeluTanh, 1>(compute, memory);
    case MapOp::silu:
      return float_map<f::Silu, 1>(compute, memory);
    case MapOp::softplus:
      return float_map<f::Softplus, 1>(compute, memory);
    case MapOp::floor:
      return float_map<f::Floor, 1>(compute, memory);
    case MapOp::ceil:
      return float_map<f::Ceil, 1>(compute, memory);
    case MapOp::round:
      return float_map<f::Round, 1>(compute, memory);
    case MapOp::trunc:
      return float_map<f::Trunc, 1>(compute, memory);
    case MapOp::pow_scalar:
      return float_map<f::PowScalar, 1>(compute, memory);
    case MapOp::pow:
      return any_map<f::Pow, 2>(compute, memory);
    case MapOp::tanh_grad:
      return float_map<f::TanhGrad, 2>(compute, memory);
    case MapOp::sigmoid_grad:
      return float_map<f::SigmoidGrad, 2>(compute, memory);
    case MapOp::gelu_erf_grad:
      return float_map<f::GeluErfGrad, 2>(compute, memory);
    case MapOp::gelu_tanh_grad:
      return float_map<f::GeluTanhGrad, 2>(compute, memory);
    case MapOp::silu_grad:
      return float_map<f::SiluGrad, 2>(compute, memory);
    case MapOp::softplus_grad:
      return float_map<f::SoftplusGrad, 2>(compute, memory);
    default:
      return nullptr;
  }
}

}  // namespace tessera::gpu_kernels
