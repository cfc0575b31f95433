// Matrix products of halves on Hopper's cards: operands come through the copy engine, and so go results.
#pragma once
#include "gemm.h"
#include "tile/arch/sm90/gemm.h"

namespace tessera::gpu_kernels {

/// The tiles that kernels are made for. Wide ones, shared by all warps, are best where sums are long; where they are
/// short, or much happens to them, groups of warps take narrower ones in turns.
struct Sm90Wide {
  static constexpr tile::Config config{128, 256, 64, 12, 4, 1};
  static constexpr bool alternates = false;
  static constexpr int boxes = 2;
};
struct Sm90Turns {
  static constexpr tile::Config config{128, 192, 64, 12, 4, 2};
  static constexpr bool alternates = true;
  static constexpr int boxes = 4;
};

/// How results leave: sums and nothing else, or with all that is asked, through the copy engine, or by the lanes.
enum class Sm90Ends : u8 { plain, boxes, lanes };

/// A product as the kernels take it. The batch is the last of max_batch_rank dims.
struct Sm90Product {
  tile::sm90::TensorMap a, b, c, slope;
  tile::sm90::TensorMap input;   // what is added or multiplied, if anything
  tile::sm90::TensorMap pieces;  // sums in f32 of tiles that several blocks share, one tile below the other
  GemmArgs args;
  tile::sm90::TileOrder order;
  float* column_parts;  // [batch][16 rows each][n], or null
  i64 whole_n;          // columns that the copy engine can write, which takes whole units of 16 bytes
  Sm90Ends ends;
  bool has_input, input_batch;  // whether each product has one of its own
};

void sm90_gemm_wide(const Sm90Product& product, Executor& executor);
void sm90_gemm_turns(const Sm90Product& product, Executor& executor);

/// Clusters of blocks that stay: all that the card has room for, if there is something for each.
inline i64 sm90_clusters(const tile::sm90::TileOrder& order, int cluster, const Executor& executor) {
  const i64 clusters = executor.multiprocessors / cluster;
  return order.whole < order.count ? clusters : tile::min<i64>(clusters, order.count);
}

}  // namespace tessera::gpu_kernels
