#include "gemm_sm90_products.h"

namespace tessera::gpu_kernels {

void run_products_bf16(Sm90Epilogue epilogue, const ProductArgs& args, Executor& executor) {
  run_products<tile::bf16>(epilogue, args, executor);
}

}  // namespace tessera::gpu_kernels
