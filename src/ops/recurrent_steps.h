// What operators of recurrent layers share.
#pragma once
#include <cmath>

#include "core/op.h"
#include "ops/recurrent_layers.h"
#include "ops/reference.h"

namespace tessera {

extern const Op lstm_op, lstm_backward_op, gru_op, gru_backward_op, rnn_op, rnn_backward_op;

/// Calls step(t, before) in the order of the steps, or against it; before: the one that goes before, -1 at first.
template <class Fn>
void each_step(const Tensor& x, bool reverse, bool backward, const Fn& step) {
  const int64_t n = x.size(0);
  for (int64_t k = 0; k < n; ++k) {
    const int64_t i = backward ? n - 1 - k : k, t = reverse ? n - 1 - i : i;
    step(t, i == 0 ? -1 : reverse ? t + 1 : t - 1);
  }
}

inline double number(const Tensor& t, std::initializer_list<int64_t> at) {
  return reference::get(t, std::span(at.begin(), at.size()));
}
inline void put(const Tensor& t, std::initializer_list<int64_t> at, double value) {
  reference::set(t, std::span(at.begin(), at.size()), value);
}
inline double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

/// The hidden state before each step.
Tensor states_before(const Tensor& output, const Tensor& hidden, bool reverse);
/// Of [steps, batch, n]: [steps * batch, n].
Tensor all_rows(const Tensor& t);
/// A recurrent product's gradient: of its weight, from those of its results and from the states.
Tensor weight_gradient(const Tensor& dproduct, const Tensor& output, const Tensor& hidden, bool reverse);

}  // namespace tessera
