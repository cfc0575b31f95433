#include "gemm_tiled.h"

#if !defined(__HIP__)  // AMD's cards have no such type
namespace tessera::gpu_kernels {

void tiled_gemm_tf32_tt(const GemmArgs& args, const GemmCut& cut, Executor& executor) {
  run_tiled<Tf32Product, true, true>(args, cut, executor);
}

}  // namespace tessera::gpu_kernels
#endif
