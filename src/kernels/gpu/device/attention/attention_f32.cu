// Attention of floats: by AMD's matrix cores, which multiply them as they are, and on ordinary cores elsewhere; and of
// halves where a card has no matrix cores.
#if defined(__HIP__)
#include "attention_backward.h"
#include "attention_forward.h"

namespace tessera::gpu_kernels {

template void launch_attention<float>(const AttentionArgs&, Executor&);
template void launch_attention_backward<float>(const AttentionBackwardArgs&, Executor&);

}  // namespace tessera::gpu_kernels
#endif

#if !defined(__HIP__) || defined(TESSERA_VECTOR_TARGETS)
#include "attention_simt.h"

namespace tessera::gpu_kernels {

template void launch_simt_attention<float>(const AttentionArgs&, Executor&);
template void launch_simt_attention_backward<float>(const AttentionBackwardArgs&, Executor&);
#if defined(TESSERA_VECTOR_TARGETS)
template void launch_simt_attention<f16>(const AttentionArgs&, Executor&);
template void launch_simt_attention<bf16>(const AttentionArgs&, Executor&);
template void launch_simt_attention_backward<f16>(const AttentionBackwardArgs&, Executor&);
template void launch_simt_attention_backward<bf16>(const AttentionBackwardArgs&, Executor&);
#endif

}  // namespace tessera::gpu_kernels
#endif
