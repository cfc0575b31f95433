// Gradients of attention on NVIDIA cards from compute capability 8.0 on, without atomics: one kernel owns keys and sums
// up dk and dv over the queries, another owns queries and sums up dq over the keys. Both make the probabilities anew
// from the forward's log-sum-exp.
#pragma once
#include "attention.h"

TESSERA_TILE_BEGIN
namespace sm80 {

template <int Width>
struct BackwardSizes {
  static constexpr int own = attention_warps * 16;            // rows of a block: keys, or queries
  static constexpr int step = Width <= 64 ? 64 : 32;          // rows it meets at a time
  static constexpr int tiles = (2 * own + 4 * step) * Width;  // elements
  static constexpr int shared_bytes = tiles * 2 + 4 * step * 4, query_bytes = shared_bytes;
  static constexpr TESSERA_HD i64 key_blocks(const AttentionProblem& p) {
    return p.batch * p.kv_heads * ceil_div(p.keys, i64(own));
  }
  static constexpr TESSERA_HD i64 query_blocks(const AttentionProblem& p) {
    return p.batch * p.heads * ceil_div(p.queries, i64(own));
  }
};

/// dk and dv of one block of keys, summed over the queries of every head that shares them.
template <class T, int Width>
TESSERA_DEVICE void attention_backward_keys(const AttentionProblem& p, const AttentionGradients<T>& g, T* shared) {
  using Sizes = BackwardSizes<Width>;
  constexpr int keys = Sizes::own, queries = Sizes::step, tile = queries * Width;
  const i64 blocks = ceil_div(p.keys, i64(keys)), index = block_in_grid() / blocks;
  const i64 b = index / p.kv_heads, kv_head = index % p.kv_heads, copies = p.heads / p.kv_heads;
  const i64 k0 = block_in_grid() % blocks * keys, first = p.causal ? k0 / queries : 0;
  const int passes = static_cast<int>(max(i64(0), ceil_div(p.queries, i64(queries)) - first));
  const int steps = passes * static_cast<int>(copies);

  T *k_tile = shared, *v_tile = k_tile + keys * Width, *ring = v_tile + keys * Width;
  float* rows = reinterpret_cast<float*>(shared + Sizes::tiles);  // lse, then row_sums, in two stages
  const auto head_of = [&](int step) { return kv_head * copies + step / passes; };
  const auto first_query = [&](int step) { return (first + step % passes) * queries; };
  const auto fetch = [&](int step) {
    const i64 h = head_of(step), q0 = first_query(step), row = (b * p.heads + h) * p.queries + q0;
    T* to = ring + step % 2 * 2 * tile;
    fetch_rows<queries, Width>(to, g.q, g.q.head(b, h) + q0 * g.q.row(), p.queries - q0, p.width);
    fetch_rows<queries, Width>(to + tile, g.dy, g.dy.head(b, h) + q0 * g.dy.row(), p.queries - q0, p.value_width);
    if (const int i = thread_in_block(); i < queries) {
      const bool inside = q0 + i < p.queries;
      float* at = rows + step % 2 * 2 * queries + i;
      copy_async<4>(at, g.lse + (inside ? row + i : 0), inside);
      copy_async<4>(at + queries, g.row_sums + (inside ? row + i : 0), inside);
    }
    commit_copies();
  };
  fetch_rows<keys, Width>(k_tile, g.k, g.k.head(b, kv_head) + k0 * g.k.row(), p.keys - k0, p.width);
  fetch_rows<keys, Width>(v_tile, g.v, g.v.head(b, kv_head) + k0 * g.v.row(), p.keys - k0, p.value_width);
  if (steps > 0) fetch(0);
  else commit_copies();

  const int own = thread_in_block() / warp_size * 16 * Width;
  const OwnRows<T, keys, Width> k_own(k_tile + own), v_own(v_tile + own);
  WarpSums<1, Width> dk, dv;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_copies<0>();
    sync_block();  // this step's rows have arrived, and every warp is done with those of the last
    if (step + 1 < steps) fetch(step + 1);
    const T* q_tile = ring + step % 2 * 2 * tile;
    const T* dy_tile = q_tile + tile;
    const float* lse = rows + step % 2 * 2 * queries;

    WarpSums<1, queries> probabilities, gradients;  // [key][query]
    probabilities.template add_product<T, Width>(k_own, Rows<T, queries, Width>(q_tile));
    finish_scores<true, T>(probabilities, p, ScoreBlock(p, b, head_of(step), first_query(step), k0));
    probabilities.each([&](float& x, int, int query) { x = fast_exp2(x - shift_of(lse[query])); });
    dv.template add_product_of<T>(probabilities, SummedRows<T, queries, Width>(dy_tile));
    gradients.template add_product<T, Width>(v_own, Rows<T, queries, Width>(dy_tile));
    unroll<queries / 8>([&](auto j) {
      unroll<4>([&](auto r) {
        float& x = gradients.at[0][j][r];
        x = probabilities.at[0][j][r] * (x - lse[queries + probabilities.column() + j * 8 + r % 2]);
      });
    });
    dk.template add_product_of<T>(gradients, SummedRows<T, queries, Width>(q_tile));
  }
  wait_copies<0>();
  const float scale = static_cast<float>(p.scale);
  dk.each([&](float& x, int, int) { x *= scale; });
  dk.store(k_tile, g.dk, g.dk.head(b, kv_head) + k0 * g.dk.row(), p.keys - k0, p.width);
  dv.store(v_tile, g.dv, g.dv.head(b, kv_head) + k0 * g.dv.row(), p.keys - k0, p.value_width);
}

