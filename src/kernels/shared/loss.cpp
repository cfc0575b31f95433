// Cross-entropy: one pass over the rows of logits in each direction.
#include <fmt/format.h>

#include "kernels/shared/tables.h"
#include "kernels/shared/workspace.h"

namespace tessera::TESSERA_KERNELS {
namespace {

template <class Args>
Args cross_entropy_args(const Call& call, Workspace& workspace, const Operand& logits, const Operand& target) {
  auto& attrs = call.attrs.as<LossAttrs>();
  Args args{};
  args.type = scalar_of(logits.dtype());
  args.rows = target.numel();
  args.classes = logits.size(-1);
  args.ignore_index = attrs.ignore_index;
  args.label_smoothing = attrs.label_smoothing;
  args.logits = read_rows(workspace, logits, 1, logits.dtype());
  args.targets = static_cast<const long long*>(read_contiguous(workspace, target, Int64));
  return args;
}

// *to = *from / how many targets count, both in the type of losses.
template <class Args>
void divide_by_targets(Workspace& workspace, const Args& args, DType dtype, void* to, const void* from) {
  workspace.launch("divide_by_targets", softmax_table().divide_by_targets,
                   {scalar_of(dtype), args.rows, args.ignore_index, args.targets, from, to});
}

// GPUs report a target that is no class themselves.
void launch_cross_entropy(const CrossEntropyArgs& args, Executor& executor) {
  if (const long long row = softmax_table().cross_entropy(args, executor); row >= 0)
    throw Error(fmt::format("cross_entropy: target {} is not one of {} classes", args.targets[row], args.classes));
}

void cross_entropy(const Call& call, Workspace& workspace) {
  const Operand &logits = call.in[0], &target = call.in[1], &out = call.out[0], &lse = call.out[1];
  DType dtype = statistics_dtype(logits);
  auto args = cross_entropy_args<CrossEntropyArgs>(call, workspace, logits, target);
  const long long bytes = args.rows * static_cast<long long>(size_of(dtype));
  const Reduction reduction = call.attrs.as<LossAttrs>().reduction;
  const bool each = reduction == Reduction::None;
  args.losses = each ? workspace.write(out, dtype, out.is_contiguous()).data : workspace.take(bytes);
  args.total = each ? nullptr : out.data_ptr();
  args.mean = reduction == Reduction::Mean;
  args.parts = workspace.take(2 * bytes);
  args.lse = lse.defined() ? lse.data_ptr() : workspace.take(bytes);
  args.op = call.op.name.data();
  workspace.launch("cross_entropy", launch_cross_entropy, args);
}

void cross_entropy_backward(const Call& call, Workspace& workspace) {
  const Operand &logits = call.in[0], &dloss = call.in[1], &target = call.in[2];
  DType dtype = statistics_dtype(logits);
  auto args = cross_entropy_args<CrossEntropyBackwardArgs>(call, workspace, logits, target);
  args.dlogits = write_rows(workspace, call.out[0], 1, logits.dtype());
  args.lse = read_contiguous(workspace, call.in[3], dtype);
  void* gradient = read_contiguous(workspace, dloss, dtype);
  void* shared = workspace.take(static_cast<long long>(size_of(dtype)));
  Reduction reduction = call.attrs.as<LossAttrs>().reduction;
  args.scale = gradient;
  args.scale_step = reduction == Reduction::None;
  if (reduction == Reduction::Mean) {
    divide_by_targets(workspace, args, dtype, shared, gradient);
    args.scale = shared;
  }
  workspace.launch("cross_entropy_backward", softmax_table().cross_entropy_backward, args);
}

// Both in one pass where there is a kernel that takes these rows, else forward and backward.
struct LossAndGradient {
  CrossEntropyOverwriteArgs args;
  CrossEntropyArgs forward;
  CrossEntropyBackwardArgs backward;
};
void launch_both(const LossAndGradient& both, Executor& executor) {
  const SoftmaxTable& table = softmax_table();
  const bool in_place = both.backward.dlogits.data == both.args.logits.data;
  if (in_place && table.cross_entropy_overwrite && table.cross_entropy_overwrite(both.args, executor)) return;
  launch_cross_entropy(both.forward, executor);
  table.cross_entropy_backward(both.backward, executor);
}

void cross_entropy_and_gradient(const Call& call, Workspace& workspace) {
  const Operand &logits = call.in[0], &loss = call.in[1], &target = call.in[2];
  const DType dtype = loss.dtype();
  const auto number = static_cast<long long>(size_of(dtype));
  auto args = cross_entropy_args<CrossEntropyOverwriteArgs>(call, workspace, logits, target);
  void* const weight = read_contiguous(workspace, call.in[3], dtype);
  void* const scale = workspace.take(number);
  args.scale = scale;
  args.mean = loss.data_ptr();
  args.parts = workspace.take(2 * args.rows * number);
  args.op = call.op.name.data();
  void *const losses = workspace.take(args.rows * number), *const lse = workspace.take(args.rows * number);
  const RowArg dlogits = write_rows(workspace, call.out[0], 1, logits.dtype());
  divide_by_targets(workspace, args, dtype, scale, weight);
  workspace.launch("cross_entropy_and_gradient", launch_both,
                   {args,
                    {args.type, args.rows, args.classes, args.ignore_index, args.label_smoothing, args.logits,
                     args.targets, losses, lse, args.mean, true, args.parts, args.op},
                    {args.type, args.rows, args.classes, args.ignore_index, args.label_smoothing, dlogits, args.logits,
                     args.targets, lse, scale, 0}});
}

constexpr Kernel forward_list[] = {staged_kernel<cross_entropy>("rows")};
constexpr Kernel backward_list[] = {staged_kernel<cross_entropy_backward>("rows")};
constexpr Kernel both_list[] = {staged_kernel<cross_entropy_and_gradient>("rows")};

}  // namespace

std::span<const KernelTableEntry> loss_kernels() {
  static constexpr KernelTableEntry entries[] = {{"cross_entropy", forward_list},
                                                 {"cross_entropy_backward", backward_list},
                                                 {"cross_entropy_backward_", backward_list},
                                                 {"cross_entropy_and_gradient_", both_list}};
  return entries;
}

}  // namespace tessera::TESSERA_KERNELS
