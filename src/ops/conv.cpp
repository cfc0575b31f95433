// 2-d convolution, whose gradients are convolutions too, and pooling. Images are [n, c, h, w].
#include <algorithm>
#include <cmath>

#include "ops/check.h"
#include "ops/conv.h"
#include "ops/cost.h"
#include "ops/gradient.h"
#include "ops/matmul.h"
#include "ops/op_name.h"
#include "ops/op_table.h"
#include "ops/reference.h"

namespace tessera {
namespace {

using reference::Index;

// Places of a window of `window` elements, `dilation` apart, on `size` elements padded on both sides.
Dim places(std::string_view op, Dim size, Dim window, int64_t stride, int64_t padding, int64_t dilation) {
  Dim room = size + 2 * padding - (window - 1) * dilation - 1;
  if (!room.is_symbolic() && room.value() < 0)
    fail(op, "a window of {} with dilation {} exceeds the size {} padded by {}", window.to_string(), dilation,
         size.to_string(), padding);
  return room / stride + 1;
}

constexpr int64_t kMost = int64_t(1) << 31;  // of a window and its parameters: products of two do not overflow

template <class A>
void require_window(std::string_view op, const A& attrs) {
  for (int d = 0; d < 2; ++d)
    if (attrs.stride[d] < 1 || attrs.dilation[d] < 1 || attrs.padding[d] < 0)
      fail(op, "stride {} and dilation {} must be positive and padding {} not negative", attrs.stride[d],
           attrs.dilation[d], attrs.padding[d]);
    else if (std::max({attrs.stride[d], attrs.dilation[d], attrs.padding[d]}) > kMost)
      fail(op, "stride {}, dilation {} and padding {} must not exceed 2^31", attrs.stride[d], attrs.dilation[d],
           attrs.padding[d]);
}

// ---- conv2d: x, weight [out, c / groups, r, s], bias? [out] -> y

void require_groups(std::string_view op, Dim channels, const Shape& weight, int64_t groups) {
  if (groups < 1) fail(op, "groups must be positive, not {}", groups);
  if (!(weight[1] * groups == channels))
    fail(op, "weight {} in {} groups does not fit {} channels", to_string(weight), groups, channels.to_string());
  if (provably_different(weight[0] / groups * groups, weight[0]))
    fail(op, "{} output channels do not split into {} groups", weight[0].to_string(), groups);
}

Shape convolved(std::string_view op, const Shape& x, const Shape& weight, const ConvAttrs& a) {
  return {x[0], weight[0], places(op, x[2], weight[2], a.stride[0], a.padding[0], a.dilation[0]),
          places(op, x[3], weight[3], a.stride[1], a.padding[1], a.dilation[1])};
}

Metas infer_conv2d(std::span<const TensorMeta> in, const Attrs& attrs) {
  auto& a = attrs.as<ConvAttrs>();
  require_one_floating_dtype("conv2d", in, 3);
  require_rank("conv2d", "x", in[0], 4);
  require_rank("conv2d", "weight", in[1], 4);
  require_window("conv2d", a);
  require_groups("conv2d", in[0].shape[1], in[1].shape, a.groups);
  require_shape("conv2d", "bias", in[2], {in[1].shape[0]});
  return {{convolved("conv2d", in[0].shape, in[1].shape, a), in[0].dtype, in[0].device}};
}

double input_grad_flops(std::span<const TensorMeta> in, std::span<const TensorMeta>, const Attrs&) {
  return convolution_flops(in[0].shape, in[1].shape);
}

// Calls fn(index of y, index of x, index of weight) for every product of a convolution.
template <class F>
void each_product(const Shape& x, const Shape& weight, const Shape& y, const ConvAttrs& a, F fn) {
  int64_t out_per_group = y[1].value() / a.groups;
  reference::each_index(y, [&](const Index& i) {
    reference::each_index({weight[1], weight[2], weight[3]}, [&](const Index& k) {
      int64_t row = i[2] * a.stride[0] - a.padding[0] + k[1] * a.dilation[0];
      int64_t column = i[3] * a.stride[1] - a.padding[1] + k[2] * a.dilation[1];
      if (row < 0 || column < 0 || row >= x[2].value() || column >= x[3].value()) return;
      int64_t channel = i[1] / out_per_group * weight[1].value() + k[0];
      fn(i, Index{i[0], channel, row, column}, Index{i[1], k[0], k[1], k[2]});
    });
  });
}

void add_to(const Tensor& t, const Index& index, double value) {
  reference::set(t, index, reference::get(t, index) + value);
}

Tensors conv2d_reference(std::span<const Tensor> in, const Attrs& attrs) {
  auto& a = attrs.as<ConvAttrs>();
  Shape shape = convolved("conv2d", in[0].shape(), in[1].shape(), a);
  Tensor y = reference::generate(shape, in[0].dtype(), [&](const Index& i) {
    return in[2].defined() ? reference::get(in[2], std::array{i[1]}) : 0;
  });
  each_product(in[0].shape(), in[1].shape(), shape, a, [&](auto& iy, const Index& ix, const Index& iw) {
    add_to(y, iy, reference::get(in[0], ix) * reference::get(in[1], iw));
  });
  return {y};
}

// ---- conv2d_input_grad: dy, weight -> dx; conv2d_weight_grad: x, dy, weight? -> dweight, which lies as the weight
// does. Attrs hold the spatial size of the result.

void require_consistent(std::string_view op, const Shape& x, const Shape& weight, const Shape& dy, const ConvAttrs& a) {
  Shape wanted = convolved(op, x, weight, a);
  for (size_t d = 0; d < 4; ++d)
    if (provably_different(wanted[d], dy[d]))
      fail(op, "gradient has shape {}, not {}", to_string(dy), to_string(wanted));
}

Metas infer_input_grad(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr auto op = "conv2d_input_grad";
  auto& a = attrs.as<ConvAttrs>();
  require_one_floating_dtype(op, in, 2);
  require_rank(op, "gradient", in[0], 4);
  require_rank(op, "weight", in[1], 4);
  require_window(op, a);
  const Shape &dy = in[0].shape, &weight = in[1].shape;
  Shape x{dy[0], weight[1] * a.groups, Dim(a.size[0]), Dim(a.size[1])};
  require_groups(op, x[1], weight, a.groups);
  require_consistent(op, x, weight, dy, a);
  return {{x, in[0].dtype, in[0].device}};
}

Metas infer_weight_grad(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr auto op = "conv2d_weight_grad";
  auto& a = attrs.as<ConvAttrs>();
  require_one_floating_dtype(op, in, 2);
  require_rank(op, "x", in[0], 4);
  require_rank(op, "gradient", in[1], 4);
  require_window(op, a);
  const Shape &x = in[0].shape, &dy = in[1].shape;
  Shape weight{dy[1], x[1] / a.groups, Dim(a.size[0]), Dim(a.size[1])};
  require_shape(op, "weight", in[2], weight);
  require_groups(op, x[1], weight, a.groups);
  require_consistent(op, x, weight, dy, a);
  return {{weight, in[0].dtype, in[0].device}};
}

Tensors input_grad_reference(std::span<const Tensor> in, const Attrs& attrs) {
  TensorMeta metas[] = {in[0].meta(), in[1].meta()};
  Tensor dx = zeros(infer_input_grad(metas, attrs)[0].shape, in[0].dtype());
  each_product(dx.shape(), in[1].shape(), in[0].shape(), attrs.as<ConvAttrs>(),
               [&](auto& iy, const Index& ix, const Index& iw) {
                 add_to(dx, ix, reference::get(in[0], iy) * reference::get(in[1], iw));
               });
  return {dx};
}
Tensors weight_grad_reference(std::span<const Tensor> in, const Attrs& attrs) {
  TensorMeta metas[] = {in[0].meta(), in[1].meta(), absent_meta()};
  Tensor dw = zeros(infer_weight_grad(metas, attrs)[0].shape, in[0].dtype());
  each_product(in[0].shape(), dw.shape(), in[1].shape(), attrs.as<ConvAttrs>(),
               [&](auto& iy, const Index& ix, const Index& iw) {
                 add_to(dw, iw, reference::get(in[0], ix) * reference::get(in[1], iy));
               });
  return {dw};
}

// The three are one trilinear form <dy, conv(x, w)>: each gradient of one is another of them.
ConvAttrs sized(const Attrs& attrs, const Tensor& like) {
  ConvAttrs a = attrs.as<ConvAttrs>();
  for (int d = 0; d < 2; ++d) a.size[d] = like.shape()[2 + d].value();
  return a;
}
Tensor convolution(const Tensor& x, const Tensor& weight, const Attrs& attrs) {
  ConvAttrs a = attrs.as<ConvAttrs>();
  a.size[0] = a.size[1] = 0;
  return dispatch_one(conv2d_op, {x, weight, {}}, a);
}
Tensor input_grad(const Tensor& dy, const Tensor& weight, const Tensor& x, const Attrs& attrs) {
  return dispatch_one(conv2d_input_grad_op, {dy, weight}, sized(attrs, x));
}
// Kernels share the images of a batch among threads, and take no empty one.
Tensor weight_grad(const Tensor& x, const Tensor& dy, const Tensor& weight, const Attrs& attrs) {
  if (x.shape().numel() == Dim(0) || dy.shape().numel() == Dim(0))
    return zeros(weight.shape(), weight.dtype(), weight.device());
  return dispatch_one(conv2d_weight_grad_op, {x, dy, weight}, sized(attrs, weight));
}

Tensors conv2d_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &weight = s.inputs[1], &dy = grads[0];
  const ConvAttrs image = sized(s.attrs, s.inputs[0]);
  Tensors out(3);
  if (s.needs_input(1)) out[1] = weight_grad(s.inputs[0], dy, weight, s.attrs);
  s.inputs[0] = {};  // before its gradient takes as much memory
  if (s.needs_input(0)) out[0] = dispatch_one(conv2d_input_grad_op, {dy, weight}, image);
  if (s.needs_input(2)) out[2] = sum(dy, {0, 2, 3});
  return out;
}
Tensors input_grad_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &dy = s.inputs[0], &weight = s.inputs[1], &x = grads[0];
  Tensors out(2);
  if (s.needs_input(0)) out[0] = convolution(x, weight, s.attrs);
  if (s.needs_input(1)) out[1] = weight_grad(x, dy, weight, s.attrs);
  return out;
}
Tensors weight_grad_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &x = s.inputs[0], &dy = s.inputs[1], &weight = grads[0];
  Tensors out(3);
  if (s.needs_input(0)) out[0] = input_grad(dy, weight, x, s.attrs);
  if (s.needs_input(1)) out[1] = convolution(x, weight, s.attrs);
  return out;
}

}  // namespace

