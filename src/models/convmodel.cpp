#include "tessera/models.h"

namespace tessera::models {

ConvModel::ConvModel(int64_t layers, int64_t width, Generator& generator)
    : out(nn::Conv2d(layers ? width : 2, 1, 1, {}, true, generator)) {
  for (int64_t i = 0; i < layers; ++i) {
    convs.push_back(add("convs." + std::to_string(i), nn::Conv2d(i ? width : 2, width, 1, {}, true, generator)));
    norms.push_back(add("norms." + std::to_string(i), nn::BatchNorm2d(width)));
  }
  add("out", out);
}

Tensor ConvModel::operator()(const Tensor& x) const {
  Tensor h = x;
  for (size_t i = 0; i < convs.size(); ++i) {
    h = convs[i](h);  // frees what it was
    h = norms[i](h, Activation::Relu);
  }
  return out(h);
}

}  // namespace tessera::models
