#include "reduce_kernels.h"

namespace tessera::gpu_kernels {

bool reduce_packs_f16(const ReducePlan& plan, Executor& executor) { return run_packed<float, f16>(plan, executor); }

}  // namespace tessera::gpu_kernels