double conv2d_flops(std::span<const TensorMeta> in, std::span<const TensorMeta> out, const Attrs&) {
  return convolution_flops(out[0].shape, in[1].shape);
}
double conv2d_weight_grad_flops(std::span<const TensorMeta> in, std::span<const TensorMeta> out, const Attrs&) {
  return convolution_flops(in[1].shape, out[0].shape);
}

const Op conv2d_op = {.name = "conv2d",
                      .inputs = "x, weight, bias?",
                      .outputs = "y",
                      .attrs = attrs_of<ConvAttrs>,
                      .infer = infer_conv2d,
                      .vjp = conv2d_vjp,
                      .reference = conv2d_reference,
                      .saves = {.inputs = 0b011},
                      .autocast = Autocast::Lower,
                      .keeps_layout = true,
                      .made_of = &linear_op,
                      .flops = conv2d_flops};
const Op conv2d_input_grad_op = {.name = "conv2d_input_grad",
                                 .inputs = "dy, weight",
                                 .outputs = "dx",
                                 .attrs = attrs_of<ConvAttrs>,
                                 .infer = infer_input_grad,
                                 .vjp = input_grad_vjp,
                                 .reference = input_grad_reference,
                                 .saves = {.inputs = 0b11},
                                 .keeps_layout = true,
                                 .made_of = &matmul_op,
                                 .flops = input_grad_flops};
