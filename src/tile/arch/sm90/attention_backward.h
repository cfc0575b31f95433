// Gradients of attention on NVIDIA's Hopper cards, without atomics: one kernel owns keys and sums up dk and dv over the
// queries, another owns queries and sums up dq over the keys. Both make the weights anew from the forward's
// log-sum-exp; weights and gradients of scores go from the registers of one product to those of the next.
#pragma once
#include "attention.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// How a block of either kernel is cut: Warpgroups own 64 rows each, and meet Step rows of the others at a time.
template <int Width, int Warpgroups, int Step, int Stages, int OwnStages, bool OwnsKeys>
struct BackwardSizes {
  static constexpr int width = Width, warpgroups = Warpgroups, own = 64 * Warpgroups, step = Step;
  static constexpr int threads = 128 * (Warpgroups + 1), readers = 4 * Warpgroups;
  using OwnTile = SharedOperand<own, Width>;
  using StepTile = SharedOperand<Step, Width>;
  using SummedTile = SharedOperand<Width, Step>;             // the same, transposed
  static constexpr int numbers = OwnsKeys ? atom_bytes : 0;  // room for two of each query
  static_assert(2 * 4 * Step <= atom_bytes, "sm90 attention: too many queries at a time");
  using OwnRing = Ring<OwnStages, 2 * OwnTile::bytes, readers>;
  using StepRing = Ring<Stages, 2 * StepTile::bytes + numbers, readers, OwnsKeys ? 33 : 1>;
  static constexpr int barriers = OwnRing::bytes + StepRing::bytes;  // where they are
  static constexpr int shared_bytes = barriers + OwnRing::barrier_bytes + StepRing::barrier_bytes + atom_bytes;
  static_assert((Width == 64 || Width == 128) && (Warpgroups == 2 || Warpgroups == 3) && shared_bytes <= 227 * 1024,
                "sm90 attention: heads of 64 or 128 columns, 2 or 3 warpgroups, and what a block has");
};

/// What exponents of a query are lowered by; one that sees nothing has no weights.
TESSERA_DEVICE float shift_or_hide(float lse) { return lse == minus_infinity() ? -lse : lse * log2_of_e; }

struct BackwardMaps {
  TensorMap q, k, v, dy;
};

/// What both kernels share: the rows that a block owns, and rings of those and of the rows it meets.
template <class T, class Sizes>
class BackwardBlock {
 public:
  static constexpr int width = Sizes::width, own = Sizes::own, step = Sizes::step;
  using OwnRing = typename Sizes::OwnRing;
  using StepRing = typename Sizes::StepRing;
  using Scores = float[step / 2];
  using Words = u32[step / 16][4];
  using Sums = float[width / 2];

  /// Called by all threads: fetch by the thread that starts copies, number by a warp, sum_up by the warpgroups.
  template <class Fetch, class Number, class SumUp>
  static TESSERA_DEVICE void run(const char* shared, const Fetch& fetch, const Number& number, const SumUp& sum_up) {
    const BackwardBlock block((shared_address(shared) + atom_bytes - 1) / atom_bytes * atom_bytes);
    const int warp = thread_in_block() / 32 - 4 * Sizes::warpgroups;
    if (thread_in_block() == 0) {
      block.owned.make();
      block.met.make();
      publish_barriers();
    }
    sync_block();
    if (warp >= 0) {
      shrink_registers<Sizes::warpgroups == 2 ? 24 : 32>();
      if (warp == 0 && thread_in_block() % 32 == 0) fetch(block);
      if (warp == 1) number(block);
    } else {
      grow_registers<Sizes::warpgroups == 2 ? 240 : 160>();
      sum_up(block);
    }
  }

  /// Two tiles of rows, one behind the other.
  TESSERA_DEVICE void load_own(const typename OwnRing::Turn& turn, const TensorMap& a, const TensorMap& b, int row,
                               int head, int batch) const {
    const u32 full = owned.claim(turn);
    load_rows<own, width>(owned.at(turn), a, full, row, head, batch);
    load_rows<own, width>(owned.at(turn) + Sizes::OwnTile::bytes, b, full, row, head, batch);
  }
  TESSERA_DEVICE void load_step(const typename StepRing::Turn& turn, const TensorMap& a, const TensorMap& b, int row,
                                int head, int batch) const {
    const u32 full = met.claim(turn, 2 * Sizes::StepTile::bytes);
    load_rows<step, width>(met.at(turn), a, full, row, head, batch);
    load_rows<step, width>(met.at(turn) + Sizes::StepTile::bytes, b, full, row, head, batch);
  }

