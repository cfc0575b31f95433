#include "tessera/models_audio.h"

namespace tessera::models {

KeywordLSTM::KeywordLSTM(const KeywordLSTMConfig& c, Generator& generator)
    : lstm(add("lstm", nn::LSTM({.in = c.features,
                                 .hidden = c.hidden,
                                 .layers = c.layers,
                                 .batch_first = true,
                                 .dropout = c.dropout,
                                 .bidirectional = c.bidirectional},
                                generator))),
      fc(add("fc", nn::Linear(c.hidden * (c.bidirectional ? 2 : 1), c.classes, true, generator))) {}

Tensors KeywordLSTM::forward(const Tensors& in) const {
  one_input(in);
  const Tensor hidden = lstm(in)[1];  // the last layer's are the last, a direction each
  if (!lstm->config.bidirectional) return {fc(select(hidden, 0, -1))};
  return {fc(concat({select(hidden, 0, -2), select(hidden, 0, -1)}, 1))};
}

}  // namespace tessera::models
