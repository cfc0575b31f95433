#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <typeinfo>

#include "tessera/nn.h"

namespace tessera::nn {
namespace {

Tensor uniform_weight(const Shape& shape, int64_t fan_in, Generator& generator) {
  Tensor t = empty(shape);
  const double bound = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(fan_in, 1)));
  init::uniform_(t, -bound, bound, generator);
  return t;
}

void check(bool ok, const std::string& message) {
  if (!ok) throw Error(message);
}

void check_convolution(std::string_view name, int64_t in, int64_t out, Kernel2d kernel, int64_t groups) {
  const auto [rows, columns] = kernel.size;
  check(in > 0 && out > 0 && rows > 0 && columns > 0 && groups > 0 && in % groups == 0 && out % groups == 0,
        fmt::format("{}: {} to {} channels in {} groups, kernel {}x{}", name, in, out, groups, rows, columns));
}

// The activation that a module is, and nothing more; None where it is none.
Activation activation_of(const Module& module) {
  const std::type_info& type = typeid(module);
  if (type == typeid(ReLU)) return Activation::Relu;
  if (type == typeid(GELU)) return Activation::GeluErf;
  if (type == typeid(SiLU)) return Activation::Silu;
  return type == typeid(Tanh) ? Activation::Tanh : Activation::None;
}

// next(module(x)), where the module has both in one pass.
std::optional<Tensor> activated(const Child<Module>& child, const Child<Module>& next, const Tensor& x) {
  const Module &module = child.module(), &after = next.module();
  if (module.has_hooks() || after.has_hooks()) return {};
  if (typeid(module) == typeid(BatchNorm2d) && typeid(after) == typeid(ReLU6)) return clamp(module(x), 0, 6);
  const Activation activation = activation_of(after);
  if (activation == Activation::None) return {};
  if (typeid(module) == typeid(Linear)) return static_cast<const Linear&>(module)(x, activation);
  if (typeid(module) == typeid(BatchNorm2d) && activation == Activation::Relu)
    return static_cast<const BatchNorm2d&>(module)(x, activation);
  return {};
}

}  // namespace

Tensors Sequential::forward(const Tensors& in) const {
  Tensors x = in;
  const NamedModules& parts = children();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (x.size() == 1 && i + 1 < parts.size())
      if (std::optional<Tensor> y = activated(parts[i].second, parts[i + 1].second, x[0])) {
        x = {std::move(*y)};
        ++i;
        continue;
      }
    x = parts[i].second(x);
  }
  return x;
}

Linear::Linear(int64_t in, int64_t out, bool bias, Generator& generator) {
  check(in > 0 && out > 0, fmt::format("Linear: {} to {} features", in, out));
  weight = add_parameter("weight", uniform_weight({out, in}, in, generator));
  if (bias) this->bias = add_parameter("bias", uniform_weight({out}, in, generator));
}

Embedding::Embedding(int64_t count, int64_t width, Generator& generator) {
  check(count > 0 && width > 0, fmt::format("Embedding: {} rows of {}", count, width));
  weight = empty({count, width});
  init::normal_(weight, 0, 1, generator);
  add_parameter("weight", weight);
}

Conv2d::Conv2d(int64_t in, int64_t out, Kernel2d kernel, const Conv2dOptions& options, bool bias, Generator& generator)
    : options(options) {
  check_convolution("Conv2d", in, out, kernel, options.groups);
  const int64_t channels = in / options.groups, fan_in = channels * kernel.taps();
  weight = add_parameter("weight", uniform_weight({out, channels, kernel.size[0], kernel.size[1]}, fan_in, generator));
  if (bias) this->bias = add_parameter("bias", uniform_weight({out}, fan_in, generator));
}

ConvTranspose2d::ConvTranspose2d(int64_t in, int64_t out, Kernel2d kernel, const ConvTranspose2dOptions& options,
                                 bool bias, Generator& generator)
    : options(options) {
  check_convolution("ConvTranspose2d", in, out, kernel, options.groups);
  const int64_t channels = out / options.groups, fan_in = channels * kernel.taps();
  weight = add_parameter("weight", uniform_weight({in, channels, kernel.size[0], kernel.size[1]}, fan_in, generator));
  if (bias) this->bias = add_parameter("bias", uniform_weight({out}, fan_in, generator));
}

LayerNorm::LayerNorm(int64_t width, bool bias, double eps) : LayerNorm(Shape{width}, true, bias, eps) {}

LayerNorm::LayerNorm(const Shape& shape, bool affine, bool bias, double eps) : shape(shape), eps(eps) {
  check(!shape.empty(), "LayerNorm: no dims to normalise over");
  if (affine) weight = add_parameter("weight", ones(shape));
  if (affine && bias) this->bias = add_parameter("bias", zeros(shape));
}

Tensors LayerNorm::forward(const Tensors& in) const {
  const Tensor& x = one_input(in);
  const int dims = static_cast<int>(shape.size());
  if (weight.defined() || dims == 1) return {layer_norm(x, weight, bias, eps)};
  check(x.dim() >= dims, fmt::format("LayerNorm: {} has fewer dims than {}", to_string(x.shape()), to_string(shape)));
  return {reshape(layer_norm(flatten(x, -dims), {}, {}, eps), x.shape())};
}

RMSNorm::RMSNorm(int64_t width, double eps) : eps(eps) { weight = add_parameter("weight", ones({width})); }

BatchNorm2d::BatchNorm2d(int64_t channels, double momentum, double eps, bool affine, bool tracks)
    : channels(channels), momentum(momentum), eps(eps) {
  if (affine) {
    weight = add_parameter("weight", ones({channels}));
    bias = add_parameter("bias", zeros({channels}));
  }
  if (!tracks) return;
  running_mean = add_buffer("running_mean", zeros({channels}));
  running_var = add_buffer("running_var", ones({channels}));
}

GroupNorm::GroupNorm(int64_t groups, int64_t channels, double eps) : groups(groups), eps(eps) {
  check(groups > 0 && channels % groups == 0, fmt::format("GroupNorm: {} channels in {} groups", channels, groups));
  weight = add_parameter("weight", ones({channels}));
  bias = add_parameter("bias", zeros({channels}));
}

Dropout::Dropout(double p) : p(p) { check(p >= 0 && p < 1, fmt::format("Dropout: p = {} is not in [0, 1)", p)); }

}  // namespace tessera::nn
