#include "gemm_sm90_products.h"

namespace tessera::gpu_kernels {

void run_products_bf16(Sm90Ends ends, const ProductArgs& args, Executor& executor) {
  run_products<tile::bf16>(ends, args, executor);
}

}  // namespace tessera::gpu_kernels
