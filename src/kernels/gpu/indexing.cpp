// Reading and adding at computed places. Kernels check each index and leave out what it would have read or written.
#include "kernels/args/gpu/indexing.h"

#include "kernels/shared/arguments.h"
#include "kernels/shared/tables.h"

namespace tessera::gpu_kernels {
namespace {

int64_t dim_of(const Call& call, const Operand& x) {
  checked_rank(call, x);
  const int64_t dim = call.attrs.as<DimAttrs>().dim;
  return dim < 0 ? dim + x.dim() : dim;
}

TensorArg repeated(const Operand& t) { return {t.data_ptr(), scalar_of(t.dtype()), {}}; }

TakeArgs take_args(const Call& call) {
  const Operand& out = call.out[0];
  TakeArgs args{};
  args.op = call.op.name.data();
  args.rank = checked_rank(call, out);
  set_lengths(args.lengths, out);
  args.out = operand(out, args.rank);
  return args;
}

void gather(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &index = call.in[1];
  TakeArgs args = take_args(call);
  args.x = operand(x, args.rank);
  args.index = operand(index, args.rank);
  args.bound = 1;
  if (args.rank > 0) {
    const int64_t dim = dim_of(call, x);
    args.x.strides[dim] = 0;
    args.step = x.strides()[dim];
    args.bound = x.size(dim);
  }
  plan.launch("take", index_table().take, args);
}

void index_select(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &index = call.in[1];
  const int64_t dim = dim_of(call, x);
  TakeArgs args = take_args(call);
  args.x = operand(x, args.rank);
  args.x.strides[dim] = 0;
  args.index = repeated(index);
  args.index.strides[dim] = index.strides()[0];
  args.step = x.strides()[dim];
  args.bound = x.size(dim);
  plan.launch("take", index_table().take, args);
}

void embedding(const Call& call, Plan& plan) {
  const Operand &index = call.in[0], &weight = call.in[1];
  TakeArgs args = take_args(call);
  args.x = repeated(weight);
  args.x.strides[args.rank - 1] = weight.strides()[1];
  args.index = operand(index, args.rank - 1);
  args.index.strides[args.rank - 1] = 0;
  args.step = weight.strides()[0];
  args.bound = weight.size(0);
  plan.launch("take", index_table().take, args);
}

void scatter_add(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &index = call.in[1], &source = call.in[2], &out = call.out[0];
  copy(call, plan, out, x);
  if (index.numel() == 0) return;
  const int64_t dim = dim_of(call, x);
  ScatterAddArgs args{};
  args.op = call.op.name.data();
  args.rank = static_cast<int>(index.dim());
  set_lengths(args.lengths, index);
  args.lengths[dim] = 1;
  args.out = operand(out, args.rank);
  args.index = operand(index, args.rank);
  args.source = operand(source, args.rank);
  args.length = index.size(dim);
  args.out_step = out.strides()[dim];
  args.index_step = index.strides()[dim];
  args.source_step = source.strides()[dim];
  args.bound = x.size(dim);
  plan.launch("scatter_add", index_table().scatter_add, args);
}

void embedding_backward(const Call& call, Plan& plan) {
  const Operand &index = call.in[call.in.size() - 2], &grad = call.in.back(), &out = call.out[0];
  SumRowsArgs args{};
  args.op = call.op.name.data();
  args.rank = checked_rank(call, grad) - 1;
  set_lengths(args.lengths, index);
  args.index = operand(index, args.rank);
  args.x = repeated(grad);
  for (int d = 0; d < args.rank; ++d) args.x.strides[d] = grad.strides()[d];
  args.count = index.numel();
  args.rows = out.size(0);
  args.width = out.size(1);
  args.step = grad.strides().back();
  args.out = out.data_ptr();
  args.out_row = out.strides()[0];
  args.out_step = out.strides()[1];
  args.adds = call.in.size() == 3;
  args.workspace = plan.take(index_table().sum_rows_bytes(args.count, args.rows));
  plan.launch("sum_rows", index_table().sum_rows, args);
}

void one_hot(const Call& call, Plan& plan) {
  const Operand &index = call.in[0], &out = call.out[0];
  OneHotArgs args{};
  args.op = call.op.name.data();
  args.rank = checked_rank(call, index);
  set_lengths(args.lengths, index);
  args.index = operand(index, args.rank);
  args.classes = call.attrs.as<OneHotAttrs>().classes;
  args.out = static_cast<long long*>(out.data_ptr());
  plan.launch("one_hot", index_table().one_hot, args);
}

constexpr Kernel gather_kernels[] = {{.name = "loop", .plan = gather}};
constexpr Kernel scatter_add_kernels[] = {{.name = "lines", .plan = scatter_add}};
constexpr Kernel index_select_kernels[] = {{.name = "loop", .plan = index_select}};
constexpr Kernel embedding_kernels[] = {{.name = "rows", .plan = embedding}};
constexpr Kernel embedding_backward_kernels[] = {{.name = "sorted", .plan = embedding_backward}};
constexpr Kernel one_hot_kernels[] = {{.name = "loop", .plan = one_hot}};

}  // namespace

std::span<const KernelTableEntry> indexing_kernels() {
  static constexpr KernelTableEntry entries[] = {{"gather", gather_kernels},
                                                 {"scatter_add", scatter_add_kernels},
                                                 {"index_select", index_select_kernels},
                                                 {"embedding", embedding_kernels},
                                                 {"embedding_backward", embedding_backward_kernels},
                                                 {"embedding_backward_", embedding_backward_kernels},
                                                 {"one_hot", one_hot_kernels}};
  return entries;
}

}  // namespace tessera::gpu_kernels
