// Attention on NVIDIA's Hopper cards: one warp keeps TMA filling rings of keys and values, two or three
// warpgroups own 64 queries each. A warpgroup starts the next block's scores together with the present block's sums, so
// that exponentials are computed while the tensor cores multiply (Shah et al., "FlashAttention-3", arXiv:2407.08608).
#pragma once
#include "../gpu/attention.h"
#include "../sm80/ptx.h"
#include "attention_dropout.h"
#include "head_tiles.h"
#include "layout.h"
#include "ring.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// Copies rows of a head, [batch, head, row, column], to a tile of Lines lines and Width columns; zeros beyond its
/// ends.
template <int Lines, int Width>
TESSERA_DEVICE void load_rows(u32 to, const TensorMap& map, u32 barrier, int row, int head, int batch) {
  unroll<Width / 64>([&](auto i) { tma_load(to + i * Lines * line_bytes, map, barrier, i * 64, row, head, batch); });
}

// ---- what a warpgroup computes

/// sums (+)= a b for 64 rows of a, Depth deep, and Columns columns of b, both from shared memory.
template <class T, int Columns, class A, class B, bool TransposedB>
TESSERA_DEVICE void start_product(float (&sums)[Columns / 2], u32 a, u32 b, bool add) {
  const u64 left = A::descriptor(a), right = B::descriptor(b);
  unroll<A::depth / 16>([&](auto i) {
    wgmma<T, Columns, false, TransposedB>(sums, left + A::at(i, false), right + B::at(i, TransposedB), i > 0 || add);
  });
}
/// The same with a from registers.
template <class T, int Columns, class B, bool TransposedB, int Words>
TESSERA_DEVICE void start_product(float (&sums)[Columns / 2], const u32 (&a)[Words][4], u32 b, bool add) {
  const u64 right = B::descriptor(b);
  unroll<Words>(
      [&](auto i) { wgmma<T, Columns, TransposedB>(sums, a[i], right + B::at(i, TransposedB), i > 0 || add); });
}

/// Rounds sums to what the next product takes on its left.
template <class T, int N>
TESSERA_DEVICE void round_sums(u32 (&words)[N / 8][4], const float (&sums)[N]) {
  unroll<N / 2>([&](auto i) { words[i / 4][i % 4] = sm80::pack<T>(sums[2 * i], sums[2 * i + 1]); });
}

/// Stores sums times factor[row's half], rounded: `to` is the first of 64 rows, of which `rows` are there. The four
/// threads of a row swap words so that each has 8 neighbours.
template <class T, int N>
TESSERA_DEVICE void store_sums(const float (&sums)[N], const float (&factor)[2], T* to, i64 pitch, int rows,
                               int width) {
  const int lane = thread_in_block() % 4;
  unroll<2>([&](auto half) {
    const int row = accumulator_row() + half * 8;
    unroll<N / 16>([&](auto group) {
      u32 words[4];
      unroll<4>([&](auto i) {
        const float* pair = sums + (group * 4 + i) * 4 + half * 2;
        words[i] = sm80::pack<T>(pair[0] * factor[half], pair[1] * factor[half]);
      });
      unroll<2>([&](auto level) {
        constexpr int bit = 1 << level;
        const bool upper = lane & bit;
        unroll<2>([&](auto pair) {
          constexpr int low = level == 0 ? pair * 2 : pair, high = low + bit;
          const u32 got = from_lane_xor(upper ? words[low] : words[high], bit);
          (upper ? words[low] : words[high]) = got;
        });
      });
      const int column = (group * 4 + lane) * 8;
      if (row < rows && column < width)
        *reinterpret_cast<uint4*>(to + row * pitch + column) = uint4{words[0], words[1], words[2], words[3]};
    });
  });
}