const Op conv2d_weight_grad_op = {.name = "conv2d_weight_grad",
                                  .inputs = "x, dy, weight?",
                                  .outputs = "dweight",
                                  .attrs = attrs_of<ConvAttrs>,
                                  .infer = infer_weight_grad,
                                  .vjp = weight_grad_vjp,
                                  .reference = weight_grad_reference,
                                  .saves = {.inputs = 0b11},
                                  .keeps_layout = true,
                                  .layout_of = 2,
                                  .made_of = &matmul_op,
                                  .flops = conv2d_weight_grad_flops};

namespace {

// ---- conv_transpose2d: x, weight [in, out / groups, r, s], bias? [out] -> y: the images whose convolution with these
// filters has the shape of x, each of its gradients' two operands as in conv2d_input_grad.

ConvAttrs convolution_of(const ConvTransposeAttrs& a, const Shape& y = {}) {
  ConvAttrs c;
  for (size_t d = 0; d < 2; ++d) {
    c.stride[d] = a.stride[d];
    c.padding[d] = a.padding[d];
    c.dilation[d] = a.dilation[d];
    if (y.rank() == 4 && !y[2 + d].is_symbolic()) c.size[d] = y[2 + d].value();
  }
  c.groups = a.groups;
  return c;
}

constexpr int64_t kMostStride = int64_t(1) << 24;  // over whose residues kernels walk

Metas infer_transpose(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr auto op = "conv_transpose2d";
  auto& a = attrs.as<ConvTransposeAttrs>();
  require_one_floating_dtype(op, in, 3);
  require_rank(op, "x", in[0], 4);
  require_rank(op, "weight", in[1], 4);
  require_window(op, a);
  const Shape &x = in[0].shape, &weight = in[1].shape;
  Shape y{x[0], weight[1] * a.groups, Dim(0), Dim(0)};
  require_groups(op, y[1], weight, a.groups);
  if (provably_different(x[1], weight[0]))
    fail(op, "weight {} does not fit {} channels", to_string(weight), x[1].to_string());
  for (size_t d = 0; d < 2; ++d) {
    if (a.output_padding[d] < 0 || a.output_padding[d] >= a.stride[d])
      fail(op, "output_padding {} is not below the stride {}", a.output_padding[d], a.stride[d]);
    if (a.stride[d] > kMostStride) fail(op, "stride {} must not exceed 2^24", a.stride[d]);
    y[2 + d] =
        (x[2 + d] - 1) * a.stride[d] - 2 * a.padding[d] + (weight[2 + d] - 1) * a.dilation[d] + a.output_padding[d] + 1;
    if (!y[2 + d].is_symbolic() && y[2 + d].value() < 1)
      fail(op, "padding {} leaves {} of the result's rows or columns", a.padding[d], y[2 + d].to_string());
  }
  require_shape(op, "bias", in[2], {y[1]});
  return {{y, in[0].dtype, in[0].device}};
}

Tensors transpose_reference(std::span<const Tensor> in, const Attrs& attrs) {
  TensorMeta metas[] = {in[0].meta(), in[1].meta(), absent_meta()};
  const Shape shape = infer_transpose(metas, attrs)[0].shape;
  Tensor y = reference::generate(shape, in[0].dtype(), [&](const Index& i) {
    return in[2].defined() ? reference::get(in[2], std::array{i[1]}) : 0;
  });
  each_product(shape, in[1].shape(), in[0].shape(), convolution_of(attrs.as<ConvTransposeAttrs>()),
               [&](auto& ix, const Index& iy, const Index& iw) {
                 add_to(y, iy, reference::get(in[0], ix) * reference::get(in[1], iw));
               });
  return {y};
}

Tensors transpose_vjp(const Saved& s, const Tensors& grads) {
  const Attrs a = convolution_of(s.attrs.as<ConvTransposeAttrs>());
  const Tensor &weight = s.inputs[1], &dy = grads[0];
  Tensors out(3);
  if (s.needs_input(0)) out[0] = convolution(dy, weight, a);
  if (s.needs_input(1)) out[1] = weight_grad(dy, s.inputs[0], weight, a);
  if (s.needs_input(2)) out[2] = sum(dy, {0, 2, 3});
  return out;
}

double transpose_flops(std::span<const TensorMeta> in, std::span<const TensorMeta>, const Attrs&) {
  return convolution_flops(in[0].shape, in[1].shape);
}

const Op conv_transpose2d_op = {.name = "conv_transpose2d",
                                .inputs = "x, weight, bias?",
                                .outputs = "y",
                                .attrs = attrs_of<ConvTransposeAttrs>,
                                .infer = infer_transpose,
                                .vjp = transpose_vjp,
                                .reference = transpose_reference,
                                .saves = {.inputs = 0b011},
                                .autocast = Autocast::Lower,
                                .keeps_layout = true,
                                .made_of = &conv2d_input_grad_op,
                                .flops = transpose_flops};

// ---- pooling: x -> y; max_pool2d also keeps which tap of its window each maximum is (hidden): number row * columns +
// column, or their count where a window lies on padding only. A byte for windows of up to 255 taps.

template <OpName op>
Shape pooled(const TensorMeta& x, const PoolAttrs& a) {
  require_rank(op.view(), "x", x, 4);
  require_window(op.view(), a);
  for (int d = 0; d < 2; ++d) {
    if (a.window[d] < 1) fail(op.view(), "window must be positive, not {}", a.window[d]);
    if (a.window[d] > kMost) fail(op.view(), "window {} must not exceed 2^31", a.window[d]);
    if (2 * a.padding[d] > a.window[d])
      fail(op.view(), "padding {} exceeds half the window {}", a.padding[d], a.window[d]);
  }
  return {x.shape[0], x.shape[1], places(op.view(), x.shape[2], a.window[0], a.stride[0], a.padding[0], a.dilation[0]),
          places(op.view(), x.shape[3], a.window[1], a.stride[1], a.padding[1], a.dilation[1])};
}

// Calls fn(row, column) for the places of a window that lie on the image.
template <class F>
void each_in_window(const Index& out, int64_t height, int64_t width, const PoolAttrs& a, F fn) {
  for (int64_t r = 0; r < a.window[0]; ++r)
    for (int64_t s = 0; s < a.window[1]; ++s) {
      int64_t row = out[2] * a.stride[0] - a.padding[0] + r * a.dilation[0];
      int64_t column = out[3] * a.stride[1] - a.padding[1] + s * a.dilation[1];
      if (row >= 0 && column >= 0 && row < height && column < width) fn(row, column);
    }
}

// What a window's sum is divided by: padding counts, what lies beyond it does not.
double divisor(const Index& out, int64_t height, int64_t width, const PoolAttrs& a) {
  int64_t size[] = {height, width};
  double count = 1;
  for (int d = 0; d < 2; ++d) {
    int64_t first = out[2 + d] * a.stride[d] - a.padding[d],
            last = std::min(first + a.window[d], size[d] + a.padding[d]);
    count *=
        static_cast<double>(a.count_include_pad ? last - first : std::min(last, size[d]) - std::max<int64_t>(first, 0));
  }
  return count;
}

int64_t tap_count(const PoolAttrs& a) { return a.window[0] * a.window[1]; }
DType taps_dtype(const PoolAttrs& a) { return tap_count(a) <= 255 ? UInt8 : Int64; }

Metas infer_max_pool(std::span<const TensorMeta> in, const Attrs& attrs) {
  auto& a = attrs.as<PoolAttrs>();
  require_one_floating_dtype("max_pool2d", in, 1);
  Shape shape = pooled<"max_pool2d">(in[0], a);
  return {{shape, in[0].dtype, in[0].device}, {shape, taps_dtype(a), in[0].device}};
}
Metas infer_avg_pool(std::span<const TensorMeta> in, const Attrs& attrs) {
  auto& a = attrs.as<PoolAttrs>();
  require_one_floating_dtype("avg_pool2d", in, 1);
  if (a.dilation[0] != 1 || a.dilation[1] != 1) fail("avg_pool2d", "dilation is not supported");
  return {{pooled<"avg_pool2d">(in[0], a), in[0].dtype, in[0].device}};
}

Tensors max_pool_reference(std::span<const Tensor> in, const Attrs& attrs) {
  auto& a = attrs.as<PoolAttrs>();
  const Tensor& x = in[0];
  return {reference::generate(pooled<"max_pool2d">(x.meta(), a), x.dtype(), [&](const Index& i) {
    double best = -INFINITY;
    each_in_window(i, x.size(2), x.size(3), a, [&](int64_t row, int64_t column) {
      best = std::max(best, reference::get(x, Index{i[0], i[1], row, column}));
    });
    return best;
  })};
}
Tensors avg_pool_reference(std::span<const Tensor> in, const Attrs& attrs) {
  auto& a = attrs.as<PoolAttrs>();
  const Tensor& x = in[0];
  return {reference::generate(pooled<"avg_pool2d">(x.meta(), a), x.dtype(), [&](const Index& i) {
    double total = 0;
    each_in_window(i, x.size(2), x.size(3), a, [&](int64_t row, int64_t column) {
      total += reference::get(x, Index{i[0], i[1], row, column});
    });
    return total / divisor(i, x.size(2), x.size(3), a);
  })};
}

// ---- max_pool2d_backward: dy, taps -> dx; avg_pool2d_backward: dy -> dx. Attrs hold the spatial size of dx.

template <OpName op>
Metas infer_pool_backward(std::span<const TensorMeta> in, const Attrs& attrs) {
  auto& a = attrs.as<PoolAttrs>();
  require_one_floating_dtype(op.view(), in, 1);
  require_rank(op.view(), "gradient", in[0], 4);
  if (in.size() > 1) {
    require_shape(op.view(), "taps", in[1], in[0].shape);
    if (in[1].dtype != taps_dtype(a))
      fail(op.view(), "taps of a window {}x{} must be {}, not {}", a.window[0], a.window[1], name(taps_dtype(a)),
           describe(in[1]));
  }
  TensorMeta x{{in[0].shape[0], in[0].shape[1], Dim(a.size[0]), Dim(a.size[1])}, in[0].dtype, in[0].device};
  Shape wanted = pooled<op>(x, a);
  for (size_t d = 2; d < 4; ++d)
    if (provably_different(wanted[d], in[0].shape[d]))
      fail(op.view(), "gradient has shape {}, not {}", to_string(in[0].shape), to_string(wanted));
  return {x};
}

Tensors max_pool_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  auto& a = attrs.as<PoolAttrs>();
  Tensor dx = zeros({in[0].shape()[0], in[0].shape()[1], Dim(a.size[0]), Dim(a.size[1])}, in[0].dtype());
  reference::each_index(in[0].shape(), [&](const Index& i) {
    auto tap = static_cast<int64_t>(reference::get(in[1], i));
    if (tap == tap_count(a)) return;
    const int64_t row = i[2] * a.stride[0] - a.padding[0] + tap / a.window[1] * a.dilation[0];
    const int64_t column = i[3] * a.stride[1] - a.padding[1] + tap % a.window[1] * a.dilation[1];
    add_to(dx, {i[0], i[1], row, column}, reference::get(in[0], i));
  });
  return {dx};
}
Tensors avg_pool_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  auto& a = attrs.as<PoolAttrs>();
  Tensor dx = zeros({in[0].shape()[0], in[0].shape()[1], Dim(a.size[0]), Dim(a.size[1])}, in[0].dtype());
  reference::each_index(in[0].shape(), [&](const Index& i) {
    double share = reference::get(in[0], i) / divisor(i, a.size[0], a.size[1], a);
    each_in_window(i, a.size[0], a.size[1], a, [&](int64_t row, int64_t column) {
      add_to(dx, {i[0], i[1], row, column}, share);
    });
  });
  return {dx};
}

