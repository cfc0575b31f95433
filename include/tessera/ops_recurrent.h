// Recurrent layers over whole sequences, as ONNX and PyTorch have them. Every function throws Error naming itself, the
// shapes and the rule broken.
#pragma once
#include <vector>

#include "tessera/ops.h"

namespace tessera {

enum class Direction : uint8_t { Forward, Reverse, Both };

/// A function inside of a recurrent layer. alpha and beta are those of its definition in ONNX.
struct RecurrentActivation {
  enum Kind : uint8_t {
    Sigmoid,
    Tanh,
    Relu,
    Affine,           ///< alpha x + beta
    LeakyRelu,        ///< x, or alpha x where that is negative
    ThresholdedRelu,  ///< x above alpha, and 0 elsewhere
    ScaledTanh,       ///< alpha tanh(beta x)
    HardSigmoid,      ///< min(max(alpha x + beta, 0), 1)
    Elu,              ///< x, or alpha (exp(x) - 1) where it is negative
    Softsign,         ///< x / (1 + |x|)
    Softplus,
  };
  Kind kind = Tanh;
  double alpha = 0, beta = 0;
};

/// Parameters of one layer in each of its directions d: input [d, gates * hidden, in], hidden [d, gates * hidden,
/// hidden], and biases of both, [d, gates * hidden] or undefined. Gates lie one after the other: of an LSTM input,
/// output, forget and cell, of a GRU update, reset and hidden, as in ONNX; lstm_gates_from_pytorch() and
/// gru_gates_from_pytorch() reorder.
struct RecurrentWeights {
  Tensor input, hidden, input_bias = {}, hidden_bias = {};
  Tensor peepholes = {};  ///< of an LSTM: [d, 3 * hidden] for input, output and forget gate, or undefined
};
/// Rows of a parameter of PyTorch's LSTM (i, f, g, o) or GRU (r, z, n) in the order that is used here.
Tensor lstm_gates_from_pytorch(const Tensor& parameter);
Tensor gru_gates_from_pytorch(const Tensor& parameter);

struct RecurrentOptions {
  Direction direction = Direction::Forward;
  double clip = 0;                  ///< bounds what goes into activations to -clip ... clip; 0: not at all
  bool linear_before_reset = true;  ///< of a GRU: its reset gate multiplies the product with the hidden state, as in
                                    ///< PyTorch, and not the hidden state itself
  bool coupled_gates = false;       ///< of an LSTM: the forget gate is 1 - input gate
  /// For each direction: one for an RNN, two for a GRU (gates, hidden), three for an LSTM (gates, cell, hidden). Empty:
  /// tanh, and sigmoid for gates.
  std::vector<RecurrentActivation> activations = {};
};

struct RecurrentResult {
  Tensor output;  ///< [steps, batch, d * hidden], the directions side by side; 0 beyond a sequence's length
  Tensor hidden;  ///< [layers * d, batch, hidden]: behind the last step of each
  Tensor cell;    ///< the same of an LSTM
};

// x [steps, batch, in]; each of `layers` takes the output of the one before. hidden and cell: [layers * d, batch,
// hidden], what is there before the first step, or undefined for 0. lengths: i64 or i32 [batch], steps of each
// sequence, or undefined for all of them; the reverse direction begins at each one's end.

/// h = f(W x + b + R h + b'). Elman 1990.
RecurrentResult rnn(const Tensor& x, const std::vector<RecurrentWeights>& layers, const Tensor& hidden = {},
                    const Tensor& lengths = {}, const RecurrentOptions& options = {});
/// h = (1 - z) n + z h. Cho et al. 2014.
RecurrentResult gru(const Tensor& x, const std::vector<RecurrentWeights>& layers, const Tensor& hidden = {},
                    const Tensor& lengths = {}, const RecurrentOptions& options = {});
/// c = f c + i g, h = o tanh(c). Hochreiter & Schmidhuber 1997; peepholes: Gers & Schmidhuber 2000.
RecurrentResult lstm(const Tensor& x, const std::vector<RecurrentWeights>& layers, const Tensor& hidden = {},
                     const Tensor& cell = {}, const Tensor& lengths = {}, const RecurrentOptions& options = {});

// One step of a layer, whose weights are of one direction: x [batch, in], states [batch, hidden], or undefined for 0.

/// The hidden state behind it.
Tensor rnn_cell(const Tensor& x, const RecurrentWeights& weights, const Tensor& hidden = {},
                const RecurrentOptions& options = {});
Tensor gru_cell(const Tensor& x, const RecurrentWeights& weights, const Tensor& hidden = {},
                const RecurrentOptions& options = {});
struct LstmState {
  Tensor hidden, cell;
};
LstmState lstm_cell(const Tensor& x, const RecurrentWeights& weights, const Tensor& hidden = {},
                    const Tensor& cell = {}, const RecurrentOptions& options = {});

}  // namespace tessera
