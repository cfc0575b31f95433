#if defined(TESSERA_VECTOR_TARGETS)  // other cards have matrix cores for these types
#include "attention_simt.h"

namespace tessera::gpu_kernels {

template void launch_simt_attention<f16>(const AttentionArgs&, Executor&);
template void launch_simt_attention<bf16>(const AttentionArgs&, Executor&);
template void launch_simt_attention_backward<f16>(const AttentionBackwardArgs&, Executor&);
template void launch_simt_attention_backward<bf16>(const AttentionBackwardArgs&, Executor&);

}  // namespace tessera::gpu_kernels
#endif
