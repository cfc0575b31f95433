// What more Hopper's table of products has.
#pragma once
#include "kernels/args/gpu/fused_plan.h"
#include "kernels/args/gpu/tables.h"

namespace tessera::gpu_kernels {

/// What Tables::sm90_gemm points to.
struct Sm90FusedTable : Sm90GemmTable {
  /// Of a product that reads `fused`.d and has args.addend arrive in boxes; false: not for this pipeline.
  bool (*plan)(const GemmArgs& args, const tile::FusedGemmArgs& fused, const Executor& executor, Sm90FusedPlan& plan);
  /// Whether the epilogue has a kernel of its own. For it, with GELU by tanh in bf16, `slope` gets and `factor` is what
  /// GELU is applied to.
  bool (*by_own_kernel)(const GemmArgs& args);
};

}  // namespace tessera::gpu_kernels
