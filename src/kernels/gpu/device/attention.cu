// Attention's table.
#include "attention.h"

namespace tessera::gpu_kernels {

#if defined(__HIP__)
AttentionTable attention_table = {};  // the kernels need mma.sync
#else
namespace {

void attention(const AttentionArgs& args, Executor& executor) {
  if (args.shape.type == Scalar::f16) return launch_attention<f16>(args, executor);
  if (args.shape.type == Scalar::bf16) return launch_attention<bf16>(args, executor);
  throw_unsupported("attention in other types than f16 and bf16");
}
void attention_backward(const AttentionBackwardArgs& args, Executor& executor) {
  if (args.shape.type == Scalar::f16) return launch_attention_backward<f16>(args, executor);
  if (args.shape.type == Scalar::bf16) return launch_attention_backward<bf16>(args, executor);
  throw_unsupported("attention in other types than f16 and bf16");
}

}  // namespace

AttentionTable attention_table = {attention, attention_backward};
#endif

}  // namespace tessera::gpu_kernels
