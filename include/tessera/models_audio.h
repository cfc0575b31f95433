// Models of sound.
#pragma once
#include "tessera/nn_recurrent.h"

namespace tessera::models {

struct KeywordLSTMConfig {
  int64_t features = 40;  ///< of a frame, such as MFCCs
  int64_t hidden = 128, layers = 2;
  int64_t classes = 12;  ///< ten words, silence and others: Warden 2018
  bool bidirectional = false;
  double dropout = 0;  ///< between layers
};

/// Keyword spotting: an LSTM over the frames of a second or so, and a linear layer on what it ends with, in both
/// directions if it has two. x [n, frames, features] -> logits [n, classes].
struct KeywordLSTM : nn::Module {
  explicit KeywordLSTM(const KeywordLSTMConfig& config = {}, Generator& generator = default_generator());
  Tensors forward(const Tensors& in) const override;
  nn::Child<nn::LSTM> lstm;
  nn::Child<nn::Linear> fc;
};

}  // namespace tessera::models