/// Of 64 rows of queries from first_query on and N keys from first_key on: scores of keys that do not exist, or that
/// causality hides from a query, become -inf.
template <int N>
TESSERA_DEVICE void hide(float (&scores)[N], const AttentionProblem& p, int first_query, int first_key) {
  constexpr int columns = 2 * N;
  const int all = static_cast<int>(p.keys);
  if (first_key + columns <= (p.causal ? min(all, first_query + 1) : all)) return;
  unroll<2>([&](auto half) {
    const int query = first_query + accumulator_row() + half * 8;
    const int seen = (p.causal ? min(all, query + 1) : all) - first_key - accumulator_column();
    unroll<columns / 4>([&](auto i) {
      constexpr int column = i / 2 * 8 + i % 2;
      if (column >= seen) scores[i / 2 * 4 + 2 * half + i % 2] = minus_infinity();
    });
  });
}

// ---- forward

/// Drops: with dropout. PingPong: warpgroups start products in turns, so that one makes weights while another's are
/// multiplied; two of them hold their queries in registers.
template <int Width, int Warpgroups, int Keys, int Stages, int QueryStages, bool Drops = false, bool PingPong = false>
struct ForwardSizes {
  static constexpr bool drops = Drops, ping_pong = PingPong, holds = PingPong && Warpgroups == 2;
  static constexpr int width = Width, warpgroups = Warpgroups, queries = 64 * Warpgroups, keys = Keys;
  static constexpr int threads = 128 * (Warpgroups + 1), readers = 4 * Warpgroups;
  using QueryTile = SharedOperand<queries, Width>;
  using KeyTile = SharedOperand<Keys, Width>;
  using ValueTile = SharedOperand<Width, Keys>;  // transposed
  using QueryRing = Ring<QueryStages, QueryTile::bytes, readers>;
  using KeyRing = Ring<Stages, KeyTile::bytes, readers>;
  static constexpr int shared_bytes =
      QueryRing::bytes + 2 * KeyRing::bytes + QueryRing::barrier_bytes + 2 * KeyRing::barrier_bytes + atom_bytes;
  static_assert(Width == 64 || Width == 128 || Width == 256, "sm90 attention: heads of 64, 128 or 256 columns");
  static_assert((Warpgroups == 2 || Warpgroups == 3) && Keys % 16 == 0 && shared_bytes <= 227 * 1024,
                "sm90 attention: 2 or 3 warpgroups, and what a block has");
  static_assert(!holds || Keys > 64, "sm90 attention: two have equally many ping_pong");
};

/// Called by all threads of the block with Sizes::shared_bytes. Widths are at most Sizes::width and, like all steps
/// from row to row, multiples of 16 bytes; there is no mask, and the scale is positive. Where Sizes::drops, keys are
/// a multiple of four. The maps' boxes are Sizes::queries or keys rows of 64 columns. lse may be null.
template <class T, class Sizes>
class AttentionForward {
 public:
  static TESSERA_DEVICE void run(const AttentionProblem& p, const HeadTiles& tiles, const AttentionDropout& dropout,
                                 const TensorMap& q, const TensorMap& k, const TensorMap& v, const HeadsView<T>& y,
                                 float* lse, const char* shared) {
    const AttentionForward block(p, dropout, (shared_address(shared) + atom_bytes - 1) / atom_bytes * atom_bytes);
    const auto beside = [&](int warp) __attribute__((always_inline)) {
      if (warp == 0 && thread_in_block() % 32 == 0) block.fetch(tiles, q, k, v);
    };
    const auto compute = [&](int) __attribute__((always_inline)) { block.attend(tiles, y, lse); };
    split_block<warpgroups, warpgroups == 2 ? 24 : 32, warpgroups == 2 ? 240 : 160>(beside, compute, block.queries_,
                                                                                    block.keys_, block.values_);
  }

 private:
  static constexpr int warpgroups = Sizes::warpgroups, queries = Sizes::queries, keys = Sizes::keys;
  static constexpr int width = Sizes::width;
  using QueryRing = typename Sizes::QueryRing;
  using KeyRing = typename Sizes::KeyRing;
  using Scores = float[keys / 2];
  using Weights = u32[keys / 16][4];
  using Out = float[width / 2];
  using Held = u32[Sizes::holds ? width / 16 : 1][4];  // queries
  using Kept = KeptWeights<keys / 2>;

