#include "gemm_simt.h"

namespace tessera::gpu_kernels {

void simt_gemm_f32(const GemmArgs& args, Executor& executor) { run_simt<float, float, float>(args, executor); }

}  // namespace tessera::gpu_kernels
