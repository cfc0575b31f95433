#include "softmax.h"

#include "internal.h"
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
    if (!a.total) return;
    double sum = 0, count = 0;
    for (i64 r = 0; r < a.rows; ++r) {
      sum += static_cast<double>(static_cast<const C*>(a.losses)[r]);
      count += a.targets[r] != a.ignore_index;
    }
    *static_cast<C*>(a.total) = static_cast<C>(a.mean ? sum / count : sum);
  });
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

void divide_by_targets(const DivideByTargetsArgs& a, Executor&) {
  i64 counted = 0;
  for (i64 r = 0; r < a.rows; ++r) counted += a.targets[r] != a.ignore_index;
  const auto run = [&](auto* to) {
    using C = remove_cvref_t<decltype(*to)>;
    *to = static_cast<C>(static_cast<double>(*static_cast<const C*>(a.from)) / static_cast<double>(counted));
  };
  if (a.type == Scalar::f64) run(static_cast<double*>(a.to));
  else run(static_cast<float*>(a.to));
}

}  // namespace

extern const SoftmaxTable softmax_table;
const SoftmaxTable softmax_table = {softmax, softmax_backward, cross_entropy, cross_entropy_backward,
                                    divide_by_targets};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
