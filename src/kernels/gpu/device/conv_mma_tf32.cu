#include "conv_mma.h"

namespace tessera::gpu_kernels {

#if defined(__HIP__)  // where nobody asks for it
void implicit_mma_tf32(const ImplicitGemm& problem, Executor& executor) { implicit_gemm_f32(problem, executor); }
#else
void implicit_mma_tf32(const ImplicitGemm& problem, Executor& executor) {
  run_implicit_mma<Tf32Product>(problem, executor);
}
#endif

}  // namespace tessera::gpu_kernels
