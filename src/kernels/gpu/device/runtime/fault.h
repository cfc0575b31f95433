// Errors in the data that kernels work on: reported once, thrown by the next call that waits.
#pragma once
#include "core/gpu/runtime.h"
#include "gpu.h"

namespace tessera::gpu_kernels {

/// The first thread to call it is heard.
TESSERA_DEVICE void raise(gpu::Fault* fault, const char* op, i64 index, i64 bound,
                          gpu::FaultKind kind = gpu::FaultKind::Index) {
  if (atomicCAS_system(&fault->raised, 0, 1) != 0) return;
  fault->op = op;
  fault->index = index;
  fault->bound = bound;
  fault->kind = kind;
}

/// Indices in memory that must lie in [0, bound).
struct Places {
  const void* data;
  bool wide;  // i64, otherwise i32
  i64 bound;
  const char* op;
  gpu::Fault* fault;

  Places(const TensorArg& index, i64 bound, const char* op, const Executor& executor)
      : data(index.data), wide(index.type == Scalar::i64), bound(bound), op(op), fault(executor.fault) {}

  /// -1 where it is out of range.
  TESSERA_DEVICE i64 at(i64 offset) const {
    const i64 i = wide ? static_cast<const i64*>(data)[offset] : static_cast<const i32*>(data)[offset];
    if (i >= 0 && i < bound) return i;
    raise(fault, op, i, bound);
    return -1;
  }
};

}  // namespace tessera::gpu_kernels
