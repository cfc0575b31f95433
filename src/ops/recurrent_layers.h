// One recurrent layer in one direction, over whole sequences, as one operator each. Gates in ONNX's order.
#pragma once
#include "core/attrs.h"
#include "tessera/tensor.h"

namespace tessera {

struct LstmResult {
  Tensor hidden;  ///< [steps, batch, hidden]: behind each step
  Tensor cell;    ///< [batch, hidden]: behind the last one
};
/// x [steps, batch, 4 * hidden]: the product of the input, and all biases. weight [4 * hidden, hidden]: of the hidden
/// state. hidden, cell [batch, hidden]: before the first step.
LstmResult lstm_layer(const Tensor& x, const Tensor& weight, const Tensor& hidden, const Tensor& cell, bool reverse);

/// x [steps, batch, 3 * hidden]: the product of the input, and its bias. weight [3 * hidden, hidden] and bias [3 *
/// hidden], which may be undefined: of the hidden state; the reset gate takes the candidate's share of both. Gives the
/// hidden states behind each step.
Tensor gru_layer(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& hidden, bool reverse);

/// x [steps, batch, hidden]: the product of the input, and all biases. weight [hidden, hidden]: of the hidden state.
/// Gives the hidden states behind each step.
Tensor rnn_layer(const Tensor& x, const Tensor& weight, const Tensor& hidden, const RnnAttrs& attrs);

}  // namespace tessera
