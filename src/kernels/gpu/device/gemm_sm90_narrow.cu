#include "gemm_sm90_kernel.h"

namespace tessera::gpu_kernels {

void sm90_gemm_192(const Sm90Product& product, Executor& executor) { launch_sm90<192>(product, executor); }

}  // namespace tessera::gpu_kernels
