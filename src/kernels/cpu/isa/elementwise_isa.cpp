#include "kernels/args/elementwise.h"

#include "copies.h"
#include "strips.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using namespace tile;

StripFn arithmetic_strip(MapOp op, Scalar compute) {
  if (const StripFn found = strip_in<ArithmeticMaps>(op, compute)) return found;
  if (const StripFn found = strip_in<RoundingMaps>(op, compute)) return found;
  return strip_in<PredicateMaps>(op, compute);
}

bool supports(MapOp op, Scalar compute) { return strip_of(op, compute) != nullptr; }

Scalar strip_type(const MapArgs& args, int k) {
  if (k == 0 && args.op >= MapOp::logical_not) return Scalar::boolean;
  if (k == 1 && args.op == MapOp::where) return Scalar::boolean;
  return args.compute;
}

void map(const MapArgs& args, Executor& executor) {
  MapPlan plan;
  plan.loops.rank = args.rank;
  plan.loops.operands = args.inputs + 1;
  for (int d = 0; d < args.rank; ++d) plan.loops.lengths[d] = args.lengths[d];
  for (int k = 0; k <= args.inputs; ++k) {
    const TensorArg& t = args.tensor[k];
    const Scalar inside = strip_type(args, k);
    const bool same = t.type == inside;
    plan.operand[k] = {t.data, size_of(t.type), size_of(inside), same,
                       k == 0 ? converter(t.type, inside) : converter(inside, t.type)};
    set_strides(plan.loops, k, t);
  }
  plan.strip = strip_of(args.op, args.compute);
  plan.context = args.scalars;
  plan.cost = cost_of(args.op, args.compute);
  run_map(plan, ExecutorRef(executor));
}

}  // namespace

StripFn strip_of(MapOp op, Scalar compute) {
  if (const StripFn strip = arithmetic_strip(op, compute)) return strip;
  return math_strip(op, compute);
}

long long cost_of(MapOp op, Scalar compute) {
  if (!math_strip(op, compute)) return op == MapOp::pow || op == MapOp::floor_div || op == MapOp::remainder ? 64 : 2;
  return compute == Scalar::f32 && op != MapOp::pow_scalar ? 8 : 64;
}

extern const ElementwiseTable elementwise_table;
const ElementwiseTable elementwise_table = {supports, map, copy, triangle};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
