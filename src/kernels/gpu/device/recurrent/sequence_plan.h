// How layers of recurrent nets are cut for sequence.h.
#pragma once
#include "kernels/gpu/device/runtime/launch_early.h"
#include "kernels/gpu/device/runtime/tensor_map.h"
#include "sequence.h"

namespace tessera::gpu_kernels {

/// With so many blocks to a cluster; what does not fit needs more shared memory than there is.
inline SequencePlan sequence_plan(const SequenceShape& s, bool backward, int blocks, int sequences) {
  const auto rounded = [](long long n, int unit) { return static_cast<int>(tile::ceil_div<i64>(n, unit) * unit); };
  const int gates = s.cell == CellKind::lstm ? 4 : s.cell == CellKind::gru ? 3 : 1;
  const int sent = s.cell == CellKind::rnn ? 1 : 4, size = size_of(s.type);
  SequencePlan p{};
  p.blocks = blocks;
  p.units = static_cast<int>(tile::ceil_div<i64>(s.hidden, blocks));
  p.rows = rounded(backward ? p.units : gates * p.units, 4);
  p.groups = p.rows / (backward ? backward_rows : forward_rows);
  p.length = p.pitch = rounded(backward ? sent * s.hidden : s.hidden, 4);
  p.lanes = 1;
  while (p.lanes < 32 && p.groups * p.lanes * 2 <= sequence_threads && 8 * p.lanes <= p.length) p.lanes *= 2;
  const int line = 128 / size;  // elements of all banks: neighbouring groups of lanes read from others
  p.stride = p.length;
  while (4 * p.lanes < line && p.stride % line != 4 * p.lanes) p.stride += 4;
  p.weight_bytes = rounded(static_cast<long long>(p.rows) * p.stride * size, 16);
  p.shared_bytes = p.weight_bytes + 4 * sequences * (2 * p.pitch + p.rows) + 16;
  return p;
}

/// As few blocks as have 16 units each, or as hold the weight; without a block where none do.
inline SequencePlan sequence_plan(const SequenceShape& s, bool backward, int sequences) {
  constexpr int most_shared = 227 << 10;
  for (int blocks = 1; blocks <= most_sequence_blocks; blocks *= 2) {
    if (blocks * 16 < s.hidden && blocks < most_sequence_blocks) continue;
    const SequencePlan plan = sequence_plan(s, backward, blocks, sequences);
    if (plan.shared_bytes <= most_shared && plan.units * sequences <= sequence_threads) return plan;
  }
  return {};
}

/// fn(constant<1, 2 or 4>) of the sequences that a cluster takes: as few as let all clusters run at once.
template <class Fn>
void with_sequences(const SequenceShape& s, const Executor& executor, const Fn& fn) {
  const int blocks = sequence_plan(s, false, 1).blocks;
  const auto are_enough = [&](int n) {
    return tile::ceil_div<i64>(s.batch, n) * blocks <= executor.multiprocessors ||
           sequence_plan(s, false, 2 * n).blocks == 0 || sequence_plan(s, true, 2 * n).blocks == 0;
  };
  if (are_enough(1)) return fn(std::integral_constant<int, 1>{});
  if (are_enough(2)) return fn(std::integral_constant<int, 2>{});
  fn(std::integral_constant<int, 4>{});
}

template <class Fn>
void with_sequence_type(Scalar type, const Fn& fn) {
  if (type == Scalar::f32) return fn(Type<float>{});
  if (type == Scalar::f16) return fn(Type<f16>{});
  fn(Type<bf16>{});
}

template <int sequences, class Args>
void launch_sequences(const char* what, void (*kernel)(Args, SequencePlan), const Args& args, bool backward,
                      Executor& executor) {
  const SequencePlan plan = sequence_plan(args.shape, backward, sequences);
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes);
  const i64 clusters = tile::ceil_div<i64>(args.shape.batch, sequences);
  launch_early(what, kernel, clusters * plan.blocks, sequence_threads, static_cast<size_t>(plan.shared_bytes),
               plan.blocks, executor, args, plan);
}

}  // namespace tessera::gpu_kernels
