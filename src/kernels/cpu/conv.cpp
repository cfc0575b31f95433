// Convolution and pooling. The convolution kernels take any strides, in f32 or f64; half types are converted.
#include "kernels/cpu/tables.h"
#include "kernels/cpu/workspace.h"

namespace tessera::TESSERA_KERNELS {
namespace {

DType compute_dtype(const Tensor& t) { return t.dtype() == Float64 ? Float64 : Float32; }

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
    args.stride[d] = a.stride[d];
    args.dilation[d] = a.dilation[d];
    args.padding[d] = a.padding[d];
  }
  return args;
}

void conv2d(const Call& call, Workspace& workspace) {
  const Tensor &x = call.in[0], &weight = call.in[1], &bias = call.in[2];
  DType dtype = compute_dtype(x);
  ConvArgs args = sizes(call, x, weight);
  args.x = conv_tensor(workspace.read(x, dtype));
  args.w = conv_tensor(workspace.read(weight, dtype));
  args.y = conv_tensor(workspace.write(call.out[0], dtype));
  if (bias.defined()) args.bias = workspace.read(bias, dtype, bias.is_contiguous()).data;
  args.workspace = workspace.take(conv_table().forward_workspace(args));
  if (!workspace.counting() && call.out[0].numel() > 0) conv_table().forward(args, executor());
}

void conv2d_input_grad(const Call& call, Workspace& workspace) {
  const Tensor &dy = call.in[0], &weight = call.in[1], &dx = call.out[0];
  DType dtype = compute_dtype(dy);
  ConvArgs args = sizes(call, dx, weight);
  args.x = conv_tensor(workspace.write(dx, dtype));
  args.w = conv_tensor(workspace.read(weight, dtype));
  args.y = conv_tensor(workspace.read(dy, dtype));
  args.workspace = workspace.take(conv_table().backward_images_workspace(args));
  if (!workspace.counting() && dx.numel() > 0) conv_table().backward_images(args, executor());
}

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

constexpr Kernel conv2d_list[] = {staged_kernel<conv2d>("implicit_gemm")};
constexpr Kernel input_grad_list[] = {staged_kernel<conv2d_input_grad>("implicit_gemm")};
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
