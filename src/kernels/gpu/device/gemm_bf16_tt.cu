#include "gemm_tiled.h"

namespace tessera::gpu_kernels {

void tiled_gemm_bf16_tt(const GemmArgs& args, const GemmCut& cut, Executor& executor) {
  run_tiled<HalfProduct<bf16>, true, true>(args, cut, executor);
}

}  // namespace tessera::gpu_kernels
