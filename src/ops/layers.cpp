// What layers are made of: activations, dropout of channels, bilinear maps.
#include <cmath>

#include "ops/check.h"
#include "ops/gradient.h"
#include "ops/precise.h"
#include "tessera/ops.h"
#include "tessera/ops_layers.h"
#include "tessera/ops_math.h"
#include "tessera/ops_shape.h"

namespace tessera {
namespace {

void require_float_layer(std::string_view op, const Tensor& x) {
  if (!is_floating(x.dtype())) fail(op, "takes floating-point tensors, not {}", describe(x));
}
void require_probability(std::string_view op, double p) {
  if (!(p >= 0 && p <= 1)) fail(op, "the probability is {}, not between 0 and 1", p);
}
// The shape of x [n, c, ...] with one element for each channel.
Shape one_of_each_channel(std::string_view op, const Tensor& x) {
  if (x.dim() < 2) fail(op, "{} has no channels", to_string(x.shape()));
  Shape shape(static_cast<size_t>(x.dim()), Dim(1));
  std::copy_n(x.shape().begin(), 2, shape.begin());
  return shape;
}

// `shape` says which elements of x are dropped together.
Tensor alpha_dropped(std::string_view op, const Tensor& x, const Shape& shape, double p, bool training,
                     Generator& generator) {
  require_float_layer(op, x);
  require_probability(op, p);
  if (!training || p == 0) return x;
  if (p == 1) return mul(x, 0);
  constexpr double limit = -1.7580993408473766;  // of selu, far below 0
  const double scale = 1 / std::sqrt((1 - p) * (1 + p * limit * limit));
  const Tensor drawn = rand(shape, generator, Float32, x.device()), kept = ge(drawn, number_like(drawn, p));
  return in_single(x,
                   [&](const Tensor& v) { return where(kept, v, number_like(v, limit)) * scale + -scale * limit * p; });
}

}  // namespace

Tensor threshold(const Tensor& x, double limit, double value) {
  const auto f = [](const auto& v, double bound, double otherwise) {
    return where(gt(v, number_like(v, bound)), v, number_like(v, otherwise));
  };
  return map_elements({x}, x.dtype(), x.dtype(), f, limit, value);
}
Tensor softmin(const Tensor& x, int64_t dim) { return softmax(-x, dim); }

Tensor rrelu(const Tensor& x, double low, double high, bool training, Generator& generator) {
  require_float_layer("rrelu", x);
  if (!(low <= high)) fail("rrelu", "{} is not below {}", low, high);
  if (!training) return leaky_relu(x, (low + high) / 2);
  return in_single(x, [&](const Tensor& v) {
    const Tensor below = v * (rand(v.shape(), generator, v.dtype(), v.device()) * (high - low) + low);
    return where(gt(v, number_like(v, 0)), v, below);
  });
}

Tensor gumbel_softmax(const Tensor& logits, double tau, bool hard, int64_t dim, Generator& generator) {
  constexpr std::string_view op = "gumbel_softmax";
  require_float_layer(op, logits);
  if (!(tau > 0)) fail(op, "tau is {}, not positive", tau);
  const int64_t at = normalize_dim(op, dim, logits.shape());
  return in_single(logits, [&](const Tensor& v) {
    constexpr double least = 0x1p-30;  // a drawn 0 gives no infinity
    const Tensor noise = -log(-log(clamp(rand(v.shape(), generator, v.dtype(), v.device()), least, 1)));
    const Tensor soft = softmax((v + noise) * (1 / tau), at);
    if (!hard) return soft;
    const Tensor chosen = movedim(one_hot(argmax(soft, at), v.size(at)), -1, at);
    return cast(chosen, v.dtype()) + (soft - soft.detach());
  });
}

Tensor feature_dropout(const Tensor& x, double p, bool training, Generator& generator) {
  require_float_layer("feature_dropout", x);
  require_probability("feature_dropout", p);
  const Shape shape = one_of_each_channel("feature_dropout", x);
  return training && p > 0 ? x * dropout(ones(shape, x.dtype(), x.device()), p, true, generator) : x;
}
Tensor alpha_dropout(const Tensor& x, double p, bool training, Generator& generator) {
  return alpha_dropped("alpha_dropout", x, x.shape(), p, training, generator);
}
Tensor feature_alpha_dropout(const Tensor& x, double p, bool training, Generator& generator) {
  const Shape shape = one_of_each_channel("feature_alpha_dropout", x);
  return alpha_dropped("feature_alpha_dropout", x, shape, p, training, generator);
}

Tensor bilinear(const Tensor& x1, const Tensor& x2, const Tensor& weight, const Tensor& bias) {
  constexpr std::string_view op = "bilinear";
  const auto rows = [](const Tensor& x) { return Shape(x.shape().begin(), x.shape().end() - (x.dim() > 0)); };
  if (weight.dim() != 3 || x1.dim() < 1 || x2.dim() < 1 || !(rows(x1) == rows(x2)) ||
      !(x1.shape().back() == weight.shape()[1]) || !(x2.shape().back() == weight.shape()[2]))
    fail(op, "{} and {} do not fit the weight {}", to_string(x1.shape()), to_string(x2.shape()),
         to_string(weight.shape()));
  const Dim out = weight.shape()[0], n = weight.shape()[1], m = weight.shape()[2];
  if (bias.defined()) require_shape(op, "bias", bias.meta(), {out});
  Shape split = rows(x1);
  split.push_back(out);
  split.push_back(m);
  const Tensor maps = reshape(matmul(x1, reshape(permute(weight, {1, 0, 2}), {n, out * m})), split);
  const Tensor y = squeeze(matmul(maps, unsqueeze(x2, -1)), -1);
  return bias.defined() ? y + bias : y;
}

}  // namespace tessera
