// The CPU's convolutions: by Winograd's algorithm, by a kernel that reads channels-last images in place, or as products
// of implicit matrices.
#include "kernels/shared/conv.h"

namespace tessera::cpu_kernels {

DType conv_dtype(const Operand& t) { return t.dtype() == Float64 ? Float64 : Float32; }

namespace {

using Bytes = long long (*ConvTable::*)(const ConvArgs&);
using Run = void (*ConvTable::*)(const ConvArgs&, Executor&);

// A convolution, or a gradient, by functions of the table.
template <ConvArgs (*args)(const Call&, Workspace&, bool), Bytes bytes, Run run>
void by(const Call& call, Workspace& workspace) {
  convolve(call, workspace, args(call, workspace, false), conv_table().*bytes, conv_table().*run);
}

// Winograd's algorithm trades multiplications, of which a tile of 2x2 outputs saves 20 for each channel and filter, for
// transforms of tiles and filters.
Reason takes_tiles(const Call& call, int64_t least) {
  const Operand &from = call.in[0], &weight = call.in[1], &to = call.out[0];
  auto& a = call.attrs.as<ConvAttrs>();
  for (int d = 0; d < 2; ++d)
    if (weight.size(2 + d) != 3 || a.stride[d] != 1 || a.dilation[d] != 1) return Reason::Window;
  if (a.groups != 1) return Reason::Window;
  if (conv_dtype(from) != Float32) return Reason::DType;
  const int64_t tiles = to.size(0) * ((to.size(2) + 1) / 2) * ((to.size(3) + 1) / 2);
  return from.size(1) < 16 || to.size(1) < 16 || tiles < least ? Reason::Small : Reason::Ok;
}
Reason takes_winograd(const Call& call) { return takes_tiles(call, 64); }

// The gradient of the output is padded by what is missing to 2.
template <Reason (*takes)(const Call&)>
Reason input_grad_takes(const Call& call) {
  const Reason reason = takes(call);
  auto& a = call.attrs.as<ConvAttrs>();
  return reason == Reason::Ok && (a.padding[0] > 2 || a.padding[1] > 2) ? Reason::Shape : reason;
}

// ---- over channels that lie last: vectors run along those of what is computed

Reason lie_last(std::initializer_list<const Operand*> images) {
  for (const Operand* t : images) {
    if (t->dtype() != Float32) return Reason::DType;
    if (t->size(1) != 1 && t->strides()[1] != 1) return Reason::Layout;
  }
  return Reason::Ok;
}
Reason takes_direct(const Call& call) {
  const Reason reason = lie_last({&call.in[0], &call.out[0]});
  if (reason != Reason::Ok) return reason;
  return call.out[0].size(1) / call.attrs.as<ConvAttrs>().groups < 8 ? Reason::Small : Reason::Ok;
}
Reason takes_winograd_last(const Call& call) {
  const Reason reason = takes_direct(call);
  return reason == Reason::Ok ? takes_tiles(call, 48) : reason;
}
// Of the gradient of filters along the channels of a row of taps.
Reason weight_grad_takes_direct(const Call& call) {
  const Operand& dw = call.out[0];
  const Reason reason = lie_last({&call.in[0], &call.in[1]});
  if (reason != Reason::Ok || dw.dtype() != Float32) return reason == Reason::Ok ? Reason::DType : reason;
  return dw.size(1) * dw.size(3) < 8 || dw.size(0) / call.attrs.as<ConvAttrs>().groups < 4 ? Reason::Small : Reason::Ok;
}

// Each channel has a filter of its own.
Reason takes_depthwise(const Call& call, const Operand& weight, std::initializer_list<const Operand*> images) {
  if (weight.size(1) != 1 || weight.size(0) != call.attrs.as<ConvAttrs>().groups) return Reason::Shape;
  if (weight.size(0) < 4) return Reason::Small;
  return weight.dtype() == Float32 ? lie_last(images) : Reason::DType;
}
Reason takes_depthwise(const Call& call) { return takes_depthwise(call, call.in[1], {&call.in[0], &call.out[0]}); }
Reason weight_grad_takes_depthwise(const Call& call) {
  return takes_depthwise(call, call.out[0], {&call.in[0], &call.in[1]});
}

using T = ConvTable;
constexpr Kernel conv2d_list[] = {
    staged_kernel<by<forward_args, &T::depthwise_workspace, &T::depthwise_forward>>("depthwise", takes_depthwise),
    staged_kernel<by<forward_args, &T::winograd_last_workspace, &T::winograd_last_forward>>("winograd_last",
                                                                                            takes_winograd_last),
    staged_kernel<by<forward_args, &T::direct_workspace, &T::direct_forward>>("direct", takes_direct),
    staged_kernel<by<forward_args, &T::winograd_workspace, &T::winograd_forward>>("winograd", takes_winograd),
    staged_kernel<conv2d_gemm>("implicit_gemm")};
constexpr Kernel input_grad_list[] = {
    staged_kernel<by<images_args, &T::depthwise_workspace, &T::depthwise_backward_images>>("depthwise",
                                                                                           takes_depthwise),
    staged_kernel<by<images_args, &T::winograd_last_workspace, &T::winograd_last_backward_images>>(
        "winograd_last", input_grad_takes<takes_winograd_last>),
    staged_kernel<by<images_args, &T::direct_workspace, &T::direct_backward_images>>("direct", takes_direct),
    staged_kernel<by<images_args, &T::winograd_workspace, &T::winograd_backward_images>>(
        "winograd", input_grad_takes<takes_winograd>),
    staged_kernel<input_grad_gemm>("implicit_gemm")};
constexpr Kernel weight_grad_list[] = {
    staged_kernel<by<filters_args, &T::depthwise_filters_workspace, &T::depthwise_backward_filters>>(
        "depthwise", weight_grad_takes_depthwise),
    staged_kernel<by<filters_args, &T::direct_filters_workspace, &T::direct_backward_filters>>(
        "direct", weight_grad_takes_direct),
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
