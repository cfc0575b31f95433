// Matrix product over any views, with any epilogue:
//
//   auto a = strided(x, {m, k}, {k, 1}), b = strided(w, {k, n}, {n, 1}), y = strided(out, {m, n}, {n, 1});
//   gemm(executor, a, b, store(y, gelu_tanh(acc + load(residual) + load(bias))));
#pragma once

#include "../arch/cpu/pipeline.h"

TESSERA_TILE_BEGIN

/// C(m, n) = sum over k of a(m, k) b(k, n); each element of C goes through the epilogue, which also stores it.
/// a is [m, k], b is [k, n]; elements of 16 bits are multiplied and summed in float. The order of summation
/// depends on the shape and the number of threads alone.
template <class A, class B, Expression Sink>
void gemm(const ExecutorRef& executor, const A& a, const B& b, const Sink& sink) {
  static_assert(A::rank == 2 && B::rank == 2, "gemm: operands are matrices");
  using T = compute_t<typename A::Element>;
  static_assert(is_same_v<T, compute_t<typename B::Element>>, "gemm: operands are computed in different types");
  const cpu::Extent extent{a.length(0), b.length(1), a.length(1)};
  cpu::multiply_all<T>(executor, extent, 1, [&](i64) {
    return cpu::Product<T>{extent, cpu::operand<0, T>(a), cpu::operand<1, T>(b), cpu::epilogue_of<T>(sink)};
  });
}

TESSERA_TILE_END
