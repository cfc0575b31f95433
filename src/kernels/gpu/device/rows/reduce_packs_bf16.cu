#include "reduce_kernels.h"

namespace tessera::gpu_kernels {

bool reduce_packs_bf16(const ReducePlan& plan, Executor& executor) { return run_packed<float, bf16>(plan, executor); }

}  // namespace tessera::gpu_kernels
