#include "conv_simt.h"

namespace tessera::gpu_kernels {

void implicit_gemm_half(const ImplicitGemm& problem, Scalar type, Executor& executor) {
  if (type == Scalar::f16) run_implicit<float, f16>(problem, executor);
  else run_implicit<float, bf16>(problem, executor);
}

}  // namespace tessera::gpu_kernels
