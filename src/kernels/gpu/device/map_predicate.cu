#include "map.h"

namespace tessera::gpu_kernels {
namespace {

template <class F>
MapLaunch float_predicate(Scalar compute) {
  if (compute == Scalar::f64) return launch_any<F, double, 1>;
  if (compute == Scalar::f32) return launch_any<F, float, 1>;
  return nullptr;
}

}  // namespace

MapLaunch predicate_map(MapOp op, Scalar compute, Scalar memory) {
  namespace f = tile::op;
  switch (op) {
    case MapOp::bit_and:
      return integer_map<f::BitAnd, 2>(compute, memory);
    case MapOp::bit_or:
      return integer_map<f::BitOr, 2>(compute, memory);
    case MapOp::bit_xor:
      return integer_map<f::BitXor, 2>(compute, memory);
    case MapOp::logical_not:
      return predicate<f::LogicalNot, 1>(compute);
    case MapOp::is_nan:
      return float_predicate<f::IsNan>(compute);
    case MapOp::is_inf:
      return float_predicate<f::IsInf>(compute);
    case MapOp::is_finite:
      return float_predicate<f::IsFinite>(compute);
    case MapOp::equal:
      return predicate<f::Equal, 2>(compute);
    case MapOp::not_equal:
      return predicate<f::NotEqual, 2>(compute);
    case MapOp::less:
      return predicate<f::Less, 2>(compute);
    case MapOp::less_equal:
      return predicate<f::LessEqual, 2>(compute);
    case MapOp::greater:
      return predicate<f::Greater, 2>(compute);
    case MapOp::greater_equal:
      return predicate<f::GreaterEqual, 2>(compute);
    case MapOp::logical_and:
      return predicate<f::LogicalAnd, 2>(compute);
    case MapOp::logical_or:
      return predicate<f::LogicalOr, 2>(compute);
    case MapOp::logical_xor:
      return predicate<f::LogicalXor, 2>(compute);
    default:
      return nullptr;
  }
}

}  // namespace tessera::gpu_kernels
