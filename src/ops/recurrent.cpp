// Recurrent layers. One product gives all steps' inputs to the gates, and each step adds that of its hidden state: of
// layers as they mostly are in one operator, of others by products and elementwise operators.
#include <algorithm>

#include "ops/check.h"
#include "ops/op_table.h"
#include "ops/recurrent_net.h"
#include "ops/recurrent_steps.h"
#include "tessera/ops_math.h"
#include "tessera/ops_recurrent.h"

namespace tessera {
namespace {

using Kind = RecurrentActivation::Kind;

Tensor recurrent_activation(const Tensor& x, const RecurrentActivation& a) {
  switch (a.kind) {
    case Kind::Sigmoid:
      return sigmoid(x);
    case Kind::Tanh:
      return tanh(x);
    case Kind::Relu:
      return relu(x);
    case Kind::Affine:
      return add(mul(x, a.alpha), a.beta);
    case Kind::LeakyRelu:
      return leaky_relu(x, a.alpha);
    case Kind::ThresholdedRelu:
      return thresholded_relu(x, a.alpha);
    case Kind::ScaledTanh:
      return mul(tanh(mul(x, a.beta)), a.alpha);
    case Kind::HardSigmoid:
      return hardsigmoid(x, a.alpha, a.beta);
    case Kind::Elu:
      return elu(x, a.alpha);
    case Kind::Softsign:
      return softsign(x);
    default:
      return softplus(x);
  }
}

// What a cell makes of a step.
struct State {
  Tensor hidden, cell;
};

// One layer in one direction.
struct Cell {
  Tensor hidden_weight, hidden_bias, peepholes;
  std::vector<RecurrentActivation> f;
  const RecurrentOptions& o;

