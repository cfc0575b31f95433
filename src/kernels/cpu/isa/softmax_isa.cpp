#include "kernels/args/softmax.h"

#include "internal.h"
#include "kernels/args/reduce.h"
#include "tile/kernels/softmax.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using namespace tile;

template <class T>
Rows<T> rows_of(const RowArg& arg) {
  return {static_cast<T*>(arg.data), arg.pitch};
}

void softmax(const SoftmaxArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto y = rows_of<T>(a.y);
    const auto x = rows_of<const T>(a.x);
    if (a.log) tile::log_softmax<T>(executor, a.rows, a.n, y, x);
    else tile::softmax<T>(executor, a.rows, a.n, y, x);
  });
}

void softmax_backward(const SoftmaxBackwardArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto dx = rows_of<T>(a.dx);
    const auto dy = rows_of<const T>(a.dy), y = rows_of<const T>(a.y);
    if (a.log) tile::log_softmax_backward<T>(executor, a.rows, a.n, dx, dy, y);
    else tile::softmax_backward<T>(executor, a.rows, a.n, dx, dy, y);
  });
}

void divide_by_targets(const DivideByTargetsArgs& a, Executor&) {
  const i64 counted = counted_targets(a.rows, a.targets, a.ignore_index);
  const auto run = [&](auto* to) {
    using C = remove_cvref_t<decltype(*to)>;
    *to = static_cast<C>(static_cast<double>(*static_cast<const C*>(a.from)) / static_cast<double>(counted));
  };
  if (a.type == Scalar::f64) run(static_cast<double*>(a.to));
  else run(static_cast<float*>(a.to));
}

/// The sum of all losses, or their mean over targets that count.
void add_up(const CrossEntropyArgs& a, Executor& e) {
  const Scalar type = a.type == Scalar::f64 ? Scalar::f64 : Scalar::f32;
  ReduceArgs sum{};
  sum.op = ReduceOp::sum;
  sum.compute = type;
  sum.rank = 1;
  sum.lengths[0] = a.rows;
  sum.reduced[0] = true;
  sum.in = {a.losses, type, {1}};
  sum.out = {a.total, type, {}};
  reduce_table.reduce(sum, e);
  if (a.mean) divide_by_targets({type, a.rows, a.ignore_index, a.targets, a.total, a.total}, e);
}

long long cross_entropy(const CrossEntropyArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  const CrossEntropyProblem problem{a.rows, a.classes, a.ignore_index, a.label_smoothing};
  const i64 invalid = invalid_target(problem, a.targets);
  if (invalid >= 0) return invalid;
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    tile::cross_entropy<T>(executor, problem, rows_of<const T>(a.logits), a.targets, static_cast<C*>(a.losses),
                           static_cast<C*>(a.lse));
  });
  if (a.total) add_up(a, e);
  return -1;
}

void cross_entropy_backward(const CrossEntropyBackwardArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  const CrossEntropyProblem problem{a.rows, a.classes, a.ignore_index, a.label_smoothing};
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    tile::cross_entropy_backward<T>(executor, problem, rows_of<T>(a.dlogits), rows_of<const T>(a.logits), a.targets,
                                    static_cast<const C*>(a.lse), static_cast<const C*>(a.scale), a.scale_step);
  });
}

}  // namespace

extern const SoftmaxTable softmax_table;
const SoftmaxTable softmax_table = {softmax, softmax_backward, cross_entropy, cross_entropy_backward,
                                    divide_by_targets};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
