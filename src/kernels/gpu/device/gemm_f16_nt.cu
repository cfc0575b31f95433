#include "gemm_mma.h"

namespace tessera::gpu_kernels {

void mma_gemm_f16_nt(const GemmArgs& args, bool aligned, Executor& executor) {
  run_mma<f16, false, true>(args, aligned, executor);
}

}  // namespace tessera::gpu_kernels
