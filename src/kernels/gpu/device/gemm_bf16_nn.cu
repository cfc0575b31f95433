#include "gemm_mma.h"

namespace tessera::gpu_kernels {

void mma_gemm_bf16_nn(const GemmArgs& args, bool aligned, Executor& executor) {
  run_mma<bf16, false, false>(args, aligned, executor);
}

}  // namespace tessera::gpu_kernels
