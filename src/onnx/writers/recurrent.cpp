// Recurrent layers.
#include "onnx/writer.h"
#include "tessera/ops.h"
#include "tessera/ops_shape.h"

namespace tessera::onnx {
namespace {

/// A call in ONNX's words, which have a dim of directions.
struct LayerOf {
  const OpCall& c;
  int64_t hidden = c.type(1).shape[1].value();

  /// x is the product with the input already, which ONNX's layer makes itself: its weight is the identity.
  Name identity(int64_t gates) const {
    return c.constant(unsqueeze(eye(gates * hidden, gates * hidden, 0, c.type(0).dtype), 0));
  }
  Name of_direction(const Name& t) const { return c.node("Unsqueeze", {t, c.constant(tensor<int64_t>({0}, {1}))}); }
  Name of_direction(size_t i) const { return of_direction(c.in(i)); }
  Name plain(const Name& y, int64_t dim) const {
    return c.node("Squeeze", {y, c.constant(tensor<int64_t>({dim}, {1}))});
  }
  AttributeProto size() const { return integer("hidden_size", hidden); }
  static AttributeProto direction(bool reverse) { return text("direction", reverse ? "reverse" : "forward"); }
};

Names lstm_layer_of(const OpCall& c) {
  const LayerOf l{c};
  const Names out =
      c.nodes("LSTM", {c.in(0), l.identity(4), l.of_direction(1), "", "", l.of_direction(2), l.of_direction(3)}, 3,
              {l.size(), l.direction(c.attrs<RecurrentAttrs>().reverse)});
  return {l.plain(out[0], 1), l.plain(out[2], 0)};
}

Names gru_layer_of(const OpCall& c) {
  const LayerOf l{c};
  Name bias;
  if (c.has(2)) {
    const Name none = c.constant(zeros({3 * l.hidden}, c.type(0).dtype));
    bias = l.of_direction(c.node("Concat", {none, c.in(2)}, {integer("axis", 0)}));
  }
  const Names out =
      c.nodes("GRU", {c.in(0), l.identity(3), l.of_direction(1), bias, "", l.of_direction(3)}, 2,
              {l.size(), l.direction(c.attrs<RecurrentAttrs>().reverse), integer("linear_before_reset", 1)});
  return {l.plain(out[0], 1)};
}

Names rnn_layer_of(const OpCall& c) {
  const LayerOf l{c};
  const RnnAttrs& attrs = c.attrs<RnnAttrs>();
  const Names out =
      c.nodes("RNN", {c.in(0), l.identity(1), l.of_direction(1), "", "", l.of_direction(2)}, 2,
              {l.size(), l.direction(attrs.reverse), texts("activations", {attrs.relu ? "Relu" : "Tanh"})});
  return {l.plain(out[0], 1)};
}

constexpr WriterEntry entries[] = {
    {"lstm_layer", lstm_layer_of},
    {"gru_layer", gru_layer_of},
    {"rnn_layer", rnn_layer_of},
};

}  // namespace

std::span<const WriterEntry> recurrent_writers() { return entries; }

}  // namespace tessera::onnx
