// The kernels that run a layer of a recurrent net as one, thread by thread and block by block of a cluster on the host,
// and compared with float64: every kind of cell, both directions of time, odd sizes, sequences that a cluster lacks.
#define TESSERA_SIMULATED_GPU "../../../../tests/gpu/simulated_cluster.h"
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#define TESSERA_GPU_KERNELS
#include "kernels/gpu/device/recurrent/sequence.h"

using namespace tessera::gpu_kernels;
using tessera::tile::f16;
using tessera::tile::i64;

namespace {

struct LayerSize {
  int steps, batch, hidden, blocks;  // blocks: of a cluster; 0: as the plan has it
  bool reverse = false, relu = false;
};

double number(float x) { return x; }
double number(f16 x) { return static_cast<float>(x); }
double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

template <class T>
double distance(const std::vector<T>& got, const std::vector<double>& want) {
  double off = 0, all = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = number(got[i]) - want[i];
    if (!std::isfinite(d)) return INFINITY;
    off += d * d;
    all += want[i] * want[i];
  }
  return std::sqrt(off / std::max(all, 1e-30));
}

template <class T, CellKind kind>
struct SimulatedLayer {
  static constexpr int G = CellSizes<kind>::gates;
  static constexpr bool gru = kind == CellKind::gru, lstm = kind == CellKind::lstm;
  LayerSize size;
  int B, H;
  std::mt19937 rng{7};
  std::vector<T> x, weight, bias, hidden, cell, output, last, cells, gates;  // of the kernel
  std::vector<double> want, want_cells, want_gates;

  explicit SimulatedLayer(const LayerSize& s) : size(s), B(s.batch), H(s.hidden) {
    const size_t states = static_cast<size_t>(s.steps) * B * H, row = static_cast<size_t>(B) * H;
    x = drawn(states * G, 1);
    weight = drawn(static_cast<size_t>(G) * H * H, 1 / std::sqrt(H));
    bias = drawn(static_cast<size_t>(G) * H, 1);
    hidden = drawn(row, 1);
    cell = drawn(row, 1);
    output.resize(states), last.resize(row), cells.resize(states), gates.resize(4 * states);
    want.resize(states), want_cells.resize(states), want_gates.resize(4 * states);
  }
  std::vector<T> drawn(size_t n, double scale) {
    std::uniform_real_distribution<float> draw(static_cast<float>(-scale), static_cast<float>(scale));
    std::vector<T> v(n);
    for (T& e : v) e = T(draw(rng));
    return v;
  }
  SequenceShape shape() const {
    const Scalar type = sizeof(T) == 4 ? Scalar::f32 : Scalar::f16;
    return {size.steps, size.batch, size.hidden, type, kind, size.reverse, size.relu};
  }
  int time(int i) const { return size.reverse ? size.steps - 1 - i : i; }
  size_t at(int t, int b, int u) const { return (static_cast<size_t>(t) * B + b) * H + u; }
  size_t gate_at(int gates, int t, int b, int g, int u) const {
    return ((static_cast<size_t>(t) * B + b) * gates + g) * H + u;
  }

  template <int BT, class Args>
  void run(const Args& args, bool backward) {
    const SequencePlan plan =
        size.blocks ? sequence_plan(shape(), backward, size.blocks, BT) : sequence_plan(shape(), backward, BT);
    ASSERT_GT(plan.blocks, 0);
    for (i64 first = 0; first * BT < B; ++first) {
      simulated::Cluster cluster(plan.blocks, static_cast<size_t>(plan.shared_bytes));
      simulated::cluster = &cluster;
      simulated::run_block(
          first * plan.blocks, sequence_threads,
          [&] { run_sequence<T, kind, BT>(args, plan, cluster.shared(simulated::block->rank())); }, plan.blocks);
      EXPECT_TRUE(cluster.is_whole_outside());
    }
  }

