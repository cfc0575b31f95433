#include "ops/reference.h"
#include "ops/slope_check.h"
#include "tessera/ops_recurrent.h"

namespace tessera {
namespace {

using reference::Index;
using Kind = RecurrentActivation::Kind;
using Vector = std::vector<double>;

double act(double x, const RecurrentActivation& a) {
  switch (a.kind) {
    case Kind::Sigmoid:
      return 1 / (1 + std::exp(-x));
    case Kind::Tanh:
      return std::tanh(x);
    case Kind::Relu:
      return std::max(x, 0.0);
    case Kind::Affine:
      return a.alpha * x + a.beta;
    case Kind::LeakyRelu:
      return x < 0 ? a.alpha * x : x;
    case Kind::ThresholdedRelu:
      return x > a.alpha ? x : 0;
    case Kind::ScaledTanh:
      return a.alpha * std::tanh(a.beta * x);
    case Kind::HardSigmoid:
      return std::clamp(a.alpha * x + a.beta, 0.0, 1.0);
    case Kind::Elu:
      return x < 0 ? a.alpha * (std::exp(x) - 1) : x;
    case Kind::Softsign:
      return x / (1 + std::abs(x));
    default:
      return std::log1p(std::exp(x));
  }
}

struct Sizes {
  int64_t steps, batch, in, hidden;
};
enum class Net { Rnn, Gru, Lstm };
int64_t gates_of(Net net) { return net == Net::Rnn ? 1 : net == Net::Gru ? 3 : 4; }

// One sequence through one layer in one direction, a number at a time.
struct Cell {
  Net net;
  const RecurrentWeights& w;
  int64_t d;
  const RecurrentOptions& o;
  std::vector<RecurrentActivation> f;

  double at(const Tensor& t, std::initializer_list<int64_t> index) const {
    return t.defined() ? reference::get(t, Index(index)) : 0;
  }
  double from_input(const Vector& x, int64_t row) const {
    double sum = at(w.input_bias, {d, row});
    for (size_t i = 0; i < x.size(); ++i) sum += at(w.input, {d, row, static_cast<int64_t>(i)}) * x[i];
    return sum;
  }
  double from_hidden(const Vector& h, int64_t row) const {
    double sum = at(w.hidden_bias, {d, row});
    for (size_t i = 0; i < h.size(); ++i) sum += at(w.hidden, {d, row, static_cast<int64_t>(i)}) * h[i];
    return sum;
  }
  double activated(size_t i, double x) const { return act(o.clip > 0 ? std::clamp(x, -o.clip, o.clip) : x, f[i]); }

