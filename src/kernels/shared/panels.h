// Weights of products that are packed once, into the panels that the CPU's kernels read. GPUs state no layouts yet.
#pragma once
#include "kernels/shared/arguments.h"

namespace tessera::TESSERA_KERNELS {

/// How products with a weight [n, k] of f32 want it to lie, or convolutions with filters [n, k, 1, 1]. Without a value:
/// as it does.
#ifdef TESSERA_GPU_KERNELS
inline std::optional<Packing> weight_panels(const Operand&) { return std::nullopt; }
#else
std::optional<Packing> weight_panels(const Operand& weight);  // kernels/cpu/matmul.cpp
#endif

/// Between a weight [n, k] and its panels.
inline PanelArgs panel_args(const Operand& weight, const Operand& panels) {
  return {weight.size(0),
          weight.size(1),
          {weight.data_ptr(), scalar_of(weight.dtype()), weight.stride(1), weight.stride(0), {}},
          panels.data_ptr()};
}

}  // namespace tessera::TESSERA_KERNELS
