// Kernels for gfx90a: compiled and disassembled in a test.
#include "../../src/tile/arch/cdna/gemm.h"
#include "gemm_kernels.h"

using namespace tessera::tile;

// Tiles of 4 waves. Name says the types of operands and result, x16 where matrix instructions make 16 x 16 sums, then
// the transpositions of a and b.
#define TILE_KERNEL(name, T, D, width, transposed_a, transposed_b, epilogue, tile_m, tile_n, tile_k)       \
  extern "C" TESSERA_KERNEL(256) void name(GemmArgs args) {                                                \
    const auto a = matrix<T, width, transposed_a>(args.a, args.m, args.k, args.lda);                       \
    const auto b = matrix<T, width, transposed_b>(args.b, args.k, args.n, args.ldb);                       \
    using Pipeline = cdna::Gemm<decltype(a), ByColumn<decltype(b)>, Choice<tile_m, tile_n, tile_k, 4, 2>>; \
    alignas(16) __shared__ T shared[Pipeline::shared_bytes / sizeof(T)];                                   \
    gemm_block<Pipeline>(a, b, epilogue<D>(args), shared);                                                 \
  }
#define GEMM_KERNEL(name, T, D, width, transposed_a, transposed_b, epilogue) \
  TILE_KERNEL(name, T, D, width, transposed_a, transposed_b, epilogue, 128, 128, 32)

GEMM_KERNEL(f16_nn, f16, float, 8, false, false, plain)
GEMM_KERNEL(f16_nt, f16, float, 8, false, true, plain)
GEMM_KERNEL(f16_tn, f16, float, 8, true, false, plain)
GEMM_KERNEL(f16_tt, f16, float, 8, true, true, plain)
GEMM_KERNEL(f16_any_nn, f16, float, 1, false, false, plain)
GEMM_KERNEL(f16_half_nt, f16, float, 4, false, true, plain)
GEMM_KERNEL(bf16_nn, bf16, float, 8, false, false, plain)
GEMM_KERNEL(f16_gelu_nn, f16, f16, 8, false, false, add_add_gelu)
GEMM_KERNEL(bf16_gelu_nt, bf16, bf16, 8, false, true, add_add_gelu)
TILE_KERNEL(f32_nt, float, float, 4, false, true, plain, 128, 128, 16)
TILE_KERNEL(i8_nt, i8, float, 16, false, true, plain, 128, 128, 64)
TILE_KERNEL(i8_tn, i8, float, 16, true, false, plain, 128, 128, 64)
TILE_KERNEL(f16x16_nt, f16, float, 8, false, true, plain, 16, 64, 128)
TILE_KERNEL(bf16x16_nn, bf16, float, 8, false, false, plain, 64, 16, 128)
TILE_KERNEL(f32x16_tn, float, float, 4, true, false, plain, 32, 32, 32)
TILE_KERNEL(i8x16_nt, i8, float, 16, false, true, plain, 32, 32, 128)