  TESSERA_DEVICE AttentionForward(const AttentionProblem& p, const AttentionDropout& dropout, u32 base)
      : p_(p),
        dropout_(dropout),
        queries_(base, base + QueryRing::bytes + 2 * KeyRing::bytes),
        keys_(base + QueryRing::bytes, base + QueryRing::bytes + 2 * KeyRing::bytes + QueryRing::barrier_bytes),
        values_(base + QueryRing::bytes + KeyRing::bytes,
                base + QueryRing::bytes + 2 * KeyRing::bytes + QueryRing::barrier_bytes + KeyRing::barrier_bytes) {}

  /// What queries before `end`, or those of a tile, take.
  TESSERA_DEVICE int steps_of(int end) const {
    const int all = static_cast<int>(p_.keys);
    return ceil_div(p_.causal ? min(all, end) : all, keys);
  }
  TESSERA_DEVICE int steps_of(const HeadTiles::Place& place) const { return steps_of((place.tile + 1) * queries); }

  TESSERA_DEVICE void fetch(const HeadTiles& tiles, const TensorMap& q, const TensorMap& k, const TensorMap& v) const {
    prefetch_tensor_map(q);
    prefetch_tensor_map(k);
    prefetch_tensor_map(v);
    typename QueryRing::State query_state;
    typename KeyRing::State key_state, value_state;
    tiles.each(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), [&](const HeadTiles::Place& place) {
      const int heads = static_cast<int>(p_.heads), b = place.head / heads, h = place.head % heads;
      const int kv_head = h / (heads / static_cast<int>(p_.kv_heads)), steps = steps_of(place);
      const auto load_values = [&](int step) {
        load_rows<keys, width>(values_.at(value_state), v, values_.producer_acquire(value_state), step * keys, kv_head,
                               b);
        value_state.next();
      };
      load_rows<queries, width>(queries_.at(query_state), q, queries_.producer_acquire(query_state),
                                place.tile * queries, h, b);
      query_state.next();
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        load_rows<keys, width>(keys_.at(key_state), k, keys_.producer_acquire(key_state), step * keys, kv_head, b);
        key_state.next();
        if (step > 0) load_values(step - 1);
      }
      load_values(steps - 1);
    });
  }

  // ---- warpgroups

  /// Two rows of each thread; `sum` is of its columns. Weights are powers of two of scores less `shift`, which stays
  /// where it is while no score is more than 2^8 times as heavy.
  struct Rows {
    float largest[2] = {minus_infinity(), minus_infinity()}, sum[2] = {0, 0};
    static constexpr float slack = 8;

    /// Scores become weights; what was summed up before is to be multiplied by `factor`.
    TESSERA_DEVICE void step(Scores& scores, float scale, float (&factor)[2]) {
      unroll<2>([&](auto half) {
        float top[2] = {scores[2 * half], scores[2 * half + 1]};
        unroll<keys / 4 - 2>(
            [&](auto i) { top[i % 2] = fmaxf(top[i % 2], scores[(i / 2 + 1) * 4 + 2 * half + i % 2]); });
        float highest = fmaxf(top[0], top[1]);
        highest = fmaxf(highest, from_lane_xor(highest, 1));
        highest = fmaxf(highest, from_lane_xor(highest, 2));
        const float last = largest[half];
        const bool moves = (highest - last) * scale > slack;
        factor[half] = moves ? fast_exp2((last - highest) * scale) : 1;
        largest[half] = moves ? highest : last;
        const float shift = largest[half] == minus_infinity() ? 0 : largest[half] * scale;
        float total[2] = {0, 0};
        unroll<keys / 4>([&](auto i) {
          float& x = scores[i / 2 * 4 + 2 * half + i % 2];
          x = fast_exp2(fma(x, scale, -shift));
          total[i % 2] += x;
        });
        sum[half] = fma(sum[half], factor[half], total[0] + total[1]);
      });
    }
  };

  /// A warpgroup's turn begins when that of the one before has ended. Causality lets three end at different keys, where
  /// turns would only cost.
  TESSERA_DEVICE bool is_ordered() const { return Sizes::ping_pong && (Sizes::holds || !p_.causal); }
  TESSERA_DEVICE void wait_for_order(int group) const {
    if (is_ordered()) named_barrier_sync(1 + group, 256);
  }
  TESSERA_DEVICE void pass_order(int group) const {
    if (is_ordered()) named_barrier_arrive(1 + (group + 1) % warpgroups, 256);
  }

  TESSERA_DEVICE void attend(const HeadTiles& tiles, const HeadsView<T>& y, float* lse) const {
    const int group = from_first_lane(thread_in_block() / 128);
    if (group == warpgroups - 1) pass_order(group);
    typename QueryRing::State query_state;
    typename KeyRing::State key_state, value_state;
    tiles.each(
        static_cast<int>(blockIdx.x),
        static_cast<int>(gridDim.x), [&](const HeadTiles::Place& place) __attribute__((always_inline)) {
          if (place.tile * queries + group * 64 >= static_cast<int>(p_.queries)) {  // of a head's last tile
            queries_.consumer_wait(query_state);
            queries_.consumer_release(query_state);
            query_state.next();
            return skip(group, steps_of(place), key_state, value_state);
          }
          Out out;
          Rows rows;
          sum_up(place, group, query_state, key_state, value_state, out, rows);
          finish(place, group, out, rows, y, lse);
        });
  }

  TESSERA_DEVICE void sum_up(const HeadTiles::Place& place, int group, typename QueryRing::State& query_state,
                             typename KeyRing::State& key_state, typename KeyRing::State& value_state, Out& out,
                             Rows& rows) const {
    const int first = place.tile * queries + group * 64, steps = steps_of(first + 64);
    const float scale = static_cast<float>(p_.scale) * log2_of_e;
    const u32 own = queries_.at(query_state) + group * 64 * line_bytes;
    Scores scores;
    Weights weights;
    Held held;
    float factor[2];
    Kept kept;
    const auto leave_queries = [&]() __attribute__((always_inline)) {
      queries_.consumer_release(query_state);
      query_state.next();
    };
    queries_.consumer_wait(query_state);
    if constexpr (Sizes::holds) {
      hold(held, own);
      leave_queries();
    }
    keys_.consumer_wait(key_state);
    wait_for_order(group);
    wgmma_fence();
    start_scores(scores, held, own, key_state);
    wgmma_commit();
    pass_order(group);
    draw(kept, place, first, 0);
    wgmma_wait<0>();
    wgmma_fence_operand(scores);
    keys_.consumer_release(key_state);
    key_state.next();
    hide(scores, p_, first, 0);
    rows.step(scores, scale, factor);
    if constexpr (Sizes::drops) drop(scores, kept);
    round_sums<T>(weights, scores);
    if (steps > 1) keys_.consumer_wait(key_state);
#pragma unroll 1
    for (int step = 1; step < steps; ++step) {
      wait_for_order(group);
      wgmma_fence();
      start_scores(scores, held, own, key_state);
      wgmma_commit();
      values_.consumer_wait(value_state);
      wgmma_fence();
      start_out(out, weights, value_state, step > 1);
      wgmma_commit();
      pass_order(group);
      draw(kept, place, first, step * keys);
      wgmma_wait<1>();
      wgmma_fence_operand(scores);
      keys_.consumer_release(key_state);
      key_state.next();
      hide(scores, p_, first, step * keys);
      rows.step(scores, scale, factor);
      if constexpr (Sizes::drops) drop(scores, kept);
      wgmma_fence_operand(scores);
      if (step + 1 < steps) keys_.consumer_wait(key_state);  // here, or ptxas computes weights after the next wait
      wgmma_wait<0>();
      wgmma_fence_operand(out);
      values_.consumer_release(value_state);
      value_state.next();
      if (__any_sync(~0u, factor[0] != 1 || factor[1] != 1))
        unroll<width / 2>([&](auto i) { out[i] *= factor[i / 2 % 2]; });
      round_sums<T>(weights, scores);
    }
    if constexpr (!Sizes::holds) leave_queries();
    values_.consumer_wait(value_state);
    wgmma_fence();
    start_out(out, weights, value_state, steps > 1);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(out);
    values_.consumer_release(value_state);
    value_state.next();
    if constexpr (queries - 64 >= keys) skip(group, steps_of(place) - steps, key_state, value_state);
  }

  /// Keys that other warpgroups' queries see, and this one's do not.
  TESSERA_DEVICE void skip(int group, int steps, typename KeyRing::State& key_state,
                           typename KeyRing::State& value_state) const {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait_for_order(group);
      pass_order(group);
      keys_.consumer_wait(key_state);
      keys_.consumer_release(key_state);
      key_state.next();
      values_.consumer_wait(value_state);
      values_.consumer_release(value_state);
      value_state.next();
    }
  }

  /// While products are under way: which weights are kept.
  TESSERA_DEVICE void draw(Kept& kept, const HeadTiles::Place& place, int query, int key) const {
    if constexpr (Sizes::drops)
      DropoutStream(dropout_).template rows<keys / 2>(kept, place.head * p_.queries + query, p_.keys, key);
  }

  /// A warpgroup's queries as the left operand of products.
  static TESSERA_DEVICE void hold(Held& held, u32 own) {
    const int lane = thread_in_block() % 32, row = thread_in_block() % 128 / 32 * 16 + lane % 16;
    unroll<width / 16>(
        [&](auto i) { ldmatrix(held[i], own + i / 4 * queries * line_bytes + swizzled(row, i % 4 * 2 + lane / 16)); });
  }
  TESSERA_DEVICE void start_scores(Scores& scores, const Held& held, u32 own,
                                   const typename KeyRing::State& state) const {
    using KeyTile = typename Sizes::KeyTile;
    if constexpr (Sizes::holds) start_product<T, keys, KeyTile, false>(scores, held, keys_.at(state), false);
    else start_product<T, keys, typename Sizes::QueryTile, KeyTile, false>(scores, own, keys_.at(state), false);
  }
  TESSERA_DEVICE void start_out(Out& out, const Weights& weights, const typename KeyRing::State& state,
                                bool add) const {
    start_product<T, width, typename Sizes::ValueTile, true>(out, weights, values_.at(state), add);
  }

  TESSERA_DEVICE void finish(const HeadTiles::Place& place, int group, const Out& out, const Rows& rows,
                             const HeadsView<T>& y, float* lse) const {
    const int first = place.tile * queries + group * 64, left = static_cast<int>(p_.queries) - first;
    const i64 heads = p_.heads, b = place.head / heads, h = place.head % heads;
    float inverse[2];
    unroll<2>([&](auto half) {
      float sum = rows.sum[half];
      sum += from_lane_xor(sum, 1);
      sum += from_lane_xor(sum, 2);
      const float all = Sizes::drops ? dropout_.scale : 1;
      inverse[half] = sum > 0 ? all / sum : sum == sum ? 0 : sum;  // a query that sees nothing has zeros
      const int row = accumulator_row() + half * 8;
      if (lse && thread_in_block() % 4 == 0 && row < left) {
        const float scale = static_cast<float>(p_.scale);
        lse[place.head * p_.queries + first + row] = fma(rows.largest[half], scale, fast_log2(sum) * log_of_2);
      }
    });
    store_sums<T>(out, inverse, y.head(b, h) + first * y.row(), y.row(), left, static_cast<int>(p_.value_width));
  }

  const AttentionProblem& p_;
  const AttentionDropout& dropout_;
  QueryRing queries_;
  KeyRing keys_, values_;
};

}  // namespace sm90
TESSERA_TILE_END
