#include "gemm_sm90_kernel.h"

namespace tessera::gpu_kernels {

void sm90_gemm_turns(const Sm90Product& product, Executor& executor) { launch_sm90<Sm90Turns>(product, executor); }

}  // namespace tessera::gpu_kernels
