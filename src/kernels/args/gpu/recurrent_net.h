// What the vendor's recurrent nets take.
#pragma once
#include "kernels/args/common.h"

namespace tessera::gpu_kernels {

/// Numbered as cuDNN does.
enum class NetKind : int { rnn_relu, rnn_tanh, lstm, gru };

struct NetShape {
  long long steps, batch, in, hidden, layers;
  NetKind kind;
  Scalar type;
  bool both, biases, tf32;
};
constexpr int gates_of(NetKind kind) { return kind == NetKind::lstm ? 4 : kind == NetKind::gru ? 3 : 1; }

/// Bytes; none of it where the library has no such net.
struct NetRoom {
  bool takes;
  long long weights, workspace, training_workspace, reserve;
};

/// A parameter, or the part of one that lies in one piece in the library's weights, too: which element it is there.
struct NetPart {
  void* ours;
  long long count, at;
};
inline constexpr int most_net_parts = 64;
/// Brings parameters into the library's weights, or their gradients back.
struct NetPackArgs {
  void* weights;
  Scalar type;
  bool back;
  int count;
  NetPart parts[most_net_parts];
};

/// All dense; states may be null, for zeros.
struct NetArgs {
  NetShape shape;
  const void *x, *hidden, *cell;
  void *output, *last_hidden, *last_cell;
  const void* weights;
  void *workspace, *reserve;  // reserve: null where backward will not come
};
struct NetBackwardArgs {
  NetShape shape;
  const void *x, *hidden, *cell, *output, *weights, *reserve;
  const void *doutput, *dlast_hidden, *dlast_cell;
  void *dx, *dhidden, *dcell, *dweights;
  void *workspace, *scratch;  // scratch: room for a copy of the reserve
};

/// The vendor's own nets, where its library is installed.
struct VendorNetTable {
  NetRoom (*room)(const NetShape& shape);
  /// Which element of the weights is the first of a matrix or bias: of the input's products, gate by gate in the
  /// library's order, then of the hidden state's. `layer` counts directions, too.
  long long (*place)(const NetShape& shape, int layer, int product, bool bias);
  void (*pack)(const NetPackArgs& args, Executor& executor);
  void (*run)(const NetArgs& args, Executor& executor);
  void (*run_backward)(const NetBackwardArgs& args, Executor& executor);
};

}  // namespace tessera::gpu_kernels
