// The CPU's norms.
#include "kernels/shared/norm.h"

namespace tessera::cpu_kernels {

bool lie_in_columns(int64_t, std::initializer_list<const Operand*>) { return false; }
bool adds_residual(const Operand& x) { return has_lines(x); }
long long batch_norm_bytes(long long channels, long long elements, bool lines) {
  return lines ? norm_table().batch_norm_workspace(channels, elements) : 0;
}
DType planes_dtype(const Operand& x, const Operand& weight) { return common_dtype(x, weight); }

namespace {

constexpr Kernel one_filter_list[] = {staged_kernel<one_filter_backward>("composed")};
constexpr Kernel norm_conv_list[] = {composed};
constexpr Kernel moments_list[] = {composed_moments};
constexpr Kernel known_list[] = {composed_known};
constexpr Kernel norm_conv_grad_list[] = {composed_grad};

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

}  // namespace tessera::cpu_kernels
