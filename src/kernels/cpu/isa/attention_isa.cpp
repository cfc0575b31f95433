#include "attention_typed.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

#if defined(__AVX512F__)  // few compute in f64: AVX2's is enough
template <>
void attention_of<double>(const AttentionArgs& args, Executor& executor) {
  avx2::attention_table.flash(args, executor);
}
template <>
void attention_backward_of<double>(const AttentionBackwardArgs& args, Executor& executor) {
  avx2::attention_table.flash_backward(args, executor);
}
#else
TESSERA_ATTENTION_OF(extern, double)
#endif
TESSERA_ATTENTION_OF(extern, tile::f16)
TESSERA_ATTENTION_OF(extern, tile::bf16)

namespace {

void attention(const AttentionArgs& args, Executor& executor) {
  with_float(args.shape.type, [&](auto type) { attention_of<typename decltype(type)::type>(args, executor); });
}

void attention_backward(const AttentionBackwardArgs& args, Executor& executor) {
  with_float(args.shape.type, [&](auto type) { attention_backward_of<typename decltype(type)::type>(args, executor); });
}

}  // namespace

extern const AttentionTable attention_table;
const AttentionTable attention_table = {attention, attention_backward};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
