// Tensors that lie alike and dense in whatever order of their dims, such as filters channels last: a step of an
// optimizer takes them as rows, since where an element stands does not matter to it.
#pragma once
#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/shared/arguments.h"

namespace tessera::TESSERA_KERNELS {

inline bool is_dense_in_some_order(const Operand& t) {
  std::array<size_t, max_rank> order;
  const auto rank = static_cast<size_t>(t.dim());
  if (rank > order.size()) return false;
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.begin() + rank, [&](size_t a, size_t b) { return t.strides()[a] < t.strides()[b]; });
  int64_t step = 1;
  for (size_t i = 0; i < rank; ++i) {
    const size_t d = order[i];
    if (t.shape()[d] == Dim(1)) continue;
    if (t.strides()[d] != step) return false;
    step *= t.shape()[d].value();
  }
  return true;
}

inline bool lies_as(const Operand& t, const Operand& other) {
  for (size_t d = 0; d < static_cast<size_t>(t.dim()); ++d)
    if (!(t.shape()[d] == Dim(1)) && t.strides()[d] != other.strides()[d]) return false;
  return true;
}

/// Whether `t` and what belongs to it, of the same shape, may be taken as rows; what is absent may, too.
template <class Others>
bool lies_alike(const Operand& t, const Others& others) {
  return !t.is_contiguous() && is_dense_in_some_order(t) &&
         std::all_of(others.begin(), others.end(), [&](const Operand* o) { return !o->defined() || lies_as(*o, t); });
}

/// What a step does to one parameter: it, its gradient, states and copy, as rows where they lie so.
struct StepOperands {
  Operand param, grad, states[2], copy;

  /// Of parameter `i` among the inputs: n params, `states` tensors and a copy? for each, step | n grads, ...
  StepOperands(const Call& call, size_t i, size_t n, size_t state_count, bool copies)
      : param(call.in[i]), grad(call.in[(1 + state_count + copies) * n + 1 + i]) {
    for (size_t s = 0; s < state_count; ++s) states[s] = call.in[(1 + s) * n + i];
    if (copies) copy = call.in[(1 + state_count) * n + i];
    const std::array others{&grad, &states[0], &states[1], &copy};
    if (!lies_alike(param, others)) return;
    for (Operand* t : {&param, &grad, &states[0], &states[1], &copy})
      if (t->defined()) *t = t->as_strided({Dim(t->numel())}, {1});
  }
};

}  // namespace tessera::TESSERA_KERNELS