  Tensor act(size_t i, const Tensor& x) const {
    return recurrent_activation(o.clip > 0 ? clamp(x, -o.clip, o.clip) : x, f[i]);
  }
  // A gate of [batch, gates * hidden].
  static Tensor gate(const Tensor& all, int64_t i, int64_t hidden) {
    return slice(all, 1, i * hidden, (i + 1) * hidden);
  }
  Tensor peep(int64_t i, int64_t hidden) const { return slice(peepholes, 0, i * hidden, (i + 1) * hidden); }
};

// `in`: the step's product with the input's weight, and its bias.
State rnn_step(const Cell& c, const Tensor& in, const State& s) {
  return {c.act(0, add(in, linear(s.hidden, c.hidden_weight, c.hidden_bias))), {}};
}

State gru_step(const Cell& c, const Tensor& in, const State& s) {
  const int64_t h = s.hidden.size(1);
  const auto rows = [&](const Tensor& t, int64_t from, int64_t to) {
    return t.defined() ? slice(t, 0, from * h, to * h) : Tensor();
  };
  const auto candidate = [&](const Tensor& reset, const Tensor& recurrent) {
    const Tensor part = c.o.linear_before_reset
                            ? mul(reset, recurrent)
                            : linear(mul(reset, s.hidden), rows(c.hidden_weight, 2, 3), rows(c.hidden_bias, 2, 3));
    return c.act(1, add(Cell::gate(in, 2, h), part));
  };
  const int64_t gates = c.o.linear_before_reset ? 3 : 2;
  const Tensor recurrent = linear(s.hidden, rows(c.hidden_weight, 0, gates), rows(c.hidden_bias, 0, gates));
  const Tensor both = c.act(0, add(slice(in, 1, 0, 2 * h), slice(recurrent, 1, 0, 2 * h)));
  const Tensor update = Cell::gate(both, 0, h);
  const Tensor made =
      candidate(Cell::gate(both, 1, h), c.o.linear_before_reset ? Cell::gate(recurrent, 2, h) : Tensor());
  return {add(made, mul(update, sub(s.hidden, made))), {}};
}

State lstm_step(const Cell& c, const Tensor& in, const State& s) {
  const int64_t h = s.hidden.size(1);
  const Tensor all = add(in, linear(s.hidden, c.hidden_weight, c.hidden_bias));
  const auto gate = [&](int64_t i, int64_t peephole, const Tensor& cell) {
    const Tensor z = Cell::gate(all, i, h);
    return c.act(0, c.peepholes.defined() ? add(z, mul(c.peep(peephole, h), cell)) : z);
  };
  const Tensor input = gate(0, 0, s.cell);
  const Tensor forget = c.o.coupled_gates ? add(neg(input), 1) : gate(2, 2, s.cell);
  const Tensor cell = add(mul(forget, s.cell), mul(input, c.act(1, Cell::gate(all, 3, h))));
  return {mul(gate(1, 1, cell), c.act(2, cell)), cell};
}

// What a kind of layer is.
struct Layer {
  enum Kind { Rnn, Gru, Lstm } kind;
  std::string_view op;
  int64_t gates;
  size_t activations;
  State (*step)(const Cell&, const Tensor&, const State&);
  bool has_cell() const { return kind == Lstm; }
};

int64_t directions_of(const RecurrentOptions& o) { return o.direction == Direction::Both ? 2 : 1; }

void require_lists(const Layer& layer, const Tensor& x, const std::vector<RecurrentWeights>& layers,
                   const Tensor& lengths, const RecurrentOptions& o) {
  if (x.dim() != 3) fail(layer.op, "x must have 3 dims, not shape {}", to_string(x.shape()));
  if (!is_floating(x.dtype())) fail(layer.op, "takes floating-point tensors, not {}", describe(x));
  if (layers.empty()) fail(layer.op, "there are no layers");
  const size_t count = layer.activations * static_cast<size_t>(directions_of(o));
  if (!o.activations.empty() && o.activations.size() != count)
    fail(layer.op, "{} activations, not {}", o.activations.size(), count);
  if (!(o.clip >= 0)) fail(layer.op, "clip {} is negative", o.clip);
  const Dim batch = x.shape()[1];
  if (lengths.defined() && (!(lengths.shape() == Shape{batch}) || is_floating(lengths.dtype())))
    fail(layer.op, "lengths must be integers of shape [{}], not {}", batch.to_string(), describe(lengths));
}

// A parameter of one layer: present or not, of that shape.
void require_parameter(const Layer& layer, std::string_view what, const Tensor& t, const Shape& wanted) {
  if (t.defined() && !(t.shape() == wanted))
    fail(layer.op, "{} has shape {}, not {}", what, to_string(t.shape()), to_string(wanted));
}

void require_weights(const Layer& layer, const RecurrentWeights& w, int64_t d, int64_t in) {
  if (!w.input.defined() || !w.hidden.defined()) fail(layer.op, "weights of input and hidden state are needed");
  if (w.hidden.dim() != 3)
    fail(layer.op, "the hidden state's weight must have 3 dims, not shape {}", to_string(w.hidden.shape()));
  const int64_t hidden = w.hidden.size(2), rows = layer.gates * hidden;
  require_parameter(layer, "the input's weight", w.input, {d, rows, in});
  require_parameter(layer, "the hidden state's weight", w.hidden, {d, rows, hidden});
  require_parameter(layer, "the input's bias", w.input_bias, {d, rows});
  require_parameter(layer, "the hidden state's bias", w.hidden_bias, {d, rows});
  require_parameter(layer, "peepholes", w.peepholes, {d, 3 * hidden});
}

Tensor of_direction(const Tensor& t, int64_t d) { return t.defined() ? select(t, 0, d) : Tensor(); }

std::vector<RecurrentActivation> activations_of(const Layer& layer, const RecurrentOptions& o, int64_t d) {
  const size_t n = layer.activations;
  if (!o.activations.empty()) {
    const auto first = o.activations.begin() + d * static_cast<int64_t>(n);
    return {first, first + static_cast<int64_t>(n)};
  }
  std::vector<RecurrentActivation> all(n, {Kind::Tanh});
  if (n > 1) all[0] = {Kind::Sigmoid};
  return all;
}

// The state moves on where a sequence still has that step. `is_on`: bool [batch, 1], or undefined for all.
State moved_on(const State& next, const State& before, const Tensor& is_on) {
  if (!is_on.defined()) return next;
  return {where(is_on, next.hidden, before.hidden),
          next.cell.defined() ? where(is_on, next.cell, before.cell) : Tensor()};
}

struct Run {
  Tensor output;  // [steps, batch, hidden]
  State last;
};

// Whether one operator does it: functions as they mostly are.
bool is_plain(const Layer& layer, const Tensor& x, const RecurrentWeights& w, const RecurrentOptions& o) {
  if (x.shape()[0] == Dim(0) || w.peepholes.defined() || o.clip != 0 || o.coupled_gates) return false;
  if (layer.kind == Layer::Rnn)
    return std::all_of(o.activations.begin(), o.activations.end(),
                       [](const auto& a) { return a.kind == Kind::Tanh || a.kind == Kind::Relu; });
  return o.activations.empty() && (layer.kind == Layer::Lstm || o.linear_before_reset);
}

// Which steps sequences have: bool [steps, batch, 1]. Undefined: all.
Tensor steps_on(const Tensor& lengths, Dim steps) {
  if (!lengths.defined()) return {};
  const Tensor each = add(cumsum(ones({steps}, lengths.dtype(), lengths.device()), 0), -1);
  return gt(lengths.reshape({1, -1, 1}), each.reshape({-1, 1, 1}));
}

// What goes into the gates of a step behind a sequence's end, [gates * hidden]: an LSTM keeps its cell, gated units
// their state, and what is 0 stays so.
Tensor idle_gates(const Layer& layer, int64_t hidden, const Tensor& like) {
  constexpr double shut = -1e4, open = 1e4;  // sigmoid makes 0 and 1 of them, in every dtype
  constexpr double gru[] = {open, 0, 0}, lstm[] = {shut, 0, open, 0};
  if (layer.kind == Layer::Rnn) return zeros({hidden}, like.dtype(), like.device());
  Tensors parts;
  for (int64_t gate = 0; gate < layer.gates; ++gate)
    parts.push_back(full({hidden}, (layer.kind == Layer::Gru ? gru : lstm)[gate], like.dtype(), like.device()));
  return concat(parts, 0);
}

// The state [batch, hidden] behind the last step of each sequence that goes forward.
Tensor state_at_end(const Tensor& states, const Tensor& initial, const Tensor& lengths) {
  const Tensor at = lengths.to(Int64), steps = sum(ones({states.shape()[0]}, Int64, at.device()));
  const Tensor index = clamp(add(minimum(at, steps), -1), 0, INFINITY).reshape({1, -1, 1});
  const Tensor last = gather(states, 0, index.expand({Dim(1), states.shape()[1], states.shape()[2]}));
  return where(unsqueeze(gt(at, zeros({}, Int64, at.device())), 1), select(last, 0, 0), initial);
}

// With lengths a reverse run begins at states of 0.
Run run_plain(const Layer& layer, const Tensor& x, const RecurrentWeights& w, int64_t d, bool reverse, const State& s,
              const Tensor& lengths, const RecurrentOptions& o) {
  const Tensor weight = of_direction(w.hidden, d), bias = of_direction(w.input_bias, d),
               more = of_direction(w.hidden_bias, d);
  const bool apart = layer.kind == Layer::Gru;  // its reset gate takes a share of the hidden state's bias
  Tensor in = linear(x, of_direction(w.input, d),
                     apart || !more.defined() ? bias
                     : bias.defined()         ? add(bias, more)
                                              : more);
  const Tensor is_on = steps_on(lengths, x.shape()[0]);
  if (is_on.defined()) in = where(is_on, in, idle_gates(layer, s.hidden.size(1), in));
  const auto run = [&](const Tensor& all, const Tensor& cell) {
    const bool stays = reverse || layer.kind == Layer::Gru;
    const Tensor last =
        is_on.defined() && !stays ? state_at_end(all, s.hidden, lengths) : select(all, 0, reverse ? 0 : -1);
    return Run{is_on.defined() ? where(is_on, all, zeros({}, all.dtype(), all.device())) : all, {last, cell}};
  };
  if (layer.kind == Layer::Gru) return run(gru_layer(in, weight, more, s.hidden, reverse), {});
  if (layer.kind == Layer::Rnn) {
    const bool relu = activations_of(layer, o, d)[0].kind == Kind::Relu;
    return run(rnn_layer(in, weight, s.hidden, {reverse, relu}), {});
  }
  const LstmResult all = lstm_layer(in, weight, s.hidden, s.cell, reverse);
  return run(all.hidden, all.cell);
}

// Each sequence of x [steps, batch, in] in one direction. A reverse one starts at the last step, where sequences that
// are shorter do not move yet.
Run run_direction(const Layer& layer, const Tensor& x, const RecurrentWeights& w, int64_t d, bool reverse, State s,
                  bool from_zero, const Tensor& lengths, const RecurrentOptions& o) {
  if (is_plain(layer, x, w, o) && (from_zero || !reverse || !lengths.defined()))
    return run_plain(layer, x, w, d, reverse, s, lengths, o);
  const Cell cell{of_direction(w.hidden, d), of_direction(w.hidden_bias, d), of_direction(w.peepholes, d),
                  activations_of(layer, o, d), o};
  const Tensor in = linear(x, of_direction(w.input, d), of_direction(w.input_bias, d));
  const int64_t steps = x.size(0);
  Tensors outputs(static_cast<size_t>(steps));
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t at = reverse ? steps - 1 - i : i;
    Tensor is_on;
    if (lengths.defined())
      is_on = unsqueeze(gt(lengths, full({}, static_cast<double>(at), lengths.dtype(), lengths.device())), 1);
    s = moved_on(layer.step(cell, select(in, 0, at), s), s, is_on);
    outputs[static_cast<size_t>(at)] =
        is_on.defined() ? where(is_on, s.hidden, full({}, 0, x.dtype(), x.device())) : s.hidden;
  }
  if (steps == 0) return {zeros({Dim(0), x.shape()[1], s.hidden.shape()[1]}, x.dtype(), x.device()), s};
  return {stack(outputs, 0), s};
}

// All layers in one operator, where there is a kernel for that.
std::optional<RecurrentResult> run_whole(const Layer& layer, const Tensor& x,
                                         const std::vector<RecurrentWeights>& layers, const Tensor& hidden,
                                         const Tensor& cell, const Tensor& lengths, const RecurrentOptions& o) {
  if (!x.device().is_card() || lengths.defined() || o.direction == Direction::Reverse) return {};
  for (const RecurrentWeights& w : layers)
    if (!is_plain(layer, x, w, o)) return {};
  const auto is_relu = [](const RecurrentActivation& a) { return a.kind == Kind::Relu; };
  const bool relu = std::any_of(o.activations.begin(), o.activations.end(), is_relu);
  if (relu && !std::all_of(o.activations.begin(), o.activations.end(), is_relu)) return {};
  return recurrent_net(x, layers, hidden, cell,
                       {.gates = layer.gates, .relu = relu, .both = o.direction == Direction::Both});
}

RecurrentResult run_layers(const Layer& layer, const Tensor& x, const std::vector<RecurrentWeights>& layers,
                           const Tensor& hidden, const Tensor& cell, const Tensor& lengths, const RecurrentOptions& o) {
  require_lists(layer, x, layers, lengths, o);
  const int64_t d = directions_of(o);
  const Dim batch = x.shape()[1];
  int64_t width = x.size(2);
  for (const RecurrentWeights& w : layers) {
    require_weights(layer, w, d, width);
    const Shape wanted{Dim(static_cast<int64_t>(layers.size()) * d), batch, w.hidden.shape()[2]};
    require_parameter(layer, "the hidden state", hidden, wanted);
    require_parameter(layer, "the cell state", cell, wanted);
    width = w.hidden.size(2) * d;
  }
  if (const auto whole = run_whole(layer, x, layers, hidden, cell, lengths, o)) return *whole;
  Tensor y = x;
  Tensors last_hidden, last_cell;
  for (size_t i = 0; i < layers.size(); ++i) {
    const RecurrentWeights& w = layers[i];
    Tensors outputs;
    for (int64_t k = 0; k < d; ++k) {
      const int64_t at = static_cast<int64_t>(i) * d + k;
      const auto initial = [&](const Tensor& t) {
        return t.defined() ? select(t, 0, at) : zeros({batch, w.hidden.shape()[2]}, x.dtype(), x.device());
      };
      const bool reverse = o.direction == Direction::Reverse || k == 1;
      const Run run =
          run_direction(layer, y, w, k, reverse, {initial(hidden), layer.has_cell() ? initial(cell) : Tensor()},
                        !hidden.defined() && !cell.defined(), lengths, o);
      outputs.push_back(run.output);
      last_hidden.push_back(run.last.hidden);
      if (layer.has_cell()) last_cell.push_back(run.last.cell);
    }
    y = outputs.size() == 1 ? outputs[0] : concat(outputs, 2);
  }
  return {y, stack(last_hidden, 0), layer.has_cell() ? stack(last_cell, 0) : Tensor()};
}

Tensor reordered_gates(std::string_view op, const Tensor& parameter, const std::vector<int64_t>& order) {
  const auto gates = static_cast<int64_t>(order.size());
  if (parameter.dim() < 1 || parameter.size(0) % gates)
    fail(op, "rows of {} do not split into {} gates", to_string(parameter.shape()), gates);
  const int64_t rows = parameter.size(0) / gates;
  Tensors parts;
  for (const int64_t gate : order) parts.push_back(slice(parameter, 0, gate * rows, (gate + 1) * rows));
  return concat(parts, 0);
}

}  // namespace

