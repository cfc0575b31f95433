// How layers of recurrent nets are launched by sequence.h.
#pragma once
#include "kernels/gpu/device/runtime/launch_early.h"
#include "kernels/gpu/device/runtime/tensor_map.h"
#include "sequence.h"

namespace tessera::gpu_kernels {

template <class T, CellKind kind, int BT, class Args>
TESSERA_KERNEL(sequence_threads)
void sequence_kernel(const __grid_constant__ Args args, const __grid_constant__ SequencePlan plan) {
  extern __shared__ __attribute__((aligned(16))) char shared[];
  run_sequence<T, kind, BT>(args, plan, shared);
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
