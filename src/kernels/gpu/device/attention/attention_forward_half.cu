#include "attention_forward.h"

namespace tessera::gpu_kernels {

template void launch_attention<f16>(const AttentionArgs&, Executor&);
template void launch_attention<bf16>(const AttentionArgs&, Executor&);

}  // namespace tessera::gpu_kernels