PoolAttrs sized_pool(const Attrs& attrs, const Shape& x) {
  PoolAttrs a = attrs.as<PoolAttrs>();
  for (int d = 0; d < 2; ++d) a.size[d] = x[2 + d].value();
  return a;
}

// Where the maxima lie in their planes, h * width + w; 0 where there is none.
Tensor places_of(const Tensor& taps, const Tensor& exist, const PoolAttrs& a) {
  const auto width = static_cast<double>(a.window[1]);
  const Tensor number = taps.to(Int64), row = floor_div(number, full({}, width, Int64, taps.device()));
  const auto along = [&](int d, const Tensor& tap) {
    const auto count = static_cast<double>(taps.size(2 + d)), stride = static_cast<double>(a.stride[d]);
    const Tensor starts = arange(0, count, 1, Int64, taps.device()) * stride - static_cast<double>(a.padding[d]);
    return (d == 0 ? starts.unsqueeze(1) : starts) + tap * static_cast<double>(a.dilation[d]);
  };
  const Tensor places = along(0, row) * static_cast<double>(a.size[1]) + along(1, number - row * width);
  return where(exist, places, zeros({}, Int64, taps.device()));
}

// The gradient of the scatter is the gather from the same places.
Tensors max_pool_backward_vjp(const Saved& s, const Tensors& grads) {
  const auto& a = s.attrs.as<PoolAttrs>();
  const Tensor &g = grads[0], &taps = s.inputs[1],
               exist = ne(taps, full({}, static_cast<double>(tap_count(a)), taps.dtype(), taps.device()));
  const Tensor places = flatten(places_of(taps, exist, a), 2);
  const Tensor at = reshape(gather(flatten(g, 2), 2, places), taps.shape());
  return {where(exist, at, zeros({}, g.dtype(), g.device())), {}};
}
extern const Op avg_pool2d_op;
Tensors avg_pool_backward_vjp(const Saved& s, const Tensors& grads) {
  PoolAttrs a = s.attrs.as<PoolAttrs>();
  a.size[0] = a.size[1] = 0;
  return {dispatch_one(avg_pool2d_op, {grads[0]}, a)};
}

