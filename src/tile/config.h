// The knobs of tile GEMMs and which of them go together: one question, asked alike by the host, by a tuner and when a
// kernel is compiled.
#pragma once
#include "base.h"

TESSERA_TILE_BEGIN

/// Pipelines, by the first hardware that runs them; simt: the ordinary cores of any GPU.
enum class Arch : u8 { sm80, cdna, cpu, simt };

/// Order in which blocks take the tiles of the result: row by row, or in groups of rows that share operands in the
/// cache.
enum class Schedule : u8 { linear, grouped };

/// How a product is cut. Of the result, a block computes tile_m x tile_n, summing up tile_k at a time. On a CPU a block
/// is a thread, tile_m rows of the left matrix are packed for the third-level cache and tile_k x tile_n of the right
/// one for the second; the tiles of registers below are the instruction set's.
struct Config {
  int tile_m, tile_n, tile_k;
  int warps;        // per block; on AMD's cards waves
  int stages;       // tiles of operands in shared memory
  int cluster = 1;  // blocks that share operands
  Schedule schedule = Schedule::grouped;
  int split_k = 1;  // blocks that share the sums of a tile
};

/// A config as a type, which is what kernels take: nvcc cannot name a kernel after a struct.
template <int TileM, int TileN, int TileK, int Warps, int Stages, Schedule Order = Schedule::grouped>
struct Choice {
  static constexpr Config config{TileM, TileN, TileK, Warps, Stages, 1, Order};
};

/// c[m, n] = a[m, k] b[k, n], elements of the operands in bytes.
struct Problem {
  i64 m, n, k;
  int element_bytes;
};

/// Why a config does not serve a problem; see sentence().
enum class Reason : u8 {
  ok,
  shape,
  elements,
  tile,
  warps,
  fetch,
  registers,
  stages,
  shared_memory,
  epilogue,
  cluster,
  split_k,
  schedule
};

constexpr TESSERA_HD const char* sentence(Reason reason) {
  switch (reason) {
    case Reason::ok:
      return "serves";
    case Reason::shape:
      return "lengths must lie between 0 and 2^31 - 1024, the number of tiles below 2^31";
    case Reason::elements:
      return "operands must have elements of 16 or 32 bits, on AMD's cards also of 8, on ordinary cores of 32, on a "
             "CPU "
             "of 16, 32 or 64";
    case Reason::tile:
      return "tile_m and tile_n must be powers of two from 32 (on AMD's cards 16) to 256, tile_k one of 64 to 256 "
             "bytes; on ordinary cores 64 or 128 squared, and 16; on a CPU all positive";
    case Reason::warps:
      return "1 to 16 warps that cut the tile into equal parts, whole in matrix instructions; on ordinary cores 8, on "
             "a CPU 1";
    case Reason::fetch:
      return "operand tiles must give every thread the same number of 16-byte chunks, 1 to 8 on AMD's cards";
    case Reason::registers:
      return "the sums need more registers than a thread has";
    case Reason::stages:
      return "sm80 needs 2 to 8 stages, cdna and ordinary cores exactly 2, cpu exactly 1";
    case Reason::shared_memory:
      return "the stages need more shared memory than a block has, or the packed tiles more than 1 GiB";
    case Reason::epilogue:
      return "the epilogue needs more shared memory than the stages, or uneven shares of it";
    case Reason::cluster:
      return "no pipeline shares operands between blocks";
    case Reason::split_k:
      return "no pipeline splits k over blocks";
    case Reason::schedule:
      return "on a CPU tiles are computed in groups, which share the packed right matrix";
  }
  return "";
}

/// What a pipeline is made for: its matrix instruction, and the limits of its hardware.
struct ArchTraits {
  int warp_size;
  int unit;        // edge of the squares of the result that a warp computes, as far as that is possible
  int least_edge;  // of a tile
  int max_chunks;  // 16-byte chunks of an operand that a thread fetches
  int max_sums;    // that a thread holds besides all else
  int min_stages, max_stages;
  int shared_bytes;  // of a block; cards of 8.6 and 8.9 have 99 KiB, which a launch finds out
};
constexpr TESSERA_HD ArchTraits traits(Arch arch) {
  return arch == Arch::sm80 ? ArchTraits{32, 16, 32, 64, 128, 2, 8, 163 * 1024}
                            : ArchTraits{64, 32, 16, 8, 256, 2, 2, 64 * 1024};
}

/// Into how many parts `warps` cut a tile from top to bottom: the parts are equal, whole in units, and as square as
/// possible, so that operands are read least often. 0 when there is no such way.
constexpr TESSERA_HD int warps_down(int tile_m, int tile_n, int warps, int unit_m, int unit_n) {
  int best = 0;
  for (int down = 1; down <= warps; ++down) {
    const bool whole = warps % down == 0 && tile_m % (down * unit_m) == 0 && tile_n % (warps / down * unit_n) == 0;
    const auto edges = [&](int d) { return tile_m / d + tile_n * d / warps; };
    if (whole && (best == 0 || edges(down) < edges(best))) best = down;
  }
  return best;
}