  template <int BT>
  void forward() {
    SequenceArgs a{};
    a.shape = shape();
    a.x = x.data(), a.weight = weight.data(), a.hidden = hidden.data(), a.cell = cell.data();
    a.bias = gru ? bias.data() : nullptr;
    a.output = output.data(), a.last_cell = last.data();
    a.cells = lstm ? cells.data() : nullptr;
    a.gates = kind == CellKind::rnn ? nullptr : gates.data();
    run<BT>(a, false);
    for (int i = 0; i < size.steps; ++i)
      for (int b = 0; b < B; ++b)
        for (int u = 0; u < H; ++u) step(i, b, u);
  }
  // One unit of a step in float64.
  void step(int i, int b, int u) {
    const int t = time(i);
    const auto before = [&](const std::vector<T>& first, const std::vector<double>& all, int k) {
      return i == 0 ? number(first[static_cast<size_t>(b) * H + k]) : all[at(time(i - 1), b, k)];
    };
    double in[4], product[4];
    for (int g = 0; g < G; ++g) {
      in[g] = number(x[gate_at(G, t, b, g, u)]);
      product[g] = gru ? number(bias[static_cast<size_t>(g) * H + u]) : 0;
      for (int k = 0; k < H; ++k)
        product[g] += number(weight[(static_cast<size_t>(g) * H + u) * H + k]) * before(hidden, want, k);
    }
    double made[4] = {}, y;
    if (lstm) {
      for (int g = 0; g < 3; ++g) made[g] = sigmoid_of(in[g] + product[g]);
      made[3] = std::tanh(in[3] + product[3]);
      const double c = made[2] * before(cell, want_cells, u) + made[0] * made[3];
      want_cells[at(t, b, u)] = c;
      y = made[1] * std::tanh(c);
    } else if (gru) {
      for (int g = 0; g < 2; ++g) made[g] = sigmoid_of(in[g] + product[g]);
      made[3] = product[2];
      made[2] = std::tanh(in[2] + made[1] * made[3]);
      y = made[2] + made[0] * (before(hidden, want, u) - made[2]);
    } else {
      y = size.relu ? std::max(0.0, in[0] + product[0]) : std::tanh(in[0] + product[0]);
    }
    want[at(t, b, u)] = y;
    for (int g = 0; g < 4; ++g) want_gates[gate_at(4, t, b, g, u)] = made[g];
  }

  // From what the forward pass gave, as the kernel does.
  template <int BT>
  void backward(double limit) {
    const std::vector<T> doutput = drawn(output.size(), 1), dlast = drawn(hidden.size(), 1);
    std::vector<T> dx(x.size()), dproduct(x.size()), dhidden(hidden.size()), dcell(hidden.size());
    SequenceBackwardArgs a{};
    a.shape = shape();
    a.weight = weight.data(), a.hidden = hidden.data(), a.cell = cell.data(), a.output = output.data();
    a.cells = cells.data(), a.gates = gates.data(), a.doutput = doutput.data();
    a.dlast_cell = lstm ? dlast.data() : nullptr;
    a.dx = dx.data(), a.dproduct = gru ? dproduct.data() : nullptr, a.dhidden = dhidden.data();
    a.dcell = lstm ? dcell.data() : nullptr;
    run<BT>(a, true);

    std::vector<double> want_dx(x.size()), want_dproduct(x.size()), dh(hidden.size()), dc(hidden.size());
    for (size_t i = 0; lstm && i < dc.size(); ++i) dc[i] = number(dlast[i]);
    for (int i = size.steps - 1; i >= 0; --i)
      for (int b = 0; b < B; ++b) {
        for (int u = 0; u < H; ++u) cell_gradient(i, b, u, doutput, dh, dc, want_dx, want_dproduct);
        for (int u = 0; u < H; ++u)
          for (int g = 0; g < G; ++g)
            for (int k = 0; k < H; ++k)
              dh[static_cast<size_t>(b) * H + u] += want_dproduct[gate_at(G, time(i), b, g, k)] *
                                                    number(weight[(static_cast<size_t>(g) * H + k) * H + u]);
      }
    EXPECT_LE(distance(dx, want_dx), limit);
    EXPECT_LE(distance(dhidden, dh), limit);
    if (gru) {
      EXPECT_LE(distance(dproduct, want_dproduct), limit);
    }
    if (lstm) {
      EXPECT_LE(distance(dcell, dc), limit);
    }
  }
  // dh and dc: of what is behind this step; then of what is before it, without what comes through the product.
  void cell_gradient(int i, int b, int u, const std::vector<T>& doutput, std::vector<double>& dh,
                     std::vector<double>& dc, std::vector<double>& dx, std::vector<double>& dproduct) const {
    const int t = time(i);
    const size_t state = static_cast<size_t>(b) * H + u;
    const auto gate = [&](int g) { return number(gates[gate_at(4, t, b, g, u)]); };
    const auto before = [&](const std::vector<T>& first, const std::vector<T>& all) {
      return number(i == 0 ? first[state] : all[at(time(i - 1), b, u)]);
    };
    const double d = number(doutput[at(t, b, u)]) + dh[state], y = number(output[at(t, b, u)]);
    double of_gate[4] = {}, of_product[4] = {};
    dh[state] = 0;
    if (lstm) {
      const double c = std::tanh(number(cells[at(t, b, u)]));
      const double of_cell = dc[state] + d * gate(1) * (1 - c * c);
      of_gate[0] = of_cell * gate(3) * gate(0) * (1 - gate(0));
      of_gate[1] = d * c * gate(1) * (1 - gate(1));
      of_gate[2] = of_cell * before(cell, cells) * gate(2) * (1 - gate(2));
      of_gate[3] = of_cell * gate(0) * (1 - gate(3) * gate(3));
      dc[state] = of_cell * gate(2);
    } else if (gru) {
      const double of_candidate = d * (1 - gate(0)) * (1 - gate(2) * gate(2));
      of_gate[0] = d * (before(hidden, output) - gate(2)) * gate(0) * (1 - gate(0));
      of_gate[1] = of_candidate * gate(3) * gate(1) * (1 - gate(1));
      of_gate[2] = of_candidate;
      dh[state] = d * gate(0);
    } else {
      of_gate[0] = size.relu ? (y > 0 ? d : 0) : d * (1 - y * y);
    }
    std::copy(of_gate, of_gate + 4, of_product);
    if (gru) of_product[2] = of_gate[2] * gate(1);
    for (int g = 0; g < G; ++g) {
      dx[gate_at(G, t, b, g, u)] = of_gate[g];
      dproduct[gate_at(G, t, b, g, u)] = of_product[g];
    }
  }
};

