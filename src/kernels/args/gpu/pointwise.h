// Convolutions of 1x1 windows in one pass over planes, as Hopper's kernels take them.
#pragma once
#include "kernels/args/norm.h"

namespace tessera::gpu_kernels {

/// What becomes of an input before it is multiplied: y = (x - mean) rstd weight + bias, perhaps relu(y). Statistics and
/// weights are those of channels.
struct PlanesNorm {
  const float* mean;      // null: nothing becomes of it
  const float* variance;  // null: rstd is given
  double correction;      // that the variance is multiplied by
  double eps;
  float* rstd;                // written where there is a variance, optional then
  const void *weight, *bias;  // optional
  Scalar weight_type;
  bool relu;
};

/// y = w norm(x) + bias for each image, of planes of halves.
struct PointwiseArgs {
  Scalar type;
  long long images, channels, filters, pixels;
  PlanesArg x, y;
  const void* w;
  long long w_filter, w_channel;  // strides; one of them is 1
  const void* bias;               // optional
  PlanesNorm norm;
  float *mean, *variance;  // of y's channels over all images (n - 1), optional
  void* workspace;         // workspace() bytes, for these
};

/// dw = the sum over images of dy norm(x)^T, db = that of dy.
struct PointwiseGradArgs {
  Scalar type;
  long long images, channels, filters, pixels;
  PlanesArg x, dy;
  PlanesNorm norm;
  void *dw, *db;    // [filters, channels] and, optional, [filters]
  void* workspace;  // grad_workspace() bytes
};

}  // namespace tessera::gpu_kernels