/// Edge of the squares of the result that are each the work of one warp: on AMD's cards of matrix instructions for 32
/// x 32 sums where warps get whole ones, else for 16 x 16.
constexpr TESSERA_HD int unit_of(const Config& config, Arch arch) {
  const int unit = traits(arch).unit;
  return warps_down(config.tile_m, config.tile_n, config.warps, unit, unit) ? unit : 16;
}

/// validate() for Arch::cpu: edges may be ragged and elements are converted while they are packed, so little is
/// refused.
constexpr TESSERA_HD Reason validate_cpu(const Config& config, const Problem& problem) {
  const auto is_length = [](i64 x) { return x >= 0 && x < i64{1} << 40; };
  if (!is_length(problem.m) || !is_length(problem.n) || !is_length(problem.k)) return Reason::shape;
  const int bytes = problem.element_bytes;
  if (bytes != 2 && bytes != 4 && bytes != 8) return Reason::elements;
  if (config.tile_m < 1 || config.tile_n < 1 || config.tile_k < 1) return Reason::tile;
  if (config.warps != 1) return Reason::warps;
  if (config.stages != 1) return Reason::stages;
  const i64 packed = (i64{config.tile_m} + config.tile_n) * config.tile_k * max(bytes, 4);  // halves become f32
  if (packed > i64{1} << 30) return Reason::shared_memory;
  if (config.cluster != 1) return Reason::cluster;
  if (config.split_k != 1) return Reason::split_k;
  return config.schedule == Schedule::grouped ? Reason::ok : Reason::schedule;
}

/// validate() for Arch::simt, whose tiles are fixed but for their edge. Its 256 threads count as 8 warps on AMD's
/// cards, too.
constexpr TESSERA_HD Reason validate_simt(const Config& config, const Problem& problem) {
  const auto is_length = [](i64 x) { return x >= 0 && x < (i64{1} << 31) - 1024; };
  if (!is_length(problem.m) || !is_length(problem.n) || !is_length(problem.k)) return Reason::shape;
  if (problem.element_bytes != 4) return Reason::elements;
  const int edge = config.tile_m;
  if ((edge != 64 && edge != 128) || config.tile_n != edge || config.tile_k != 16) return Reason::tile;
  if (ceil_div(problem.m, i64{edge}) * ceil_div(problem.n, i64{edge}) >= (i64{1} << 31)) return Reason::shape;
  if (config.warps != 8) return Reason::warps;
  if (config.stages != 2) return Reason::stages;
  if (config.cluster != 1) return Reason::cluster;
  return config.split_k == 1 ? Reason::ok : Reason::split_k;
}

/// Whether the pipeline of `arch` computes `problem` with `config`, or the first reason why not.
constexpr TESSERA_HD Reason validate(const Config& config, const Problem& problem, Arch arch) {
  if (arch == Arch::cpu) return validate_cpu(config, problem);
  if (arch == Arch::simt) return validate_simt(config, problem);
  const ArchTraits hardware = traits(arch);
  const auto is_power = [](int x, int low, int high) { return x >= low && x <= high && (x & (x - 1)) == 0; };
  const auto is_length = [](i64 x) { return x >= 0 && x < (i64{1} << 31) - 1024; };
  if (!is_length(problem.m) || !is_length(problem.n) || !is_length(problem.k)) return Reason::shape;
  const int bytes = problem.element_bytes;
  if (bytes != 2 && bytes != 4 && (bytes != 1 || arch != Arch::cdna)) return Reason::elements;

  const int m = config.tile_m, n = config.tile_n, k = config.tile_k;
  if (!is_power(m, hardware.least_edge, 256) || !is_power(n, hardware.least_edge, 256)) return Reason::tile;
  if (!is_power(k, 64 / bytes, 256 / bytes)) return Reason::tile;
  if (ceil_div(problem.m, i64{m}) * ceil_div(problem.n, i64{n}) >= (i64{1} << 31)) return Reason::shape;

  if (config.warps < 1 || config.warps > 16) return Reason::warps;
  const int threads = config.warps * hardware.warp_size;
  const int unit = unit_of(config, arch), down = warps_down(m, n, config.warps, unit, unit);
  if (down == 0) return Reason::warps;
  const auto shares = [&](int rows) {
    const int chunks = rows * k * bytes / 16;
    return chunks % threads == 0 && chunks / threads <= hardware.max_chunks;
  };
  if (!shares(m) || !shares(n)) return Reason::fetch;
  if (m * n / threads > hardware.max_sums) return Reason::registers;

  if (config.stages < hardware.min_stages || config.stages > hardware.max_stages) return Reason::stages;
  const int shared_bytes = config.stages * (m + n) * k * bytes;
  if (shared_bytes > hardware.shared_bytes) return Reason::shared_memory;
  const int slab = down * unit * n;  // sums that pass through shared memory at a time
  if (slab * 4 > shared_bytes || slab % (4 * threads) != 0) return Reason::epilogue;

  if (config.cluster != 1) return Reason::cluster;
  if (config.split_k != 1) return Reason::split_k;
  return Reason::ok;
}

TESSERA_TILE_END
