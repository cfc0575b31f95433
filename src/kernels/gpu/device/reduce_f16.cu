#include "reduce_kernels.h"

namespace tessera::gpu_kernels {

void reduce_f16(const ReducePlan& plan, Executor& executor) { run_reduce<float, f16>(plan, executor); }

}  // namespace tessera::gpu_kernels
