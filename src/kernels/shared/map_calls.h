// Operators that one map computes: which, in what type, and with which numbers.
#pragma once
#include <optional>
#include <span>

#include "core/kernel.h"
#include "core/op.h"
#include "kernels/args/elementwise.h"

namespace tessera::TESSERA_KERNELS {

struct MapCall {
  MapOp op;
  Scalar compute;
  double numbers[2];
};
/// Of a call with inputs and a result of these dtypes; none where no map computes it.
std::optional<MapCall> map_call(const Op& op, const Attrs& attrs, std::span<const DType> in, DType out);

/// Plans map_graph as a launch for each node, each of which has memory of its own.
void call_maps(const Call& call, Plan& plan);

}  // namespace tessera::TESSERA_KERNELS
