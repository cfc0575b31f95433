// Attributes of recurrent nets that run as one operator.
#pragma once
#include "core/attrs.h"

namespace tessera {

/// Layers of one width, each in one direction or both: of an LSTM (4 gates), of gated recurrent units (3), or without
/// gates (1), whose function may be ReLU in the place of tanh.
struct NetAttrs {
  int64_t gates = 4, layers = 1;
  bool relu = false, both = false;
  bool biases = true;      // two for each layer
  int64_t kept_bytes = 0;  // that the kernel wants to keep for backward
  bool pytorch = false;    // gates of parameters are in PyTorch's order
  bool overwrite = false;  // backward may write to what was kept
  static constexpr std::string_view attr_names = "gates, layers, relu, both, biases, kept_bytes, pytorch, overwrite";
  auto members() { return std::tie(gates, layers, relu, both, biases, kept_bytes, pytorch, overwrite); }
  auto members() const { return std::tie(gates, layers, relu, both, biases, kept_bytes, pytorch, overwrite); }
};

}  // namespace tessera
