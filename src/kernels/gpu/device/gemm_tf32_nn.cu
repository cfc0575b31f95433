#include "gemm_tiled.h"

namespace tessera::gpu_kernels {

void tiled_gemm_tf32_nn(const GemmArgs& args, const GemmCut& cut, Executor& executor) {
  run_tiled<Tf32Product, false, false>(args, cut, executor);
}

}  // namespace tessera::gpu_kernels
