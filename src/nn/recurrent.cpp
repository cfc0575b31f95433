#include "tessera/nn_recurrent.h"

#include <fmt/format.h>

#include <cmath>

#include "ops/recurrent_net.h"

namespace tessera::nn {

Recurrent::Recurrent(const char* name, const RecurrentConfig& c, int64_t gates, Generator& generator)
    : config(c), gates_(gates) {
  if (c.in < 1 || c.hidden < 1 || c.layers < 1 || !(c.dropout >= 0 && c.dropout < 1))
    throw Error(fmt::format("{}: {} to {} features, {} layers, dropout {} make no layer", name, c.in, c.hidden,
                            c.layers, c.dropout));
  const double bound = 1 / std::sqrt(static_cast<double>(c.hidden));
  const auto parameter = [&](const std::string& title, const Shape& shape) {
    Tensor t = empty(shape);
    init::uniform_(t, -bound, bound, generator);
    return add_parameter(title, t);
  };
  const int64_t rows = gates * c.hidden, directions = c.bidirectional ? 2 : 1;
  for (int64_t layer = 0; layer < c.layers; ++layer)
    for (int64_t d = 0; d < directions; ++d) {
      const std::string suffix = fmt::format("_l{}{}", layer, d ? "_reverse" : "");
      Weights w;
      w.weight_ih = parameter("weight_ih" + suffix, {rows, layer ? directions * c.hidden : c.in});
      w.weight_hh = parameter("weight_hh" + suffix, {rows, c.hidden});
      if (c.bias) {
        w.bias_ih = parameter("bias_ih" + suffix, {rows});
        w.bias_hh = parameter("bias_hh" + suffix, {rows});
      }
      weights.push_back(w);
    }
}

// A layer's parameters, each one of all directions, with gates in the order that `ordered` gives.
template <class Order>
static RecurrentWeights joined_directions(const Recurrent& net, size_t layer, const Order& ordered) {
  using Weights = Recurrent::Weights;
  const size_t directions = net.config.bidirectional ? 2 : 1;
  const auto joined = [&](Tensor Weights::*part) {
    Tensors all;
    for (size_t d = 0; d < directions; ++d)
      if (const Tensor& t = net.weights[layer * directions + d].*part; t.defined()) all.push_back(ordered(t));
    if (all.empty()) return Tensor();
    return all.size() == 1 ? unsqueeze(all[0], 0) : stack(all, 0);
  };
  return {joined(&Weights::weight_ih), joined(&Weights::weight_hh), joined(&Weights::bias_ih),
          joined(&Weights::bias_hh)};
}

RecurrentWeights Recurrent::of_layer(size_t layer) const {
  return joined_directions(*this, layer, [&](const Tensor& t) { return ordered(t); });
}

// Layers by a kernel that takes parameters as they are, where there is one.
static std::optional<RecurrentResult> run_as_they_are(const Recurrent& net, const Tensor& x, int64_t gates,
                                                      size_t first, size_t count, const Tensor& hidden,
                                                      const Tensor& cell) {
  if (!x.device().is_card() || x.dim() != 3 ||
      x.shape()[2] != net.weights[first * (net.config.bidirectional ? 2 : 1)].weight_ih.shape()[1])
    return {};
  std::vector<RecurrentWeights> layers;
  for (size_t i = first; i < first + count; ++i)
    layers.push_back(joined_directions(net, i, [](const Tensor& t) { return t; }));
  const auto* plain = dynamic_cast<const RNN*>(&net);
  return recurrent_net(
      x, layers, hidden, cell,
      {.gates = gates, .relu = plain && plain->relu, .both = net.config.bidirectional, .pytorch = true});
}

Tensors Recurrent::forward(const Tensors& in) const {
  const bool has_cell = gates_ == 4;
  check_inputs(in, 1, has_cell ? 4 : 3);
  const auto given = [&](size_t i) { return i < in.size() ? in[i] : Tensor(); };
  const Tensor lengths = given(has_cell ? 3 : 2), x = config.batch_first ? transpose(in[0], 0, 1) : in[0];
  const RecurrentOptions options{.direction = config.bidirectional ? Direction::Both : Direction::Forward};
  const auto run_layers = [&](const Tensor& y, size_t first, size_t count, const Tensor& hidden, const Tensor& cell) {
    if (!lengths.defined())
      if (auto whole = run_as_they_are(*this, y, gates_, first, count, hidden, cell)) return *whole;
    std::vector<RecurrentWeights> layers;
    for (size_t i = first; i < first + count; ++i) layers.push_back(of_layer(i));
    return run(y, layers, hidden, cell, lengths, options);
  };

  RecurrentResult result;
  if (!(config.dropout > 0 && training())) {
    result = run_layers(x, 0, static_cast<size_t>(config.layers), given(1), has_cell ? given(2) : Tensor());
  } else {  // layer by layer, with dropout between
    const int64_t directions = config.bidirectional ? 2 : 1;
    Tensors hidden, cell;
    result.output = x;
    for (int64_t i = 0; i < config.layers; ++i) {
      const auto part = [&](const Tensor& t) {
        return t.defined() ? slice(t, 0, i * directions, (i + 1) * directions) : t;
      };
      const Tensor y = i ? dropout(result.output, config.dropout) : x;
      result = run_layers(y, static_cast<size_t>(i), 1, part(given(1)), has_cell ? part(given(2)) : Tensor());
      hidden.push_back(result.hidden);
      if (has_cell) cell.push_back(result.cell);
    }
    result.hidden = concat(hidden, 0);
    if (has_cell) result.cell = concat(cell, 0);
  }
  if (config.batch_first) result.output = transpose(result.output, 0, 1);
  Tensors out{result.output, result.hidden};
  if (has_cell) out.push_back(result.cell);
  return out;
}

RNN::RNN(const RecurrentConfig& config, bool relu, Generator& generator)
    : Recurrent("RNN", config, 1, generator), relu(relu) {}
RecurrentResult RNN::run(const Tensor& x, const std::vector<RecurrentWeights>& layers, const Tensor& hidden,
                         const Tensor&, const Tensor& lengths, const RecurrentOptions& options) const {
  RecurrentOptions o = options;
  const size_t directions = o.direction == Direction::Both ? 2 : 1;
  if (relu) o.activations.assign(directions, {RecurrentActivation::Relu});
  return tessera::rnn(x, layers, hidden, lengths, o);
}

GRU::GRU(const RecurrentConfig& config, Generator& generator) : Recurrent("GRU", config, 3, generator) {}
RecurrentResult GRU::run(const Tensor& x, const std::vector<RecurrentWeights>& layers, const Tensor& hidden,
                         const Tensor&, const Tensor& lengths, const RecurrentOptions& options) const {
  return tessera::gru(x, layers, hidden, lengths, options);
}

LSTM::LSTM(const RecurrentConfig& config, Generator& generator) : Recurrent("LSTM", config, 4, generator) {}
RecurrentResult LSTM::run(const Tensor& x, const std::vector<RecurrentWeights>& layers, const Tensor& hidden,
                          const Tensor& cell, const Tensor& lengths, const RecurrentOptions& options) const {
  return tessera::lstm(x, layers, hidden, cell, lengths, options);
}

}  // namespace tessera::nn
