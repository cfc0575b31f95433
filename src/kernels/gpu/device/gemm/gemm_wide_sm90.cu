#include "gemm_sm90_products.h"

namespace tessera::gpu_kernels {
namespace {

template <class Operand>
void run_wide(const ProductArgs& args, Executor& executor) {
  using P = ProductsBy<Sm90Tile128x256, Operand>;
  P{args, executor}.template run_any<typename P::template Result<Operand, false, WithBias, typename P::Bias>>();
}

}  // namespace

void run_wide_products(const ProductArgs& args, Executor& executor) {
  args.order.is_bf16 ? run_wide<tile::bf16>(args, executor) : run_wide<tile::f16>(args, executor);
}

}  // namespace tessera::gpu_kernels
