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

/// Arrays of one row of the batch; those without memory are zeros.
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

TESSERA_TILE_END
