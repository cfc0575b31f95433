#include "gemm_simt.h"

namespace tessera::gpu_kernels {

void simt_gemm_f32(const GemmArgs& args, Executor& executor) { run_simt<float, float, float>(args, executor); }
void simt_gemm_f64(const GemmArgs& args, Executor& executor) { run_simt<double, double, double>(args, executor); }
void simt_gemm_mixed(const GemmArgs& args, Executor& executor) { run_simt<float, AnyType, AnyType>(args, executor); }

}  // namespace tessera::gpu_kernels
