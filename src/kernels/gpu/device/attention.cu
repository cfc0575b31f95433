// Attention's table.
#include "attention.h"

namespace tessera::gpu_kernels {
namespace {

#if !defined(__HIP__)  // needs mma.sync
void flash(const AttentionArgs& args, Executor& executor) {
  if (args.shape.type == Scalar::f16) return launch_attention<f16>(args, executor);
  if (args.shape.type == Scalar::bf16) return launch_attention<bf16>(args, executor);
  throw_unsupported("flash attention in other types than f16 and bf16");
}
void flash_backward(const AttentionBackwardArgs& args, Executor& executor) {
  if (args.shape.type == Scalar::f16) return launch_attention_backward<f16>(args, executor);
  if (args.shape.type == Scalar::bf16) return launch_attention_backward<bf16>(args, executor);
  throw_unsupported("flash attention in other types than f16 and bf16");
}
#endif

template <class Fn>
void with_simt_type(Scalar type, const Fn& fn) {
  if (type == Scalar::f32) return fn(Type<float>{});
  if (type == Scalar::f16) return fn(Type<f16>{});
  if (type == Scalar::bf16) return fn(Type<bf16>{});
  throw_unsupported("attention on ordinary cores in other types than f32, f16 and bf16");
}
void mem_efficient(const AttentionArgs& args, Executor& executor) {
  with_simt_type(args.shape.type,
                 [&](auto type) { launch_simt_attention<typename decltype(type)::type>(args, executor); });
}
void mem_efficient_backward(const AttentionBackwardArgs& args, Executor& executor) {
  with_simt_type(args.shape.type,
                 [&](auto type) { launch_simt_attention_backward<typename decltype(type)::type>(args, executor); });
}

}  // namespace

#if defined(__HIP__)
AttentionTable attention_table = {nullptr, nullptr, mem_efficient, mem_efficient_backward};
#else
AttentionTable attention_table = {flash, flash_backward, mem_efficient, mem_efficient_backward};
#endif

}  // namespace tessera::gpu_kernels
