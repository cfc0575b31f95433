// What the host passes to the kernels of gemm_kernels.h.
#pragma once

namespace tessera::tile {

/// Row-major d = a * b with a(m, k) and b(k, n), in elements.
struct GemmArgs {
  const void* a;
  const void* b;
  const void* d0;    // a matrix to add, shaped like the result
  const void* bias;  // a row to add
  void* d;
  int m, n, k, lda, ldb, ldd;
};

}  // namespace tessera::tile
