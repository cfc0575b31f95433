// Gradients of attention on AMD's CDNA cards, without atomics: one kernel owns keys and sums up dk and dv over the
// queries, another owns queries and sums up dq over the keys. Both make the probabilities anew from the forward's
// log-sum-exp.
#pragma once
#include "attention.h"

TESSERA_TILE_BEGIN
namespace cdna {

template <int Width, class T = f16>
struct BackwardSizes {
  static constexpr int step = 32, tile = step * Width;  // rows that a block meets at a time, and their elements
  static constexpr int bytes = static_cast<int>(sizeof(T)), copies = bytes == 2 ? 2 : 1;  // halves lie transposed, too
  static constexpr int shared_bytes = 2 * copies * tile * bytes + 2 * step * 4,
                       query_bytes = (copies + 1) * tile * bytes;
  // Blocks of either kernel that share a multiprocessor.
  static constexpr int resident = Width <= 64 ? 2 : 1, query_resident = Width * bytes <= 256 ? 2 : 1;
  static_assert(shared_bytes <= most_shared_bytes);
  static constexpr TESSERA_HD i64 key_blocks(const AttentionProblem& p) {
    return p.batch * p.kv_heads * ceil_div(p.keys, i64(block_rows));
  }
  static constexpr TESSERA_HD i64 query_blocks(const AttentionProblem& p) {
    return p.batch * p.heads * ceil_div(p.queries, i64(block_rows));
  }
};

enum class KeySums { both, dk, dv };

/// Sums of one block of keys over the queries of every head that shares them.
template <KeySums Which, class T, int Width>
TESSERA_DEVICE void attention_key_sums(const AttentionProblem& p, const AttentionGradients<T>& g, T* shared) {
  using Sizes = BackwardSizes<Width, T>;
  using Rows = HeadRows<T, Sizes::step, Width>;
  using Read = typename Rows::Read;
  using ReadTransposed = typename Rows::ReadTransposed;
  constexpr int queries = Sizes::step, turned = (Sizes::copies - 1) * Sizes::tile;  // where a transpose lies
  const i64 blocks = ceil_div(p.keys, i64(block_rows)), index = block_in_grid() / blocks;
  const i64 b = index / p.kv_heads, kv_head = index % p.kv_heads, copies = p.heads / p.kv_heads;
  const i64 block_k0 = block_in_grid() % blocks * block_rows, first = p.causal ? block_k0 / queries : 0;
  const i64 k0 = block_k0 + uniform(thread_in_block() / wave_size) * wave_rows;
  const int passes = static_cast<int>(max(i64(0), ceil_div(p.queries, i64(queries)) - first));
  const int steps = passes * static_cast<int>(copies);
  const auto head_of = [&](int step) { return kv_head * copies + step / passes; };
  const auto first_query = [&](int step) { return (first + step % passes) * queries; };

  constexpr int both = Sizes::copies * Sizes::tile;
  T *q_tile = shared, *dy_tile = shared + both;                     // each before its transpose
  float* const rows = reinterpret_cast<float*>(shared + 2 * both);  // shifts, then row_sums
  // With 128 columns that has more scalars spilled, not fewer.
  const HeadsView<const T> q = Width <= 64 ? apart(g.q) : g.q, dy = Width <= 64 ? apart(g.dy) : g.dy;
  Rows next;
  float next_row = 0;  // of the first threads
  const auto load = [&](int step) {
    const i64 h = head_of(step), q0 = first_query(step), left = p.queries - q0;
    next.load(q, q.head(b, h) + q0 * q.row(), p.width, dy, dy.head(b, h) + q0 * dy.row(), p.value_width, left);
    const int i = thread_in_block() % queries;
    const float* from = thread_in_block() < queries ? g.lse : g.row_sums;
    next_row = thread_in_block() < 2 * queries && i < left ? from[(b * p.heads + h) * p.queries + q0 + i] : 0;
  };
  const auto store = [&] {
    next.store([&](int tensor, const auto& put, const auto& put_transposed) {
      T* to = tensor == 0 ? q_tile : dy_tile;
      put(to);
      if (turned) put_transposed(to + turned);
    });
    if (thread_in_block() < 2 * queries)
      rows[thread_in_block()] = thread_in_block() < queries ? shift_of(next_row) : next_row;
  };
  if (steps > 0) load(0);
  const OwnRows<T, Width> k_own(g.k, g.k.head(b, kv_head) + k0 * g.k.row(), p.keys - k0, p.width);
  const OwnRows<T, Width> v_own(g.v, g.v.head(b, kv_head) + k0 * g.v.row(), p.keys - k0, p.value_width);

  WaveSums<Width> dk, dv;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    store();
    sync_block();
    if (step + 1 < steps) load(step + 1);
    keep_order();
    const i64 q0 = first_query(step);
    if (!p.causal || k0 < q0 + queries) {
      WaveSums<queries> probabilities, gradients;  // [key][query]
      probabilities.template add_product<Width>(k_own, Read(q_tile));
      finish_scores<true, T>(probabilities, p, ScoreBlock(p, b, head_of(step), q0, k0));
      probabilities.each([&](float& x, int, int query) { x = fast_exp2(x - rows[query]); });
      if constexpr (Which != KeySums::dk)
        dv.template add_product_of<T>(probabilities, ReadTransposed(dy_tile + turned));
      if constexpr (Which != KeySums::dv) {
        if (!turned) keep_order();  // or operands of the next products take registers beside those of the last
        gradients.template add_product<Width>(v_own, Read(dy_tile));
        unroll<16>([&](auto r) {
          float& x = gradients.at[0][r];
          x = probabilities.at[0][r] * (x - rows[queries + gradients.column(r)]);
        });
        dk.template add_product_of<T>(gradients, ReadTransposed(q_tile + turned));
      }
    }
    keep_order();
    sync_block();  // every wave is done with these rows
  }
  if constexpr (Which != KeySums::dv)
    dk.store(g.dk, g.dk.head(b, kv_head) + k0 * g.dk.row(), p.keys - k0, p.width, static_cast<float>(p.scale));
  if constexpr (Which != KeySums::dk)
    dv.store(g.dv, g.dv.head(b, kv_head) + k0 * g.dv.row(), p.keys - k0, p.value_width, 1);
}