/// dq of one block of queries.
template <class T, int Width>
TESSERA_DEVICE void attention_backward_queries(const AttentionProblem& p, const AttentionGradients<T>& g, T* shared) {
  using Sizes = BackwardSizes<Width>;
  constexpr int queries = Sizes::own, keys = Sizes::step, tile = keys * Width;
  const i64 blocks = ceil_div(p.queries, i64(queries)), index = block_in_grid() / blocks;
  const i64 b = index / p.heads, h = index % p.heads, shared_head = h / (p.heads / p.kv_heads);
  const i64 q0 = (blocks - 1 - block_in_grid() % blocks) * queries;  // what takes longest comes first
  const i64 visible = p.causal ? min(p.keys, q0 + queries) : p.keys;
  const int steps = static_cast<int>(ceil_div(visible, i64(keys)));

  T *q_tile = shared, *dy_tile = q_tile + queries * Width, *ring = dy_tile + queries * Width;
  const T *k_head = g.k.head(b, shared_head), *v_head = g.v.head(b, shared_head);
  const auto fetch = [&](int step) {
    const i64 k0 = static_cast<i64>(step) * keys;
    T* to = ring + step % 2 * 2 * tile;
    fetch_rows<keys, Width>(to, g.k, k_head + k0 * g.k.row(), p.keys - k0, p.width);
    fetch_rows<keys, Width>(to + tile, g.v, v_head + k0 * g.v.row(), p.keys - k0, p.value_width);
    commit_copies();
  };
  fetch_rows<queries, Width>(q_tile, g.q, g.q.head(b, h) + q0 * g.q.row(), p.queries - q0, p.width);
  fetch_rows<queries, Width>(dy_tile, g.dy, g.dy.head(b, h) + q0 * g.dy.row(), p.queries - q0, p.value_width);
  fetch(0);

  const int own = thread_in_block() / warp_size * 16 * Width;
  const OwnRows<T, queries, Width> q_own(q_tile + own), dy_own(dy_tile + own);
  WarpSums<1, Width> dq;
  float shift[2], row_sum[2];
  unroll<2>([&](auto half) {
    const i64 query = q0 + dq.row() + half * 8;
    shift[half] = query < p.queries ? shift_of(g.lse[index * p.queries + query]) : 0;
    row_sum[half] = query < p.queries ? g.row_sums[index * p.queries + query] : 0;
  });
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_copies<0>();
    sync_block();  // as above
    if (step + 1 < steps) fetch(step + 1);
    const T* k_tile = ring + step % 2 * 2 * tile;
    const T* v_tile = k_tile + tile;

    WarpSums<1, keys> probabilities, gradients;  // [query][key]
    probabilities.template add_product<T, Width>(q_own, Rows<T, keys, Width>(k_tile));
    finish_scores<false, T>(probabilities, p, ScoreBlock(p, b, h, q0, static_cast<i64>(step) * keys));
    gradients.template add_product<T, Width>(dy_own, Rows<T, keys, Width>(v_tile));
    unroll<keys / 8>([&](auto j) {
      unroll<4>([&](auto r) {
        float& x = gradients.at[0][j][r];
        x = fast_exp2(probabilities.at[0][j][r] - shift[r / 2]) * (x - row_sum[r / 2]);
      });
    });
    dq.template add_product_of<T>(gradients, SummedRows<T, keys, Width>(k_tile));
  }
  const float scale = static_cast<float>(p.scale);
  dq.each([&](float& x, int, int) { x *= scale; });
  dq.store(q_tile, g.dq, g.dq.head(b, h) + q0 * g.dq.row(), p.queries - q0, p.width);
}

}  // namespace sm80
TESSERA_TILE_END
