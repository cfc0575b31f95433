// Matrix product over any views, with any epilogue:
//
//   auto a = strided(x, {m, k}, {k, 1}), b = strided(w, {k, n}, {n, 1}), y = strided(out, {m, n}, {n, 1});
//   gemm(executor, a, b, store(y, gelu_tanh(acc + load(residual) + load(bias))));
#pragma once

#include "../arch/cpu/multiply.h"

TESSERA_TILE_BEGIN

/// One product: its operands and its epilogue.
template <class A, class B, Expression Sink>
struct GemmProblem {
  A a;
  B b;
  Sink sink;
};

/// `count` products of the same shape; problem(i) returns the i-th as a GemmProblem. They are cut as `config` says
/// where it is given; it must serve them (validate).
template <class Make>
void batched_gemm(const ExecutorRef& executor, i64 count, const Make& problem, const Config* config = nullptr) {
  if (count <= 0) return;
  using Problem = remove_cvref_t<decltype(problem(i64{0}))>;
  using T = compute_t<typename decltype(Problem::a)::Element>;
  static_assert(decltype(Problem::a)::rank == 2 && decltype(Problem::b)::rank == 2, "gemm: operands are matrices");
  static_assert(is_same_v<T, compute_t<typename decltype(Problem::b)::Element>>,
                "gemm: operands are computed in different types");
  const Problem first = problem(i64{0});
  const cpu::Extent extent{first.a.length(0), first.b.length(1), first.a.length(1)};
  const auto get = [&](i64 i, cpu::Cell, const auto& multiply) {
    const Problem p = problem(i);
    multiply(cpu::Product<T>{extent, cpu::operand<0, T>(p.a), cpu::operand<1, T>(p.b), cpu::epilogue_of<T>(p.sink)});
  };
  cpu::multiply_all<T>(executor, extent, count, get, config);
}

/// C(m, n) = sum over k of a(m, k) b(k, n); each element of C goes through the epilogue, which also stores it.
/// a is [m, k], b is [k, n]; elements of 16 bits are multiplied and summed in float. The order of summation
/// depends on the shape and the number of threads alone.
template <class A, class B, Expression Sink>
void gemm(const ExecutorRef& executor, const A& a, const B& b, const Sink& sink) {
  batched_gemm(executor, 1, [&](i64) { return GemmProblem<A, B, Sink>{a, b, sink}; });
}

/// The same, cut as `config` says; computes nothing unless the answer is Reason::ok.
template <class A, class B, Expression Sink>
Reason gemm(const ExecutorRef& executor, const A& a, const B& b, const Sink& sink, const Config& config) {
  const int bytes = static_cast<int>(max(sizeof(typename A::Element), sizeof(typename B::Element)));
  const Reason reason = validate(config, {a.length(0), b.length(1), a.length(1), bytes}, Arch::cpu);
  if (reason == Reason::ok) {
    batched_gemm(
        executor, 1,
        [&](i64) {
          return GemmProblem<A, B, Sink>{a, b, sink};
        },
        &config);
  }
  return reason;
}

TESSERA_TILE_END
