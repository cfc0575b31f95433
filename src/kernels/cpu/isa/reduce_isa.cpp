#include "kernels/args/reduce.h"

#include "internal.h"
#include "tile/kernels/reduce.h"
#include "tile/kernels/scan.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using namespace tile;

/// The reducer in T, or one without functions where it does not exist.
template <class T>
Reducer reducer_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return reducer<SumFold, T>();
    case ReduceOp::prod:
      return reducer<ProductFold, T>();
    case ReduceOp::max:
      return reducer<MaxFold, T>();
    case ReduceOp::min:
      return reducer<MinFold, T>();
    case ReduceOp::any:
      return reducer<AnyFold, T>();
    case ReduceOp::all:
      return reducer<AllFold, T>();
    case ReduceOp::argmax:
      return arg_reducer<T, true>();
    case ReduceOp::argmin:
      return arg_reducer<T, false>();
    default:
      break;
  }
  if constexpr (!is_same_v<T, i64>) {
    switch (op) {
      case ReduceOp::mean:
        return reducer<MeanFold, T>();
      case ReduceOp::variance:
        return variance_reducer<T>();
      case ReduceOp::std:
        return std_reducer<T>();
      case ReduceOp::norm:
        return reducer<NormFold, T>();
      case ReduceOp::squares:
        return reducer<SquaresFold, T>();
      case ReduceOp::abs_sum:
        return reducer<AbsSumFold, T>();
      case ReduceOp::abs_max:
        return reducer<AbsMaxFold, T>();
      case ReduceOp::logsumexp:
        return logsumexp_reducer<T>();
      default:
        break;
    }
  }
  return {};
}

Reducer reducer_of(ReduceOp op, Scalar compute) {
  switch (compute) {
    case Scalar::f64:
      return reducer_of<double>(op);
    case Scalar::f32:
      return reducer_of<float>(op);
    case Scalar::i64:
      return reducer_of<i64>(op);
    default:
      return {};
  }
}

bool is_arg(ReduceOp op) { return op == ReduceOp::argmax || op == ReduceOp::argmin; }
bool is_extreme(ReduceOp op) { return op == ReduceOp::max || op == ReduceOp::min; }

bool supports(ReduceOp op, Scalar compute) { return reducer_of(op, compute).finish != nullptr; }

void reduce(const ReduceArgs& args, Executor& executor) {
  ReducePlan plan;
  plan.results.operands = 2;
  plan.elements.operands = 1;
  for (int d = 0; d < args.rank; ++d) {
    LoopNest& loops = args.reduced[d] ? plan.elements : plan.results;
    loops.lengths[loops.rank] = args.lengths[d];
    loops.strides[0][loops.rank] = args.in.strides[d] * size_of(args.in.type);
    loops.strides[1][loops.rank] = args.out.strides[d] * size_of(args.out.type);
    ++loops.rank;
  }
  plan.in = args.in.data;
  plan.out = args.out.data;
  plan.in_size = size_of(args.in.type);
  plan.same = args.in.type == args.compute;
  plan.ordered = is_arg(args.op);
  const auto by = [](bool ordered) { return ordered ? order_preserving : converter; };
  plan.load = by(is_extreme(args.op) || is_arg(args.op))(args.compute, args.in.type);
  plan.store = by(is_extreme(args.op))(args.out.type, is_arg(args.op) ? Scalar::i64 : args.compute);
  plan.reducer = reducer_of(args.op, args.compute);
  plan.parameter = args.parameter;
  run_reduce(plan, ExecutorRef(executor));
}

long long reduce_workspace(const ReduceArgs&) { return 0; }
long long cumsum_workspace(const CumsumArgs&) { return 0; }
long long topk_workspace(const TopkArgs&) { return 0; }

/// Lines along `dim` of up to three operands.
LinePlan line_plan(int rank, int dim, const long long* lengths, const TensorArg* const* tensors, int count) {
  LinePlan plan;
  plan.lines.operands = count;
  plan.length = lengths[dim];
  for (int k = 0; k < count; ++k) {
    plan.data[k] = tensors[k]->data;
    plan.strides[k] = tensors[k]->strides[dim] * size_of(tensors[k]->type);
  }
  for (int d = 0; d < rank; ++d) {
    if (d == dim) continue;
    plan.lines.lengths[plan.lines.rank] = lengths[d];
    for (int k = 0; k < count; ++k) {
      plan.lines.strides[k][plan.lines.rank] = tensors[k]->strides[d] * size_of(tensors[k]->type);
    }
    ++plan.lines.rank;
  }
  return plan;
}

Scalar wide_type(Scalar type) { return type >= Scalar::f16 ? Scalar::f64 : Scalar::i64; }

void cumsum(const CumsumArgs& args, Executor& executor) {
  const TensorArg* tensors[] = {&args.in, &args.out};
  LinePlan plan = line_plan(args.rank, args.dim, args.lengths, tensors, 2);
  const Scalar wide = wide_type(args.in.type);
  plan.load = converter(wide, args.in.type);
  plan.store = converter(args.out.type, wide);
  if (wide == Scalar::f64) run_cumsum<double>(plan, ExecutorRef(executor));
  else run_cumsum<i64>(plan, ExecutorRef(executor));
}

void topk(const TopkArgs& args, Executor& executor) {
  const TensorArg* tensors[] = {&args.in, &args.values, &args.indices};
  const bool has_places = args.indices.data != nullptr;
  LinePlan plan = line_plan(args.rank, args.dim, args.lengths, tensors, has_places ? 3 : 2);
  const Scalar wide = wide_type(args.in.type);
  plan.load = order_preserving(wide, args.in.type);
  plan.store = order_preserving(args.values.type, wide);
  if (has_places) plan.store_index = converter(args.indices.type, Scalar::i64);
  if (wide == Scalar::f64) run_topk<double>(plan, args.k, args.largest, ExecutorRef(executor));
  else run_topk<i64>(plan, args.k, args.largest, ExecutorRef(executor));
}

}  // namespace

extern const ReduceTable reduce_table;
const ReduceTable reduce_table = {supports, reduce, reduce_workspace, cumsum, cumsum_workspace, topk, topk_workspace};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