const Op max_pool2d_backward = {.name = "max_pool2d_backward",
                                .inputs = "dy, taps",
                                .outputs = "dx",
                                .attrs = attrs_of<PoolAttrs>,
                                .infer = infer_pool_backward<"max_pool2d_backward">,
                                .vjp = max_pool_backward_vjp,
                                .reference = max_pool_backward_reference,
                                .saves = {.inputs = 0b10},
                                .keeps_layout = true,
                                .layout_of = kAnyInput};
const Op avg_pool2d_backward = {.name = "avg_pool2d_backward",
                                .inputs = "dy",
                                .outputs = "dx",
                                .attrs = attrs_of<PoolAttrs>,
                                .infer = infer_pool_backward<"avg_pool2d_backward">,
                                .vjp = avg_pool_backward_vjp,
                                .reference = avg_pool_backward_reference,
                                .keeps_layout = true};

Tensors max_pool_vjp(const Saved& s, const Tensors& grads) {
  return {dispatch_one(max_pool2d_backward, {grads[0], s.outputs[1].detach()}, sized_pool(s.attrs, s.metas[0].shape))};
}
Tensors avg_pool_vjp(const Saved& s, const Tensors& grads) {
  return {dispatch_one(avg_pool2d_backward, {grads[0]}, sized_pool(s.attrs, s.metas[0].shape))};
}

