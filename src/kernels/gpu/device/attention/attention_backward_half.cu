#include "attention_backward.h"

namespace tessera::gpu_kernels {

template void launch_attention_backward<f16>(const AttentionBackwardArgs&, Executor&);
template void launch_attention_backward<bf16>(const AttentionBackwardArgs&, Executor&);

}  // namespace tessera::gpu_kernels
