// What Hopper's backwards of attention share: the order in which a block meets queries, and the steps from scores to
// their gradients.
#pragma once
#include "attention.h"
#include "bulk.h"

TESSERA_TILE_BEGIN
namespace sm90 {

struct BackwardMaps {
  TensorMap q, k, v, dy;
};

/// Of a block whose warpgroups compute with 64 keys and Sizes::step queries at a time.
template <class T, class Sizes>
class BackwardParts {
 protected:
  static constexpr int width = Sizes::width, own = Sizes::own, step = Sizes::step;
  using OwnState = typename Sizes::OwnRing::State;
  using Square = typename Sizes::SquareTile;
  using Scores = float[step / 2];
  using Words = u32[step / 16][4];
  using Sums = float[width / 2];
  using Kept = KeptWeights<step / 2>;

  TESSERA_DEVICE BackwardParts(const AttentionProblem& p, const HeadTiles& tiles, const AttentionDropout& dropout,
                               u32 own_rows, u32 own_barriers, u32 indices)
      : p_(p),
        tiles_(tiles),
        dropout_(dropout),
        kv_heads_(static_cast<int>(p.kv_heads)),
        copies_(static_cast<int>(p.heads) / kv_heads_),
        queries_(static_cast<int>(p.queries)),
        owned_(own_rows, own_barriers),
        indices_(indices) {}

  // ---- the order of the work

  /// fn(place, turn) for the tiles that this block takes.
  template <class Fn>
  TESSERA_DEVICE void each_tile(const Fn& fn) const {
#pragma unroll 1
    for (OwnState state;; state.next()) {
      owned_.consumer_wait(state);
      const int index = load_word(indices_ + 4 * state.stage);
      if (index < 0) return;
      fn(tiles_(index), state);
    }
  }
  /// The first query that may see a tile, and how many steps of queries do.
  TESSERA_DEVICE int first_of(const HeadTiles::Place& place) const { return p_.causal ? place.tile * own : 0; }
  TESSERA_DEVICE int steps_of(const HeadTiles::Place& place) const {
    return max(0, ceil_div(queries_ - first_of(place), step));
  }
  /// fn(batch, head, first query) of the steps: the last queries come first, which the first keys, taken first, share
  /// with all others.
  template <class Fn>
  TESSERA_DEVICE void each_step(const HeadTiles::Place& place, const Fn& fn) const {
    const int b = place.head / kv_heads_, first_head = place.head % kv_heads_ * copies_;
    const int first = first_of(place), steps = steps_of(place);
#pragma unroll 1
    for (int h = first_head; h < first_head + copies_; ++h) {
#pragma unroll 1
      for (int i = steps - 1; i >= 0; --i) fn(b, h, first + i * step);
    }
  }

  /// Takes tiles, starts copying their keys and values, and calls fn(batch, head, first query) for their steps.
  template <class Fn>
  TESSERA_DEVICE void fetch_tiles(const BackwardMaps& maps, int* taken, const Fn& fn) const {
#pragma unroll 1
    for (OwnState state;; state.next()) {
      const int index = take_ticket(taken);
      const bool all = index >= tiles_.tiles * tiles_.heads;
      owned_.producer_wait(state);
      store_word(indices_ + 4 * state.stage, all ? -1 : index);
      if (all) return owned_.producer_commit(state);
      const HeadTiles::Place place = tiles_(index);
      const int kv_head = place.head % kv_heads_, b = place.head / kv_heads_;
      const u32 full = owned_.producer_acquire(state), keys = owned_.at(state);
      load_rows<own, width>(keys, maps.k, full, place.tile * own, kv_head, b);
      load_rows<own, width>(keys + Sizes::OwnTile::bytes, maps.v, full, place.tile * own, kv_head, b);
      each_step(place, fn);
    }
  }

  /// What exponents are lowered by, and row sums, of two queries of the head whose first row is `row`; a query that is
  /// not there, or sees nothing, has no weights.
  TESSERA_DEVICE void numbers_of(const AttentionGradients<T>& g, i64 row, int query, float (&shift)[2],
                                 float (&sum)[2]) const {
    unroll<2>([&](auto e) {
      const bool inside = query + e < queries_;
      const float lse = inside ? g.lse[row + query + e] : minus_infinity();
      shift[e] = lse == minus_infinity() ? -lse : lse * log2_of_e;
      sum[e] = inside ? g.row_sums[row + query + e] : 0;
    });
  }

