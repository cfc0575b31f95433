#include "gemm_sm90_kernel.h"

namespace tessera::gpu_kernels {

void sm90_gemm_wide(const Sm90Product& product, Executor& executor) { launch_sm90<Sm90Wide>(product, executor); }

}  // namespace tessera::gpu_kernels
