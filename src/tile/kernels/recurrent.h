// Cells of recurrent layers: what a step makes of its product with the hidden state.
#pragma once

#include "../expr.h"

TESSERA_TILE_BEGIN

/// Of an LSTM (Hochreiter & Schmidhuber 1997), gates in ONNX's order.
template <class V>
struct LstmGates {
  V input, output, forget, cell;
};

/// Turns what goes into the gates into what they are; returns the new cell state and sets the hidden one.
template <class V>
TESSERA_HD V lstm_cell(LstmGates<V>& g, V cell_before, V& hidden) {
  g = {sigmoid(g.input), sigmoid(g.output), sigmoid(g.forget), tanh(g.cell)};
  const V cell = g.forget * cell_before + g.input * g.cell;
  hidden = g.output * tanh(cell);
  return cell;
}

/// The gradients of what went into the gates; `dcell` is that of the new cell state from elsewhere, and becomes that of
/// the one before.
template <class V>
TESSERA_HD LstmGates<V> lstm_cell_gradient(const LstmGates<V>& g, V cell, V cell_before, V dhidden, V& dcell) {
  const V one(element_t<V>(1)), t = tanh(cell);
  const V d = dcell + dhidden * g.output * (one - t * t);
  dcell = d * g.forget;
  return {d * g.cell * g.input * (one - g.input), dhidden * t * g.output * (one - g.output),
          d * cell_before * g.forget * (one - g.forget), d * g.input * (one - g.cell * g.cell)};
}

/// Of gated recurrent units (Cho et al., arXiv:1406.1078), the reset gate behind the candidate's product.
template <class V>
struct GruGates {
  V update, reset, candidate, product;
};

/// Turns what goes into the gates into what they are; returns the new hidden state.
template <class V>
TESSERA_HD V gru_cell(GruGates<V>& g, V before) {
  g.update = sigmoid(g.update);
  g.reset = sigmoid(g.reset);
  g.candidate = tanh(g.candidate + g.reset * g.product);
  return g.candidate + g.update * (before - g.candidate);
}

/// The gradients of what went into the gates and, in the place of `product`, of that.
template <class V>
TESSERA_HD GruGates<V> gru_cell_gradient(const GruGates<V>& g, V before, V dhidden) {
  const V one(element_t<V>(1)), d = dhidden * (one - g.update) * (one - g.candidate * g.candidate);
  return {dhidden * (before - g.candidate) * g.update * (one - g.update), d * g.product * g.reset * (one - g.reset), d,
          d * g.reset};
}

/// Arrays of one row of the batch; those without memory are zeros, or not wanted.
template <class T>
struct GruRow {
  const T *x, *product, *before;
  T *gates, *output;
};
template <class T>
struct GruGradientRow {
  const T *gates, *before, *doutput, *dhidden_after;
  T *dx, *dproduct, *dhidden;
};
template <class T>
struct LstmRow {
  T* gates;  // [4, hidden]
  const T* cell_before;
  T *cell, *output;
};
template <class T>
struct LstmGradientRow {
  const T *gates, *cell, *cell_before, *doutput, *dhidden_after, *dcell_after;
  T *dgates, *dcell_before;
};

namespace detail {
template <class V, class T, class Lanes>
TESSERA_HD LstmGates<V> load_gates(const T* gates, i64 hidden, i64 i, Lanes lanes) {
  return {load_lanes<V>(gates + i, lanes), load_lanes<V>(gates + hidden + i, lanes),
          load_lanes<V>(gates + 2 * hidden + i, lanes), load_lanes<V>(gates + 3 * hidden + i, lanes)};
}
template <class V, class T, class Lanes>
TESSERA_HD void store_gates(T* gates, i64 hidden, i64 i, const LstmGates<V>& g, Lanes lanes) {
  store_lanes(gates + i, g.input, lanes);
  store_lanes(gates + hidden + i, g.output, lanes);
  store_lanes(gates + 2 * hidden + i, g.forget, lanes);
  store_lanes(gates + 3 * hidden + i, g.cell, lanes);
}
template <class V, class T, class Lanes>
TESSERA_HD V load_or_zero(const T* p, i64 i, Lanes lanes) {
  return p ? load_lanes<V>(p + i, lanes) : V(element_t<V>(0));
}
}  // namespace detail