/// dk and dv of one block of keys; one after the other where a lane has no registers for both.
template <class T, int Width>
TESSERA_DEVICE void attention_backward_keys(const AttentionProblem& p, const AttentionGradients<T>& g, T* shared) {
  if constexpr (Width * sizeof(T) <= 256) {
    attention_key_sums<KeySums::both, T, Width>(p, g, shared);
  } else {
    attention_key_sums<KeySums::dv, T, Width>(p, g, shared);
    attention_key_sums<KeySums::dk, T, Width>(p, g, shared);
  }
}

/// dq of one block of queries.
template <class T, int Width>
TESSERA_DEVICE void attention_backward_queries(const AttentionProblem& p, const AttentionGradients<T>& g, T* shared) {
  using Sizes = BackwardSizes<Width, T>;
  using Rows = HeadRows<T, Sizes::step, Width>;
  using Read = typename Rows::Read;
  using ReadTransposed = typename Rows::ReadTransposed;
  constexpr int keys = Sizes::step, turned = (Sizes::copies - 1) * Sizes::tile;
  const i64 blocks = ceil_div(p.queries, i64(block_rows)), index = block_in_grid() / blocks;
  const i64 b = index / p.heads, h = index % p.heads, shared_head = h / (p.heads / p.kv_heads);
  const i64 block_q0 = (blocks - 1 - block_in_grid() % blocks) * block_rows;  // what takes longest comes first
  const i64 q0 = block_q0 + uniform(thread_in_block() / wave_size) * wave_rows;
  const i64 visible = p.causal ? min(p.keys, block_q0 + block_rows) : p.keys;
  const int steps = static_cast<int>(ceil_div(visible, i64(keys)));

  T *k_tile = shared, *v_tile = shared + Sizes::copies * Sizes::tile;  // the transpose of k between them
  const T *k_head = g.k.head(b, shared_head), *v_head = g.v.head(b, shared_head);
  Rows next;
  const auto load = [&](int step) {
    const i64 k0 = static_cast<i64>(step) * keys;
    next.load(g.k, k_head + k0 * g.k.row(), p.width, g.v, v_head + k0 * g.v.row(), p.value_width, p.keys - k0);
  };
  const auto store = [&] {
    next.store([&](int tensor, const auto& put, const auto& put_transposed) {
      if (turned && tensor == 0) put_transposed(k_tile + turned);
      put(tensor == 0 ? k_tile : v_tile);
    });
  };
  if (steps > 0) load(0);
  const OwnRows<T, Width> q_own(g.q, g.q.head(b, h) + q0 * g.q.row(), p.queries - q0, p.width);
  const OwnRows<T, Width> dy_own(g.dy, g.dy.head(b, h) + q0 * g.dy.row(), p.queries - q0, p.value_width);

  WaveSums<Width> dq;
  const i64 query = q0 + dq.row(), at = index * p.queries + query;
  const float shift = query < p.queries ? shift_of(g.lse[at]) : 0;
  const float row_sum = query < p.queries ? g.row_sums[at] : 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    store();
    sync_block();
    if (step + 1 < steps) load(step + 1);
    keep_order();
    const i64 k0 = static_cast<i64>(step) * keys;
    if (!p.causal || k0 < q0 + wave_rows) {
      WaveSums<keys> probabilities, gradients;  // [query][key]
      probabilities.template add_product<Width>(q_own, Read(k_tile));
      finish_scores<false, T>(probabilities, p, ScoreBlock(p, b, h, q0, k0));
      gradients.template add_product<Width>(dy_own, Read(v_tile));
      unroll<16>([&](auto r) {
        float& x = gradients.at[0][r];
        x = fast_exp2(probabilities.at[0][r] - shift) * (x - row_sum);
      });
      dq.template add_product_of<T>(gradients, ReadTransposed(k_tile + turned));
    }
    keep_order();
    sync_block();  // every wave is done with these rows
  }
  dq.store(g.dq, g.dq.head(b, h) + q0 * g.dq.row(), p.queries - q0, p.width, static_cast<float>(p.scale));
}

}  // namespace cdna
TESSERA_TILE_END