template <class T, CellKind kind, int BT>
void expect_as_in_float64(const LayerSize& size) {
  SCOPED_TRACE(testing::Message() << "cell " << static_cast<int>(kind) << ", " << BT << " sequences, " << size.steps
                                  << "x" << size.batch << "x" << size.hidden);
  const double limit = sizeof(T) == 4 ? 1e-6 : 2e-3;
  SimulatedLayer<T, kind> layer(size);
  layer.template forward<BT>();
  EXPECT_LE(distance(layer.output, layer.want), limit);
  if (kind != CellKind::rnn) {
    EXPECT_LE(distance(layer.gates, layer.want_gates), limit);
  }
  if (kind == CellKind::lstm) {
    EXPECT_LE(distance(layer.cells, layer.want_cells), limit);
  }
  layer.template backward<BT>(limit);
}

template <class T, CellKind kind>
void expect_of_every_size() {
  expect_as_in_float64<T, kind, 1>({2, 1, 1, 0});
  expect_as_in_float64<T, kind, 1>({3, 2, 5, 0});
  expect_as_in_float64<T, kind, 1>({3, 1, 9, 8, true});  // blocks without a unit
  expect_as_in_float64<T, kind, 2>({4, 3, 17, 2, true});
  expect_as_in_float64<T, kind, 4>({5, 5, 40, 0, false, true});
  expect_as_in_float64<T, kind, 1>({3, 1, 128, 0});
  expect_as_in_float64<T, kind, 2>({3, 2, 131, 4});
}

TEST(SequenceBlocks, Lstm) {
  if (!can_simulate) GTEST_SKIP();
  expect_of_every_size<float, CellKind::lstm>();
  expect_of_every_size<f16, CellKind::lstm>();
}
TEST(SequenceBlocks, GatedUnits) {
  if (!can_simulate) GTEST_SKIP();
  expect_of_every_size<float, CellKind::gru>();
  expect_of_every_size<f16, CellKind::gru>();
}
TEST(SequenceBlocks, WithoutGates) {
  if (!can_simulate) GTEST_SKIP();
  expect_of_every_size<float, CellKind::rnn>();
  expect_of_every_size<f16, CellKind::rnn>();
}

TEST(SequenceBlocks, PlansFitIntoABlock) {
  for (const CellKind cell : {CellKind::rnn, CellKind::gru, CellKind::lstm})
    for (const Scalar type : {Scalar::f32, Scalar::f16})
      for (const bool backward : {false, true})
        for (int hidden = 1; hidden < 700; hidden += 13)
          for (const int sequences : {1, 2, 4}) {
            const SequencePlan p = sequence_plan({9, 9, hidden, type, cell, false, false}, backward, sequences);
            if (p.blocks == 0) continue;
            EXPECT_GE(p.blocks * p.units, hidden);
            EXPECT_LE(p.shared_bytes, 227 << 10);
            EXPECT_LE(p.units * sequences, sequence_threads);
            EXPECT_LE(p.lanes, 32);
            EXPECT_EQ(p.stride % 4, 0);
          }
  EXPECT_GT(sequence_plan({9, 9, 256, Scalar::f32, CellKind::lstm, false, false}, false, 1).blocks, 0);
  EXPECT_EQ(sequence_plan({9, 9, 1000, Scalar::f32, CellKind::lstm, false, false}, false, 1).blocks, 0);
}

}  // namespace
