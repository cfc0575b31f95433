// Hopper's products whose epilogue is text, behind its table of products.
#pragma once
#include "kernels/gpu/fused_plan.h"
#include "kernels/gpu/tables.h"

namespace tessera::gpu_kernels {

/// What Tables::sm90_gemm points to.
struct Sm90FusedTable : Sm90GemmTable {
  /// Of a product that reads `fused`.d and has args.addend arrive in boxes; false: not for this pipeline.
  bool (*plan)(const GemmArgs& args, const tile::FusedGemmArgs& fused, const Executor& executor, Sm90FusedPlan& plan);
};

}  // namespace tessera::gpu_kernels
