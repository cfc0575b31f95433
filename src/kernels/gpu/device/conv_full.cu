#include "conv_simt.h"

namespace tessera::gpu_kernels {

void implicit_gemm_f32(const ImplicitGemm& problem, Executor& executor) {
  run_implicit<float, float>(problem, executor);
}
void implicit_gemm_f64(const ImplicitGemm& problem, Executor& executor) {
  run_implicit<double, double>(problem, executor);
}

}  // namespace tessera::gpu_kernels
