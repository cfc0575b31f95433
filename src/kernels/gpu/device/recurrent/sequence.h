// A recurrent layer in one direction as one kernel on Hopper. The blocks of a cluster share the hidden units; each
// holds its rows of the weight in shared memory throughout. A cluster takes a few sequences. After a step a block sends
// what it found to all blocks, where messages count for a barrier: nothing else is waited for.
#pragma once
#include "kernels/gpu/device/runtime/gpu.h"
#include "tile/arch/sm90/ptx.h"
#include "tile/kernels/recurrent.h"

namespace tessera::gpu_kernels {

inline constexpr int sequence_threads = 256;
inline constexpr int forward_rows = 4, backward_rows = 2;  // of the weight, that a thread takes at once
inline constexpr int most_sequence_blocks = 8;

/// How a step's products are divided: `rows` of the weight, of `length` elements, each found by `lanes` neighbouring
/// threads, of which one takes every lanes-th group of four elements.
struct SequencePlan {
  int blocks, units;  // of the cluster, and hidden units of a block
  int rows, length, lanes, groups;
  int pitch, stride;  // elements between vectors, and between rows of the weight
  int weight_bytes, shared_bytes;
};

/// 4 gates' gradients are sent together; those of three with a zero.
template <CellKind kind>
struct CellSizes {
  static constexpr int gates = kind == CellKind::lstm ? 4 : kind == CellKind::gru ? 3 : 1;
  static constexpr int kept = kind == CellKind::rnn ? 0 : 4;
  static constexpr int sent = kind == CellKind::rnn ? 1 : 4;
};

/// The same 4 bytes, or 16, to this place in block `rank` of the cluster, where they count for the barrier.
TESSERA_DEVICE void send_float(u32 shared, float x, u32 barrier, u32 rank) {
  asm volatile(
      "{\n.reg .b32 to, at;\nmapa.shared::cluster.u32 to, %0, %3;\nmapa.shared::cluster.u32 at, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %1, [at];\n}" ::"r"(shared),
      "r"(__float_as_uint(x)), "r"(barrier), "r"(rank)
      : "memory");
}
TESSERA_DEVICE void send_four(u32 shared, const float (&x)[4], u32 barrier, u32 rank) {
  asm volatile(
      "{\n.reg .b32 to, at;\nmapa.shared::cluster.u32 to, %0, %6;\nmapa.shared::cluster.u32 at, %5, %6;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [to], {%1, %2, %3, %4}, [at];\n}" ::"r"(shared),
      "r"(__float_as_uint(x[0])), "r"(__float_as_uint(x[1])), "r"(__float_as_uint(x[2])), "r"(__float_as_uint(x[3])),
      "r"(barrier), "r"(rank)
      : "memory");
}

template <class T>
TESSERA_DEVICE float to_float(T x) {
  return static_cast<float>(x);
}
template <class T>
TESSERA_DEVICE void load_four(const T* p, float (&to)[4]) {
  struct alignas(4 * sizeof(T)) Four {
    T at[4];
  };
  const Four four = *reinterpret_cast<const Four*>(p);
  for (int i = 0; i < 4; ++i) to[i] = to_float(four.at[i]);
}

/// What both passes share: places in shared memory, messages, products.
template <class T, int BT, int rows_of_thread>
class SequenceBlock {
 public:
  TESSERA_DEVICE SequenceBlock(const SequencePlan& plan, char* shared)
      : plan_(plan),
        thread_(tile::thread_in_block()),
        weights_(reinterpret_cast<T*>(shared)),
        vectors_(reinterpret_cast<float*>(shared + plan.weight_bytes)),
        sums_(vectors_ + 2 * BT * plan.pitch),
        barriers_(tile::sm90::shared_address(sums_ + BT * plan.rows)) {
    if (thread_ == 0) {
      tile::sm90::mbarrier_init(barriers_, 1);
      tile::sm90::mbarrier_init(barriers_ + 8, 1);
      tile::sm90::fence_mbarrier_init();
    }
    for (int i = thread_; i < 2 * BT * plan.pitch; i += sequence_threads) vectors_[i] = 0;
  }

  TESSERA_DEVICE T* weights() { return weights_; }
  TESSERA_DEVICE float* vector(int which, int b) { return vectors_ + (which * BT + b) * plan_.pitch; }
  TESSERA_DEVICE float sum(int row, int b) const { return sums_[b * plan_.rows + row]; }

