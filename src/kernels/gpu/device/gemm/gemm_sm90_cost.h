// What a product takes on Hopper's cards, by tile: nanoseconds, as measured on an H100.
#pragma once
#include <algorithm>

#include "gemm_sm90_plan.h"

namespace tessera::gpu_kernels::sm90_gemm {

/// Tiles whose k the blocks of a cluster split; the square ones of transposed operands, without an epilogue.
using Sm90Cluster128x256 = tile::sm90::ProductTile<128, 256, 4, 0, false>;
using Sm90Cluster192x192 = tile::sm90::ProductTile<192, 192, 4, 0, false, 16>;
inline constexpr TileShape tile_128x256{Sm90Tile128x256::config, Sm90Tile128x256::ping_pong, 690, 2000, 3000},
    ping_pong_128x192{Sm90PingPong::config, Sm90PingPong::ping_pong, 530, 250, 5000},
    tile_128x128{Sm90Tile128x128::config, Sm90Tile128x128::ping_pong, 360, 0, 2450},
    tile_128x64{Sm90Tile128x64::config, Sm90Tile128x64::ping_pong, 265, 0, 2000},
    generic_128x128{Sm90Tile128x128::config, Sm90Tile128x128::ping_pong, 480, 0, 4600},
    cluster_128x256{Sm90Cluster128x256::config, Sm90Cluster128x256::ping_pong, 690, 0, 10000},
    cluster_192x192{Sm90Cluster192x192::config, Sm90Cluster192x192::ping_pong, 830, 0, 10000};

/// Where all tiles fit the card at once. A step takes 250 ns and not much less where tiles are narrower.
inline constexpr TileShape one_wave_tiles[] = {{OneWaveTile<64>::config, false, 230, 0, 3500},
                                               {OneWaveTile<96>::config, false, 250, 0, 3700},
                                               {OneWaveTile<128>::config, false, 290, 0, 3900}};

inline bool is_one_wave(const Tiling& tiling) {
  return std::any_of(std::begin(one_wave_tiles), std::end(one_wave_tiles),
                     [&](const TileShape& shape) { return tiling.shape == &shape; });
}

/// Nanoseconds from a tile's accumulators to memory, besides.
inline double epilogue_time(Sm90Epilogue epilogue) {
  switch (epilogue) {
    case Sm90Epilogue::bias:
    case Sm90Epilogue::f32:
      return 0;
    case Sm90Epilogue::generic:
      return 10000;
    default:
      return 12000;
  }
}

/// Nanoseconds for the results of split-K to be stored, read and added up.
inline double split_k_time(const GemmArgs& args, int parts) {
  return 1200 + static_cast<double>(split_k_bytes(args, parts)) / 2500;
}

/// Whether rows or columns of both operands begin at whole 128 bytes, as the cache has them.
inline bool cache_line_aligned(const GemmArgs& args) {
  return (args.a.column == 1 ? args.a.row : args.a.column) % 64 == 0 &&
         (args.b.column == 1 ? args.b.row : args.b.column) % 64 == 0;
}

/// Nanoseconds, as measured: a card that is not full is faster. Adding up in a cluster takes most of its end.
inline double time_of(const GemmArgs& args, const Tiling& tiling, Sm90Epilogue epilogue, int multiprocessors) {
  const TileShape& shape = *tiling.shape;
  const TileScheduler& order = tiling.order;
  const double clusters = tiling.clusters(multiprocessors), tiles = order.count;
  const bool one_wave = tiles <= clusters;
  double step = shape.k_tile_ns, end = shape.end_ns;
  if (one_wave) step *= 0.8 + 0.125 * (tiles / clusters) * (tiles / clusters);
  if (order.cluster_k > 1) return step * tile::ceil_div(order.k_tiles, order.cluster_k) + end;
  if (order.split_k > 1)
    return step * tile::ceil_div(order.k_tiles, order.split_k) + shape.tile_ns + end +
           split_k_time(args, order.split_k);
  if (order.cluster() > 1) end += 1200;
  if (order.cluster_m > 1 && order.k_tiles > 24) step *= 0.995;
  if (&shape == &tile_128x64 && !cache_line_aligned(args)) step *= 1.4;
  // Blocks that share no operand drift apart where k is as long as this, and miss each other's loads in L2.
  if (&shape == &tile_128x128 && order.cluster() == 1 && order.k_tiles > 40) step *= 1.15;
  if (!one_wave && order.k_tiles > 160 && order.cluster_n == 1) step *= 1.3;
  const double waves = static_cast<double>(tile::ceil_div<i64>(order.count, tiling.clusters(multiprocessors)));
  const double mainloop = step * order.k_tiles + shape.tile_ns, store = epilogue_time(epilogue);
  if (!shape.ping_pong) return waves * (mainloop + store) + end;
  return waves * tile::max(mainloop, (mainloop + store) / 2) + end + store;
}

/// Of a product whose epilogue is compiled while the program runs.
inline double time_of_fused(const Tiling& tiling, int multiprocessors) {
  const TileShape& shape = *tiling.shape;
  const double tiles = static_cast<double>(tile::ceil_div<i64>(tiling.order.count, tiling.clusters(multiprocessors)));
  const double mainloop = shape.k_tile_ns * tiling.order.k_tiles + shape.tile_ns;
  const double store = shape.ping_pong ? epilogue_time(Sm90Epilogue::addend) : 20.0 * shape.config.tile_n;
  const double each = shape.ping_pong ? tile::max(mainloop, (mainloop + store) / 2) : mainloop + store;
  return tiles * each + shape.end_ns + (shape.ping_pong ? store : 0);
}

}  // namespace tessera::gpu_kernels::sm90_gemm
