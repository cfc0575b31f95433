#if !defined(__HIP__)  // needs mma.sync
#include "attention_backward.h"

namespace tessera::gpu_kernels {

template void launch_attention_backward<bf16, false>(const AttentionBackwardArgs&, Executor&);

}  // namespace tessera::gpu_kernels
#endif
