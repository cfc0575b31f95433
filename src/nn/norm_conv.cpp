// Convolutions of what batch norm gives.
#include "ops/norm_conv.h"

#include "ops/autocast.h"
#include "ops/check.h"
#include "ops/conv.h"
#include "ops/op_table.h"
#include "tessera/autograd.h"
#include "tessera/nn.h"

namespace tessera::nn {
namespace {

bool is_pointwise(const Conv2d& conv) {
  const Conv2dOptions& o = conv.options;
  for (int d = 0; d < 2; ++d)
    if (conv.weight.size(2 + d) != 1 || o.stride[d] != 1 || o.padding[d] != 0) return false;
  return o.groups == 1;
}

// Whether a convolution with larger windows normalises in less time than a pass over its images takes: each element
// once for every tap and tile of filters.
bool normalises_quickly(const Conv2d& conv) {
  const Conv2dOptions& o = conv.options;
  return conv.weight.size(0) <= 64 || o.stride[0] * o.stride[1] > 1;
}

// x, filters and bias as autocast has them for a convolution.
Tensors operands(const Conv2d& conv, const Tensor& x) {
  Tensors in{x, conv.weight, conv.bias};
  if (amp::autocast_state.devices) amp::autocast(conv2d_op, in);
  return in;
}

Images one_pass(const Op& op, Tensors in, const Attrs& attrs) {
  Tensors out = dispatch(op, std::move(in), attrs);
  if (out.size() == 1) return {out[0]};
  return {out[0], out[1].detach(), out[2].detach()};
}

// An estimate as the statistics of x are. Backward may come after a step in training has moved it.
Tensor frozen(const Tensor& estimate, const Tensor& x) {
  const DType dtype = statistics_dtype(x.dtype());
  if (estimate.dtype() != dtype) return estimate.to(dtype);
  return grad_enabled() ? clone(estimate) : estimate;
}

}  // namespace

Images convolve(const Conv2d& conv, const Tensor& x, bool training) {
  if (!training) return {conv(x)};
  const NamedScope scope(conv.name());
  Tensors in = operands(conv, x);
  const Attrs windows = conv_attrs(conv.options);
  if (fuses_norm(conv2d_moments_op, {in.data(), in.size()}, windows))
    return one_pass(conv2d_moments_op, std::move(in), windows);
  if (is_pointwise(conv)) {
    in.resize(7);
    const Attrs attrs = NormConvAttrs{conv_attrs(conv.options), {.training = true}};
    if (fuses_norm(norm_conv2d_op, {in.data(), in.size()}, attrs))
      return one_pass(norm_conv2d_op, std::move(in), attrs);
  }
  return {dispatch_one(conv2d_op, {in[0], in[1], in[2]}, windows)};
}

Tensor BatchNorm2d::operator()(const Images& x, Activation activation) const {
  return call([&] { return normalized(x, activation); });
}

Tensor BatchNorm2d::normalized(const Images& x, Activation activation) const {
  const bool relu = activation == Activation::Relu;
  if (training() && x.mean.defined() && (relu || activation == Activation::None)) {
    Tensors in{x.values, x.mean, x.var, weight, bias};
    const Attrs attrs = NormAttrs{.eps = eps, .training = true, .relu = relu};
    if (fuses_norm(batch_norm_known_op, {in.data(), in.size()}, attrs)) {
      move_estimates(running_mean, running_var, x.mean, x.var, momentum);
      return dispatch_one(batch_norm_known_op, std::move(in), attrs);
    }
  }
  return normalized(x.values, activation);
}

Images norm_convolve(const BatchNorm2d& norm, Activation activation, const Conv2d& conv, Images x) {
  const bool training = norm.training(), relu = activation == Activation::Relu;
  const bool known = training ? x.mean.defined() : norm.running_mean.defined() && norm.running_var.defined();
  // Larger windows: where statistics of what they give are not wanted, and channels lie last.
  const bool may_be = is_pointwise(conv) || (!training && !x.values.is_contiguous() && normalises_quickly(conv));
  if (known && may_be && (relu || activation == Activation::None)) {
    Tensors in = operands(conv, x.values);
    // A norm takes values as they are, and not as autocast would have them for a convolution.
    const bool as_they_are = in[0].dtype() == x.values.dtype();
    in.push_back(training ? x.mean : frozen(norm.running_mean, x.values));
    in.push_back(training ? x.var : frozen(norm.running_var, x.values));
    in.push_back(norm.weight);
    in.push_back(norm.bias);
    const Attrs attrs = NormConvAttrs{conv_attrs(conv.options), {.eps = norm.eps, .training = training, .relu = relu}};
    if (as_they_are && fuses_norm(norm_conv2d_op, {in.data(), in.size()}, attrs)) {
      const NamedScope scope(conv.name());
      const Tensor mean = x.mean, var = x.var;
      x = {};
      Images y = one_pass(norm_conv2d_op, std::move(in), attrs);
      if (training) move_estimates(norm.running_mean, norm.running_var, mean, var, norm.momentum);
      return y;
    }
  }
  Tensor a = norm(x, activation);
  x = {};
  return convolve(conv, a, training);
}

Images convolve(const Child<Conv2d>& conv, const Tensor& x, bool training) {
  const Conv2d* exact = conv.exact();
  return exact ? convolve(*exact, x, training) : Images{conv(x)};
}

Images norm_convolve(const Child<BatchNorm2d>& norm, Activation activation, const Child<Conv2d>& conv, Images x) {
  const BatchNorm2d* exact = norm.exact();
  if (exact && conv.exact()) return norm_convolve(*exact, activation, *conv, std::move(x));
  const Tensor a = exact ? (*exact)(x, activation) : norm(x.values, activation);
  x = {};
  return convolve(conv, a, norm.module().training());
}

}  // namespace tessera::nn