  // ---- what a warpgroup computes

  /// scores = the 64 own rows at `own` times the rows at `rows`.
  static TESSERA_DEVICE void start_scores(Scores& scores, u32 own, u32 rows) {
    start_product<T, step, typename Sizes::OwnTile, typename Sizes::StepTile, false>(scores, own, rows, false);
    wgmma_commit();
  }
  /// sums += words times the rows at `rows`, over the rows.
  static TESSERA_DEVICE void start_sums(Sums& sums, const Words& words, u32 rows) {
    wgmma_fence();
    start_product<T, width, typename Sizes::SummedTile, true>(sums, words, rows, true);
    wgmma_commit();
  }
  /// Writes a warpgroup's gradients of scores for both to read: a line for each key, blocks of 64 queries.
  static TESSERA_DEVICE void hand_on(const Words& words, u32 to, int group) {
    const int lane = thread_in_block() % 32, line = group * 64 + thread_in_block() % 128 / 32 * 16 + lane % 16;
    unroll<step / 16>([&](auto i) {
      stmatrix(to + i / 4 * Square::bytes + swizzled(line, i % 4 * 2 + lane / 16), words[i][0], words[i][1],
               words[i][2], words[i][3]);
    });
    fence_proxy_async();
  }

  /// Scores become weights. Queries begin `ahead` of the keys: where they are behind, causality hides keys.
  TESSERA_DEVICE void weigh(Scores& x, float scale, u32 shifts, int ahead, int key) const {
    unroll<step / 8>([&](auto j) {
      float shift[2];
      load_pair(shift[0], shift[1], shifts + (j * 8 + accumulator_column()) * 4);
      unroll<4>([&](auto i) { x[j * 4 + i] = fast_exp2(fma(x[j * 4 + i], scale, -shift[i % 2])); });
    });
    const int there = static_cast<int>(p_.keys) - key;
    if (there >= 64 && (!p_.causal || ahead >= 63)) return;
    unroll<2>([&](auto half) {
      const int row = accumulator_row() + half * 8;
      // Queries before that one.
      const int hidden = row >= there ? step : p_.causal ? row - ahead - accumulator_column() : 0;
      unroll<step / 4>([&](auto i) {
        constexpr int query = i / 2 * 8 + i % 2;
        if (query < hidden) x[i / 2 * 4 + 2 * half + i % 2] = 0;
      });
    });
  }
  /// Pairs of weights of which dropout zeroes some.
  static TESSERA_DEVICE void keep(Words& to, const Words& from, const Kept& kept) {
    unroll<step / 4>([&](auto i) {
      u32& word = to[i / 4][i % 4];
      word = from[i / 4][i % 4];
      if constexpr (Sizes::drops) {
        const u32 bits = kept[i / 16] >> i % 16 * 2;
        word &= (bits & 1 ? 0xffffu : 0) | (bits & 2 ? 0xffff0000u : 0);
      }
    });
  }
  /// From rounded weights, which leaves registers for what is under way.
  static TESSERA_DEVICE void differentiate(Scores& x, const Words& weights, u32 sums) {
    unroll<step / 8>([&](auto j) {
      float sum[2];
      load_pair(sum[0], sum[1], sums + (j * 8 + accumulator_column()) * 4);
      unroll<4>([&](auto i) {
        x[j * 4 + i] = half_of(weights[j / 2][j % 2 * 2 + i / 2], i % 2) * (x[j * 4 + i] - sum[i % 2]);
      });
    });
  }
  static TESSERA_DEVICE float half_of(u32 word, int which) {
    if constexpr (is_same_v<T, bf16>) return bit_cast<float>(which ? word & 0xffff0000u : word << 16);
    else return static_cast<float>(bit_cast<T>(static_cast<u16>(which ? word >> 16 : word & 0xffffu)));
  }

  const AttentionProblem& p_;
  const HeadTiles& tiles_;
  const AttentionDropout& dropout_;
  int kv_heads_, copies_, queries_;
  typename Sizes::OwnRing owned_;
  u32 indices_;
};

}  // namespace sm90
TESSERA_TILE_END
