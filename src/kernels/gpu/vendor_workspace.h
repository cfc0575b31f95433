// How much workspace a vendor's product is given.
#pragma once
#include "kernels/gpu/tables.h"

namespace tessera::gpu_kernels {

/// Bytes: little where the result has so many tiles that no sum needs to be shared out. Such results, a vocabulary's
/// logits above all, come where memory is scarcest.
inline size_t vendor_bytes(const GemmArgs& args) {
  long long elements = args.m * args.n;
  for (int d = 0; d < args.batch_rank; ++d) elements *= args.batch[d];
  return elements < (1 << 23) ? vendor_workspace : size_t{1} << 20;
}

}  // namespace tessera::gpu_kernels
