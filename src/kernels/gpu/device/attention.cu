// Attention's table.
#include "gpu.h"

namespace tessera::gpu_kernels {

AttentionTable attention_table = {};

}  // namespace tessera::gpu_kernels
