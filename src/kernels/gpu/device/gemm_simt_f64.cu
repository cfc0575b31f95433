#include "gemm_simt.h"

namespace tessera::gpu_kernels {

void simt_gemm_f64(const GemmArgs& args, Executor& executor) { run_simt<double, double, double>(args, executor); }

}  // namespace tessera::gpu_kernels
