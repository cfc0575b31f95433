// Matrix products of halves on Hopper's cards: operands come through the copy engine, and so go results that are
// nothing but sums.
#pragma once
#include "gemm.h"
#include "tile/arch/sm90/gemm.h"

namespace tessera::gpu_kernels {

/// Blocks that share columns of b. One is enough: the cache serves as fast, and single blocks start sooner.
inline constexpr int sm90_cluster = 1;

/// The tiles that kernels are made for: 128 rows and Width columns.
template <int Width>
struct Sm90Choice {
  static constexpr tile::Config config{128, Width, 64, 12, 4, sm90_cluster};
};

/// A product as the kernels take it. The batch is the last of max_batch_rank dims.
struct Sm90Product {
  tile::sm90::TensorMap a, b, c, slope;
  GemmArgs args;
  tile::sm90::TileOrder order;
  i64 part_stride;  // elements from the results of one part of the sums to those of the next
  bool boxes;       // results leave through the copy engine, by the maps c and slope
};

/// With tiles of that many columns.
void sm90_gemm_192(const Sm90Product& product, Executor& executor);
void sm90_gemm_256(const Sm90Product& product, Executor& executor);

}  // namespace tessera::gpu_kernels
