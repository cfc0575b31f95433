// Reductions: one kernel over marked dims, running sums and selections.
#include "kernels/shared/tables.h"
#include "kernels/shared/workspace.h"

namespace tessera::TESSERA_KERNELS {
namespace {

Scalar reduce_type(DType dtype) {
  return dtype == Float64 ? Scalar::f64 : is_floating(dtype) ? Scalar::f32 : Scalar::i64;
}

template <ReduceOp op>
void reduce(const Call& call, Workspace& workspace) {
  const auto& attrs = call.attrs.as<ReduceAttrs>();
  const Operand &in = call.in[0], &out = call.out[0];
  const ReduceTable& table = reduce_table();
  ReduceArgs args{};
  args.op = op;
  args.compute = reduce_type(in.dtype());
  const bool truncates = op == ReduceOp::mean && args.compute == Scalar::i64;
  if (truncates || !table.supports(op, args.compute)) args.compute = Scalar::f64;  // means and the like of integers
  args.rank = checked_rank(call, in);
  set_lengths(args.lengths, in);
  for (bool& reduced : args.reduced) reduced = attrs.dims.empty();
  for (int64_t d : attrs.dims)
    if (in.dim() > 0) args.reduced[d < 0 ? d + in.dim() : d] = true;
  args.in = operand(in, args.rank);
  args.out = {out.data_ptr(), scalar_of(out.dtype()), {}};
  for (int d = 0, kept = 0; d < args.rank; ++d) {
    if (args.reduced[d]) kept += attrs.keepdim;
    else args.out.strides[d] = out.strides()[kept++];
  }
  args.parameter = static_cast<double>(attrs.correction);
  args.workspace = workspace.take(table.workspace(args));
  workspace.launch("reduce", table.reduce, args);
}

void cumsum(const Call& call, Plan& plan) {
  const Operand &in = call.in[0], &out = call.out[0];
  if (in.dim() == 0) return copy(call, plan, out, in);
  CumsumArgs args{};
  args.rank = checked_rank(call, in);
  int64_t dim = call.attrs.as<DimAttrs>().dim;
  args.dim = static_cast<int>(dim < 0 ? dim + in.dim() : dim);
  set_lengths(args.lengths, in);
  args.in = operand(in, args.rank);
  args.out = operand(out, args.rank);
  args.workspace = plan.take(reduce_table().cumsum_workspace(args));
  plan.launch("cumsum", reduce_table().cumsum, args);
}

// Of places there may be none, where values alone are wanted.
void select(const Call& call, Plan& plan, int64_t dim, int64_t k, bool largest, const Operand* places) {
  const Operand& in = call.in[0];
  TopkArgs args{};
  args.rank = checked_rank(call, in);
  args.dim = static_cast<int>(dim < 0 ? dim + in.dim() : dim);
  set_lengths(args.lengths, in);
  args.k = k;
  args.largest = largest;
  args.in = operand(in, args.rank);
  args.values = operand(call.out[0], args.rank);
  if (places) args.indices = operand(*places, args.rank);
  args.workspace = plan.take(reduce_table().topk_workspace(args));
  plan.launch("topk", reduce_table().topk, args);
}
void topk(const Call& call, Plan& plan) {
  const auto& attrs = call.attrs.as<TopkAttrs>();
  select(call, plan, attrs.dim, attrs.k, attrs.largest, &call.out[1]);
}
void sort_values(const Call& call, Plan& plan) {
  const int64_t dim = call.attrs.as<DimAttrs>().dim;
  select(call, plan, dim, call.in[0].size(dim < 0 ? dim + call.in[0].dim() : dim), false, nullptr);
}

template <ReduceOp op>
constexpr Kernel reduce_kernel[] = {staged_kernel<reduce<op>>("reduce")};
constexpr Kernel cumsum_kernel[] = {{.name = "scan", .plan = cumsum}};
constexpr Kernel topk_kernel[] = {{.name = "select", .plan = topk}};
constexpr Kernel sort_values_kernel[] = {{.name = "select", .plan = sort_values}};

}  // namespace

std::span<const KernelTableEntry> reduction_kernels() {
  static constexpr KernelTableEntry entries[] = {
      {"sum", reduce_kernel<ReduceOp::sum>},
      {"sum_wide", reduce_kernel<ReduceOp::sum>},
      {"mean", reduce_kernel<ReduceOp::mean>},
      {"prod", reduce_kernel<ReduceOp::prod>},
      {"amax", reduce_kernel<ReduceOp::max>},
      {"amin", reduce_kernel<ReduceOp::min>},
      {"var", reduce_kernel<ReduceOp::variance>},
      {"std_dev", reduce_kernel<ReduceOp::std>},
      {"norm", reduce_kernel<ReduceOp::norm>},
      {"any", reduce_kernel<ReduceOp::any>},
      {"all", reduce_kernel<ReduceOp::all>},
      {"argmax", reduce_kernel<ReduceOp::argmax>},
      {"argmin", reduce_kernel<ReduceOp::argmin>},
      {"cumsum", cumsum_kernel},
      {"logsumexp", reduce_kernel<ReduceOp::logsumexp>},
      {"topk", topk_kernel},
      {"sort_values", sort_values_kernel},
  };
  return entries;
}

}  // namespace tessera::TESSERA_KERNELS