  void step(const Vector& x, Vector& h, Vector& c) const {
    const auto n = static_cast<int64_t>(h.size());
    Vector next(h.size()), reset(h.size());
    const auto gate = [&](int64_t g, int64_t i) { return from_input(x, g * n + i) + from_hidden(h, g * n + i); };
    for (int64_t i = 0; i < n && net == Net::Gru; ++i) reset[i] = activated(0, gate(1, i));
    Vector gated = h;
    for (int64_t i = 0; i < n; ++i) gated[i] *= reset[i];
    for (int64_t i = 0; i < n; ++i) {
      if (net == Net::Rnn) next[i] = activated(0, gate(0, i));
      if (net == Net::Gru) {
        const double update = activated(0, gate(0, i));
        const double recurrent =
            o.linear_before_reset ? reset[i] * from_hidden(h, 2 * n + i) : from_hidden(gated, 2 * n + i);
        next[i] = (1 - update) * activated(1, from_input(x, 2 * n + i) + recurrent) + update * h[i];
      }
      if (net == Net::Lstm) {
        const double input = activated(0, gate(0, i) + at(w.peepholes, {d, i}) * c[i]);
        const double forget =
            o.coupled_gates ? 1 - input : activated(0, gate(2, i) + at(w.peepholes, {d, 2 * n + i}) * c[i]);
        c[i] = forget * c[i] + input * activated(1, gate(3, i));
        next[i] = activated(0, gate(1, i) + at(w.peepholes, {d, n + i}) * c[i]) * activated(2, c[i]);
      }
    }
    h = next;
  }
};

struct NetUse {
  Net net;
  RecurrentOptions o = {};
  int64_t layers = 1;
  bool lengths = false, states = true, biases = true, peepholes = false, one_is_empty = false;
};
const Sizes kSizes{5, 3, 4, 2};

struct RecurrentNet {
  Tensor x, hidden, cell, lengths;
  std::vector<RecurrentWeights> layers;
};
RecurrentNet made(const NetUse& use, Generator& g) {
  const auto& [steps, batch, in, n] = kSizes;
  const int64_t d = use.o.direction == Direction::Both ? 2 : 1, rows = gates_of(use.net) * n;
  RecurrentNet net{normal64({steps, batch, in}, g), {}, {}, {}, {}};
  if (use.states) net.hidden = normal64({use.layers * d, batch, n}, g);
  if (use.states && use.net == Net::Lstm) net.cell = normal64({use.layers * d, batch, n}, g);
  if (use.lengths) net.lengths = tensor<int64_t>({5, use.one_is_empty ? 0 : 2, 4}, {3});
  for (int64_t i = 0; i < use.layers; ++i) {
    RecurrentWeights w{normal64({d, rows, i ? d * n : in}, g), normal64({d, rows, n}, g)};
    if (use.biases) w.input_bias = normal64({d, rows}, g), w.hidden_bias = normal64({d, rows}, g);
    if (use.peepholes) w.peepholes = normal64({d, 3 * n}, g);
    net.layers.push_back(w);
  }
  return net;
}

RecurrentResult run_net(const NetUse& use, const RecurrentNet& n) {
  if (use.net == Net::Rnn) return rnn(n.x, n.layers, n.hidden, n.lengths, use.o);
  if (use.net == Net::Gru) return gru(n.x, n.layers, n.hidden, n.lengths, use.o);
  return lstm(n.x, n.layers, n.hidden, n.cell, n.lengths, use.o);
}

RecurrentResult by_loops(const NetUse& use, const RecurrentNet& net) {
  const auto& [steps, batch, in, n] = kSizes;
  const int64_t d = use.o.direction == Direction::Both ? 2 : 1;
  const size_t functions = use.net == Net::Rnn ? 1 : use.net == Net::Gru ? 2 : 3;
  RecurrentResult r{net.x, zeros({use.layers * d, batch, n}, Float64), zeros({use.layers * d, batch, n}, Float64)};
  for (int64_t layer = 0; layer < use.layers; ++layer) {
    Tensor y = zeros({steps, batch, d * n}, Float64);
    for (int64_t k = 0; k < d; ++k)
      for (int64_t b = 0; b < batch; ++b) {
        std::vector<RecurrentActivation> f(functions, {Kind::Tanh});
        if (functions > 1) f[0] = {Kind::Sigmoid};
        if (!use.o.activations.empty())
          f.assign(use.o.activations.begin() + k * functions, use.o.activations.begin() + (k + 1) * functions);
        const Cell cell{use.net, net.layers[layer], k, use.o, f};
        const int64_t at = layer * d + k, length = use.lengths ? net.lengths.to_vector<int64_t>()[b] : steps;
        const auto line = [&](const Tensor& t, int64_t i) {
          return t.defined() ? t.select(0, i).select(0, b).to_vector<double>() : Vector(n, 0);
        };
        Vector h = line(net.hidden, at), c = line(net.cell, at);
        for (int64_t i = 0; i < length; ++i) {
          const int64_t step = use.o.direction == Direction::Reverse || k == 1 ? length - 1 - i : i;
          cell.step(line(r.output, step), h, c);
          for (int64_t e = 0; e < n; ++e) reference::set(y, Index{step, b, k * n + e}, h[e]);
        }
        for (int64_t e = 0; e < n; ++e) {
          reference::set(r.hidden, Index{at, b, e}, h[e]);
          reference::set(r.cell, Index{at, b, e}, c[e]);
        }
      }
    r.output = y;
  }
  return r;
}

void expect_as_by_loops(const NetUse& use, Generator& g) {
  RecurrentNet net = made(use, g);
  const RecurrentResult got = run_net(use, net), want = by_loops(use, net);
  EXPECT_LE(relative_error(got.output, want.output), 1e-13);
  EXPECT_LE(relative_error(got.hidden, want.hidden), 1e-13);
  EXPECT_EQ(got.cell.defined(), use.net == Net::Lstm);
  if (use.net == Net::Lstm) {
    EXPECT_LE(relative_error(got.cell, want.cell), 1e-13);
  }
  Tensors parameters{net.x};
  const auto each = [&](auto fn) {
    if (net.hidden.defined()) fn(net.hidden);
    if (net.cell.defined()) fn(net.cell);
    for (RecurrentWeights& w : net.layers)
      for (Tensor* t : {&w.input, &w.hidden, &w.input_bias, &w.hidden_bias, &w.peepholes})
        if (t->defined()) fn(*t);
  };
  each([&](Tensor& t) { parameters.push_back(t); });
  expect_slopes(
      [&](const Tensors& in) {
        net.x = in[0];
        size_t i = 1;
        each([&](Tensor& t) { t = in[i++]; });
        const RecurrentResult r = run_net(use, net);
        Tensors parts{flatten(r.output), flatten(r.hidden)};
        if (r.cell.defined()) parts.push_back(flatten(r.cell));
        return concat(parts, 0);
      },
      parameters, 1e-5);
}

TEST(Recurrent, NetsAreThoseByLoops) {
  Generator g(1);
  for (const Net net : {Net::Rnn, Net::Gru, Net::Lstm})
    for (const Direction direction : {Direction::Forward, Direction::Reverse, Direction::Both})
      for (const bool lengths : {false, true}) {
        SCOPED_TRACE(testing::Message() << int(net) << int(direction) << lengths);
        expect_as_by_loops({.net = net, .o = {.direction = direction}, .layers = 2, .lengths = lengths}, g);
      }
}

TEST(Recurrent, LengthsOfNetsThatBeginAtZero) {
  Generator g(4);
  for (const Net net : {Net::Rnn, Net::Gru, Net::Lstm})
    for (const Direction direction : {Direction::Forward, Direction::Reverse, Direction::Both})
      for (const bool empty : {false, true}) {
        SCOPED_TRACE(testing::Message() << int(net) << int(direction) << empty);
        expect_as_by_loops({.net = net,
                            .o = {.direction = direction},
                            .layers = 2,
                            .lengths = true,
                            .states = false,
                            .one_is_empty = empty},
                           g);
      }
  expect_as_by_loops({.net = Net::Lstm, .lengths = true, .one_is_empty = true}, g);
  expect_as_by_loops({.net = Net::Rnn,
                      .o = {.direction = Direction::Both, .activations = {{Kind::Relu}, {Kind::Relu}}},
                      .lengths = true,
                      .states = false},
                     g);
}

TEST(Recurrent, NetsOfOtherForms) {
  Generator g(2);
  expect_as_by_loops({.net = Net::Gru, .o = {.linear_before_reset = false}}, g);
  expect_as_by_loops({.net = Net::Gru, .o = {.clip = 0.7}, .states = false, .biases = false}, g);
  expect_as_by_loops({.net = Net::Lstm, .o = {.clip = 0.9, .coupled_gates = true}, .peepholes = true}, g);
  expect_as_by_loops({.net = Net::Lstm,
                      .o = {.direction = Direction::Both},
                      .lengths = true,
                      .states = false,
                      .biases = false,
                      .peepholes = true},
                     g);
  for (const RecurrentActivation& a : std::vector<RecurrentActivation>{{Kind::Relu},
                                                                       {Kind::Affine, 0.5, 0.1},
                                                                       {Kind::LeakyRelu, 0.2},
                                                                       {Kind::ThresholdedRelu, 0.3},
                                                                       {Kind::ScaledTanh, 0.8, 0.6},
                                                                       {Kind::HardSigmoid, 0.2, 0.5},
                                                                       {Kind::Elu, 0.7},
                                                                       {Kind::Softsign},
                                                                       {Kind::Softplus}}) {
    SCOPED_TRACE(testing::Message() << int(a.kind));
    expect_as_by_loops({.net = Net::Rnn, .o = {.activations = {a}}}, g);
  }
  expect_as_by_loops(
      {.net = Net::Gru,
       .o = {.direction = Direction::Both,
             .activations = {{Kind::Sigmoid}, {Kind::Softsign}, {Kind::HardSigmoid, 0.3, 0.4}, {Kind::Tanh}}}},
      g);
}

TEST(Recurrent, TakesParametersOfPyTorch) {
  const Tensor rows = arange(0, 8).reshape({8, 1});
  EXPECT_EQ(lstm_gates_from_pytorch(rows).to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 6, 7, 2, 3, 4, 5}));
  EXPECT_EQ(gru_gates_from_pytorch(slice(rows, 0, 0, 6)).to_vector<int64_t>(),
            (std::vector<int64_t>{2, 3, 0, 1, 4, 5}));
  EXPECT_EQ(error_of([&] { gru_gates_from_pytorch(rows); }),
            "gru_gates_from_pytorch: rows of [8, 1] do not split into 3 gates");
}

