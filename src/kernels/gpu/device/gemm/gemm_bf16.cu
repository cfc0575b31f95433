#include "gemm_tiled.h"

namespace tessera::gpu_kernels {

void tiled_gemm_bf16_nn(const GemmArgs& args, const GemmCut& cut, Executor& executor) {
  run_tiled<HalfProduct<bf16>, false, false>(args, cut, executor);
}
void tiled_gemm_bf16_nt(const GemmArgs& args, const GemmCut& cut, Executor& executor) {
  run_tiled<HalfProduct<bf16>, false, true>(args, cut, executor);
}
void tiled_gemm_bf16_tn(const GemmArgs& args, const GemmCut& cut, Executor& executor) {
  run_tiled<HalfProduct<bf16>, true, false>(args, cut, executor);
}

}  // namespace tessera::gpu_kernels
