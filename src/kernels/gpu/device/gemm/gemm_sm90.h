// Matrix products of halves on Hopper's cards, whose operands TMA loads and whose results it stores.
#pragma once
#include "gemm.h"
#include "kernels/gpu/device/runtime/launch_early.h"
#include "tile/arch/sm90/result.h"

namespace tessera::gpu_kernels {

/// The tiles that kernels are made for. Large cooperative ones are best where k is long; where it is short, or the
/// epilogue is, ping-pong is.
using Sm90Tile128x256 = tile::sm90::ProductTile<128, 256, 4, 4, false>;
using Sm90PingPong = tile::sm90::ProductTile<128, 192, 5, 3, true>;
/// The same with more boxes: for two outputs, or that of `fused_gemm` and a matrix that its epilogue reads.
using Sm90PingPongTwoOutputs = tile::sm90::ProductTile<128, 192, 4, 8, true>;

/// Where larger ones would leave most of the card idle.
using Sm90Tile128x128 = tile::sm90::ProductTile<128, 128, 6, 4, false>;
using Sm90Tile128x64 = tile::sm90::ProductTile<128, 64, 8, 4, false>;

/// Epilogues. With a kernel of their own: of 16 bits, a bias or none; the same with an addend; activated, with slopes
/// or without; times a factor, and summed up along columns; accumulators in f32. All else is one generic kernel's.
enum class Sm90Epilogue : u8 {
  bias,  // or none
  addend,
  relu,
  gelu_tanh,
  gelu_erf,
  relu_slope,
  gelu_tanh_slope,
  gelu_erf_slope,
  factor,
  gelu_factor,  // in bf16
  f32,          // as they are
  generic
};

/// Of one type of operands, by the kernel for `epilogue`.
void run_products_bf16(Sm90Epilogue epilogue, const tile::sm90::ProductArgs& args, Executor& executor);
void run_products_f16(Sm90Epilogue epilogue, const tile::sm90::ProductArgs& args, Executor& executor);
/// In tiles of 128 x 256: a bias or none.
void run_wide_products(const tile::sm90::ProductArgs& args, Executor& executor);
/// In tiles of 128 x 128 or, narrow, 128 x 64: a bias or none, or f32.
void run_small_products(bool narrow, const tile::sm90::ProductArgs& args, Executor& executor);

/// Clusters of persistent blocks: all that the card has room for, if there is something for each.
inline i64 sm90_clusters(const tile::sm90::TileScheduler& order, const Executor& executor) {
  if (order.cluster_k > 1) return order.count;  // each takes one
  const i64 clusters = executor.multiprocessors / order.cluster();
  return tile::min<i64>(clusters, order.count);
}

template <class Gemm, class Args>
void launch_sm90(void (*kernel)(Args), const tile::sm90::TileScheduler& order, const Args& args, Executor& executor) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Gemm::shared_bytes) != cudaSuccess)
    check_launch("gemm");
  const int cluster = order.cluster();
  launch_early("gemm", kernel, sm90_clusters(order, executor) * cluster, Gemm::threads, Gemm::shared_bytes, cluster,
               executor, args);
}

}  // namespace tessera::gpu_kernels
