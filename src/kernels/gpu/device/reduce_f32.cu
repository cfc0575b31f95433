#include "reduce_kernels.h"

namespace tessera::gpu_kernels {

void reduce_f32(const ReducePlan& plan, Executor& executor) { run_reduce<float, float>(plan, executor); }

}  // namespace tessera::gpu_kernels
