#include "attention_simt.h"

namespace tessera::gpu_kernels {

template void launch_simt_attention<float>(const AttentionArgs&, Executor&);
template void launch_simt_attention_backward<float>(const AttentionBackwardArgs&, Executor&);

}  // namespace tessera::gpu_kernels