  /// scores = the 64 own rows at `own` times the rows at `rows`.
  static TESSERA_DEVICE void start_scores(Scores& scores, u32 own, u32 rows) {
    start_product<T, step, typename Sizes::OwnTile, typename Sizes::StepTile, false>(scores, own, rows, false);
    commit_multiply();
  }
  /// sums += words times the rows at `rows`, over the rows.
  static TESSERA_DEVICE void start_sums(Sums& sums, const Words& words, u32 rows) {
    begin_multiply();
    start_product<T, width, typename Sizes::SummedTile, true>(sums, words, rows, true);
    commit_multiply();
  }

  OwnRing owned;
  StepRing met;

 private:
  explicit TESSERA_DEVICE BackwardBlock(u32 base)
      : owned(base, base + Sizes::barriers),
        met(base + OwnRing::bytes, base + Sizes::barriers + OwnRing::barrier_bytes) {}
};

/// dk and dv, summed over the queries of every head that shares them. The maps' boxes are Sizes::own (k, v) or step
/// (q, dy) rows of 64 columns; what else is asked is as in AttentionForward.
template <class T, class Sizes>
class AttentionBackwardKeys {
 public:
  using Maps = BackwardMaps;
  static TESSERA_DEVICE void run(const AttentionProblem& p, const HeadTiles& tiles, const Maps& maps,
                                 const AttentionGradients<T>& g, const char* shared) {
    const AttentionBackwardKeys work(p, tiles);
    Block::run(
        shared, [&](const Block& block) { work.fetch(block, maps); },
        [&](const Block& block) { work.number(block, g); }, [&](const Block& block) { work.sum_up(block, g); });
  }

 private:
  using Block = BackwardBlock<T, Sizes>;
  using Turn = typename Block::StepRing::Turn;
  static constexpr int own = Block::own, step = Block::step, width = Block::width;

  TESSERA_DEVICE AttentionBackwardKeys(const AttentionProblem& p, const HeadTiles& tiles)
      : p_(p), tiles_(tiles), kv_heads_(static_cast<int>(p.kv_heads)), copies_(static_cast<int>(p.heads) / kv_heads_) {}

  /// fn(batch, head, first query) for the queries that may see a tile.
  template <class Fn>
  TESSERA_DEVICE void each_step(const HeadTiles::Place& place, const Fn& fn) const {
    const int b = place.head / kv_heads_, first_head = place.head % kv_heads_ * copies_;
    const int first = p_.causal ? place.tile * own / step * step : 0, queries = static_cast<int>(p_.queries);
#pragma unroll 1
    for (int h = first_head; h < first_head + copies_; ++h) {
#pragma unroll 1
      for (int query = first; query < queries; query += step) fn(b, h, query);
    }
  }

  TESSERA_DEVICE void fetch(const Block& block, const Maps& maps) const {
    typename Block::OwnRing::Turn own_turn;
    Turn turn;
    tiles_.each([&](const HeadTiles::Place& place) {
      block.load_own(own_turn, maps.k, maps.v, place.tile * own, place.head % kv_heads_, place.head / kv_heads_);
      own_turn.next();
      each_step(place, [&](int b, int h, int query) {
        block.load_step(turn, maps.q, maps.dy, query, h, b);
        turn.next();
      });
    });
  }

  /// What exponents are lowered by, and row sums, of the queries of each step; a query that is not there has no
  /// weights.
  TESSERA_DEVICE void number(const Block& block, const AttentionGradients<T>& g) const {
    Turn turn;
    const int lane = thread_in_block() % 32, queries = static_cast<int>(p_.queries);
    tiles_.each([&](const HeadTiles::Place& place) {
      each_step(place, [&](int b, int h, int query) {
        const i64 row = (b * p_.heads + h) * p_.queries;
        const u32 to = numbers_at(block, turn);
        block.met.wait_empty(turn);
        unroll<ceil_div(step, 64)>([&](auto i) {
          const int at = i * 64 + lane * 2;
          float shift[2], sum[2];
          unroll<2>([&](auto e) {
            const bool inside = query + at + e < queries;
            shift[e] = shift_or_hide(inside ? g.lse[row + query + at + e] : minus_infinity());
            sum[e] = inside ? g.row_sums[row + query + at + e] : 0;
          });
          if (at < step) {
            store_pair(to + at * 4, shift[0], shift[1]);
            store_pair(to + (step + at) * 4, sum[0], sum[1]);
          }
        });
        block.met.fill(turn);
        turn.next();
      });
    });
  }
  static TESSERA_DEVICE u32 numbers_at(const Block& block, const Turn& turn) {
    return block.met.at(turn) + 2 * Sizes::StepTile::bytes;
  }

