#include "gemm_mma.h"

namespace tessera::gpu_kernels {

void mma_gemm_f16_nn(const GemmArgs& args, bool aligned, Executor& executor) {
  run_mma<f16, false, false>(args, aligned, executor);
}

}  // namespace tessera::gpu_kernels
