// Convolution: from tensors to what kernels take, any strides. What the lists of the CPU and of GPUs share.
#pragma once
#include <algorithm>
#include <array>

#include "kernels/shared/channels_last.h"
#include "kernels/shared/tables.h"

namespace tessera::TESSERA_KERNELS {

/// The dtype in which convolutions of such tensors compute: the CPU's convert halves. Each side has its own.
DType conv_dtype(const Operand& t);

inline ConvTensor conv_tensor(const Staged& s) {
  ConvTensor t{s.data, {}};
  std::copy(s.strides.begin(), s.strides.end(), t.strides);
  return t;
}

// The sizes that x, weight and attributes give.
inline ConvArgs sizes(const Call& call, const Operand& x, const Operand& weight) {
  auto& a = call.attrs.as<ConvAttrs>();
  ConvArgs args{};
  args.type = scalar_of(conv_dtype(x));
  args.tf32 = tf32_allowed();
  args.in_any_order = nondeterministic_allowed();
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

// ---- the arguments of a convolution and its gradients

// Which tensors have to be channels last: the images that result, all images, or filters too.
enum class Last { None, Result, Images, All };

// As they lie, or channels last in memory, where they are copied unless they are dense and aligned so.
class Operands {
 public:
  Operands(Workspace& workspace, DType dtype, bool channels_last)
      : workspace_(workspace), dtype_(dtype), last_(channels_last) {}

  ConvTensor read(const Operand& t) const {
    return conv_tensor(last_ ? workspace_.read(t, dtype_, lies_channels_last(t), channels_last(t))
                             : workspace_.read(t, dtype_));
  }
  ConvTensor write(const Operand& t) const {
    return conv_tensor(last_ ? workspace_.write(t, dtype_, lies_channels_last(t), false, channels_last(t))
                             : workspace_.write(t, dtype_));
  }

 private:
  Workspace& workspace_;
  DType dtype_;
  bool last_;
};

inline ConvArgs forward_args(const Call& call, Workspace& workspace, Last last = Last::None) {
  const Operand &x = call.in[0], &weight = call.in[1], &bias = call.in[2];
  DType dtype = conv_dtype(x);
  const Operands result(workspace, dtype, last != Last::None), images(workspace, dtype, last >= Last::Images),
      filters(workspace, dtype, last == Last::All);
  ConvArgs args = sizes(call, x, weight);
  args.x = images.read(x);
  args.packed_filters = weight.packing() != nullptr;
  args.w = args.packed_filters ? ConvTensor{weight.data_ptr(), {}} : filters.read(weight);
  args.y = result.write(call.out[0]);
  if (bias.defined()) args.bias = workspace.read(bias, dtype, bias.is_contiguous()).data;
  return args;
}
inline ConvArgs images_args(const Call& call, Workspace& workspace, Last last = Last::None) {
  const Operand &dy = call.in[0], &weight = call.in[1], &dx = call.out[0];
  const DType dtype = conv_dtype(dy);
  const Operands result(workspace, dtype, last != Last::None), images(workspace, dtype, last >= Last::Images),
      filters(workspace, dtype, last == Last::All);
  ConvArgs args = sizes(call, dx, weight);
  args.x = result.write(dx);
  args.w = filters.read(weight);
  args.y = images.read(dy);
  return args;
}
inline ConvArgs filters_args(const Call& call, Workspace& workspace, Last last = Last::None) {
  const Operand &x = call.in[0], &dy = call.in[1], &dw = call.out[0];
  const DType dtype = conv_dtype(x);
  const Operands images(workspace, dtype, last >= Last::Images), filters(workspace, dtype, last == Last::All);
  ConvArgs args = sizes(call, x, dw);
  args.x = images.read(x);
  args.w = filters.write(dw);
  args.y = images.read(dy);
  return args;
}

inline void convolve(const Call& call, Workspace& workspace, ConvArgs args, long long (*bytes)(const ConvArgs&),
                     void (*run)(const ConvArgs&, Executor&)) {
  args.workspace = workspace.take(bytes(args));
  if (call.out[0].numel() > 0) workspace.launch("convolution", run, args);
}

// ---- as products of implicit matrices

inline void conv2d_gemm(const Call& call, Workspace& workspace) {
  convolve(call, workspace, forward_args(call, workspace), conv_table().forward_workspace, conv_table().forward);
}
inline void input_grad_gemm(const Call& call, Workspace& workspace) {
  convolve(call, workspace, images_args(call, workspace), conv_table().backward_images_workspace,
           conv_table().backward_images);
}
inline void weight_grad_gemm(const Call& call, Workspace& workspace) {
  convolve(call, workspace, filters_args(call, workspace), conv_table().backward_filters_workspace,
           conv_table().backward_filters);
}

// ---- conv_transpose2d: x, weight, bias? -> y, as the gradient that it is

inline void conv_transpose2d(const Call& call, Plan& plan) {
  const auto& t = call.attrs.as<ConvTransposeAttrs>();
  const Operand &y = call.out[0], &bias = call.in[2];
  ConvAttrs a;
  for (int d = 0; d < 2; ++d) {
    a.stride[d] = t.stride[d];
    a.padding[d] = t.padding[d];
    a.dilation[d] = t.dilation[d];
    a.size[d] = y.size(2 + d);
  }
  a.groups = t.groups;
  plan_call(*call.op.made_of, call.in.first(2), a, {&y, 1}, plan);
  if (!bias.defined() || y.numel() == 0) return;
  // The bias is added to rounded sums: no kernel of the gradient takes one.
  combine(call, plan, MapOp::add, y, y, bias.as_strided(y.shape(), {0, bias.stride(0), 0, 0}));
}
inline constexpr Kernel transpose_list[] = {{.name = "composed", .plan = conv_transpose2d}};

}  // namespace tessera::TESSERA_KERNELS
