// Convolutions, for what is made of them.
#pragma once
#include "onnx/handler.h"
#include "tessera/ops_pool.h"

namespace tessera::onnx {

/// The windows of a pool on images of shape x.
Windows pool_windows(const Call& c, const Shape& x);
/// Throws where `kernel_shape` says another than the weight has.
void check_kernel_shape(const Call& c, const Tensor& weight);
/// What a Conv's attributes say. Throws where they do not fit the weight.
ConvOptions conv_options(const Call& c, const Shape& x, const Tensor& weight);

}  // namespace tessera::onnx
