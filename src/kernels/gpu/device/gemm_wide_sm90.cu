#include "gemm_sm90_products.h"

namespace tessera::gpu_kernels {
namespace {

template <class Operand>
void run_wide(const ProductArgs& args, Executor& executor) {
  using P = ProductsBy<Sm90Wide, Operand>;
  P{args, executor}.template run_any<typename P::template Result<Operand, false, WithBias, typename P::Bias>>();
}

template <class Operand>
void run_small(Sm90Ends ends, const ProductArgs& args, Executor& executor) {
  using P = ProductsBy<Sm90Small, Operand>;
  const P products{args, executor};
  if (ends == Sm90Ends::sums_f32)
    products.template run<true, true, typename P::template Result<float, false, SumsOf>>();
  else products.template run<true, true, typename P::template Result<Operand, false, SumsOf>>();
}

}  // namespace

void run_wide_products(const ProductArgs& args, Executor& executor) {
  args.order.is_bf16 ? run_wide<tile::bf16>(args, executor) : run_wide<tile::f16>(args, executor);
}
void run_small_sums(Sm90Ends ends, const ProductArgs& args, Executor& executor) {
  args.order.is_bf16 ? run_small<tile::bf16>(ends, args, executor) : run_small<tile::f16>(ends, args, executor);
}

}  // namespace tessera::gpu_kernels
