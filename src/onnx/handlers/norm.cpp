// Norms and softmax.
#include <cmath>

#include "onnx/handler.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

int64_t elements(const Tensor& x, int64_t first, int64_t end) {
  int64_t n = 1;
  for (int64_t d = first; d < end; ++d) n *= x.size(d);
  return n;
}

// Before opset 13 a softmax is over all dims from the axis on.
template <Tensor (*function)(const Tensor&, int64_t)>
Values softmax_like(const Call& c) {
  const Tensor& x = c.in(0);
  if (c.opset() >= 13) return {function(x, c.integer("axis", -1))};
  const int64_t axis = c.axis(1, x.dim());
  return {reshape(function(reshape(x, {elements(x, 0, axis), elements(x, axis, x.dim())}), 1), x.shape())};
}
Tensor hardest(const Tensor& x, int64_t axis) {
  const Tensor largest = argmax(x, axis, false);
  const Tensor hot = cast(one_hot(largest, x.size(axis)), x.dtype());  // the classes last
  Dims order;
  const int64_t at = axis < 0 ? axis + x.dim() : axis;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) order.push_back(d);
  order.insert(order.begin() + at, x.dim() - 1);
  return permute(hot, order);
}

Values batch_norm_inference(const Call& c) {
  const Tensor& x = c.in(0);
  const double eps = c.real("epsilon", 1e-5f), momentum = c.real("momentum", 0.9f);
  if (!c.flag("spatial", true)) c.refuse("statistics of each element (spatial = 0) are not supported");
  if (!c.flag("training_mode", false)) {
    const auto vector = [&](size_t i) { return cast(c.in(i), x.dtype() == Float64 ? Float64 : Float32); };
    const Tensor image = x.dim() == 1 ? unsqueeze(x, 1) : x;
    const bool mixed = c.in(1).dtype() != x.dtype();
    const Tensor weight = mixed ? vector(1) : c.in(1), bias = mixed ? vector(2) : c.in(2);
    const Tensor out = batch_norm(image, weight, bias, vector(3), vector(4), false, 0, eps);
    return {cast(reshape(out, x.shape()), x.dtype())};
  }
  Dims dims;
  for (int64_t d = 0; d < x.dim(); ++d)
    if (d != 1) dims.push_back(d);
  const Tensor now_mean = mean(x, dims), now_var = var(x, dims, 0);
  const Tensor run_mean = cast(c.in(3) * momentum + now_mean * (1 - momentum), c.in(3).dtype());
  const Tensor run_var = cast(c.in(4) * momentum + now_var * (1 - momentum), c.in(4).dtype());
  return {batch_norm(x, c.in(1), c.in(2), now_mean, now_var, false, 0, eps), run_mean, run_var};
}

/// Over the dims from `axis` on, in f32 at least: y = x_hat * scale + bias, the mean and 1 / deviation.
Values layer_norms(const Call& c) {
  const Tensor& x = c.in(0);
  const int64_t axis = c.axis(-1, x.dim());
  const double eps = c.real("epsilon", 1e-5f);
  const auto fits = [&](size_t i) {  // what the one-pass kernel takes
    if (!c.has(i)) return true;
    const Tensor& t = c.in(i);
    if (t.dim() != x.dim() - axis) return false;
    for (int64_t d = 0; d < t.dim(); ++d)
      if (t.size(d) != x.size(axis + d)) return false;
    return true;
  };
  if (!c.wants(1) && !c.wants(2) && fits(1) && fits(2)) return {layer_norm(x, c.in(1), c.optional(2), eps)};
  const DType compute = x.dtype() == Float64 ? Float64 : Float32;
  const Tensor wide = cast(x, compute);
  Dims dims;
  for (int64_t d = axis; d < x.dim(); ++d) dims.push_back(d);
  const Tensor average = mean(wide, dims, true), centred = sub(wide, average);
  const Tensor inverse = rsqrt(mean(square(centred), dims, true) + eps);
  Tensor out = mul(cast(mul(centred, inverse), x.dtype()), c.in(1));
  if (c.has(2)) out = add(out, c.in(2));
  return {cast(out, x.dtype()), average, inverse};
}
/// SimplifiedLayerNormalization of ONNX Runtime, too, which gives the inverse deviations as well.
Values rms_norms(const Call& c) {
  const Tensor& x = c.in(0);
  const int64_t axis = c.axis(-1, x.dim());
  const double eps = c.real("epsilon", 1e-5f);
  if (!c.wants(1) && axis == x.dim() - 1 && c.in(1).dim() == 1 && c.in(1).dtype() == x.dtype() &&
      c.in(1).size(0) == x.size(axis))
    return {rms_norm(x, c.in(1), eps)};
  const Tensor wide = cast(x, x.dtype() == Float64 ? Float64 : Float32);
  Dims dims;
  for (int64_t d = axis; d < x.dim(); ++d) dims.push_back(d);
  const Tensor inverse = rsqrt(mean(square(wide), dims, true) + eps);
  const DType out = c.op() == "RMSNormalization" ? x.dtype() : c.in(1).dtype();
  return {cast(mul(cast(mul(wide, inverse), out), c.in(1)), out), inverse};
}

Values group_norms(const Call& c) {
  const Tensor &x = c.in(0), &weight = c.in(1), &bias = c.in(2);
  const int64_t groups = c.integer("num_groups", 0), channels = x.size(1);
  if (groups <= 0 || channels % groups) c.fail("{} groups of {}", groups, describe(x));
  const double eps = c.real("epsilon", 1e-5f);
  if (weight.numel() == channels) return {group_norm(x, groups, weight, bias, eps)};
  if (weight.numel() != groups) c.fail("{} weights for {} groups", weight.numel(), groups);
  const auto of_channels = [&](const Tensor& t) {  // before opset 21 each group has one
    return reshape(expand(unsqueeze(t, 1), {groups, channels / groups}), {channels});
  };
  return {group_norm(x, groups, of_channels(weight), of_channels(bias), eps)};
}
Values instance_norms(const Call& c) {
  const Tensor& x = c.in(0);
  return {group_norm(x, x.size(1), c.in(1), c.in(2), c.real("epsilon", 1e-5f))};
}
Values hard_max(const Call& c) {
  const Tensor& x = c.in(0);
  if (c.opset() >= 13) return {hardest(x, c.integer("axis", -1))};
  const int64_t axis = c.axis(1, x.dim());
  return {reshape(hardest(reshape(x, {elements(x, 0, axis), elements(x, axis, x.dim())}), 1), x.shape())};
}

constexpr Entry entries[] = {
    {"BatchNormalization", 1, batch_norm_inference},
    {"GroupNormalization", 18, group_norms},
    {"Hardmax", 1, hard_max},
    {"InstanceNormalization", 1, instance_norms},
    {"LayerNormalization", 1, layer_norms},
    {"LogSoftmax", 1, softmax_like<log_softmax>},
    {"RMSNormalization", 23, rms_norms},
    {"SimplifiedLayerNormalization", 1, rms_norms},
    {"Softmax", 1, softmax_like<softmax>},
};

}  // namespace

std::span<const Entry> norm_handlers() { return entries; }

}  // namespace tessera::onnx
