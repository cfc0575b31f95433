// Kernels for gfx90a: compiled and disassembled in a test.
#include "../../src/tile/arch/cdna/gemm.h"
#include "gemm_kernels.h"

using namespace tessera::tile;

// 128 x 128 x 32 tiles, 4 waves. Name says the types of operands and result, then the transpositions of a and b.
#define GEMM_KERNEL(name, T, D, width, transposed_a, transposed_b, epilogue)                     \
  extern "C" TESSERA_KERNEL(256) void name(GemmArgs args) {                                      \
    const auto a = matrix<T, width, transposed_a>(args.a, args.m, args.k, args.lda);             \
    const auto b = matrix<T, width, transposed_b>(args.b, args.k, args.n, args.ldb);             \
    using Pipeline = cdna::Gemm<decltype(a), ByColumn<decltype(b)>, Choice<128, 128, 32, 4, 2>>; \
    alignas(16) __shared__ T shared[Pipeline::shared_bytes / sizeof(T)];                         \
    gemm_block<Pipeline>(a, b, epilogue<D>(args), shared);                                       \
  }

GEMM_KERNEL(f16_nn, f16, float, 8, false, false, plain)
GEMM_KERNEL(f16_nt, f16, float, 8, false, true, plain)
GEMM_KERNEL(f16_tn, f16, float, 8, true, false, plain)
GEMM_KERNEL(f16_tt, f16, float, 8, true, true, plain)
GEMM_KERNEL(f16_any_nn, f16, float, 1, false, false, plain)
GEMM_KERNEL(f16_half_nt, f16, float, 4, false, true, plain)
GEMM_KERNEL(bf16_nn, bf16, float, 8, false, false, plain)
GEMM_KERNEL(f16_gelu_nn, f16, f16, 8, false, false, add_add_gelu)
GEMM_KERNEL(bf16_gelu_nt, bf16, bf16, 8, false, true, add_add_gelu)
