// Convolutions per instruction set.
#pragma once

#include "common.h"
#include "gemm.h"
#include "tessera/parallel.h"

namespace tessera::TESSERA_KERNELS {

/// A 4-d tensor in the order of its name: images (n, c, h, w), filters (k, c / groups, r, s), outputs
/// (n, k, ho, wo). Strides are in elements.
struct ConvTensor {
  void* data;
  long long strides[4];
};

/// Sizes of a 2-d convolution; index 0 is the height, 1 the width. All elements are f32 or f64 (`type`), on
/// GPUs also f16 or bf16.
struct ConvArgs {
  Scalar type;
  long long images, channels, filters, groups;
  long long size[2], filter[2], stride[2], dilation[2], padding[2];
  ConvTensor x, w, y;  // in a gradient, the one that is computed is written
  const void* bias;    // forward: [filters], or null
  Activation activation;
  void* workspace;         // of workspace_bytes
  bool tf32;               // GPUs may round operands of f32 to tf32,
  bool in_any_order;       // and add up in any order, so that the last bits vary
  bool packed_filters;     // w.data has them as panels, for the direct kernel
  float high;              // which ReLU gives at most; 0: none
  ConvTensor residual;     // forward: of the shape of y, added before the activation; or without data
  float *mean, *variance;  // forward by Hopper's instructions: of each filter's results, the second divided by n - 1
};

struct ConvTable {
  bool (*supports)(const ConvArgs& args);
  long long (*forward_workspace)(const ConvArgs& args);
  long long (*backward_images_workspace)(const ConvArgs& args);
  long long (*backward_filters_workspace)(const ConvArgs& args);
  /// y = activation(x * w + bias)
  void (*forward)(const ConvArgs& args, Executor& executor);
  /// x = gradient of the images, from y = gradient of the output.
  void (*backward_images)(const ConvArgs& args, Executor& executor);
  /// w = gradient of the filters.
  void (*backward_filters)(const ConvArgs& args, Executor& executor);
  /// The first two by Winograd's algorithm: f32, 3x3, stride and dilation 1, one group, and for the gradient a padding
  /// of at most 2.
  long long (*winograd_workspace)(const ConvArgs& args) = nullptr;
  void (*winograd_forward)(const ConvArgs& args, Executor& executor) = nullptr;
  void (*winograd_backward_images)(const ConvArgs& args, Executor& executor) = nullptr;
  /// The same where channels of images and outputs lie one after the other in memory.
  long long (*winograd_last_workspace)(const ConvArgs& args) = nullptr;
  void (*winograd_last_forward)(const ConvArgs& args, Executor& executor) = nullptr;
  void (*winograd_last_backward_images)(const ConvArgs& args, Executor& executor) = nullptr;
  /// Any windows of f32 where channels of images and outputs lie one after the other in memory, by a kernel that reads
  /// images in place.
  long long (*direct_workspace)(const ConvArgs& args) = nullptr;
  void (*direct_forward)(const ConvArgs& args, Executor& executor) = nullptr;
  void (*direct_backward_images)(const ConvArgs& args, Executor& executor) = nullptr;
  long long (*direct_filters_workspace)(const ConvArgs& args) = nullptr;  // for as many threads as there are
  void (*direct_backward_filters)(const ConvArgs& args, Executor& executor) = nullptr;
  /// The same by products of pixels with all taps, added where they lead; forward of stride 1.
  long long (*scatter_workspace)(const ConvArgs& args) = nullptr;
  void (*scatter_forward)(const ConvArgs& args, Executor& executor) = nullptr;
  void (*scatter_backward_images)(const ConvArgs& args, Executor& executor) = nullptr;
  /// The same where each channel has a filter of its own.
  long long (*depthwise_workspace)(const ConvArgs& args) = nullptr;
  void (*depthwise_forward)(const ConvArgs& args, Executor& executor) = nullptr;
  void (*depthwise_backward_images)(const ConvArgs& args, Executor& executor) = nullptr;
  long long (*depthwise_filters_workspace)(const ConvArgs& args) = nullptr;
  void (*depthwise_backward_filters)(const ConvArgs& args, Executor& executor) = nullptr;
  /// The same of few channels and filters a group, but of a vector's filters (in the gradient of images, channels) in
  /// all, and not dilated both ways.
  long long (*spread_workspace)(const ConvArgs& args) = nullptr;
  void (*spread_forward)(const ConvArgs& args, Executor& executor) = nullptr;
  void (*spread_backward_images)(const ConvArgs& args, Executor& executor) = nullptr;
  long long (*spread_filters_workspace)(const ConvArgs& args) = nullptr;
  void (*spread_backward_filters)(const ConvArgs& args, Executor& executor) = nullptr;
  /// The same of f32 in any layout, best where a group has few channels or filters and rows lie one after the other.
  long long (*planes_workspace)(const ConvArgs& args) = nullptr;
  void (*planes_forward)(const ConvArgs& args, Executor& executor) = nullptr;
  void (*planes_backward_images)(const ConvArgs& args, Executor& executor) = nullptr;
  long long (*planes_filters_workspace)(const ConvArgs& args) = nullptr;  // for as many threads as there are
  void (*planes_backward_filters)(const ConvArgs& args, Executor& executor) = nullptr;
};

#define TESSERA_CONV_TABLE(isa)      \
  namespace isa {                    \
  extern const ConvTable conv_table; \
  }
TESSERA_CONV_TABLE(baseline)
TESSERA_CONV_TABLE(avx2)
TESSERA_CONV_TABLE(avx512)
#undef TESSERA_CONV_TABLE

}  // namespace tessera::TESSERA_KERNELS
