#include "reduce_kernels.h"

namespace tessera::gpu_kernels {

void reduce_bf16(const ReducePlan& plan, Executor& executor) { run_reduce<float, bf16>(plan, executor); }

}  // namespace tessera::gpu_kernels
