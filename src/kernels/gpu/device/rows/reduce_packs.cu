// Folds of packs of one type, TESSERA_PACKS: f32, f16 or bf16, each a unit (cmake/gpu.cmake).
#include "reduce_kernels.h"

#define TESSERA_JOINED(a, b) a##b
#define TESSERA_NAMED(a, b) TESSERA_JOINED(a, b)

namespace tessera::gpu_kernels {

using f32 = float;
bool TESSERA_NAMED(reduce_packs_, TESSERA_PACKS)(const ReducePlan& plan, Executor& executor) {
  return run_packed<float, TESSERA_PACKS>(plan, executor);
}

}  // namespace tessera::gpu_kernels