  TESSERA_DEVICE void sum_up(const Block& block, const AttentionGradients<T>& g) const {
    typename Block::OwnRing::Turn own_turn;
    Turn turn;
    const int group = thread_in_block() / 128;
    const float scale = static_cast<float>(p_.scale), once[2] = {1, 1}, scaled[2] = {scale, scale};
    tiles_.each([&](const HeadTiles::Place& place) __attribute__((always_inline)) {
      typename Block::Sums dk, dv;
      unroll<width / 2>([&](auto i) { dk[i] = dv[i] = 0; });
      block.owned.wait(own_turn);
      sum_up(block, place, block.owned.at(own_turn) + group * 64 * line_bytes, place.tile * own + group * 64, turn, dk,
             dv);
      block.owned.release(own_turn);
      own_turn.next();
      const i64 b = place.head / kv_heads_, h = place.head % kv_heads_, key = place.tile * own + group * 64;
      const int left = static_cast<int>(p_.keys - key);
      store_sums<T>(dk, scaled, g.dk.head(b, h) + key * g.dk.row(), g.dk.row(), left, static_cast<int>(p_.width));
      store_sums<T>(dv, once, g.dv.head(b, h) + key * g.dv.row(), g.dv.row(), left, static_cast<int>(p_.value_width));
    });
  }

  /// A stage is given back when the next one's scores are there.
  TESSERA_DEVICE void sum_up(const Block& block, const HeadTiles::Place& place, u32 k, int key, Turn& turn,
                             typename Block::Sums& dk, typename Block::Sums& dv) const {
    const u32 v = k + Sizes::OwnTile::bytes;
    const float scale = static_cast<float>(p_.scale) * log2_of_e;
    Turn last = turn;
    bool began = false;
    typename Block::Words more = {};
    each_step(
        place, [&](int, int, int query) __attribute__((always_inline)) {
          typename Block::Scores weights, gradients;
          typename Block::Words words;
          const u32 q = block.met.at(turn), dy = q + Sizes::StepTile::bytes;
          block.met.wait(turn);
          begin_multiply();
          Block::start_scores(weights, k, q);
          Block::start_scores(gradients, v, dy);
          wait_multiply<1>();
          settle(weights);
          settle(more);
          if (began) block.met.release(last);
          began = true;
          weigh(weights, scale, numbers_at(block, turn), query - key);
          round_sums<T>(words, weights);
          Block::start_sums(dv, words, dy);
          wait_multiply<1>();
          settle(gradients);
          differentiate(gradients, weights, numbers_at(block, turn) + step * 4);
          round_sums<T>(more, gradients);
          Block::start_sums(dk, more, q);
          wait_multiply<1>();  // the registers of `words` are needed
          settle(words);
          last = turn;
          turn.next();
        });
    wait_multiply<0>();
    settle(dk);
    settle(dv);
    if (began) block.met.release(last);
  }

  /// Scores become weights. Queries begin `ahead` of the keys: where they are behind, causality hides keys.
  TESSERA_DEVICE void weigh(typename Block::Scores& x, float scale, u32 shifts, int ahead) const {
    unroll<step / 8>([&](auto j) {
      float shift[2];
      load_pair(shift[0], shift[1], shifts + (j * 8 + sums_column()) * 4);
      unroll<4>([&](auto i) { x[j * 4 + i] = fast_exp2(fma(x[j * 4 + i], scale, -shift[i % 2])); });
    });
    if (!p_.causal || ahead >= 63) return;
    unroll<2>([&](auto half) {
      const int hidden = sums_row() + half * 8 - ahead - sums_column();  // queries before that one
      unroll<step / 4>([&](auto i) {
        constexpr int query = i / 2 * 8 + i % 2;
        if (query < hidden) x[i / 2 * 4 + 2 * half + i % 2] = 0;
      });
    });
  }
  static TESSERA_DEVICE void differentiate(typename Block::Scores& x, const typename Block::Scores& weights, u32 sums) {
    unroll<step / 8>([&](auto j) {
      float sum[2];
      load_pair(sum[0], sum[1], sums + (j * 8 + sums_column()) * 4);
      unroll<4>([&](auto i) { x[j * 4 + i] = weights[j * 4 + i] * (x[j * 4 + i] - sum[i % 2]); });
    });
  }

  const AttentionProblem& p_;
  const HeadTiles& tiles_;
  int kv_heads_, copies_;
};

/// dq. The maps' boxes are Sizes::own (q, dy) or step (k, v) rows of 64 columns.
template <class T, class Sizes>
class AttentionBackwardQueries {
 public:
  using Maps = BackwardMaps;
  static TESSERA_DEVICE void run(const AttentionProblem& p, const HeadTiles& tiles, const Maps& maps,
                                 const AttentionGradients<T>& g, const char* shared) {
    const AttentionBackwardQueries work(p, tiles);
    Block::run(
        shared, [&](const Block& block) { work.fetch(block, maps); }, [](const Block&) {},
        [&](const Block& block) { work.sum_up(block, g); });
  }

