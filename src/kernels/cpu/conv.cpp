// Convolution and pooling. The convolution kernels take any strides; the CPU's convert half types.
#include <algorithm>

#include "kernels/cpu/tables.h"
#include "kernels/cpu/workspace.h"

namespace tessera::TESSERA_KERNELS {
namespace {

#ifdef TESSERA_GPU_KERNELS
DType compute_dtype(const Tensor& t) { return t.dtype(); }
#else
DType compute_dtype(const Tensor& t) { return t.dtype() == Float64 ? Float64 : Float32; }
#endif

ConvTensor conv_tensor(const Staged& s) {
  ConvTensor t{s.data, {}};
  std::copy(s.strides.begin(), s.strides.end(), t.strides);
  return t;
}

// The sizes that x, weight and attributes give.
ConvArgs sizes(const Call& call, const Tensor& x, const Tensor& weight) {
  auto& a = call.attrs.as<ConvAttrs>();
  ConvArgs args{};
  args.type = scalar_of(compute_dtype(x));
  args.images = x.size(0);
  args.channels = x.size(1);
  args.filters = weight.size(0);
  args.groups = a.groups;
  for (int d = 0; d < 2; ++d) {
    args.size[d] = x.size(2 + d);
    args.filter[d] = weight.size(2 + d);
    args.dilation[d] = a.dilation[d];
    args.padding[d] = a.padding[d];
    // A stride longer than the places a window has gives one result all the same, and kernels walk a stride's residues.
    const long long places = args.size[d] + 2 * args.padding[d] - args.dilation[d] * (args.filter[d] - 1);
    args.stride[d] = std::clamp<long long>(a.stride[d], 1, std::max(places, 1ll));
  }
  return args;
}

using ConvRun = void(const ConvArgs&, Executor&);

void conv2d(const Call& call, Workspace& workspace, long long (*bytes)(const ConvArgs&), ConvRun* run) {
  const Tensor &x = call.in[0], &weight = call.in[1], &bias = call.in[2];
  DType dtype = compute_dtype(x);
  ConvArgs args = sizes(call, x, weight);
  args.x = conv_tensor(workspace.read(x, dtype));
  args.w = conv_tensor(workspace.read(weight, dtype));
  args.y = conv_tensor(workspace.write(call.out[0], dtype));
  if (bias.defined()) args.bias = workspace.read(bias, dtype, bias.is_contiguous()).data;
  args.workspace = workspace.take(bytes(args));
  if (!workspace.counting() && call.out[0].numel() > 0) run(args, executor());
}
void conv2d_gemm(const Call& call, Workspace& workspace) {
  conv2d(call, workspace, conv_table().forward_workspace, conv_table().forward);
}

void input_grad(const Call& call, Workspace& workspace, long long (*bytes)(const ConvArgs&), ConvRun* run) {
  const Tensor &dy = call.in[0], &weight = call.in[1], &dx = call.out[0];
  DType dtype = compute_dtype(dy);
  ConvArgs args = sizes(call, dx, weight);
  args.x = conv_tensor(workspace.write(dx, dtype));
  args.w = conv_tensor(workspace.read(weight, dtype));
  args.y = conv_tensor(workspace.read(dy, dtype));
  args.workspace = workspace.take(bytes(args));
  if (!workspace.counting() && dx.numel() > 0) run(args, executor());
}
void input_grad_gemm(const Call& call, Workspace& workspace) {
  input_grad(call, workspace, conv_table().backward_images_workspace, conv_table().backward_images);
}

#ifndef TESSERA_GPU_KERNELS
void conv2d_winograd(const Call& call, Workspace& workspace) {
  conv2d(call, workspace, conv_table().winograd_workspace, conv_table().winograd_forward);
}
void input_grad_winograd(const Call& call, Workspace& workspace) {
  input_grad(call, workspace, conv_table().winograd_workspace, conv_table().winograd_backward_images);
}

// Winograd's algorithm trades multiplications, of which a tile of 2x2 outputs saves 20 for each channel and filter, for
// transforms of tiles and filters.
Reason takes_winograd(const Call& call) {
  const Tensor &from = call.in[0], &weight = call.in[1], &to = call.out[0];
  auto& a = call.attrs.as<ConvAttrs>();
  for (int d = 0; d < 2; ++d)
    if (weight.size(2 + d) != 3 || a.stride[d] != 1 || a.dilation[d] != 1) return Reason::Window;
  if (a.groups != 1) return Reason::Window;
  if (compute_dtype(from) != Float32) return Reason::DType;
  const int64_t tiles = to.size(0) * ((to.size(2) + 1) / 2) * ((to.size(3) + 1) / 2);
  return from.size(1) < 16 || to.size(1) < 16 || tiles < 64 ? Reason::Small : Reason::Ok;
}
Reason input_grad_takes_winograd(const Call& call) {
  Reason reason = takes_winograd(call);
  auto& a = call.attrs.as<ConvAttrs>();
  // The gradient of the output is padded by what is missing to 2.
  return reason == Reason::Ok && (a.padding[0] > 2 || a.padding[1] > 2) ? Reason::Shape : reason;
}
#endif

void conv2d_weight_grad(const Call& call, Workspace& workspace) {
  const Tensor &x = call.in[0], &dy = call.in[1], &dw = call.out[0];
  DType dtype = compute_dtype(x);
  ConvArgs args = sizes(call, x, dw);
  args.x = conv_tensor(workspace.read(x, dtype));
  args.w = conv_tensor(workspace.write(dw, dtype));
  args.y = conv_tensor(workspace.read(dy, dtype));
  args.workspace = workspace.take(conv_table().backward_filters_workspace(args));
  if (!workspace.counting() && dw.numel() > 0) conv_table().backward_filters(args, executor());
}

// ---- pooling: kernels that take any strides and every floating type

PoolArgs pool_args(const Call& call, const Tensor& x, const Tensor& y) {
  auto& a = call.attrs.as<PoolAttrs>();
  PoolArgs args{};
  args.images = x.size(0);
  args.channels = x.size(1);
  for (int d = 0; d < 2; ++d) {
    args.size[d] = x.size(2 + d);
    args.window[d] = a.window[d];
    args.stride[d] = a.stride[d];
    args.padding[d] = a.padding[d];
    args.dilation[d] = a.dilation[d];
  }
  args.count_padding = a.count_include_pad;
  args.x = operand(x, 4);
  args.y = operand(y, 4);
  return args;
}

void max_pool2d(const Call& call) {
  PoolArgs args = pool_args(call, call.in[0], call.out[0]);
  if (call.out[1].defined()) args.places = operand(call.out[1], 4);
  pool_table().max(args, executor());
}
void max_pool2d_backward(const Call& call) {
  PoolArgs args = pool_args(call, call.out[0], call.in[0]);
  args.places = operand(call.in[1], 4);
  pool_table().max_backward(args, executor());
}
void avg_pool2d(const Call& call) { pool_table().average(pool_args(call, call.in[0], call.out[0]), executor()); }
void avg_pool2d_backward(const Call& call) {
  pool_table().average_backward(pool_args(call, call.out[0], call.in[0]), executor());
}

#ifdef TESSERA_GPU_KERNELS
constexpr Kernel conv2d_list[] = {staged_kernel<conv2d_gemm>("implicit_gemm")};
constexpr Kernel input_grad_list[] = {staged_kernel<input_grad_gemm>("implicit_gemm")};
#else
constexpr Kernel conv2d_list[] = {staged_kernel<conv2d_winograd>("winograd", takes_winograd),
                                  staged_kernel<conv2d_gemm>("implicit_gemm")};
constexpr Kernel input_grad_list[] = {staged_kernel<input_grad_winograd>("winograd", input_grad_takes_winograd),
                                      staged_kernel<input_grad_gemm>("implicit_gemm")};
#endif
constexpr Kernel weight_grad_list[] = {staged_kernel<conv2d_weight_grad>("implicit_gemm")};
constexpr Kernel max_list[] = {{.name = "windows", .run = max_pool2d}};
constexpr Kernel max_backward_list[] = {{.name = "windows", .run = max_pool2d_backward}};
constexpr Kernel average_list[] = {{.name = "windows", .run = avg_pool2d}};
constexpr Kernel average_backward_list[] = {{.name = "windows", .run = avg_pool2d_backward}};
constexpr KernelTableEntry entries[] = {
    {"conv2d", conv2d_list},
    {"conv2d_input_grad", input_grad_list},
    {"conv2d_weight_grad", weight_grad_list},
    {"max_pool2d", max_list},
    {"max_pool2d_backward", max_backward_list},
    {"avg_pool2d", average_list},
    {"avg_pool2d_backward", average_backward_list},
};

}  // namespace

std::span<const KernelTableEntry> conv_kernels() { return entries; }

}  // namespace tessera::TESSERA_KERNELS
