// Attention's forward by Hopper's pipeline for heads of up to 256 columns.
#include "attention_sm90_forward.h"

namespace tessera::gpu_kernels {

template <class T>
void launch_wide_sm90_attention(const AttentionArgs& args, Executor& executor) {
  args.shape.dropout > 0 ? launch_forward<T, tile::sm90::ForwardSizes<256, 2, 64, 2, 1, true>>(args, executor)
                         : launch_forward<T, tile::sm90::ForwardSizes<256, 2, 64, 2, 1>>(args, executor);
}
template void launch_wide_sm90_attention<f16>(const AttentionArgs&, Executor&);
template void launch_wide_sm90_attention<bf16>(const AttentionArgs&, Executor&);

}  // namespace tessera::gpu_kernels