  /// Waits for the bytes that step `step`, 1 or later, takes.
  TESSERA_DEVICE void receive(i64 step, u32 bytes) {
    const u32 barrier = barriers_ + 8 * (step & 1);
    if (thread_ == 0) tile::sm90::mbarrier_arrive_expect_tx(barrier, bytes);
    tile::sm90::mbarrier_wait(barrier, static_cast<u32>((step - 1) >> 1 & 1));
  }
  /// To all blocks, for that step.
  TESSERA_DEVICE void send(i64 step, int at, int b, float x) {
    const u32 to = tile::sm90::shared_address(vector(step & 1, b) + at);
    for (int rank = 0; rank < plan_.blocks; ++rank) send_float(to, x, barriers_ + 8 * (step & 1), rank);
  }
  TESSERA_DEVICE void send(i64 step, int at, int b, const float (&x)[4]) {
    const u32 to = tile::sm90::shared_address(vector(step & 1, b) + at);
    for (int rank = 0; rank < plan_.blocks; ++rank) send_four(to, x, barriers_ + 8 * (step & 1), rank);
  }

  /// All rows of the weight times the vectors of that step. Then every thread may ask for sums.
  TESSERA_DEVICE void multiply(i64 step) {
    const int lane = thread_ & (plan_.lanes - 1), first = thread_ / plan_.lanes;
    const int at_once = sequence_threads / plan_.lanes;
    for (int group = first; group - first < plan_.groups; group += at_once) {
      float acc[rows_of_thread][BT] = {};
      if (group < plan_.groups) accumulate(step & 1, group, lane, acc);
      for (int i = 0; i < rows_of_thread; ++i)
        for (int b = 0; b < BT; ++b) {
          for (int o = plan_.lanes / 2; o > 0; o /= 2) acc[i][b] += __shfl_xor_sync(~0u, acc[i][b], o);
          if (lane == 0 && group < plan_.groups) sums_[b * plan_.rows + group + i * plan_.groups] = acc[i][b];
        }
    }
    tile::sync_block();
  }

 private:
  TESSERA_DEVICE void accumulate(int which, int group, int lane, float (&acc)[rows_of_thread][BT]) {
    const T* row = weights_ + group * plan_.stride;
    for (int k = 4 * lane; k < plan_.length; k += 4 * plan_.lanes) {
      float v[BT][4];
#pragma unroll
      for (int b = 0; b < BT; ++b) load_four(vector(which, b) + k, v[b]);
#pragma unroll
      for (int i = 0; i < rows_of_thread; ++i) {
        float w[4];
        load_four(row + i * plan_.groups * plan_.stride + k, w);
#pragma unroll
        for (int b = 0; b < BT; ++b)
#pragma unroll
          for (int j = 0; j < 4; ++j) acc[i][b] = __builtin_fmaf(w[j], v[b][j], acc[i][b]);
      }
    }
  }

