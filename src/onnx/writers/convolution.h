// What several writers make of a convolution.
#pragma once
#include "onnx/writer.h"

namespace tessera::onnx {

/// conv2d of x with filters and bias, inputs 1 and 2 of the call.
Name convolution(const OpCall& c, const Name& x, const ConvAttrs& attrs);

}  // namespace tessera::onnx
