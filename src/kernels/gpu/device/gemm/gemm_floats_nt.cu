#include "gemm_tiled.h"

namespace tessera::gpu_kernels {

void tiled_gemm_f32_nt(const GemmArgs& args, const GemmCut& cut, Executor& executor) {
  run_tiled<FloatProduct, false, true>(args, cut, executor);
}
#if !defined(__HIP__)  // NVIDIA's type
void tiled_gemm_tf32_nt(const GemmArgs& args, const GemmCut& cut, Executor& executor) {
  run_tiled<Tf32Product, false, true>(args, cut, executor);
}
#endif

}  // namespace tessera::gpu_kernels
