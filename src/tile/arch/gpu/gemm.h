// What a block of any GPU does in a GEMM: finds its tile of the result, sums it up, and hands every element to the
// epilogue.
#pragma once
#include "../../distribution.h"
#include "../../expr.h"
#include "block.h"
#include "operand.h"

TESSERA_TILE_BEGIN

struct TilePlace {
  int row, column;  // in tiles
};

/// The tile of block `block`. Grouped: eight tile rows at a time, walked column by column, so that blocks that run at
/// the same time share operands in the second-level cache.
constexpr TESSERA_HD TilePlace tile_of_block(Schedule schedule, int block, int tiles_down, int tiles_across) {
  if (schedule == Schedule::linear) return {block / tiles_across, block % tiles_across};
  const int first = block / (8 * tiles_across) * 8;
  const int rows = min(8, tiles_down - first), within = block - first * tiles_across;
  return {first + within % rows, within / rows};
}

/// The operand b as the pipelines want it: b(k, n) as (n, k).
template <class T, class D>
TESSERA_HD auto by_column(const View<T, D>& b) {
  return transform(b, pass<1>(), pass<0>());
}
template <class B>
using ByColumn = decltype(by_column(static_cast<const B*>(nullptr)[0]));

/// The epilogue at (row, column) and the lanes behind it, as far as they lie before column n.
template <int Lanes, Expression E>
TESSERA_DEVICE void evaluate_lanes(const E& epilogue, const Pack<float, Lanes>& sums, int row, int column, int n) {
  if constexpr (Lanes > 1) {
    if (column + Lanes <= n) {
      Vec<float, Lanes> all;
      unroll<Lanes>([&](auto l) { all.set(l, sums.lane[l]); });
      epilogue.row(row)(all, column, AllLanes{});
      return;
    }
  }
  unroll<Lanes>([&](auto l) {
    if (column + l < n) evaluate(epilogue, sums.lane[l], row, column + l);
  });
}

/// Hands the sums of a block to the epilogue, which is evaluated at (row + i, column + j) wherever that lies inside m x
/// n, for Lanes (1 or 4) neighbouring columns at a time. The sums go through shared memory, some rows at a time, so
/// that neighbouring threads work on neighbouring columns. Called by all threads of the block; `slab` holds
/// Pipeline::shared_bytes that nobody uses any more.
template <int Lanes = 1, class Pipeline, Expression E>
TESSERA_DEVICE void store_sums(const Pipeline& pipeline, const E& epilogue, int row, int column, int m, int n,
                               float* slab) {
  using Sums = typename Pipeline::Sums;
  constexpr int width = Pipeline::config.tile_n, height = Sums::down * Sums::atom_m;  // of what fits into shared memory
  constexpr int held = Sums::layout().registers() / Sums::atoms_m;                    // sums of a thread in it
  constexpr int batch = 4 / Lanes;                                                    // packs of a thread under way
  constexpr int step = Lanes * Pipeline::threads;                                     // to the next of them
  constexpr int turn = Sums::atom_m == 16 && Sums::atom_n == 16 ? 16 : 0;             // whose rows are half as long
  // Four rows meet all banks.
  const auto place = [](int i, int j) { return i * width + (j ^ (i % 4 * 8 ^ i / 4 % 2 * turn) % width); };

  const auto at = thread_coords<Sums>(thread_in_block());
  const int part = at[0] / Sums::rows, inner = at[0] % Sums::rows;
#if defined(__HIP__)
  [[maybe_unused]] constexpr int copies = Sums::atoms_m;  // clang takes more registers for one
#else
  [[maybe_unused]] constexpr int copies = 1;  // code of an epilogue is long
#endif
#pragma unroll copies
  for (int now = 0; now < Sums::atoms_m; ++now) {
    unroll<Sums::atoms_m>([&](auto atom) {
      if (now != atom) return;
      unroll<held>([&](auto r) {
        constexpr auto c = register_coords<Sums>(decltype(atom)::value * held + r);  // NVRTC takes no captured constant
        slab[place(part * Sums::atom_m + inner + c[0] - atom * Sums::atom_m, at[1] + c[1])] =
            pipeline.sum(atom * held + r);
      });
    });
    sync_block();
#pragma unroll 1  // further than this, code grows and nothing is gained
    for (int first = thread_in_block() * Lanes; first < width * height; first += batch * step) {
      Pack<float, Lanes> sums[batch];
      unroll<batch>([&](auto b) {
        const int e = first + b * step;
        sums[b] = *reinterpret_cast<const Pack<float, Lanes>*>(slab + place(e / width, e % width));
        unroll<Lanes>([&](auto l) { touch(sums[b].lane[l]); });  // read by all lanes: the emulator does not mask reads
      });
      unroll<batch>([&](auto b) {
        const int e = first + b * step, i = e / width, j = e % width;
        const int to_row = row + i / Sums::atom_m * Sums::rows + now * Sums::atom_m + i % Sums::atom_m;
        if (to_row < m) evaluate_lanes<Lanes>(epilogue, sums[b], to_row, column + j, n);
      });
    }
    sync_block();
  }
}

/// One block's part of the result: epilogue, an expression over the sums, is evaluated for each of its elements.
/// Pipeline is sm80::Gemm or cdna::Gemm for the views a(m, k) and by_column(b(k, n)); the grid has one block for each
/// tile.
template <class Pipeline, int Lanes = 1, class A, class B, Expression E>
TESSERA_DEVICE void gemm_block(const A& a, const B& b, const E& epilogue, typename Pipeline::T* shared) {
  const int m = static_cast<int>(a.length(0)), n = static_cast<int>(b.length(1)), k = static_cast<int>(a.length(1));
  constexpr Config config = Pipeline::config;
  const TilePlace tile = tile_of_block(config.schedule, static_cast<int>(block_in_grid()), ceil_div(m, config.tile_m),
                                       ceil_div(n, config.tile_n));
  const int row = tile.row * config.tile_m, column = tile.column * config.tile_n;
  Pipeline pipeline;
  pipeline.run(a, by_column(b), row, column, 0, k, shared);
  store_sums<Lanes>(pipeline, epilogue, row, column, m, n, reinterpret_cast<float*>(shared));
}

TESSERA_TILE_END
