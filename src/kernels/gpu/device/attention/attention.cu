// Attention's table. Halves go to matrix cores: flash is Hopper's pipeline where that takes them, else mma.sync, which
// wants 16-byte aligned rows; AMD's take rows as they lie.
#include "attention.h"

namespace tessera::gpu_kernels {
namespace {

/// fn(Type<T>) for a type of 16 bits.
template <class Fn>
void with_half(Scalar type, const Fn& fn) {
  if (type == Scalar::f16) return fn(Type<f16>{});
  if (type == Scalar::bf16) return fn(Type<bf16>{});
  throw_unsupported("attention in this type");
}

#if !defined(__HIP__)
void flash(const AttentionArgs& args, Executor& executor) {
  with_half(args.shape.type, [&](auto type) {
    using T = typename decltype(type)::type;
    sm90_takes(args.shape, args.q, args.k, args.v, args.q) ? launch_sm90_attention<T>(args, executor)
                                                           : launch_attention<T>(args, executor);
  });
}
void flash_backward(const AttentionBackwardArgs& args, Executor& executor) {
  with_half(args.shape.type, [&](auto type) {
    using T = typename decltype(type)::type;
    sm90_takes(args.shape, args.q, args.k, args.v, args.dy) ? launch_sm90_attention_backward<T>(args, executor)
                                                            : launch_attention_backward<T>(args, executor);
  });
}
#endif

template <class T>
void run(const AttentionArgs& args, Executor& executor) {
#if defined(TESSERA_VECTOR_TARGETS)
  if (!has_matrix_cores()) return launch_simt_attention<T>(args, executor);
#endif
  launch_attention<T>(args, executor);
}
template <class T>
void run_backward(const AttentionBackwardArgs& args, Executor& executor) {
#if defined(TESSERA_VECTOR_TARGETS)
  if (!has_matrix_cores()) return launch_simt_attention_backward<T>(args, executor);
#endif
  launch_attention_backward<T>(args, executor);
}

// NVIDIA's matrix cores would round floats; AMD's multiply them as they are.
#if defined(__HIP__)
constexpr auto run_floats = run<float>;
constexpr auto run_floats_backward = run_backward<float>;
#else
constexpr auto run_floats = launch_simt_attention<float>;
constexpr auto run_floats_backward = launch_simt_attention_backward<float>;
#endif

void mem_efficient(const AttentionArgs& args, Executor& executor) {
  if (args.shape.type == Scalar::f32) return run_floats(args, executor);
  with_half(args.shape.type, [&](auto type) { run<typename decltype(type)::type>(args, executor); });
}
void mem_efficient_backward(const AttentionBackwardArgs& args, Executor& executor) {
  if (args.shape.type == Scalar::f32) return run_floats_backward(args, executor);
  with_half(args.shape.type, [&](auto type) { run_backward<typename decltype(type)::type>(args, executor); });
}

}  // namespace

#if defined(__HIP__)
AttentionTable attention_table = {nullptr, nullptr, mem_efficient, mem_efficient_backward};
#else
AttentionTable attention_table = {flash, flash_backward, mem_efficient, mem_efficient_backward};
#endif

}  // namespace tessera::gpu_kernels
