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

/// Whether a matrix has padding that products may write to: behind its rows (or columns, where those are contiguous) up
/// to 16 bytes, and as further ones behind the last, up to a multiple of four.
enum class Padding : unsigned char { none, free };
struct ProductPadding {
  Padding a, b, c;
};

/// What Tables::vendor_gemm points to.
struct VendorProductTable : VendorGemmTable {
  /// Bytes for `run_padded`.
  size_t (*workspace)(const GemmArgs& args, ProductPadding padding);
  /// Bits: 1 where `run_padded` writes zeros to a's own padding, 2 to b's.
  unsigned (*zeroes)(const GemmArgs& args, ProductPadding padding);
  /// As `run`; operands of large products in tf32 are padded with zeros to multiples of 16 bytes, in place or in a
  /// copy.
  void (*run_padded)(const GemmArgs& args, ProductPadding padding, int choice, void* workspace, Executor& executor);
};

}  // namespace tessera::gpu_kernels
