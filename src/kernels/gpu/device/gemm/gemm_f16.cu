#include "gemm_tiled.h"

namespace tessera::gpu_kernels {

void tiled_gemm_f16_nn(const GemmArgs& args, const GemmCut& cut, Executor& executor) {
  run_tiled<HalfProduct<f16>, false, false>(args, cut, executor);
}
void tiled_gemm_f16_nt(const GemmArgs& args, const GemmCut& cut, Executor& executor) {
  run_tiled<HalfProduct<f16>, false, true>(args, cut, executor);
}
void tiled_gemm_f16_tn(const GemmArgs& args, const GemmCut& cut, Executor& executor) {
  run_tiled<HalfProduct<f16>, true, false>(args, cut, executor);
}

}  // namespace tessera::gpu_kernels
