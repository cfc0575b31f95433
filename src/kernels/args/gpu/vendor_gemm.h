// What a vendor's products need besides their operands.
#pragma once
#include "kernels/args/gpu/tables.h"

namespace tessera::gpu_kernels {

/// Bytes: little where the result has so many tiles that no sum needs to be shared out. Such results, a vocabulary's
/// logits above all, come where memory is scarcest.
inline size_t vendor_bytes(const GemmArgs& args) {
  long long elements = args.m * args.n;
  for (int d = 0; d < args.batch_rank; ++d) elements *= args.batch[d];
  return elements < (1 << 23) ? vendor_workspace : size_t{1} << 20;
}

/// Whose is what lies between the lines of a matrix, up to whole 16 bytes, and as lines behind the last, up to fours.
enum class Ends : unsigned char { others, nobodys, zeros };
struct Spare {
  Ends a, b, c;
};

/// What Tables::vendor_gemm points to.
struct VendorProductTable : VendorGemmTable {
  /// Bytes for `run_whole`.
  size_t (*workspace)(const GemmArgs& args, Spare spare);
  /// As `run`; lines of large products in tf32 are filled up with zeros, where they lie, which is noted, or in a copy.
  void (*run_whole)(const GemmArgs& args, Spare& spare, int choice, void* workspace, Executor& executor);
};

}  // namespace tessera::gpu_kernels
