// Convolutions on GPUs that norms are fused with, and those of 1x1 windows: matrix products, one for each image,
// without an implicit matrix.
#pragma once
#include "kernels/args/gpu/pointwise.h"
#include "kernels/shared/workspace.h"

namespace tessera::gpu_kernels {

/// By our own kernels.
void pointwise_forward(const Call& call, Workspace& workspace);
void pointwise_input_grad(const Call& call, Workspace& workspace);
void pointwise_weight_grad(const Call& call, Workspace& workspace);
Reason takes_pointwise_forward(const Call& call);
Reason takes_pointwise_input_grad(const Call& call);
Reason takes_pointwise_weight_grad(const Call& call);

/// Of images whose channels lie last, where all pixels are the rows of one matrix: a linear layer, by its own list.
void linear_forward(const Call& call, Plan& plan);
void linear_input_grad(const Call& call, Plan& plan);
void linear_weight_grad(const Call& call, Plan& plan);
Reason takes_linear_forward(const Call& call);
Reason takes_linear_input_grad(const Call& call);
Reason takes_linear_weight_grad(const Call& call);

/// By the vendor's library.
void vendor_pointwise_forward(const Call& call, Workspace& workspace);
void vendor_pointwise_input_grad(const Call& call, Workspace& workspace);
void vendor_pointwise_weight_grad(const Call& call, Workspace& workspace);
Reason vendor_takes_pointwise_forward(const Call& call);
Reason vendor_takes_pointwise_input_grad(const Call& call);
Reason vendor_takes_pointwise_weight_grad(const Call& call);

/// By Hopper's own instructions; for halves of at most 256 channels and filters.
void sm90_pointwise_forward(const Call& call, Workspace& workspace);
void sm90_pointwise_input_grad(const Call& call, Workspace& workspace);
Reason sm90_takes_pointwise_forward(const Call& call);
Reason sm90_takes_pointwise_input_grad(const Call& call);

/// conv2d_moments by the same, of windows.
void sm90_moments(const Call& call, Workspace& workspace);
Reason sm90_takes_moments(const Call& call);

/// norm_conv2d and its gradient for the filters in one pass over planes, by the same.
void sm90_norm_conv(const Call& call, Workspace& workspace);
void sm90_norm_conv_grad(const Call& call, Workspace& workspace);
Reason sm90_takes_norm_conv(const Call& call);
Reason sm90_takes_norm_conv_grad(const Call& call);

/// What norm_conv2d does to its input.
PlanesNorm norm_before(const Call& norm_conv2d);

/// norm_conv2d of given statistics and ReLU, of images whose channels lie last: windows are normalised on their way to
/// the tensor cores.
void sm90_norm_windows(const Call& call, Workspace& workspace);
Reason sm90_takes_norm_windows(const Call& call);

}  // namespace tessera::gpu_kernels
