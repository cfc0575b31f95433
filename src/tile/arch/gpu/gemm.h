// What a block of any GPU does in a GEMM: finds its tile of the result, sums it up, and hands every element to the epilogue.
#pragma once
#include "../../expr.h"
#include "block.h"

TESSERA_TILE_BEGIN

struct TilePlace {
  int row, column;  // in tiles
};

/// The tile of block `block`: groups of `group` tile rows, walked column by column, so that blocks that run at the same
/// time share operands in the second-level cache.
constexpr TESSERA_HD TilePlace grouped_tile(int block, int tiles_down, int tiles_across, int group) {
  const int first = block / (group * tiles_across) * group;
  const int rows = min(group, tiles_down - first), within = block - first * tiles_across;
  return {first + within % rows, within / rows};
}

/// The operand b as the pipelines want it: b(k, n) as (n, k).
template <class T, class D>
TESSERA_HD auto by_column(const View<T, D>& b) {
  return transform(b, pass<1>(), pass<0>());
}
template <class B>
using ByColumn = decltype(by_column(static_cast<const B*>(nullptr)[0]));

/// One block's part of an M x N result: epilogue, an expression over the sums, is evaluated for each of its elements.
/// Pipeline is sm80::Gemm or cdna::Gemm for the views a(m, k) and by_column(b(k, n)); the grid has one block for each tile.
template <class Pipeline, class A, class B, Expression E>
TESSERA_DEVICE void gemm_block(const A& a, const B& b, const E& epilogue, typename Pipeline::T* shared) {
  const int m = static_cast<int>(a.length(0)), n = static_cast<int>(b.length(1)), k = static_cast<int>(a.length(1));
  const TilePlace tile = grouped_tile(static_cast<int>(block_in_grid()), ceil_div(m, Pipeline::tile_m),
                                      ceil_div(n, Pipeline::tile_n), 8);
  const int row = tile.row * Pipeline::tile_m, column = tile.column * Pipeline::tile_n;
  Pipeline pipeline;
  pipeline.run(a, by_column(b), row, column, 0, k, shared);
  pipeline.each([&](int i, int j, float sum) {
    if (row + i < m && column + j < n) evaluate(epilogue, sum, row + i, column + j);
  });
}

TESSERA_TILE_END