Tensor all_rows(const Tensor& t) { return flatten(t, 0, 1); }
Tensor states_before(const Tensor& output, const Tensor& hidden, bool reverse) {
  const Dim steps = output.shape()[0];
  const Tensor first = unsqueeze(hidden, 0);
  return reverse ? concat({slice(output, 0, 1, steps), first}, 0) : concat({first, slice(output, 0, 0, steps - 1)}, 0);
}
Tensor weight_gradient(const Tensor& dproduct, const Tensor& output, const Tensor& hidden, bool reverse) {
  return matmul(transpose(all_rows(dproduct), 0, 1), all_rows(states_before(output, hidden, reverse)));
}

std::span<const Op* const> recurrent_ops() {
  static constexpr const Op* ops[] = {&lstm_op, &lstm_backward_op, &gru_op,           &gru_backward_op,
                                      &rnn_op,  &rnn_backward_op,  &recurrent_net_op, &recurrent_net_backward_op};
  return ops;
}

Tensor lstm_gates_from_pytorch(const Tensor& parameter) {
  return reordered_gates("lstm_gates_from_pytorch", parameter, {0, 3, 1, 2});
}
Tensor gru_gates_from_pytorch(const Tensor& parameter) {
  return reordered_gates("gru_gates_from_pytorch", parameter, {1, 0, 2});
}

