#include "strips.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using namespace tile;

template <class F, int N, class T>
StripFn typed_strip() {
  if constexpr (N == 1) return map_strip<F, T, T>;
  else if constexpr (N == 2) return map_strip<F, T, T, T>;
  else return map_strip<F, T, T, T, T>;
}

template <class F, int N>
StripFn integer_strip(Scalar compute) {
  switch (compute) {
    case Scalar::i64:
      return typed_strip<F, N, i64>();
    case Scalar::i32:
      return typed_strip<F, N, i32>();
    default:
      return nullptr;
  }
}

template <class F, int N>
StripFn any_strip(Scalar compute) {
  switch (compute) {
    case Scalar::f64:
      return typed_strip<F, N, double>();
    case Scalar::f32:
      return typed_strip<F, N, float>();
    default:
      return integer_strip<F, N>(compute);
  }
}

template <class F, class T>
StripFn predicate_of(Int<1>) {
  return map_strip<F, bool, T>;
}
template <class F, class T>
StripFn predicate_of(Int<2>) {
  return map_strip<F, bool, T, T>;
}

template <class F, int N>
StripFn predicate(Scalar compute) {
  switch (compute) {
    case Scalar::f64:
      return predicate_of<F, double>(Int<N>{});
    case Scalar::f32:
      return predicate_of<F, float>(Int<N>{});
    case Scalar::i64:
      return predicate_of<F, i64>(Int<N>{});
    case Scalar::i32:
      return predicate_of<F, i32>(Int<N>{});
    default:
      return nullptr;
  }
}

template <class F>
StripFn float_predicate(Scalar compute) {
  switch (compute) {
    case Scalar::f64:
      return map_strip<F, bool, double>;
    case Scalar::f32:
      return map_strip<F, bool, float>;
    default:
      return nullptr;
  }
}

StripFn where_strip(Scalar compute) {
  switch (compute) {
    case Scalar::f64:
      return map_strip<op::Where, double, u8, double, double>;
    case Scalar::f32:
      return map_strip<op::Where, float, u8, float, float>;
    case Scalar::i64:
      return map_strip<op::Where, i64, u8, i64, i64>;
    case Scalar::i32:
      return map_strip<op::Where, i32, u8, i32, i32>;
    default:
      return nullptr;
  }
}

}  // namespace

StripFn arithmetic_strip(MapOp op, Scalar compute) {
  namespace f = tile::op;
  switch (op) {
    case MapOp::neg:
      return any_strip<f::Neg, 1>(compute);
    case MapOp::abs:
      return any_strip<f::Abs, 1>(compute);
    case MapOp::square:
      return any_strip<f::Square, 1>(compute);
    case MapOp::sign:
      return any_strip<f::Sign, 1>(compute);
    case MapOp::relu:
      return any_strip<f::Relu, 1>(compute);
    case MapOp::clamp:
      return any_strip<f::Clamp, 1>(compute);
    case MapOp::scale_shift:
      return any_strip<f::ScaleShift, 1>(compute);
    case MapOp::sqrt:
      return float_strip<f::Sqrt, 1>(compute);
    case MapOp::rsqrt:
      return float_strip<f::Rsqrt, 1>(compute);
    case MapOp::reciprocal:
      return float_strip<f::Reciprocal, 1>(compute);
    case MapOp::floor:
      return float_strip<f::Floor, 1>(compute);
    case MapOp::ceil:
      return float_strip<f::Ceil, 1>(compute);
    case MapOp::round:
      return float_strip<f::Round, 1>(compute);
    case MapOp::trunc:
      return float_strip<f::Trunc, 1>(compute);
    case MapOp::add:
      return any_strip<f::Add, 2>(compute);
    case MapOp::sub:
      return any_strip<f::Sub, 2>(compute);
    case MapOp::mul:
      return any_strip<f::Mul, 2>(compute);
    case MapOp::floor_div:
      return any_strip<f::FloorDiv, 2>(compute);
    case MapOp::remainder:
      return any_strip<f::Remainder, 2>(compute);
    case MapOp::pow:
      return any_strip<f::Pow, 2>(compute);
    case MapOp::maximum:
      return any_strip<f::Maximum, 2>(compute);
    case MapOp::minimum:
      return any_strip<f::Minimum, 2>(compute);
    case MapOp::add_scaled:
      return any_strip<f::AddScaled, 2>(compute);
    case MapOp::div:
      return float_strip<f::Div, 2>(compute);
    case MapOp::relu_grad:
      return float_strip<f::ReluGrad, 2>(compute);
    case MapOp::tanh_grad:
      return float_strip<f::TanhGrad, 2>(compute);
    case MapOp::sigmoid_grad:
      return float_strip<f::SigmoidGrad, 2>(compute);
    case MapOp::clamp_grad:
      return float_strip<f::ClampGrad, 2>(compute);
    case MapOp::bit_and:
      return integer_strip<f::BitAnd, 2>(compute);
    case MapOp::bit_or:
      return integer_strip<f::BitOr, 2>(compute);
    case MapOp::bit_xor:
      return integer_strip<f::BitXor, 2>(compute);
    case MapOp::mul_add:
      return any_strip<f::MulAdd, 3>(compute);
    case MapOp::where:
      return where_strip(compute);
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

}  // namespace tessera::cpu_kernels::TESSERA_ISA
