#include "conv_simt.h"

namespace tessera::gpu_kernels {

void implicit_gemm_f32(const ImplicitGemm& problem, Executor& executor) {
  run_implicit<float, InMemory<float>>(problem, executor);
  join_splits<float, float>(problem, executor);
}
void implicit_gemm_f64(const ImplicitGemm& problem, Executor& executor) {
  run_implicit<double, InMemory<double>>(problem, executor);
  join_splits<double, double>(problem, executor);
}
void implicit_gemm_half(const ImplicitGemm& problem, Executor& executor) {
  run_implicit<float, HalvesInMemory>(problem, executor);
  if (problem.type == Scalar::f16) join_splits<float, f16>(problem, executor);
  else join_splits<float, bf16>(problem, executor);
}

}  // namespace tessera::gpu_kernels