RecurrentResult rnn(const Tensor& x, const std::vector<RecurrentWeights>& layers, const Tensor& hidden,
                    const Tensor& lengths, const RecurrentOptions& options) {
  return run_layers({Layer::Rnn, "rnn", 1, 1, rnn_step}, x, layers, hidden, {}, lengths, options);
}
RecurrentResult gru(const Tensor& x, const std::vector<RecurrentWeights>& layers, const Tensor& hidden,
                    const Tensor& lengths, const RecurrentOptions& options) {
  return run_layers({Layer::Gru, "gru", 3, 2, gru_step}, x, layers, hidden, {}, lengths, options);
}
RecurrentResult lstm(const Tensor& x, const std::vector<RecurrentWeights>& layers, const Tensor& hidden,
                     const Tensor& cell, const Tensor& lengths, const RecurrentOptions& options) {
  return run_layers({Layer::Lstm, "lstm", 4, 3, lstm_step}, x, layers, hidden, cell, lengths, options);
}

// A cell is a layer of one step.
static Tensor one_step(std::string_view op, const Tensor& x) {
  if (x.dim() != 2) fail(op, "x must have 2 dims, not shape {}", to_string(x.shape()));
  return unsqueeze(x, 0);
}
static Tensor one_layer(const Tensor& state) { return state.defined() ? unsqueeze(state, 0) : state; }

Tensor rnn_cell(const Tensor& x, const RecurrentWeights& weights, const Tensor& hidden,
                const RecurrentOptions& options) {
  return select(rnn(one_step("rnn_cell", x), {weights}, one_layer(hidden), {}, options).hidden, 0, 0);
}
Tensor gru_cell(const Tensor& x, const RecurrentWeights& weights, const Tensor& hidden,
                const RecurrentOptions& options) {
  return select(gru(one_step("gru_cell", x), {weights}, one_layer(hidden), {}, options).hidden, 0, 0);
}
LstmState lstm_cell(const Tensor& x, const RecurrentWeights& weights, const Tensor& hidden, const Tensor& cell,
                    const RecurrentOptions& options) {
  const RecurrentResult r = lstm(one_step("lstm_cell", x), {weights}, one_layer(hidden), one_layer(cell), {}, options);
  return {select(r.hidden, 0, 0), select(r.cell, 0, 0)};
}

}  // namespace tessera
