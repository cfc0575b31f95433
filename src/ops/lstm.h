#pragma once
#include "tessera/tensor.h"

namespace tessera {

struct LstmResult {
  Tensor hidden;  ///< [steps, batch, hidden]: behind each step
  Tensor cell;    ///< [batch, hidden]: behind the last one
};
/// One layer in one direction. x [steps, batch, 4 * hidden]: the product of the input, and all biases. weight [4 *
/// hidden, hidden]: of the hidden state. hidden, cell [batch, hidden]: before the first step. Gates in ONNX's order.
LstmResult lstm_layer(const Tensor& x, const Tensor& weight, const Tensor& hidden, const Tensor& cell, bool reverse);

}  // namespace tessera
