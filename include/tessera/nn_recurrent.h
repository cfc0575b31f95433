// Recurrent layers as modules, with PyTorch's names and defaults: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0,
// and the same with "_reverse".
#pragma once
#include <vector>

#include "tessera/nn.h"
#include "tessera/ops_recurrent.h"

namespace tessera::nn {

struct RecurrentConfig {
  int64_t in = 0, hidden = 0, layers = 1;
  bool bias = true;
  bool batch_first = false;  ///< x and the output are [batch, steps, ...] and not [steps, batch, ...]
  double dropout = 0;        ///< in training, of what each layer but the last gives
  bool bidirectional = false;
};

/// What RNN, GRU and LSTM share. Weights are uniform in ±1/sqrt(hidden).
class Recurrent : public Module {
 public:
  /// x [steps, batch, in] and, where they are wanted, states [layers * d, batch, hidden] before the first step ->
  /// the output [steps, batch, d * hidden] and the states behind the last step, d directions of each layer side by
  /// side. An LSTM has two states, hidden and cell, the others have one. Behind them may come lengths [batch],
  /// integers: beyond them the output is 0, and states are those at each sequence's end.
  Tensors forward(const Tensors& in) const override;

  RecurrentConfig config;
  /// Of one direction of a layer, rows in PyTorch's order of gates; those of a layer follow one another.
  struct Weights {
    Tensor weight_ih, weight_hh, bias_ih, bias_hh;
  };
  std::vector<Weights> weights;

 protected:
  Recurrent(const char* name, const RecurrentConfig& config, int64_t gates, Generator& generator);
  /// The layers on x [steps, batch, ...] by the operator; states may be undefined.
  virtual RecurrentResult run(const Tensor& x, const std::vector<RecurrentWeights>& layers, const Tensor& hidden,
                              const Tensor& cell, const Tensor& lengths, const RecurrentOptions& options) const = 0;
  /// A parameter with its gates in the operator's order.
  virtual Tensor ordered(const Tensor& parameter) const = 0;

 private:
  RecurrentWeights of_layer(size_t layer) const;
  int64_t gates_;
};

/// Elman 1990, with tanh or ReLU.
struct RNN : Recurrent {
  explicit RNN(const RecurrentConfig& config, bool relu = false, Generator& generator = default_generator());
  bool relu;

 protected:
  RecurrentResult run(const Tensor& x, const std::vector<RecurrentWeights>& layers, const Tensor& hidden,
                      const Tensor& cell, const Tensor& lengths, const RecurrentOptions& options) const override;
  Tensor ordered(const Tensor& parameter) const override { return parameter; }
};
/// Cho et al. 2014, with the reset gate behind the product, as in PyTorch.
struct GRU : Recurrent {
  explicit GRU(const RecurrentConfig& config, Generator& generator = default_generator());

 protected:
  RecurrentResult run(const Tensor& x, const std::vector<RecurrentWeights>& layers, const Tensor& hidden,
                      const Tensor& cell, const Tensor& lengths, const RecurrentOptions& options) const override;
  Tensor ordered(const Tensor& parameter) const override { return gru_gates_from_pytorch(parameter); }
};
/// Hochreiter & Schmidhuber 1997.
struct LSTM : Recurrent {
  explicit LSTM(const RecurrentConfig& config, Generator& generator = default_generator());

 protected:
  RecurrentResult run(const Tensor& x, const std::vector<RecurrentWeights>& layers, const Tensor& hidden,
                      const Tensor& cell, const Tensor& lengths, const RecurrentOptions& options) const override;
  Tensor ordered(const Tensor& parameter) const override { return lstm_gates_from_pytorch(parameter); }
};

}  // namespace tessera::nn
