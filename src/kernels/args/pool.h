// Pooling per instruction set.
#pragma once

#include "common.h"
#include "tessera/parallel.h"

namespace tessera::TESSERA_KERNELS {

/// Tensors are (n, c, h, w) at any strides and of x's type: f32, f64, f16 or bf16; taps are u8 or i64.
struct PoolArgs {
  long long images, channels;
  long long size[2], window[2], stride[2], padding[2], dilation[2];  // size: of x
  bool count_padding;                                                // in the divisor of an average
  TensorArg x, y;                                                    // in a gradient, x is written and y read
  bool channels_last;  // dense tensors on GPUs: which order; on the CPU: channels are contiguous, and vectors run along
  TensorArg taps;      // which of a window is its maximum; its data is optional forward
};

struct PoolTable {
  void (*max)(const PoolArgs& args, Executor& executor);
  void (*max_backward)(const PoolArgs& args, Executor& executor);
  void (*average)(const PoolArgs& args, Executor& executor);
  void (*average_backward)(const PoolArgs& args, Executor& executor);
};

#define TESSERA_POOL_TABLE(isa)      \
  namespace isa {                    \
  extern const PoolTable pool_table; \
  }
TESSERA_POOL_TABLE(baseline)
TESSERA_POOL_TABLE(avx2)
TESSERA_POOL_TABLE(avx512)
#undef TESSERA_POOL_TABLE

}  // namespace tessera::TESSERA_KERNELS
