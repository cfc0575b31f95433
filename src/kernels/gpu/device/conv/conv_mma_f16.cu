#include "conv_mma.h"

namespace tessera::gpu_kernels {

void implicit_mma_f16(const ImplicitGemm& problem, Executor& executor) {
  run_implicit_mma<HalfProduct<f16>>(problem, executor);
}

}  // namespace tessera::gpu_kernels
