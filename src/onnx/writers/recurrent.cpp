// Recurrent layers.
#include "onnx/writer.h"
#include "tessera/ops.h"
#include "tessera/ops_shape.h"

namespace tessera::onnx {
namespace {

// x is the product with the input already, which ONNX's layer makes itself: its weight is the identity.
Names lstm_layer_of(const OpCall& c) {
  const int64_t hidden = c.type(1).shape[1].value();
  const Name whole = c.constant(unsqueeze(eye(4 * hidden, 4 * hidden, 0, c.type(0).dtype), 0));
  const auto of_direction = [&](size_t i) {
    return c.node("Unsqueeze", {c.in(i), c.constant(tensor<int64_t>({0}, {1}))});
  };
  const Names out = c.nodes(
      "LSTM", {c.in(0), whole, of_direction(1), "", "", of_direction(2), of_direction(3)}, 3,
      {integer("hidden_size", hidden), text("direction", c.attrs<RecurrentAttrs>().reverse ? "reverse" : "forward")});
  const auto plain = [&](const Name& y, int64_t dim) {
    return c.node("Squeeze", {y, c.constant(tensor<int64_t>({dim}, {1}))});
  };
  return {plain(out[0], 1), plain(out[2], 0)};
}

constexpr WriterEntry entries[] = {
    {"lstm_layer", lstm_layer_of},
};

}  // namespace

std::span<const WriterEntry> recurrent_writers() { return entries; }

}  // namespace tessera::onnx