 private:
  using Block = BackwardBlock<T, Sizes>;
  using Turn = typename Block::StepRing::Turn;
  static constexpr int own = Block::own, step = Block::step, width = Block::width;

  TESSERA_DEVICE AttentionBackwardQueries(const AttentionProblem& p, const HeadTiles& tiles)
      : p_(p), tiles_(tiles), heads_(static_cast<int>(p.heads)), copies_(heads_ / static_cast<int>(p.kv_heads)) {}

  /// One behind the last key that a tile sees.
  TESSERA_DEVICE int end_of(const HeadTiles::Place& place) const {
    const int all = static_cast<int>(p_.keys);
    return p_.causal ? min(all, (place.tile + 1) * own) : all;
  }

  TESSERA_DEVICE void fetch(const Block& block, const Maps& maps) const {
    typename Block::OwnRing::Turn own_turn;
    Turn turn;
    tiles_.each([&](const HeadTiles::Place& place) {
      const int b = place.head / heads_, h = place.head % heads_, end = end_of(place);
      block.load_own(own_turn, maps.q, maps.dy, place.tile * own, h, b);
      own_turn.next();
#pragma unroll 1
      for (int key = 0; key < end; key += step) {
        block.load_step(turn, maps.k, maps.v, key, h / copies_, b);
        turn.next();
      }
    });
  }

  TESSERA_DEVICE void sum_up(const Block& block, const AttentionGradients<T>& g) const {
    typename Block::OwnRing::Turn own_turn;
    Turn turn;
    const int group = thread_in_block() / 128;
    const float scale = static_cast<float>(p_.scale), scaled[2] = {scale, scale};
    tiles_.each([&](const HeadTiles::Place& place) __attribute__((always_inline)) {
      typename Block::Sums dq;
      unroll<width / 2>([&](auto i) { dq[i] = 0; });
      const int query = place.tile * own + group * 64;
      float shift[2], row_sum[2];
      unroll<2>([&](auto half) {
        const i64 row = query + sums_row() + half * 8, at = place.head * p_.queries + row;
        shift[half] = shift_or_hide(row < p_.queries ? g.lse[at] : minus_infinity());
        row_sum[half] = row < p_.queries ? g.row_sums[at] : 0;
      });
      block.owned.wait(own_turn);
      sum_up(block, end_of(place), block.owned.at(own_turn) + group * 64 * line_bytes, query, shift, row_sum, turn, dq);
      block.owned.release(own_turn);
      own_turn.next();
      const i64 b = place.head / heads_, h = place.head % heads_;
      store_sums<T>(dq, scaled, g.dq.head(b, h) + query * g.dq.row(), g.dq.row(), static_cast<int>(p_.queries) - query,
                    static_cast<int>(p_.width));
    });
  }

  TESSERA_DEVICE void sum_up(const Block& block, int end, u32 q, int query, const float (&shift)[2],
                             const float (&row_sum)[2], Turn& turn, typename Block::Sums& dq) const {
    const u32 dy = q + Sizes::OwnTile::bytes;
    const float scale = static_cast<float>(p_.scale) * log2_of_e;
    typename Block::Words words = {};
    Turn last = turn;
    block.met.wait(turn);
#pragma unroll 1
    for (int key = 0; key < end; key += step) {
      typename Block::Scores weights, gradients;
      const u32 k = block.met.at(turn), v = k + Sizes::StepTile::bytes;
      begin_multiply();
      Block::start_scores(weights, q, k);
      Block::start_scores(gradients, dy, v);
      wait_multiply<1>();
      settle(weights);
      settle(words);
      if (key > 0) block.met.release(last);
      last = turn;
      turn.next();
      hide(weights, p_, query, key);
      unroll<step / 2>([&](auto i) { weights[i] = fast_exp2(fma(weights[i], scale, -shift[i / 2 % 2])); });
      settle(weights);
      if (key + step < end) block.met.wait(turn);  // here, or ptxas computes weights after the next wait
      wait_multiply<0>();
      settle(gradients);
      unroll<step / 2>([&](auto i) { gradients[i] = weights[i] * (gradients[i] - row_sum[i / 2 % 2]); });
      round_sums<T>(words, gradients);
      Block::start_sums(dq, words, k);
    }
    wait_multiply<0>();
    settle(dq);
    block.met.release(last);
  }

  const AttentionProblem& p_;
  const HeadTiles& tiles_;
  int heads_, copies_;
};

}  // namespace sm90
TESSERA_TILE_END
