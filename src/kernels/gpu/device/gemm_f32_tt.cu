#include "gemm_tiled.h"

namespace tessera::gpu_kernels {

void tiled_gemm_f32_tt(const GemmArgs& args, const GemmCut& cut, Executor& executor) {
  run_tiled<FloatProduct, true, true>(args, cut, executor);
}

}  // namespace tessera::gpu_kernels
