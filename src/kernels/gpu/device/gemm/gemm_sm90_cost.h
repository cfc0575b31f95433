// What a product takes on Hopper's cards, by tile: nanoseconds, as measured on an H100.
#pragma once
#include <algorithm>

#include "gemm_sm90_plan.h"

namespace tessera::gpu_kernels::sm90_gemm {

/// Tiles whose sums the blocks of a cluster share; the square ones of transposed operands, whose sums are the result.
using Sm90Joined = tile::sm90::ProductTile<128, 256, 4, 0, false>;
using Sm90JoinedSquare = tile::sm90::ProductTile<192, 192, 4, 0, false, 16>;
inline constexpr Kind wide{Sm90Wide::config, Sm90Wide::alternates, 690, 2000, 3000},
    turns{Sm90Turns::config, Sm90Turns::alternates, 530, 250, 5000},
    small{Sm90Small::config, Sm90Small::alternates, 360, 0, 2450},
    narrow{Sm90Narrow::config, Sm90Narrow::alternates, 265, 0, 2000},
    by_lanes{Sm90Small::config, Sm90Small::alternates, 480, 0, 4600},
    joined{Sm90Joined::config, Sm90Joined::alternates, 690, 0, 10000},
    joined_square{Sm90JoinedSquare::config, Sm90JoinedSquare::alternates, 830, 0, 10000};

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
  const TileOrder& order = cut.order;
  const double clusters = cut.clusters(multiprocessors), tiles = order.count;
  const bool in_one_round = tiles <= clusters;
  double step = kind.step, end = kind.end;
  if (in_one_round) step *= 0.8 + 0.125 * (tiles / clusters) * (tiles / clusters);
  if (order.cluster_deep > 1) return step * tile::ceil_div(order.steps, order.cluster_deep) + end;
  if (order.parts > 1)
    return step * tile::ceil_div(order.steps, order.parts) + kind.tile + end + time_of_parts(args, order.parts);
  if (order.cluster() > 1) end += 1200;
  if (order.cluster_down > 1 && order.steps > 24) step *= 0.995;
  if (&kind == &narrow && !begin_at_lines(args)) step *= 1.4;
  // Blocks that are alone with rows of a drift apart in sums as long as this, and do not meet them in the cache.
  if (&kind == &small && order.cluster() == 1 && order.steps > 40) step *= 1.15;
  if (!in_one_round && order.steps > 160 && order.cluster_across == 1) step *= 1.3;
  const double rounds = static_cast<double>(tile::ceil_div<i64>(order.count, cut.clusters(multiprocessors)));
  const double sums = step * order.steps + kind.tile, after = time_after(ends);
  if (!kind.alternates) return rounds * (sums + after) + end;
  return rounds * tile::max(sums, (sums + after) / 2) + end + after;
}

/// Of a product whose epilogue is compiled while the program runs.
inline double time_of_fused(const Cut& cut, int multiprocessors) {
  const Kind& kind = *cut.kind;
  const double tiles = static_cast<double>(tile::ceil_div<i64>(cut.order.count, cut.clusters(multiprocessors)));
  const double sums = kind.step * cut.order.steps + kind.tile;
  const double after = kind.alternates ? time_after(Sm90Ends::added) : 20.0 * kind.config.tile_n;
  const double each = kind.alternates ? tile::max(sums, (sums + after) / 2) : sums + after;
  return tiles * each + kind.end + (kind.alternates ? after : 0);
}

}  // namespace tessera::gpu_kernels::sm90_gemm