const Op max_pool2d_op = {.name = "max_pool2d",
                          .inputs = "x",
                          .outputs = "y, taps?",
                          .attrs = attrs_of<PoolAttrs>,
                          .infer = infer_max_pool,
                          .vjp = max_pool_vjp,
                          .reference = max_pool_reference,
                          .saves = {.outputs = 0b10, .metas = 1},
                          .hidden_outputs = 1,
                          .keeps_layout = true};
const Op avg_pool2d_op = {.name = "avg_pool2d",
                          .inputs = "x",
                          .outputs = "y",
                          .attrs = attrs_of<PoolAttrs>,
                          .infer = infer_avg_pool,
                          .vjp = avg_pool_vjp,
                          .reference = avg_pool_reference,
                          .saves = {.metas = 1},
                          .keeps_layout = true};

PoolAttrs pool_attrs(const Pool2dOptions& o) {
  PoolAttrs a;
  for (int d = 0; d < 2; ++d) {
    a.window[d] = o.window[d];
    a.stride[d] = o.stride[d] ? o.stride[d] : o.window[d];
    a.padding[d] = o.padding[d];
    a.dilation[d] = o.dilation[d];
  }
  a.count_include_pad = o.count_include_pad;
  return a;
}

}  // namespace

std::span<const Op* const> conv_ops() {
  static constexpr const Op* ops[] = {&conv2d_op,           &conv2d_input_grad_op, &conv2d_weight_grad_op,
                                      &conv_transpose2d_op, &max_pool2d_op,        &avg_pool2d_op,
                                      &max_pool2d_backward, &avg_pool2d_backward};
  return ops;
}

ConvAttrs conv_attrs(const Conv2dOptions& o) {
  ConvAttrs a;
  for (int d = 0; d < 2; ++d) {
    a.stride[d] = o.stride[d];
    a.padding[d] = o.padding[d];
    a.dilation[d] = o.dilation[d];
  }
  a.groups = o.groups;
  return a;
}
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options) {
  return dispatch_one(conv2d_op, {x, weight, bias}, conv_attrs(options));
}
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose2dOptions& options) {
  ConvTransposeAttrs a;
  for (int d = 0; d < 2; ++d) {
    a.stride[d] = options.stride[d];
    a.padding[d] = options.padding[d];
    a.output_padding[d] = options.output_padding[d];
    a.dilation[d] = options.dilation[d];
  }
  a.groups = options.groups;
  return dispatch_one(conv_transpose2d_op, {x, weight, bias}, a);
}
Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options) {
  return dispatch_one(max_pool2d_op, {x}, pool_attrs(options));
}
Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options) {
  return dispatch_one(avg_pool2d_op, {x}, pool_attrs(options));
}

}  // namespace tessera
