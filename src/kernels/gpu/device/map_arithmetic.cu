#include "map.h"

namespace tessera::gpu_kernels {
namespace {

/// tile::op::Where with a condition of the compute type.
struct Where {
  template <class V>
  TESSERA_HD V operator()(V condition, V a, V b) const {
    return condition != V(0) ? a : b;
  }
};

}  // namespace

MapLaunch arithmetic_map(MapOp op, Scalar compute, Scalar memory) {
  namespace f = tile::op;
  switch (op) {
    case MapOp::neg:
      return any_map<f::Neg, 1>(compute, memory);
    case MapOp::abs:
      return any_map<f::Abs, 1>(compute, memory);
    case MapOp::square:
      return any_map<f::Square, 1>(compute, memory);
    case MapOp::sign:
      return any_map<f::Sign, 1>(compute, memory);
    case MapOp::relu:
      return any_map<f::Relu, 1>(compute, memory);
    case MapOp::clamp:
      return any_map<f::Clamp, 1>(compute, memory);
    case MapOp::scale_shift:
      return any_map<f::ScaleShift, 1>(compute, memory);
    case MapOp::add:
      return any_map<f::Add, 2>(compute, memory);
    case MapOp::sub:
      return any_map<f::Sub, 2>(compute, memory);
    case MapOp::mul:
      return any_map<f::Mul, 2>(compute, memory);
    case MapOp::floor_div:
      return any_map<f::FloorDiv, 2>(compute, memory);
    case MapOp::remainder:
      return any_map<f::Remainder, 2>(compute, memory);
    case MapOp::maximum:
      return any_map<f::Maximum, 2>(compute, memory);
    case MapOp::minimum:
      return any_map<f::Minimum, 2>(compute, memory);
    case MapOp::add_scaled:
      return any_map<f::AddScaled, 2>(compute, memory);
    case MapOp::div:
      return float_map<f::Div, 2>(compute, memory);
    case MapOp::relu_grad:
      return float_map<f::ReluGrad, 2>(compute, memory);
    case MapOp::clamp_grad:
      return float_map<f::ClampGrad, 2>(compute, memory);
    case MapOp::mul_add:
      return any_map<f::MulAdd, 3>(compute, memory);
    case MapOp::where:
      return any_map<Where, 3>(compute, Scalar::boolean);
    default:
      return nullptr;
  }
}

}  // namespace tessera::gpu_kernels
