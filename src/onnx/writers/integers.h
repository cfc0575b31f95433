// What writers of products make of integers.
#pragma once
#include "onnx/writer.h"

namespace tessera::onnx {

/// matmul and conv2d in f64 of what was 8-bit integers; empty where they are none, or ONNX Runtime has no such.
Name integer_product(const OpCall& c);
Name integer_convolution(const OpCall& c);

}  // namespace tessera::onnx
