// What a product takes on Hopper's cards, by tile: nanoseconds, as measured on an H100.
#pragma once
#include <algorithm>

#include "gemm_sm90_plan.h"

namespace tessera::gpu_kernels::sm90_gemm {

/// Tiles whose sums the blocks of a cluster share; the square ones of transposed operands, whose sums are the result.
using Sm90Joined = tile::sm90::ProductTile<128, 256, 4, 0, false>;
using Sm90JoinedSquare = tile::sm90::ProductTile<192, 192, 4, 0, false, 16>;
inline constexpr Kind wide{Sm90Wide::config, Sm90Wide::ping_pong, 690, 2000, 3000},
    turns{Sm90Turns::config, Sm90Turns::ping_pong, 530, 250, 5000},
    small{Sm90Small::config, Sm90Small::ping_pong, 360, 0, 2450},
    narrow{Sm90Narrow::config, Sm90Narrow::ping_pong, 265, 0, 2000},
    by_lanes{Sm90Small::config, Sm90Small::ping_pong, 480, 0, 4600},
    joined{Sm90Joined::config, Sm90Joined::ping_pong, 690, 0, 10000},
    joined_square{Sm90JoinedSquare::config, Sm90JoinedSquare::ping_pong, 830, 0, 10000};

/// Where all tiles fit the card at once. A step takes 250 ns and not much less where tiles are narrower.
inline constexpr Kind once[] = {{OnceTile<64>::config, false, 230, 0, 3500},
                                {OnceTile<96>::config, false, 250, 0, 3700},
                                {OnceTile<128>::config, false, 290, 0, 3900}};

inline bool is_once(const Cut& cut) {
  return std::any_of(std::begin(once), std::end(once), [&](const Kind& kind) { return cut.kind == &kind; });
}

/// Nanoseconds from a tile's sums to memory, besides.
inline double time_after(Sm90Ends ends) {
  switch (ends) {
    case Sm90Ends::sums:
    case Sm90Ends::sums_f32:
      return 0;
    case Sm90Ends::lanes:
      return 10000;
    default:
      return 12000;
  }
}

/// Nanoseconds for parts to be stored, read and added up.
inline double time_of_parts(const GemmArgs& args, int parts) {
  return 1200 + static_cast<double>(bytes_of_parts(args, parts)) / 2500;
}

/// Whether rows or columns of both operands begin at whole 128 bytes, as the cache has them.
inline bool begin_at_lines(const GemmArgs& args) {
  return (args.a.column == 1 ? args.a.row : args.a.column) % 64 == 0 &&
         (args.b.column == 1 ? args.b.row : args.b.column) % 64 == 0;
}

/// Nanoseconds, as measured: a card that is not full is faster. Joining takes most of what is at the end.
inline double time_of(const GemmArgs& args, const Cut& cut, Sm90Ends ends, int multiprocessors) {
  const Kind& kind = *cut.kind;
  const TileScheduler& order = cut.order;
  const double clusters = cut.clusters(multiprocessors), tiles = order.count;
  const bool in_one_round = tiles <= clusters;
  double step = kind.step, end = kind.end;
  if (in_one_round) step *= 0.8 + 0.125 * (tiles / clusters) * (tiles / clusters);
  if (order.cluster_k > 1) return step * tile::ceil_div(order.k_tiles, order.cluster_k) + end;
  if (order.split_k > 1)
    return step * tile::ceil_div(order.k_tiles, order.split_k) + kind.tile + end + time_of_parts(args, order.split_k);
  if (order.cluster() > 1) end += 1200;
  if (order.cluster_m > 1 && order.k_tiles > 24) step *= 0.995;
  if (&kind == &narrow && !begin_at_lines(args)) step *= 1.4;
  // Blocks that are alone with rows of a drift apart in sums as long as this, and do not meet them in the cache.
  if (&kind == &small && order.cluster() == 1 && order.k_tiles > 40) step *= 1.15;
  if (!in_one_round && order.k_tiles > 160 && order.cluster_n == 1) step *= 1.3;
  const double rounds = static_cast<double>(tile::ceil_div<i64>(order.count, cut.clusters(multiprocessors)));
  const double sums = step * order.k_tiles + kind.tile, after = time_after(ends);
  if (!kind.ping_pong) return rounds * (sums + after) + end;
  return rounds * tile::max(sums, (sums + after) / 2) + end + after;
}

/// Of a product whose epilogue is compiled while the program runs.
inline double time_of_fused(const Cut& cut, int multiprocessors) {
  const Kind& kind = *cut.kind;
  const double tiles = static_cast<double>(tile::ceil_div<i64>(cut.order.count, cut.clusters(multiprocessors)));
  const double sums = kind.step * cut.order.k_tiles + kind.tile;
  const double after = kind.ping_pong ? time_after(Sm90Ends::added) : 20.0 * kind.config.tile_n;
  const double each = kind.ping_pong ? tile::max(sums, (sums + after) / 2) : sums + after;
  return tiles * each + kind.end + (kind.ping_pong ? after : 0);
}

}  // namespace tessera::gpu_kernels::sm90_gemm
