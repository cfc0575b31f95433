// The CPU's convolutions: by Winograd's algorithm, by a kernel that reads channels-last images in place, or as products
// of implicit matrices.
#include "kernels/shared/conv.h"

namespace tessera::cpu_kernels {

DType conv_dtype(const Operand& t) { return t.dtype() == Float64 ? Float64 : Float32; }

namespace {

// ---- by Winograd's algorithm

void conv2d_winograd(const Call& call, Workspace& workspace) {
  convolve(call, workspace, forward_args(call, workspace), conv_table().winograd_workspace,
           conv_table().winograd_forward);
}
void input_grad_winograd(const Call& call, Workspace& workspace) {
  convolve(call, workspace, images_args(call, workspace), conv_table().winograd_workspace,
           conv_table().winograd_backward_images);
}

// Winograd's algorithm trades multiplications, of which a tile of 2x2 outputs saves 20 for each channel and filter, for
// transforms of tiles and filters.
Reason takes_winograd(const Call& call) {
  const Operand &from = call.in[0], &weight = call.in[1], &to = call.out[0];
  auto& a = call.attrs.as<ConvAttrs>();
  for (int d = 0; d < 2; ++d)
    if (weight.size(2 + d) != 3 || a.stride[d] != 1 || a.dilation[d] != 1) return Reason::Window;
  if (a.groups != 1) return Reason::Window;
  if (conv_dtype(from) != Float32) return Reason::DType;
  const int64_t tiles = to.size(0) * ((to.size(2) + 1) / 2) * ((to.size(3) + 1) / 2);
  return from.size(1) < 16 || to.size(1) < 16 || tiles < 64 ? Reason::Small : Reason::Ok;
}
Reason input_grad_takes_winograd(const Call& call) {
  Reason reason = takes_winograd(call);
  auto& a = call.attrs.as<ConvAttrs>();
  // The gradient of the output is padded by what is missing to 2.
  return reason == Reason::Ok && (a.padding[0] > 2 || a.padding[1] > 2) ? Reason::Shape : reason;
}

// ---- over channels that lie last

void conv2d_direct(const Call& call, Workspace& workspace) {
  convolve(call, workspace, forward_args(call, workspace), conv_table().direct_workspace, conv_table().direct_forward);
}
void input_grad_direct(const Call& call, Workspace& workspace) {
  convolve(call, workspace, images_args(call, workspace), conv_table().direct_workspace,
           conv_table().direct_backward_images);
}

void weight_grad_direct(const Call& call, Workspace& workspace) {
  convolve(call, workspace, filters_args(call, workspace), conv_table().direct_filters_workspace,
           conv_table().direct_backward_filters);
}

// Vectors run along the channels of what is computed.
Reason takes_direct(const Call& call) {
  const Operand &from = call.in[0], &to = call.out[0];
  const auto last = [](const Operand& t) { return t.size(1) == 1 || t.strides()[1] == 1; };
  if (from.dtype() != Float32 || to.dtype() != Float32) return Reason::DType;
  if (!last(from) || !last(to)) return Reason::Layout;
  return to.size(1) / call.attrs.as<ConvAttrs>().groups < 8 ? Reason::Small : Reason::Ok;
}

// Vectors run along the channels of a row of taps.
Reason weight_grad_takes_direct(const Call& call) {
  const Operand &x = call.in[0], &dy = call.in[1], &dw = call.out[0];
  const auto last = [](const Operand& t) { return t.size(1) == 1 || t.strides()[1] == 1; };
  if (x.dtype() != Float32 || dy.dtype() != Float32 || dw.dtype() != Float32) return Reason::DType;
  if (!last(x) || !last(dy)) return Reason::Layout;
  return dw.size(1) * dw.size(3) < 8 || dw.size(0) / call.attrs.as<ConvAttrs>().groups < 4 ? Reason::Small : Reason::Ok;
}

constexpr Kernel conv2d_list[] = {staged_kernel<conv2d_direct>("direct", takes_direct),
                                  staged_kernel<conv2d_winograd>("winograd", takes_winograd),
                                  staged_kernel<conv2d_gemm>("implicit_gemm")};
constexpr Kernel input_grad_list[] = {staged_kernel<input_grad_direct>("direct", takes_direct),
                                      staged_kernel<input_grad_winograd>("winograd", input_grad_takes_winograd),
                                      staged_kernel<input_grad_gemm>("implicit_gemm")};
constexpr Kernel weight_grad_list[] = {staged_kernel<weight_grad_direct>("direct", weight_grad_takes_direct),
                                       staged_kernel<weight_grad_gemm>("implicit_gemm")};

}  // namespace

std::span<const KernelTableEntry> conv_kernels() {
  static constexpr KernelTableEntry entries[] = {
      {"conv2d", conv2d_list},
      {"conv2d_input_grad", input_grad_list},
      {"conv2d_weight_grad", weight_grad_list},
      {"conv_transpose2d", transpose_list},
  };
  return entries;
}

}  // namespace tessera::cpu_kernels
