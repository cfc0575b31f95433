#include "tessera/models.h"

namespace tessera::models {

ConvModel::ConvModel(int64_t layers, int64_t width, Generator& generator)
    : out(std::make_shared<nn::Conv2d>(layers ? width : 2, 1, 1, Conv2dOptions{}, true, generator)) {
  for (int64_t i = 0; i < layers; ++i) {
    convs.push_back(add("convs." + std::to_string(i), nn::Conv2d(i ? width : 2, width, 1, {}, true, generator)));
    norms.push_back(add("norms." + std::to_string(i), nn::BatchNorm2d(width)));
  }
  out = add("out", out);
}

Tensors ConvModel::forward(const Tensors& in) const {
  const Tensor& x = one_input(in);
  if (convs.empty()) return {out(x)};
  nn::Images h = nn::convolve(convs[0], x, training());
  for (size_t i = 0; i < convs.size(); ++i)
    h = nn::norm_convolve(norms[i], Activation::Relu, i + 1 < convs.size() ? convs[i + 1] : out, std::move(h));
  return {h.values};
}

}  // namespace tessera::models
