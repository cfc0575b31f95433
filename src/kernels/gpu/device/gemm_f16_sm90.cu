#include "gemm_sm90_products.h"

namespace tessera::gpu_kernels {

void run_products_f16(bool wide, Sm90Ends ends, const ProductArgs& args, Executor& executor) {
  run_products<tile::f16>(wide, ends, args, executor);
}

}  // namespace tessera::gpu_kernels