/// A row's elements from i on, as many as lanes say.
template <class V, class T, class Lanes>
TESSERA_HD void lstm_at(const LstmRow<T>& row, i64 hidden, i64 i, Lanes lanes) {
  auto gates = detail::load_gates<V>(static_cast<const T*>(row.gates), hidden, i, lanes);
  V output(element_t<V>(0));
  const V cell = lstm_cell(gates, detail::load_lanes<V>(row.cell_before + i, lanes), output);
  detail::store_gates(row.gates, hidden, i, gates, lanes);
  detail::store_lanes(row.cell + i, cell, lanes);
  detail::store_lanes(row.output + i, output, lanes);
}
template <class V, class T, class Lanes>
TESSERA_HD void lstm_gradient_at(const LstmGradientRow<T>& row, i64 hidden, i64 i, Lanes lanes) {
  V dcell = detail::load_or_zero<V>(row.dcell_after, i, lanes);
  const V dhidden =
      detail::load_or_zero<V>(row.doutput, i, lanes) + detail::load_or_zero<V>(row.dhidden_after, i, lanes);
  const auto d =
      lstm_cell_gradient(detail::load_gates<V>(row.gates, hidden, i, lanes), detail::load_lanes<V>(row.cell + i, lanes),
                         detail::load_lanes<V>(row.cell_before + i, lanes), dhidden, dcell);
  detail::store_gates(row.dgates, hidden, i, d, lanes);
  detail::store_lanes(row.dcell_before + i, dcell, lanes);
}

template <class V, class T, class Lanes>
TESSERA_HD void gru_at(const GruRow<T>& row, i64 hidden, i64 i, Lanes lanes) {
  const auto x = [&](int gate) { return detail::load_lanes<V>(row.x + gate * hidden + i, lanes); };
  const auto product = [&](int gate) { return detail::load_lanes<V>(row.product + gate * hidden + i, lanes); };
  GruGates<V> g{x(0) + product(0), x(1) + product(1), x(2), product(2)};
  const V output = gru_cell(g, detail::load_lanes<V>(row.before + i, lanes));
  if (row.gates) {
    detail::store_lanes(row.gates + i, g.update, lanes);
    detail::store_lanes(row.gates + hidden + i, g.reset, lanes);
    detail::store_lanes(row.gates + 2 * hidden + i, g.candidate, lanes);
    detail::store_lanes(row.gates + 3 * hidden + i, g.product, lanes);
  }
  detail::store_lanes(row.output + i, output, lanes);
}
template <class V, class T, class Lanes>
TESSERA_HD void gru_gradient_at(const GruGradientRow<T>& row, i64 hidden, i64 i, Lanes lanes) {
  const auto gate = [&](int gate) { return detail::load_lanes<V>(row.gates + gate * hidden + i, lanes); };
  const GruGates<V> g{gate(0), gate(1), gate(2), gate(3)};
  const V dhidden =
      detail::load_lanes<V>(row.doutput + i, lanes) + detail::load_or_zero<V>(row.dhidden_after, i, lanes);
  const auto d = gru_cell_gradient(g, detail::load_lanes<V>(row.before + i, lanes), dhidden);
  const auto put = [&](T* to, int gate, V value) { detail::store_lanes(to + gate * hidden + i, value, lanes); };
  put(row.dx, 0, d.update);
  put(row.dx, 1, d.reset);
  put(row.dx, 2, d.candidate);
  put(row.dproduct, 0, d.update);
  put(row.dproduct, 1, d.reset);
  put(row.dproduct, 2, d.product);
  put(row.dhidden, 0, dhidden * g.update);
}

/// A step without gates.
template <class V, class T, class Lanes>
TESSERA_HD void rnn_at(bool relu, T* output, i64 i, Lanes lanes) {
  const V x = detail::load_lanes<V>(static_cast<const T*>(output) + i, lanes), zero(element_t<V>(0));
  detail::store_lanes(output + i, relu ? select(x > zero, x, zero) : tanh(x), lanes);
}
template <class V, class T, class Lanes>
TESSERA_HD void rnn_gradient_at(bool relu, const T* output, const T* doutput, const T* dhidden_after, T* dx, i64 i,
                                Lanes lanes) {
  const V y = detail::load_lanes<V>(output + i, lanes), zero(element_t<V>(0)), one(element_t<V>(1));
  const V d = detail::load_lanes<V>(doutput + i, lanes) + detail::load_or_zero<V>(dhidden_after, i, lanes);
  detail::store_lanes(dx + i, relu ? select(y > zero, d, zero) : d * (one - y * y), lanes);
}

TESSERA_TILE_END
