// Which functor computes which map, and of what elements: one table for every processor, in parts so that each compiles
// in seconds.
#pragma once
#include "kernels/args/elementwise.h"
#include "tile/kernels/functors.h"

namespace tessera::TESSERA_ISA_KERNELS {

/// F of N inputs computes Op, in f32 and f64, in i32 and i64, or in all four.
template <MapOp Op, class F, int N, bool Floats, bool Integers>
struct MapEntry {
  using Functor = F;
  static constexpr int inputs = N;
  static constexpr MapOp op = Op;
  static constexpr bool floats = Floats, integers = Integers, to_bool = Op >= MapOp::logical_not;
};
template <MapOp Op, class F, int N>
using AnyMap = MapEntry<Op, F, N, true, true>;
template <MapOp Op, class F, int N>
using FloatMap = MapEntry<Op, F, N, true, false>;
template <MapOp Op, class F, int N>
using IntegerMap = MapEntry<Op, F, N, false, true>;

template <class... Entries>
struct MapList {
  /// what(entry of op), a pointer; null if this list has none.
  template <class What>
  static auto find(MapOp op, const What& what) {
    decltype((what(Entries{}), ...)) found = nullptr;
    (void)((Entries::op == op && (found = what(Entries{}), true)) || ...);
    return found;
  }
};

namespace f = tile::op;
using ArithmeticMaps =
    MapList<AnyMap<MapOp::neg, f::Neg, 1>, AnyMap<MapOp::abs, f::Abs, 1>, AnyMap<MapOp::square, f::Square, 1>,
            AnyMap<MapOp::sign, f::Sign, 1>, AnyMap<MapOp::relu, f::Relu, 1>, AnyMap<MapOp::clamp, f::Clamp, 1>,
            AnyMap<MapOp::scale_shift, f::ScaleShift, 1>, AnyMap<MapOp::add, f::Add, 2>, AnyMap<MapOp::sub, f::Sub, 2>,
            AnyMap<MapOp::mul, f::Mul, 2>, AnyMap<MapOp::floor_div, f::FloorDiv, 2>,
            AnyMap<MapOp::remainder, f::Remainder, 2>, AnyMap<MapOp::maximum, f::Maximum, 2>,
            AnyMap<MapOp::minimum, f::Minimum, 2>, AnyMap<MapOp::add_scaled, f::AddScaled, 2>,
            FloatMap<MapOp::div, f::Div, 2>, FloatMap<MapOp::relu_grad, f::ReluGrad, 2>,
            FloatMap<MapOp::clamp_grad, f::ClampGrad, 2>, AnyMap<MapOp::mul_add, f::MulAdd, 3>,
            AnyMap<MapOp::where, f::Where, 3>>;
/// Roots, rounding, powers, and gradients of arithmetic.
using RoundingMaps =
    MapList<FloatMap<MapOp::sqrt, f::Sqrt, 1>, FloatMap<MapOp::rsqrt, f::Rsqrt, 1>,
            FloatMap<MapOp::reciprocal, f::Reciprocal, 1>, FloatMap<MapOp::floor, f::Floor, 1>,
            FloatMap<MapOp::ceil, f::Ceil, 1>, FloatMap<MapOp::round, f::Round, 1>, FloatMap<MapOp::trunc, f::Trunc, 1>,
            AnyMap<MapOp::pow, f::Pow, 2>, FloatMap<MapOp::tanh_grad, f::TanhGrad, 2>,
            FloatMap<MapOp::sigmoid_grad, f::SigmoidGrad, 2>>;
using MathMaps =
    MapList<FloatMap<MapOp::exp, f::Exp, 1>, FloatMap<MapOp::log, f::Log, 1>, FloatMap<MapOp::log1p, f::Log1p, 1>,
            FloatMap<MapOp::expm1, f::Expm1, 1>, FloatMap<MapOp::sin, f::Sin, 1>, FloatMap<MapOp::cos, f::Cos, 1>,
            FloatMap<MapOp::tanh, f::Tanh, 1>, FloatMap<MapOp::sigmoid, f::Sigmoid, 1>, FloatMap<MapOp::erf, f::Erf, 1>,
            FloatMap<MapOp::gelu_erf, f::GeluErf, 1>, FloatMap<MapOp::gelu_tanh, f::GeluTanh, 1>,
            FloatMap<MapOp::silu, f::Silu, 1>, FloatMap<MapOp::softplus, f::Softplus, 1>,
            FloatMap<MapOp::pow_scalar, f::PowScalar, 1>, FloatMap<MapOp::gelu_erf_grad, f::GeluErfGrad, 2>,
            FloatMap<MapOp::gelu_tanh_grad, f::GeluTanhGrad, 2>, FloatMap<MapOp::silu_grad, f::SiluGrad, 2>,
            FloatMap<MapOp::softplus_grad, f::SoftplusGrad, 2>>;
using PredicateMaps =
    MapList<IntegerMap<MapOp::bit_and, f::BitAnd, 2>, IntegerMap<MapOp::bit_or, f::BitOr, 2>,
            IntegerMap<MapOp::bit_xor, f::BitXor, 2>, AnyMap<MapOp::logical_not, f::LogicalNot, 1>,
            FloatMap<MapOp::is_nan, f::IsNan, 1>, FloatMap<MapOp::is_inf, f::IsInf, 1>,
            FloatMap<MapOp::is_finite, f::IsFinite, 1>, AnyMap<MapOp::equal, f::Equal, 2>,
            AnyMap<MapOp::not_equal, f::NotEqual, 2>, AnyMap<MapOp::less, f::Less, 2>,
            AnyMap<MapOp::less_equal, f::LessEqual, 2>, AnyMap<MapOp::greater, f::Greater, 2>,
            AnyMap<MapOp::greater_equal, f::GreaterEqual, 2>, AnyMap<MapOp::logical_and, f::LogicalAnd, 2>,
            AnyMap<MapOp::logical_or, f::LogicalOr, 2>, AnyMap<MapOp::logical_xor, f::LogicalXor, 2>>;

}  // namespace tessera::TESSERA_ISA_KERNELS
