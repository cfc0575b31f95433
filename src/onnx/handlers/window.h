// Convolutions, for what is made of them.
#pragma once
#include "onnx/handler.h"
#include "tessera/ops_pool.h"

namespace tessera::onnx {

/// What a Conv's attributes say. Throws where they do not fit the weight.
ConvOptions conv_options(const Call& c, const Shape& x, const Tensor& weight);

}  // namespace tessera::onnx
