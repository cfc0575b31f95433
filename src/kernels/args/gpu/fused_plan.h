// What a plugin says about a product whose epilogue is text.
#pragma once
#include <cstddef>

#include "tile/arch/gpu/fused_gemm.h"

namespace tessera::gpu_kernels {

/// What the kernel is compiled for, and how it is launched.
struct Sm90FusedPlan {
  alignas(64) unsigned char args[2048];  // its parameter, tile::sm90::ProductArgs
  /// As tile::sm90::ProductTile takes them.
  int rows, width, stages, boxes;
  bool ping_pong;
  bool one_wave;  // as tile::sm90::OneWaveTile takes width and stages
  bool transposed_a, transposed_b;
  long long blocks;
  int threads;
  std::size_t shared_bytes;
};

}  // namespace tessera::gpu_kernels
