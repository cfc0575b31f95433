// Recurrent layers on a GPU, if there is one, against the CPU in float64: results and every gradient. The vendor's nets
// take most of them; TESSERA_VENDOR=off has ours run the same tests.
#include <fmt/format.h>

#include <cstdlib>

#include "ops/gpu_against_float64.h"
#include "tessera/amp.h"
#include "tessera/observer.h"

namespace tessera {
namespace {

enum class NetKind { Rnn, RnnRelu, Gru, Lstm };
constexpr NetKind kNetKinds[] = {NetKind::Rnn, NetKind::RnnRelu, NetKind::Gru, NetKind::Lstm};

struct NetOnCard {
  NetKind net = NetKind::Lstm;
  int64_t steps = 7, batch = 3, in = 5, hidden = 9, layers = 1;
  Direction direction = Direction::Forward;
  bool states = true, biases = true, lengths = false;

  int64_t directions() const { return direction == Direction::Both ? 2 : 1; }
  int64_t gates() const { return net == NetKind::Lstm ? 4 : net == NetKind::Gru ? 3 : 1; }
  std::string text() const {
    return fmt::format("net {} {}x{}, {} to {}, {} layers, direction {}{}{}{}", static_cast<int>(net), steps, batch, in,
                       hidden, layers, static_cast<int>(direction), states ? ", states" : "", biases ? ", biases" : "",
                       lengths ? ", lengths" : "");
  }
};

// x, the states that there are, and each layer's parameters.
Tensors net_inputs(const NetOnCard& u, DType dtype, Generator& g) {
  const auto values = [&](const Shape& shape, double scale) {
    return (normal64(shape, g) * scale).to(dtype).to(Float64);
  };
  Tensors all{values({u.steps, u.batch, u.in}, 1)};
  for (int i = 0; u.states && i < (u.net == NetKind::Lstm ? 2 : 1); ++i)
    all.push_back(values({u.layers * u.directions(), u.batch, u.hidden}, 1));
  const int64_t d = u.directions(), rows = u.gates() * u.hidden;
  const double scale = 1 / std::sqrt(static_cast<double>(u.hidden));
  for (int64_t i = 0; i < u.layers; ++i) {
    all.push_back(values({d, rows, i ? d * u.hidden : u.in}, scale));
    all.push_back(values({d, rows, u.hidden}, scale));
    for (int bias = 0; u.biases && bias < 2; ++bias) all.push_back(values({d, rows}, scale));
  }
  return all;
}

// Output and last states.
Tensors run_layers_of(const NetOnCard& u, const Tensors& in) {
  size_t next = 0;
  const auto take = [&](bool there) { return there ? in[next++] : Tensor(); };
  const Tensor x = take(true), hidden = take(u.states), cell = take(u.states && u.net == NetKind::Lstm);
  std::vector<RecurrentWeights> layers;
  for (int64_t i = 0; i < u.layers; ++i) {
    RecurrentWeights w{take(true), take(true)};
    w.input_bias = take(u.biases);
    w.hidden_bias = take(u.biases);
    layers.push_back(w);
  }
  Tensor lengths;
  if (u.lengths) {
    std::vector<int64_t> each;
    for (int64_t b = 0; b < u.batch; ++b) each.push_back(u.steps - (b * 2) % u.steps);
    lengths = tensor(each, {u.batch}).to(x.device());
  }
  RecurrentOptions o{.direction = u.direction};
  if (u.net == NetKind::RnnRelu) o.activations.assign(static_cast<size_t>(u.directions()), {RecurrentActivation::Relu});
  const RecurrentResult r = u.net == NetKind::Lstm  ? lstm(x, layers, hidden, cell, lengths, o)
                            : u.net == NetKind::Gru ? gru(x, layers, hidden, lengths, o)
                                                    : rnn(x, layers, hidden, lengths, o);
  Tensors out{r.output, r.hidden};
  if (r.cell.defined()) out.push_back(r.cell);
  return out;
}

struct Passes {
  Tensors results, gradients;
};
// Gradients of all results where `of` is negative, or of that one.
Passes both_passes(const NetOnCard& u, const Tensors& in, const Tensors& seeds, int of = -1) {
  Tensors leaves;
  for (const Tensor& t : in) leaves.push_back(t.detach().set_requires_grad());
  const Tensors out = run_layers_of(u, leaves);
  Passes o;
  for (const Tensor& t : out) o.results.push_back(t.detach());
  if (of < 0) o.gradients = grad(out, leaves, seeds);
  else o.gradients = grad({out[static_cast<size_t>(of)]}, leaves, {seeds[static_cast<size_t>(of)]}, false, false, true);
  return o;
}

class GpuRecurrent : public GpuAgainstFloat64 {
 protected:
  static Tensors converted(const Tensors& list, DType dtype, Device device = cpu()) {
    Tensors out;
    for (const Tensor& t : list) out.push_back(t.to(dtype).to(device));
    return out;
  }
  static Tensors moved(const Tensors& list, DType dtype) { return converted(list, dtype, card()); }
  Tensors seeds_of(const NetOnCard& u, DType dtype) {
    const Shape states{u.layers * u.directions(), u.batch, u.hidden};
    Tensors seeds{values({u.steps, u.batch, u.directions() * u.hidden}, dtype), values(states, dtype)};
    if (u.net == NetKind::Lstm) seeds.push_back(values(states, dtype));
    return seeds;
  }
  void expect_as_in_float64(const NetOnCard& u, DType dtype, int of = -1) {
    SCOPED_TRACE(u.text() + ", " + std::string(name(dtype)));
    const Tensors in = net_inputs(u, dtype, generator), seeds = seeds_of(u, dtype);
    const Passes want = both_passes(u, in, seeds, of);
    const Passes got = both_passes(u, moved(in, dtype), moved(seeds, dtype), of);
    // cuDNN's kernels of narrow layers approximate tanh, which adds up over steps and layers: 1.2e-5 was seen.
    const double limit = dtype == Float32 ? 2e-5 : dtype == Float16 ? 4e-3 : 3e-2;
    for (size_t i = 0; i < want.results.size(); ++i)
      EXPECT_LE(error(got.results[i], want.results[i]), limit) << "result " << i;
    for (size_t i = 0; i < want.gradients.size(); ++i) {
      ASSERT_EQ(got.gradients[i].defined(), want.gradients[i].defined()) << "gradient " << i;
      if (want.gradients[i].defined()) {
        EXPECT_LE(error(got.gradients[i], want.gradients[i]), 4 * limit) << "gradient " << i;
      }
    }
  }
};

TEST_F(GpuRecurrent, NetsOfEveryKind) {
  for (const NetKind net : kNetKinds)
    for (const Direction direction : {Direction::Forward, Direction::Reverse, Direction::Both})
      for (const int64_t layers : {1, 2})
        expect_as_in_float64({.net = net, .layers = layers, .direction = direction}, Float32);
}

TEST_F(GpuRecurrent, OfHalves) {
  for (const DType dtype : {Float16, BFloat16})
    for (const NetKind net : kNetKinds) {
      // Where bf16 rounds across 0, ReLU's slope jumps, and two layers hand that on.
      const int64_t layers = net == NetKind::RnnRelu && dtype == BFloat16 ? 1 : 2;
      expect_as_in_float64({.net = net, .hidden = 16, .layers = layers, .direction = Direction::Both}, dtype);
      expect_as_in_float64({.net = net, .steps = 11, .batch = 8, .in = 128, .hidden = 128}, dtype);
      if (net != NetKind::RnnRelu)
        expect_as_in_float64({.net = net, .steps = 11, .batch = 8, .in = 256, .hidden = 256, .layers = 2}, dtype);
    }
}

TEST_F(GpuRecurrent, OfOddSizes) {
  for (const NetKind net : kNetKinds) {
    expect_as_in_float64({.net = net, .steps = 2, .batch = 1, .in = 1, .hidden = 1}, Float32);
    expect_as_in_float64({.net = net, .steps = 1, .batch = 2, .in = 3, .hidden = 17}, Float32);
    expect_as_in_float64({.net = net, .steps = 13, .batch = 1, .in = 33, .hidden = 31, .layers = 3}, Float32);
    expect_as_in_float64({.net = net, .steps = 5, .batch = 37, .in = 12, .hidden = 130}, Float32);
    expect_as_in_float64({.net = net, .steps = 40, .batch = 12, .in = 128, .hidden = 128}, Float32);
  }
}

TEST_F(GpuRecurrent, WithoutStatesOrBiases) {
  for (const NetKind net : kNetKinds) {
    expect_as_in_float64({.net = net, .layers = 2, .states = false}, Float32);
    expect_as_in_float64({.net = net, .direction = Direction::Both, .biases = false}, Float32);
    expect_as_in_float64({.net = net, .states = false, .biases = false}, Float32);
  }
}

TEST_F(GpuRecurrent, SequencesOfTheirOwnLengths) {
  for (const NetKind net : kNetKinds)
    for (const Direction direction : {Direction::Forward, Direction::Both})
      for (const bool states : {false, true})
        expect_as_in_float64({.net = net, .layers = 2, .direction = direction, .states = states, .lengths = true},
                             Float32);
}

TEST_F(GpuRecurrent, GradientsOfOneResultAlone) {
  for (const NetKind net : {NetKind::Gru, NetKind::Lstm})
    for (int of = 0; of < (net == NetKind::Lstm ? 3 : 2); ++of)
      expect_as_in_float64({.net = net, .layers = 2, .direction = Direction::Both}, Float32, of);
}

TEST_F(GpuRecurrent, RunsBackwardTwice) {
  const NetOnCard u{.layers = 2};
  Tensors leaves = moved(net_inputs(u, Float32, generator), Float32);
  for (Tensor& t : leaves) t.set_requires_grad();
  const Tensors seeds = moved(seeds_of(u, Float32), Float32), out = run_layers_of(u, leaves);
  const Tensors first = grad(out, leaves, seeds, true), second = grad(out, leaves, seeds);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_LE(error(second[i], first[i].to(cpu()).to(Float64)), 1e-6) << i;
}

TEST_F(GpuRecurrent, UnderAutocast) {
  const NetOnCard u{.batch = 8, .layers = 2};
  const Tensors in = net_inputs(u, BFloat16, generator);
  const Tensors want = run_layers_of(u, in);
  amp::Autocast guard(BFloat16);
  const Tensors got = run_layers_of(u, moved(in, Float32));
  EXPECT_EQ(got[0].dtype(), BFloat16);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_LE(error(got[i], want[i]), 3e-2) << i;
}

TEST_F(GpuRecurrent, RunsInAGraph) {
  for (const NetKind net : kNetKinds)
    for (const DType dtype : {Float32, Float16}) {
      const NetOnCard u{.net = net, .steps = 9, .batch = 8, .in = 128, .hidden = 128, .layers = 2};
      SCOPED_TRACE(u.text());
      const Tensors in = moved(net_inputs(u, dtype, generator), dtype), seeds = moved(seeds_of(u, dtype), dtype);
      const Passes want = both_passes(u, in, seeds);
      Passes got;
      DeviceGraph graph;
      graph.capture(card(), [&] { got = both_passes(u, in, seeds); });
      for (Tensor& t : got.gradients) t.zero_();
      graph.replay();
      for (size_t i = 0; i < want.results.size(); ++i)
        EXPECT_LE(error(got.results[i], want.results[i].to(cpu()).to(Float64)), 1e-3) << "result " << i;
      for (size_t i = 0; i < want.gradients.size(); ++i)
        EXPECT_LE(error(got.gradients[i], want.gradients[i].to(cpu()).to(Float64)), 1e-3) << "gradient " << i;
    }
}

template <class Make>
void expect_modules_agree(const Make& make) {
  Generator a(5), b(5), g(6);
  auto here = make(a), there = make(b);
  here.to(Float64);
  there.to(card());
  const Tensor x = normal64({4, 6, 7}, g).to(Float32).to(Float64);
  const auto passes = [](const nn::Module& module, const Tensor& x) {
    const Tensors out = module(Tensors{x});
    Tensor loss = sum(mul(out[0], out[0]));
    for (size_t i = 1; i < out.size(); ++i) loss = add(loss, sum(out[i]));
    loss.backward();
    return out;
  };
  const Tensors want = passes(here, x), got = passes(there, x.to(Float32).to(card()));
  const auto error = [](const Tensor& got, const Tensor& want) {
    return relative_error(got.detach().to(cpu()).to(Float64), want.detach());
  };
  for (size_t i = 0; i < want.size(); ++i) EXPECT_LE(error(got[i], want[i]), 1e-5) << "result " << i;
  const auto wanted = here.named_parameters(), found = there.named_parameters();
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_LE(error(found[i].second.grad(), wanted[i].second.grad()), 4e-5) << wanted[i].first;
}

TEST_F(GpuRecurrent, Modules) {
  nn::RecurrentConfig c{.in = 7, .hidden = 9, .layers = 2, .bidirectional = true};
  for (const bool batch_first : {false, true}) {
    c.batch_first = batch_first;
    expect_modules_agree([&](Generator& g) { return nn::RNN(c, batch_first, g); });
    expect_modules_agree([&](Generator& g) { return nn::GRU(c, g); });
    expect_modules_agree([&](Generator& g) { return nn::LSTM(c, g); });
  }
}

// What is launched for a net, by operator and kernel.
struct LaunchNames : Observer {
  std::vector<std::string> seen;
  void launched(const LaunchSeen& l) override { seen.push_back(fmt::format("{}:{}", l.op, l.kernel)); }
  bool has(const std::string& launch) const { return std::find(seen.begin(), seen.end(), launch) != seen.end(); }
};

TEST_F(GpuRecurrent, VendorsNetsTakeWhatTheyCan) {
  const char* vendor = std::getenv("TESSERA_VENDOR");
  if (card().type != DeviceType::CUDA || (vendor && std::string_view(vendor) == "off")) GTEST_SKIP() << "by choice";
  const auto launches = [&](const NetOnCard& u, DType dtype) {
    LaunchNames all;
    const Observing guard(all);
    run_layers_of(u, moved(net_inputs(u, Float32, generator), dtype));
    return all;
  };
  if (!launches({}, Float32).has("recurrent_net:vendor")) GTEST_SKIP() << "without cuDNN";
  for (const DType dtype : {Float32, Float16, BFloat16})
    EXPECT_TRUE(launches({.layers = 2, .direction = Direction::Both}, dtype).has("recurrent_net:vendor"));
  EXPECT_FALSE(launches({}, Float64).has("recurrent_net:vendor"));
  EXPECT_FALSE(launches({.direction = Direction::Reverse}, Float32).has("recurrent_net:vendor"));
  EXPECT_FALSE(launches({.steps = 1}, Float32).has("recurrent_net:vendor"));
}

}  // namespace
}  // namespace tessera