TEST(Recurrent, OfNoSteps) {
  Generator g(3);
  const NetUse use{.net = Net::Lstm};
  RecurrentNet net = made(use, g);
  net.x = zeros({0, 3, 4}, Float64);
  const RecurrentResult r = run_net(use, net);
  EXPECT_EQ(r.output.shape(), (Shape{0, 3, 2}));
  EXPECT_EQ(r.cell.to_vector<double>(), net.cell.to_vector<double>());
}

TEST(Recurrent, NamesTheRuleThatIsBroken) {
  const Tensor x = zeros({5, 3, 4});
  const RecurrentWeights w{zeros({1, 8, 4}), zeros({1, 8, 2})};
  EXPECT_EQ(error_of([&] { lstm(zeros({3, 4}), {w}); }), "lstm: x must have 3 dims, not shape [3, 4]");
  EXPECT_EQ(error_of([&] { lstm(x, {}); }), "lstm: there are no layers");
  EXPECT_EQ(error_of([&] { gru(x, {w}); }), "gru: the input's weight has shape [1, 8, 4], not [1, 6, 4]");
  EXPECT_EQ(error_of([&] { lstm(x, {w, w}); }), "lstm: the input's weight has shape [1, 8, 4], not [1, 8, 2]");
  EXPECT_EQ(error_of([&] {
              lstm(x, {w}, zeros({1, 3, 3}));
            }),
            "lstm: the hidden state has shape [1, 3, 3], not [1, 3, 2]");
  EXPECT_EQ(error_of([&] { lstm(x, {w}, {}, {}, zeros({3})); }),
            "lstm: lengths must be integers of shape [3], not f32[3] on cpu");
  EXPECT_EQ(error_of([&] { lstm(x, {w}, {}, {}, {}, {.activations = {{Kind::Tanh}}}); }), "lstm: 1 activations, not 3");
  EXPECT_EQ(error_of([&] { lstm(x, {{}}); }), "lstm: weights of input and hidden state are needed");
}

TEST(Recurrent, CellsAreOneStep) {
  for (const Net kind : {Net::Rnn, Net::Gru, Net::Lstm}) {
    Generator g(21);
    const RecurrentNet net = made({.net = kind}, g);
    const Tensor x = select(net.x, 0, 0), hidden = select(net.hidden, 0, 0);
    const RecurrentResult one = run_net({.net = kind}, {unsqueeze(x, 0), net.hidden, net.cell, {}, net.layers});
    const RecurrentWeights& w = net.layers[0];
    Tensor got;
    if (kind == Net::Rnn) got = rnn_cell(x, w, hidden);
    if (kind == Net::Gru) got = gru_cell(x, w, hidden);
    if (kind == Net::Lstm) {
      const LstmState s = lstm_cell(x, w, hidden, select(net.cell, 0, 0));
      EXPECT_LE(relative_error(s.cell, select(one.cell, 0, 0)), 1e-12);
      got = s.hidden;
    }
    EXPECT_LE(relative_error(got, select(one.hidden, 0, 0)), 1e-12);
    EXPECT_EQ(error_of([&] { rnn_cell(net.x, w); }), "rnn_cell: x must have 2 dims, not shape [5, 3, 4]");
  }
}

}  // namespace
}  // namespace tessera
