// Gradients of attention on ordinary cores, without atomics: one kernel owns keys and sums up dk and dv over the
// queries, another owns queries and sums up dq over the keys. Both make the probabilities anew from the forward's
// log-sum-exp.
#pragma once
#include "attention_simt.h"

TESSERA_TILE_BEGIN
namespace simt {

template <int Width>
struct BackwardSizes {
#if defined(__HIP__)
  static constexpr int limit = 64 << 10;  // bytes that a block may have
#else
  static constexpr int limit = 99 << 10;
#endif
  static constexpr int own = Width <= 64 || limit > 64 << 10 ? 64 : 32;  // rows of a block: keys, or queries
  static constexpr int step = Width <= 64 ? 32 : 16;                     // rows it meets at a time
  static constexpr int weights = 2 * (own + step) * pitch_of<Width>;     // where they begin
  static constexpr int rows = weights + own * weights_pitch<step>;       // and lse and row_sums of a step
  static constexpr int shared_bytes = (rows + 2 * step) * 4;
  static_assert(shared_bytes <= limit);
  static constexpr TESSERA_HD i64 key_blocks(const AttentionProblem& p) {
    return p.batch * p.kv_heads * ceil_div(p.keys, i64(own));
  }
  static constexpr TESSERA_HD i64 query_blocks(const AttentionProblem& p) {
    return p.batch * p.heads * ceil_div(p.queries, i64(own));
  }
};

/// Brings the rows that a block owns to their tile.
template <int Rows, int Width, class T>
TESSERA_DEVICE void own_rows(float* tile, const HeadsView<const T>& view, const T* from, i64 rows, i64 width) {
  RowsUnderWay<T, Rows, Width> under_way;
  under_way.load(view, from, rows, width);
  under_way.store(tile);
}

/// dk and dv of one block of keys, summed over the queries of every head that shares them.
template <class T, int Width>
TESSERA_DEVICE void attention_backward_keys(const AttentionProblem& p, const AttentionGradients<T>& g, float* shared) {
  using Sizes = BackwardSizes<Width>;
  constexpr int keys = Sizes::own, queries = Sizes::step;
  const i64 blocks = ceil_div(p.keys, i64(keys)), index = block_in_grid() / blocks;
  const i64 b = index / p.kv_heads, kv_head = index % p.kv_heads, copies = p.heads / p.kv_heads;
  const i64 k0 = block_in_grid() % blocks * keys, first = p.causal ? k0 / queries * queries : 0;

  float *k_tile = shared, *v_tile = k_tile + keys * pitch_of<Width>, *q_tile = v_tile + keys * pitch_of<Width>;
  float *dy_tile = q_tile + queries * pitch_of<Width>, *weights = shared + Sizes::weights, *rows = shared + Sizes::rows;
  own_rows<keys, Width>(k_tile, g.k, g.k.head(b, kv_head) + k0 * g.k.row(), p.keys - k0, p.width);
  own_rows<keys, Width>(v_tile, g.v, g.v.head(b, kv_head) + k0 * g.v.row(), p.keys - k0, p.value_width);

  RowsUnderWay<T, queries, Width> next_q, next_dy;
  float next_row = 0;  // one thread's: an lse, or a sum
  const auto fetch = [&](i64 h, i64 q0) {
    next_q.load(g.q, g.q.head(b, h) + q0 * g.q.row(), p.queries - q0, p.width);
    next_dy.load(g.dy, g.dy.head(b, h) + q0 * g.dy.row(), p.queries - q0, p.value_width);
    const int i = thread_in_block() % queries;
    const float* from = thread_in_block() < queries ? g.lse : g.row_sums;
    const bool inside = thread_in_block() < 2 * queries && q0 + i < p.queries;
    next_row = inside ? from[(b * p.heads + h) * p.queries + q0 + i] : 0;
  };
  WeightedSums<keys, Width> dk, dv;
  i64 copy = first < p.queries ? 0 : copies, q0 = first;
  if (copy < copies) fetch(kv_head * copies, q0);
#pragma unroll 1
  while (copy < copies) {
    const i64 h = kv_head * copies + copy;
    const ScoreBlock block(p, b, h, q0, k0);
    sync_block();  // every warp is done with the rows of the last step
    next_q.store(q_tile);
    next_dy.store(dy_tile);
    if (thread_in_block() < 2 * queries) rows[thread_in_block()] = next_row;
    q0 += queries;
    if (q0 >= p.queries) q0 = first, ++copy;
    if (copy < copies) fetch(kv_head * copies + copy, q0);
    sync_block();

    RowProducts<keys, queries> probabilities, gradients;
    probabilities.template add<Width>(k_tile, q_tile);
    finish_scores<true, T>(probabilities, p, block);
    probabilities.each([&](float& x, int, int query) { x = fast_exp2(x - shift_of(rows[query])); });
    probabilities.share(weights);
    dv.template add<queries>(weights, dy_tile);
    gradients.template add<Width>(v_tile, dy_tile);
    unroll<keys / groups>([&](auto i) {
      unroll<queries / 8>([&](auto j) {
        gradients.at[i][j] = probabilities.at[i][j] * (gradients.at[i][j] - rows[queries + own_column() + j * 8]);
      });
    });
    gradients.share(weights);
    dk.template add<queries>(weights, q_tile);
  }
  dk.store(g.dk, g.dk.head(b, kv_head) + k0 * g.dk.row(), p.keys - k0, p.width, static_cast<float>(p.scale));
  dv.store(g.dv, g.dv.head(b, kv_head) + k0 * g.dv.row(), p.keys - k0, p.value_width, 1);
}

/// dq of one block of queries.
template <class T, int Width>
TESSERA_DEVICE void attention_backward_queries(const AttentionProblem& p, const AttentionGradients<T>& g,
                                               float* shared) {
  using Sizes = BackwardSizes<Width>;
  constexpr int queries = Sizes::own, keys = Sizes::step;
  const i64 blocks = ceil_div(p.queries, i64(queries)), index = block_in_grid() / blocks;
  const i64 b = index / p.heads, h = index % p.heads, shared_head = h / (p.heads / p.kv_heads);
  const i64 q0 = (blocks - 1 - block_in_grid() % blocks) * queries;  // what takes longest comes first
  const i64 visible = p.causal ? min(p.keys, q0 + queries) : p.keys;

  float *q_tile = shared, *dy_tile = q_tile + queries * pitch_of<Width>, *k_tile = dy_tile + queries * pitch_of<Width>;
  float *v_tile = k_tile + keys * pitch_of<Width>, *weights = shared + Sizes::weights;
  own_rows<queries, Width>(q_tile, g.q, g.q.head(b, h) + q0 * g.q.row(), p.queries - q0, p.width);
  own_rows<queries, Width>(dy_tile, g.dy, g.dy.head(b, h) + q0 * g.dy.row(), p.queries - q0, p.value_width);

  RowsUnderWay<T, keys, Width> next_k, next_v;
  const auto fetch = [&](i64 k0) {
    next_k.load(g.k, g.k.head(b, shared_head) + k0 * g.k.row(), p.keys - k0, p.width);
    next_v.load(g.v, g.v.head(b, shared_head) + k0 * g.v.row(), p.keys - k0, p.value_width);
  };
  fetch(0);

  WeightedSums<queries, Width> dq;
  float shift[queries / groups], row_sum[queries / groups];
  unroll<queries / groups>([&](auto i) {
    const i64 query = q0 + own_row() + i * groups;
    shift[i] = query < p.queries ? shift_of(g.lse[index * p.queries + query]) : 0;
    row_sum[i] = query < p.queries ? g.row_sums[index * p.queries + query] : 0;
  });
#pragma unroll 1
  for (i64 k0 = 0; k0 < visible; k0 += keys) {
    sync_block();  // every warp is done with the rows of the last step
    next_k.store(k_tile);
    next_v.store(v_tile);
    fetch(k0 + keys);
    sync_block();

    RowProducts<queries, keys> probabilities, gradients;
    probabilities.template add<Width>(q_tile, k_tile);
    finish_scores<false, T>(probabilities, p, ScoreBlock(p, b, h, q0, k0));
    gradients.template add<Width>(dy_tile, v_tile);
    unroll<queries / groups>([&](auto i) {
      unroll<keys / 8>([&](auto j) {
        float& x = gradients.at[i][j];
        x = fast_exp2(probabilities.at[i][j] - shift[i]) * (x - row_sum[i]);
      });
    });
    gradients.share(weights);
    dq.template add<keys>(weights, k_tile);
  }
  dq.store(g.dq, g.dq.head(b, h) + q0 * g.dq.row(), p.queries - q0, p.width, static_cast<float>(p.scale));
}

}  // namespace simt
TESSERA_TILE_END
