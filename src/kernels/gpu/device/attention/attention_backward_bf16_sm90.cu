#include "attention_sm90_backward.h"

namespace tessera::gpu_kernels {
template void launch_sm90_attention_backward<bf16>(const AttentionBackwardArgs&, Executor&);
}  // namespace tessera::gpu_kernels
