#include "gemm_mma.h"

namespace tessera::gpu_kernels {

void mma_gemm_bf16_tt(const GemmArgs& args, bool aligned, Executor& executor) {
  run_mma<bf16, true, true>(args, aligned, executor);
}

}  // namespace tessera::gpu_kernels
