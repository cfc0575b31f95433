// Matrix products with an epilogue that is given as text: compiled for the card at hand when they are first called,
// kept on disk from then on.
#pragma once
#include <optional>
#include <string_view>

#include "tessera/tensor.h"

namespace tessera {

/// How a product is cut: a block computes tile_m x tile_n elements of the result with `warps` warps (on AMD's cards
/// waves), adding up tile_k at a time, and keeps `stages` tiles of the operands in shared memory. What is 0 is taken
/// from the shipped config that fills the card at hand. docs/gpu/products.md says what goes together.
struct GemmConfig {
  int tile_m = 0, tile_n = 0, tile_k = 0, warps = 0, stages = 0;
};

/// y[m, n] = epilogue(sum over k of a[m, k] b[k, n]) on a GPU, of the operands' type; they are f16 or bf16, which are
/// summed in f32, or f32.
///
///   fused_gemm(x, w, "gelu_tanh(acc + load(d0) + load(d1))", {residual, bias});
///
/// The epilogue is an expression of tessera/tile/expr.h in `acc`, the sum, and in load(d0), load(d1), ..., the elements
/// of the addends, which are expanded to the result's shape: f16, bf16 or f32, at most 16. Without a config a shipped
/// one that fills the card is taken. Throws Error if operands or config do not fit, with the compiler's first error if
/// the expression does not compile, and if a gradient would be needed, since there is none.
Tensor fused_gemm(const Tensor& a, const Tensor& b, std::string_view epilogue, const Tensors& addends = {},
                  const std::optional<GemmConfig>& config = {});

}  // namespace tessera
