#include "kernels/args/elementwise.h"

#include "strips.h"
#include "tile/kernels/transpose.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using namespace tile;

StripFn strip_of(MapOp op, Scalar compute) {
  if (const StripFn strip = arithmetic_strip(op, compute)) return strip;
  return math_strip(op, compute);
}

bool supports(MapOp op, Scalar compute) { return strip_of(op, compute) != nullptr; }

/// Cost of an element in additions, roughly: decides how many elements are worth a thread.
i64 cost_of(MapOp op, Scalar compute) {
  if (!math_strip(op, compute)) return op == MapOp::pow || op == MapOp::floor_div || op == MapOp::remainder ? 64 : 2;
  return compute == Scalar::f32 && op != MapOp::pow_scalar ? 8 : 64;
}

Scalar strip_type(const MapArgs& args, int k) {
  if (k == 0 && args.op >= MapOp::logical_not) return Scalar::boolean;
  if (k == 1 && args.op == MapOp::where) return Scalar::boolean;
  return args.compute;
}

void set_strides(LoopNest& loops, int k, const TensorArg& tensor) {
  for (int d = 0; d < loops.rank; ++d) loops.strides[k][d] = tensor.strides[d] * size_of(tensor.type);
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

void copy(const CopyArgs& args, Executor& executor) {
  LoopNest loops;
  loops.rank = args.rank;
  loops.operands = 2;
  for (int d = 0; d < args.rank; ++d) loops.lengths[d] = args.lengths[d];
  set_strides(loops, 0, args.to);
  set_strides(loops, 1, args.from);
  run_copy(loops, args.to.data, args.from.data, args.to.type == args.from.type ? size_of(args.to.type) : 0,
           converter(args.to.type, args.from.type), ExecutorRef(executor));
}

// Elements only move: T is an integer of their size.
template <class T>
void triangle_of(const TriangleArgs& a, Executor& executor) {
  const int last = a.rank - 1;
  const i64 rows = a.lengths[last - 1], columns = a.lengths[last];
  const i64 to_step = a.to.strides[last], from_step = a.from.strides[last];
  i64 lines = columns > 0 ? 1 : 0;
  for (int d = 0; d < last; ++d) lines *= a.lengths[d];
  T otherwise;
  converter(a.to.type, Scalar::f64)(&otherwise, 0, &a.otherwise, 0, 1);
  ExecutorRef(executor).parallel(lines, [&](i64 line, int) {
    T* to = static_cast<T*>(a.to.data);
    const T* from = static_cast<const T*>(a.from.data);
    i64 rest = line;
    for (int d = last - 1; d >= 0; --d) {
      const i64 at = rest % a.lengths[d];
      rest /= a.lengths[d];
      to += at * a.to.strides[d];
      from += at * a.from.strides[d];
    }
    const i64 row = line % rows, limit = row + a.diagonal + (a.upper ? 0 : 1), edge = max(i64(0), min(columns, limit));
    const i64 begin = a.upper ? edge : 0, end = a.upper ? columns : edge;  // of what is kept
    if (to != from || to_step != from_step)
      for (i64 c = begin; c < end; ++c) to[c * to_step] = from[c * from_step];
    for (i64 c = 0; c < begin; ++c) to[c * to_step] = otherwise;
    for (i64 c = end; c < columns; ++c) to[c * to_step] = otherwise;
  });
}

void triangle(const TriangleArgs& args, Executor& executor) {
  switch (size_of(args.to.type)) {
    case 1:
      return triangle_of<u8>(args, executor);
    case 2:
      return triangle_of<u16>(args, executor);
    case 4:
      return triangle_of<u32>(args, executor);
    default:
      return triangle_of<u64>(args, executor);
  }
}

}  // namespace

extern const ElementwiseTable elementwise_table;
const ElementwiseTable elementwise_table = {supports, map, copy, triangle};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