  const SequencePlan& plan_;
  int thread_;
  T* weights_;
  float *vectors_, *sums_;
  u32 barriers_;
};

/// What a thread has of the state: one hidden unit of one sequence.
struct SequenceUnit {
  bool valid;
  int local, unit, b;
  i64 row;  // of the batch
  TESSERA_DEVICE SequenceUnit(const SequencePlan& plan, const SequenceShape& shape, int rank, i64 first_row, int rows) {
    const int thread = tile::thread_in_block();
    local = thread % plan.units;
    b = thread / plan.units;
    unit = rank * plan.units + local;
    row = first_row + b;
    valid = b < rows && unit < shape.hidden;
  }
};

template <class T, CellKind kind, int BT>
TESSERA_KERNEL(sequence_threads)
void sequence_kernel(const __grid_constant__ SequenceArgs a, const __grid_constant__ SequencePlan plan) {
  constexpr int G = CellSizes<kind>::gates;
  extern __shared__ __attribute__((aligned(16))) char shared[];
  const SequenceShape& s = a.shape;
  const int rank = static_cast<int>(tile::block_in_grid() % plan.blocks), h = static_cast<int>(s.hidden);
  const i64 first_row = tile::block_in_grid() / plan.blocks * BT;
  const int rows = static_cast<int>(tile::min<i64>(BT, s.batch - first_row));
  const auto* x = static_cast<const T*>(a.x);
  const auto* weight = static_cast<const T*>(a.weight);
  const auto* bias = static_cast<const T*>(a.bias);
  auto* output = static_cast<T*>(a.output);

  tile::sm90::wait_on_dependent_grids();
  SequenceBlock<T, BT, forward_rows> block(plan, shared);
  for (int i = tile::thread_in_block(); i < plan.rows * plan.stride; i += sequence_threads) {
    const int row = i / plan.stride, k = i - row * plan.stride, gate = row / plan.units;
    const int unit = rank * plan.units + row - gate * plan.units;
    block.weights()[i] = gate < G && unit < h && k < h ? weight[(static_cast<i64>(gate) * h + unit) * h + k] : T(0.f);
  }
  tile::sync_block();
  for (int i = tile::thread_in_block(); i < rows * h; i += sequence_threads)
    block.vector(0, i / h)[i % h] = to_float(static_cast<const T*>(a.hidden)[first_row * h + i]);

  const SequenceUnit mine(plan, s, rank, first_row, rows);
  const i64 state_at = mine.row * h + mine.unit, step_size = s.batch * h;
  float cell = 0, before = 0, in[G] = {}, of_bias[G] = {};
  const auto time = [&](i64 i) { return s.reverse ? s.steps - 1 - i : i; };
  const auto fetch = [&](i64 i) {
    const T* from = x + (time(i) * s.batch + mine.row) * G * h + mine.unit;
    for (int g = 0; g < G; ++g) in[g] = to_float(from[static_cast<i64>(g) * h]);
  };
  if (mine.valid) {
    before = to_float(static_cast<const T*>(a.hidden)[state_at]);
    if constexpr (kind == CellKind::lstm) cell = to_float(static_cast<const T*>(a.cell)[state_at]);
    for (int g = 0; g < G && bias; ++g) of_bias[g] = to_float(bias[g * h + mine.unit]);
    fetch(0);
  }
  tile::sm90::cluster_sync();

  const u32 bytes = static_cast<u32>(4 * rows * h);
  for (i64 i = 0; i < s.steps; ++i) {
    if (i > 0) block.receive(i, bytes);
    else tile::sync_block();
    block.multiply(i);
    if (!mine.valid) continue;
    const i64 t = time(i), at = t * step_size + state_at;
    const auto product = [&](int g) { return block.sum(g * plan.units + mine.local, mine.b) + of_bias[g]; };
    T* kept = a.gates ? static_cast<T*>(a.gates) + (t * s.batch + mine.row) * 4 * h + mine.unit : nullptr;
    float state;
    if constexpr (kind == CellKind::lstm) {
      tile::LstmGates<float> g{in[0] + product(0), in[1] + product(1), in[2] + product(2), in[3] + product(3)};
      cell = tile::lstm_cell(g, cell, state);
      if (kept) kept[0] = T(g.input), kept[h] = T(g.output), kept[2 * h] = T(g.forget), kept[3 * h] = T(g.cell);
      if (a.cells) static_cast<T*>(a.cells)[at] = T(cell);
    } else if constexpr (kind == CellKind::gru) {
      tile::GruGates<float> g{in[0] + product(0), in[1] + product(1), in[2], product(2)};
      state = tile::gru_cell(g, before);
      if (kept) kept[0] = T(g.update), kept[h] = T(g.reset), kept[2 * h] = T(g.candidate), kept[3 * h] = T(g.product);
    } else {
      const float sum = in[0] + product(0);
      state = s.relu ? (sum > 0 ? sum : 0.f) : tile::tanh(sum);
    }
    const T rounded = T(state);
    before = to_float(rounded);
    if (i + 1 < s.steps) {
      block.send(i + 1, mine.unit, mine.b, before);
      fetch(i + 1);
    }
    output[at] = rounded;
  }
  if (kind == CellKind::lstm && mine.valid) static_cast<T*>(a.last_cell)[state_at] = T(cell);
}

// Element `sent * unit + gate` of a vector is the gradient of what went into that gate, of the product's part.
template <class T, CellKind kind, int BT>
TESSERA_KERNEL(sequence_threads)
void sequence_backward_kernel(const __grid_constant__ SequenceBackwardArgs a,
                              const __grid_constant__ SequencePlan plan) {
  constexpr int G = CellSizes<kind>::gates, S = CellSizes<kind>::sent;
  extern __shared__ __attribute__((aligned(16))) char shared[];
  const SequenceShape& s = a.shape;
  const int rank = static_cast<int>(tile::block_in_grid() % plan.blocks), h = static_cast<int>(s.hidden);
  const i64 first_row = tile::block_in_grid() / plan.blocks * BT;
  const int rows = static_cast<int>(tile::min<i64>(BT, s.batch - first_row));
  const auto* weight = static_cast<const T*>(a.weight);

  tile::sm90::wait_on_dependent_grids();
  SequenceBlock<T, BT, backward_rows> block(plan, shared);
  for (int i = tile::thread_in_block(); i < plan.rows * plan.stride; i += sequence_threads) {
    const int k = i / plan.rows, row = i - k * plan.rows, gate = k % S, from = k / S;  // neighbours are in one row of R
    const int unit = rank * plan.units + row;
    const bool is_there = gate < G && from < h && row < plan.units && unit < h;
    block.weights()[row * plan.stride + k] = is_there ? weight[(static_cast<i64>(gate) * h + from) * h + unit] : T(0.f);
  }
  const SequenceUnit mine(plan, s, rank, first_row, rows);
  const i64 state_at = mine.row * h + mine.unit, step_size = s.batch * h;
  const auto time = [&](i64 i) { return s.reverse ? i : s.steps - 1 - i; };  // of the i-th that goes
  const auto at = [](const void* p, i64 i) { return to_float(static_cast<const T*>(p)[i]); };
  float dcell = mine.valid && a.dlast_cell ? at(a.dlast_cell, state_at) : 0, direct = 0;
  // What the next step reads.
  float kept[4] = {}, cell = 0, before = 0, out = 0, dout = 0;
  const auto fetch = [&](i64 i) {
    const i64 t = time(i), here = t * step_size + state_at;
    const bool first = i + 1 == s.steps;  // the first step of the layer
    const i64 there = first ? 0 : time(i + 1) * step_size + state_at;
    dout = a.doutput ? at(a.doutput, here) : 0;
    if constexpr (kind == CellKind::rnn) {
      out = at(a.output, here);
    } else {
      const i64 gates = (t * s.batch + mine.row) * 4 * h + mine.unit;
      for (int g = 0; g < 4; ++g) kept[g] = at(a.gates, gates + static_cast<i64>(g) * h);
    }
    if constexpr (kind == CellKind::lstm) {
      cell = at(a.cells, here);
      before = first ? at(a.cell, state_at) : at(a.cells, there);
    }
    if constexpr (kind == CellKind::gru) before = first ? at(a.hidden, state_at) : at(a.output, there);
  };
  if (mine.valid) fetch(0);
  tile::sync_block();
  tile::sm90::cluster_sync();

  const u32 bytes = static_cast<u32>(4 * S * rows * h);
  for (i64 i = 0; i <= s.steps; ++i) {
    if (i > 0) {
      block.receive(i, bytes);
      block.multiply(i);
    }
    if (!mine.valid) continue;
    const float through = direct + (i > 0 ? block.sum(mine.local, mine.b) : 0.f);
    if (i == s.steps) {
      static_cast<T*>(a.dhidden)[state_at] = T(through);
      if (a.dcell) static_cast<T*>(a.dcell)[state_at] = T(dcell);
      continue;
    }
    const i64 t = time(i);
    T* dx = static_cast<T*>(a.dx) + (t * s.batch + mine.row) * G * h + mine.unit;
    const float dhidden = dout + through;
    if constexpr (kind == CellKind::rnn) {
      const T d = T(s.relu ? (out > 0 ? dhidden : 0.f) : dhidden * (1 - out * out));
      block.send(i + 1, mine.unit, mine.b, to_float(d));
      *dx = d;
    } else {
      T d[4];
      float sent[4];
      if constexpr (kind == CellKind::lstm) {
        const tile::LstmGates<float> g{kept[0], kept[1], kept[2], kept[3]};
        const auto r = tile::lstm_cell_gradient(g, cell, before, dhidden, dcell);
        d[0] = T(r.input), d[1] = T(r.output), d[2] = T(r.forget), d[3] = T(r.cell);
        for (int g = 0; g < 4; ++g) sent[g] = to_float(d[g]);
      } else {
        const tile::GruGates<float> g{kept[0], kept[1], kept[2], kept[3]};
        const auto r = tile::gru_cell_gradient(g, before, dhidden);
        direct = dhidden * g.update;
        d[0] = T(r.update), d[1] = T(r.reset), d[2] = T(r.candidate), d[3] = T(r.product);
        sent[0] = to_float(d[0]), sent[1] = to_float(d[1]), sent[2] = to_float(d[3]), sent[3] = 0;
      }
      block.send(i + 1, S * mine.unit, mine.b, sent);
      for (int g = 0; g < G; ++g) dx[static_cast<i64>(g) * h] = d[g];
      if constexpr (kind == CellKind::gru) {
        T* dproduct = static_cast<T*>(a.dproduct) + (t * s.batch + mine.row) * 3 * h + mine.unit;
        dproduct[0] = d[0], dproduct[h] = d[1], dproduct[2 * static_cast<i64>(h)] = d[3];
      }
    }
    if (i + 1 < s.steps) fetch(i + 1);
  }
}

}  // namespace tessera::gpu_kernels
