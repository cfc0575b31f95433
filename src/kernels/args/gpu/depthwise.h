// Convolutions of every channel by itself, as kernels of GPUs take them.
#pragma once
#include "kernels/args/common.h"

namespace tessera::gpu_kernels {

/// Dense tensors of f32, f16 or bf16: images x and results y [n, c, h, w], in either order, filters w [c * multiplier,
/// 1, r, s]; with channels last the multiplier is 1. In a gradient, the one that is computed is written. All have less
/// than 2^30 vectors of elements.
struct DepthwiseArgs {
  Scalar type;
  bool channels_last;
  long long images, channels, multiplier;
  long long size[2], filter[2], stride[2], dilation[2], padding[2];  // size: of x
  void *x, *w, *y;
  const void* bias;  // forward: [c], or null
  void* workspace;   // of the filters' gradient
};

}  // namespace tessera::gpu_kernels
