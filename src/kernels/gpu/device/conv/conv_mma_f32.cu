#include "conv_mma.h"

namespace tessera::gpu_kernels {

/// Floats on the matrix cores that are there for them: rounded to tf32 on NVIDIA's cards, as they are on AMD's.
void implicit_mma_f32(const ImplicitGemm& problem, Executor& executor) {
#if defined(__HIP__)
  run_implicit_mma<FloatProduct>(problem, executor);
#else
  run_implicit_mma<Tf32Product>(problem, executor);
#endif
}

}  // namespace tessera::gpu_kernels
