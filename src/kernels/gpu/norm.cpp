// Norms on GPUs, and convolutions that they are fused with.
#include "kernels/shared/norm.h"

#include "kernels/gpu/pointwise.h"

namespace tessera::gpu_kernels {

bool lie_in_columns(int64_t inner, std::initializer_list<const Operand*> rows) {
  for (const Operand* t : rows) {
    long long pitch;
    if (!t->defined()) continue;
    if (!takes_columns(inner_size(*t, inner)) || t->dtype() == Float64 || !folds_to_rows(*t, inner, pitch) ||
        pitch % 8 != 0 || reinterpret_cast<uintptr_t>(t->data_ptr()) % 16 != 0)
      return false;
  }
  return true;
}
bool adds_residual(const Operand&) { return true; }
long long batch_norm_bytes(long long channels, long long elements, bool) {
  return norm_table().batch_norm_workspace(channels, elements);
}
DType planes_dtype(const Operand& x, const Operand&) { return x.dtype(); }

namespace {

void batch_norm_given(const Call& call, Workspace& workspace) {
  const bool lines = has_lines(call.in[0]);
  auto args = plane_forward_args<BatchNormArgs>(call, workspace, 3, lines);
  args.lines = lines;
  args.relu = call.attrs.as<NormAttrs>().relu;
  args.high = call.attrs.as<NormAttrs>().high;
  args.running_mean = read_contiguous(workspace, call.in[1], statistics_dtype(call.in[0]));
  args.running_variance = read_contiguous(workspace, call.in[2], statistics_dtype(call.in[0]));
  const double count = static_cast<double>(args.batch) * static_cast<double>(args.size);
  args.correction = (count - 1) / count;
  if (call.out[1].defined()) args.rstd = call.out[1].data_ptr();
  workspace.launch("batch_norm", norm_table().batch_norm, args);
}

// The same without that product in memory, and with the filter's gradient from sums that the norm's needs anyway.
void one_filter_backward_planes(const Call& call, Workspace& workspace) {
  const Operand &x = call.in[0], &dy = call.in[1];
  const Operand in[] = {of_channels(dy, x), x, call.in[5], call.in[3], call.in[4], call.in[6]};
  const Attrs norm = call.attrs.as<NormConvAttrs>().norm;
  const Call inner{call.op, in, norm, call.out.first(3)};
  BatchNormBackwardArgs args = batch_norm_backward_args(inner, workspace);
  args.bias = read_contiguous(workspace, call.in[6], common_dtype(x, call.in[5]));
  args.filter = read_contiguous(workspace, call.in[2], x.dtype());
  args.dfilter = call.out[3].data_ptr();
  ReduceArgs sums = sums_of_channels(dy, call.out[4]);
  sums.workspace = workspace.take(reduce_table().workspace(sums));
  workspace.launch("batch_norm_backward", norm_table().batch_norm_backward, args);
  workspace.launch("reduce", reduce_table().reduce, sums);
}

constexpr Kernel norm_conv_list[] = {staged_kernel<sm90_norm_conv>("sm90", sm90_takes_norm_conv),
                                     staged_kernel<sm90_norm_windows>("sm90.windows", sm90_takes_norm_windows),
                                     composed};
constexpr Kernel norm_conv_grad_list[] = {staged_kernel<sm90_norm_conv_grad>("sm90", sm90_takes_norm_conv_grad),
                                          composed_grad};
constexpr Kernel moments_list[] = {staged_kernel<sm90_moments>("sm90.windows", sm90_takes_moments), composed_moments};
constexpr Kernel known_list[] = {staged_kernel<batch_norm_given>("given"), composed_known};
constexpr Kernel one_filter_list[] = {staged_kernel<one_filter_backward_planes>("planes"),
                                      staged_kernel<one_filter_backward>("composed")};

}  // namespace

std::span<const KernelTableEntry> norm_kernels() {
  static constexpr KernelTableEntry entries[] = {
      {"norm_conv2d", norm_conv_list},
      {"norm_conv2d_weight_grad", norm_conv_grad_list},
      {"norm_conv1x1_one_filter_backward", one_filter_list},
      {"conv2d_moments", moments_list},
      {"batch_norm_known", known_list},
      {"layer_norm", row_list<false>},
      {"layer_norm_backward", norm_list<layer_norm_backward<false>>},
      {"add_layer_norm", norm_list<add_layer_norm>},
      {"add_layer_norm_backward", norm_list<add_layer_norm_backward>},
      {"rms_norm", row_list<true>},
      {"rms_norm_backward", norm_list<layer_norm_backward<true>>},
      {"group_norm", plane_list<group_norm>},
      {"group_norm_backward", plane_list<group_norm_backward>},
      {"batch_norm", plane_list<batch_norm>},
      {"batch_norm_add", plane_list<batch_norm_add>},
      {"move_estimates_", plane_list<move_estimates>},
      {"batch_norm_backward", plane_list<batch_norm_backward>},
      {"batch_norm_inference", plane_list<batch_norm_inference>},
  };
  return entries;
}

}  // namespace tessera::gpu_kernels
