// How a product whose epilogue is text goes through Hopper's pipeline.
#pragma once
#include "core/plan.h"
#include "kernels/args/gpu/fused_plan.h"

namespace tessera::gpu_kernels {

/// y = epilogue(a b), matrices of halves on the device of the call; `input`, of 16-bit elements and y's shape, is the
/// addend that arrives through boxes, if any. False: not for this pipeline.
bool plan_fused(const Operand& a, const Operand& b, const Operand& y, const Operand* input,
                const tile::FusedGemmArgs& args, Sm90FusedPlan& plan);

}  // namespace tessera::gpu_kernels
