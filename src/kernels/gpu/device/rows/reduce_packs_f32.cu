#include "reduce_kernels.h"

namespace tessera::gpu_kernels {

bool reduce_packs_f32(const ReducePlan& plan, Executor& executor) { return run_packed<float, float>(plan, executor); }

}  // namespace tessera::gpu_kernels
