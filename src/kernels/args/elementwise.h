// Elementwise maps, copies and casts per instruction set.
#pragma once

#include "common.h"
#include "tessera/parallel.h"

namespace tessera::TESSERA_KERNELS {

/// What a map computes. Scalars of MapArgs are named in brackets; a gradient takes (gradient, x) where x is the
/// input or, where noted, the result.
enum class MapOp : unsigned char {
  // one input, any type
  neg,
  abs,
  square,
  sign,
  relu,
  clamp /* [low, high] */,
  scale_shift /* [scale, shift] */,
  // one input, floating point
  exp,
  log,
  log1p,
  expm1,
  sqrt,
  rsqrt,
  reciprocal,
  sin,
  cos,
  tanh,
  sigmoid,
  erf,
  gelu_erf,
  gelu_tanh,
  silu,
  softplus,
  floor,
  ceil,
  round,
  trunc,
  pow_scalar /* [exponent] */,
  // two inputs, any type
  add,
  sub,
  mul,
  floor_div,
  remainder,
  pow,
  maximum,
  minimum,
  add_scaled /* a + [scale] b */,
  // two inputs, floating point
  div,
  gelu_erf_grad,
  gelu_tanh_grad,
  silu_grad,
  softplus_grad,
  relu_grad /* input or result */,
  tanh_grad /* result */,
  sigmoid_grad /* result */,
  clamp_grad /* [low, high] */,
  // two inputs, integers
  bit_and,
  bit_or,
  bit_xor,
  // three inputs, any type
  mul_add /* a * b + c */,
  where /* the first input is taken as bool */,
  // to bool
  logical_not,
  is_nan,
  is_inf,
  is_finite,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  logical_and,
  logical_or,
  logical_xor,
  count
};

/// tensor[0] = op(tensor[1], ...) over `lengths`, computed in `compute` (f64, f32, i64 or i32); memory may hold
/// any type and is converted on the way.
struct MapArgs {
  MapOp op;
  Scalar compute;
  int rank;
  int inputs;
  long long lengths[max_rank];
  TensorArg tensor[4];
  double scalars[2];
};

struct CopyArgs {
  int rank;
  long long lengths[max_rank];
  TensorArg to, from;
};

/// Of every matrix in the last two dims, what lies on one side of a diagonal is copied and the rest is `otherwise`.
struct TriangleArgs {
  int rank;  // at least 2
  long long lengths[max_rank];
  TensorArg to, from;  // of one type; may be the same elements
  long long diagonal;
  bool upper;  // keeps row + diagonal <= column, or column <= row + diagonal
  double otherwise;
};

struct ElementwiseTable {
  /// Whether op exists in a compute type.
  bool (*supports)(MapOp op, Scalar compute);
  void (*map)(const MapArgs& args, Executor& executor);
  /// Converts where types differ; `from` may be broadcast (a fill is a copy of one element).
  void (*copy)(const CopyArgs& args, Executor& executor);
  void (*triangle)(const TriangleArgs& args, Executor& executor);
};

#define TESSERA_ELEMENTWISE_TABLE(isa)             \
  namespace isa {                                  \
  extern const ElementwiseTable elementwise_table; \
  }
TESSERA_ELEMENTWISE_TABLE(baseline)
TESSERA_ELEMENTWISE_TABLE(avx2)
TESSERA_ELEMENTWISE_TABLE(avx512)
#undef TESSERA_ELEMENTWISE_TABLE

}  // namespace tessera::TESSERA_KERNELS
