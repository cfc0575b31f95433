#include "reduce_kernels.h"

namespace tessera::gpu_kernels {

void reduce_f32(const ReducePlan& plan, Executor& executor) { run_reduce<float>(plan, executor); }
void reduce_f64(const ReducePlan& plan, Executor& executor) { run_reduce<double>(plan, executor); }
void reduce_i64(const ReducePlan& plan, Executor& executor) { run_reduce<i64>(plan, executor); }

}  // namespace tessera::gpu_kernels
