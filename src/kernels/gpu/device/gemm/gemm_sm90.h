// Matrix products of halves on Hopper's cards: operands come through TMA, and so go results.
#pragma once
#include "gemm.h"
#include "kernels/gpu/device/runtime/launch_early.h"
#include "tile/arch/sm90/result.h"

namespace tessera::gpu_kernels {

/// The tiles that kernels are made for. Wide ones, shared by all warps, are best where sums are long; where they are
/// short, or much happens to them, groups of warps take narrower ones in turns.
using Sm90Wide = tile::sm90::ProductTile<128, 256, 4, 4, false>;
using Sm90Turns = tile::sm90::ProductTile<128, 192, 5, 3, true>;
/// The same with more boxes: for two results, or those of `fused_gemm` and a matrix that arrives.
using Sm90TurnsBoxes = tile::sm90::ProductTile<128, 192, 4, 8, true>;

/// Small and narrow ones, where larger ones would leave most of the card idle.
using Sm90Small = tile::sm90::ProductTile<128, 128, 6, 4, false>;
using Sm90Narrow = tile::sm90::ProductTile<128, 64, 8, 4, false>;

/// What becomes of sums. By a kernel of its own: of 16 bits, a bias or none; the same with an addend; activated, with
/// slopes or without; times a factor, and summed up along columns; in f32 as they are. All else by one kernel, by its
/// lanes.
enum class Sm90Ends : u8 {
  sums,
  added,
  relu,
  gelu_tanh,
  gelu_erf,
  relu_slope,
  gelu_tanh_slope,
  gelu_erf_slope,
  factor,
  gelu_factor,  // in bf16
  sums_f32,
  lanes
};

/// Of one type of operands, by the kernel for `ends`.
void run_products_bf16(Sm90Ends ends, const tile::sm90::ProductArgs& args, Executor& executor);
void run_products_f16(Sm90Ends ends, const tile::sm90::ProductArgs& args, Executor& executor);
/// In wide tiles: sums, with a bias or none.
void run_wide_products(const tile::sm90::ProductArgs& args, Executor& executor);
/// In small or narrow tiles: sums with a bias or none, or sums_f32.
void run_small_products(bool narrow, const tile::sm90::ProductArgs& args, Executor& executor);

/// Clusters of blocks that stay: all that the card has room for, if there is something for each.
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
