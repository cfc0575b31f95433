// What a graph's nodes become once its weights are known.
#pragma once
#include "onnx/graph.h"

namespace tessera::onnx {

/// Batch norms go into the convolution before them. Activations, norms and attention become one call each where they
/// are spelled as exporters do; a product with a weight, the bias, the activation and the residual behind it become one
/// on a packed weight. Constants must have been folded. Weights of f32 become those that `products` run in.
void optimize(Graph& graph, DType products);

}  // namespace tessera::onnx
