// Gradients of attention on NVIDIA's Hopper cards in one pass over the scores. A block owns keys and values, meets the
// queries that see them, and sums up dk and dv in registers; weights and gradients of scores go from the registers of
// one product to those of the next. Gradients of scores also pass through shared memory, for the block's share of dq,
// which the copy engine adds up in memory: in the order of the keys, so that bits repeat.
#pragma once
#include "attention.h"
#include "bulk.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// How a block is cut: two warpgroups own 64 keys each, and meet Step queries at a time; of the sums of dq they have 64
/// x 64 each. Stages of queries and of keys.
template <int Width, int Step, int Stages, int OwnStages, bool Drops = false>
struct BackwardSizes {
  static constexpr bool drops = Drops;  // with dropout
  static constexpr int width = Width, own = 128, step = Step, warpgroups = 2, threads = 384;
  static constexpr int sums = Width * Step, sum_bytes = 4 * sums;  // of dq, in a step
  using OwnTile = SharedOperand<own, Width>;
  using StepTile = SharedOperand<Step, Width>;
  using SummedTile = SharedOperand<Width, Step>;  // the same, transposed
  using SquareTile = SharedOperand<64, own>;      // 64 columns of keys, or queries of gradients of scores, transposed
  static constexpr int numbers = atom_bytes;      // room for two of each query
  using OwnRing = Ring<OwnStages, 2 * OwnTile::bytes, 4 * warpgroups + 3>;
  using StepRing = Ring<Stages, 2 * StepTile::bytes + numbers, 4 * warpgroups, 33>;
  using ChangeRing = Ring<1, Step * own * 2, 4 * warpgroups, 4 * warpgroups * speaking_lanes>;
  using SumRing = Ring<2, sum_bytes, 1, 4 * warpgroups * speaking_lanes>;  // a stage for each of two warps that add up
  static constexpr int step_at = OwnRing::bytes, change_at = step_at + StepRing::bytes,
                       sum_at = change_at + ChangeRing::bytes, own_barriers = sum_at + SumRing::bytes,
                       step_barriers = own_barriers + OwnRing::barrier_bytes,
                       change_barriers = step_barriers + StepRing::barrier_bytes,
                       sum_barriers = change_barriers + ChangeRing::barrier_bytes,
                       indices = sum_barriers + SumRing::barrier_bytes;
  static constexpr int shared_bytes = indices + 4 * OwnStages;
  static_assert(Width * Step == 8192 && (Width == 64 || Width == 128) && shared_bytes <= 227 * 1024,
                "sm90 attention: heads of 64 or 128 columns, and what a block has");
};

struct BackwardMaps {
  TensorMap q, k, v, dy;
};

/// Where dq is summed up: for each block of `step` queries of a head Sizes::sums floats, and how many blocks of keys
/// have added theirs; zeros before, as is the number of tiles that were taken. In order, bits repeat; else all wait for
/// the first keys alone, which store.
struct QuerySums {
  float* sums;
  int *turns, *taken;
  bool in_order;
};

/// Called by all threads of the block with Sizes::shared_bytes from a multiple of atom_bytes on. The maps' boxes are
/// 128 (k, v) or Sizes::step (q, dy) rows of 64 columns; what else is asked is as in AttentionForward. Blocks take
/// tiles as they come, so that the one whose turn it is has always begun.
template <class T, class Sizes>
class AttentionBackward {
 public:
  static TESSERA_DEVICE void run(const AttentionProblem& p, const HeadTiles& tiles, const AttentionDropout& dropout,
                                 const BackwardMaps& maps, const AttentionGradients<T>& g, const QuerySums& dq,
                                 const char* shared) {
    const AttentionBackward block(p, tiles, dropout, shared_address(shared));
    const int warp = thread_in_block() / 32 - 4 * Sizes::warpgroups;
    if (thread_in_block() == 0) {
      if (shared_address(shared) % atom_bytes != 0) __trap();
      block.owned_.make();
      block.met_.make();
      block.changes_.make();
      block.sums_.make();
      publish_barriers();
    }
    sync_block();
    if (warp >= 0) {
      shrink_registers<24>();
      if (warp == 0 && thread_in_block() % 32 == 0) block.fetch(maps, dq);
      if (warp == 1) block.number(g);
      if (warp >= 2 && thread_in_block() % 32 == 0) block.add_up(dq, warp - 2);
    } else {
      grow_registers<240>();
      block.sum_up(g);
    }
  }

 private:
  static constexpr int width = Sizes::width, own = Sizes::own, step = Sizes::step;
  using OwnTurn = typename Sizes::OwnRing::Turn;
  using StepTurn = typename Sizes::StepRing::Turn;
  using ChangeTurn = typename Sizes::ChangeRing::Turn;
  using SumTurn = typename Sizes::SumRing::Turn;
  using Square = typename Sizes::SquareTile;
  using Scores = float[step / 2];
  using Words = u32[step / 16][4];
  using Sums = float[width / 2];
  using Share = float[32];
  using Kept = KeptWeights<step / 2>;

  TESSERA_DEVICE AttentionBackward(const AttentionProblem& p, const HeadTiles& tiles, const AttentionDropout& dropout,
                                   u32 base)
      : p_(p),
        tiles_(tiles),
        dropout_(dropout),
        kv_heads_(static_cast<int>(p.kv_heads)),
        copies_(static_cast<int>(p.heads) / kv_heads_),
        queries_(static_cast<int>(p.queries)),
        owned_(base, base + Sizes::own_barriers),
        met_(base + Sizes::step_at, base + Sizes::step_barriers),
        changes_(base + Sizes::change_at, base + Sizes::change_barriers),
        sums_(base + Sizes::sum_at, base + Sizes::sum_barriers),
        indices_(base + Sizes::indices) {}

  // ---- the order of the work

  /// fn(place, turn) for the tiles that this block takes.
  template <class Fn>
  TESSERA_DEVICE void each_tile(const Fn& fn) const {
#pragma unroll 1
    for (OwnTurn turn;; turn.next()) {
      owned_.wait(turn);
      const int index = load_word(indices_ + 4 * turn.stage);
      if (index < 0) return;
      fn(tiles_(index), turn);
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

  // ---- warps beside the warpgroups

  TESSERA_DEVICE void fetch(const BackwardMaps& maps, const QuerySums& dq) const {
    StepTurn turn;
#pragma unroll 1
    for (OwnTurn own_turn;; own_turn.next()) {
      const int index = take_ticket(dq.taken);
      const bool all = index >= tiles_.tiles * tiles_.heads;
      owned_.wait_empty(own_turn);
      store_word(indices_ + 4 * own_turn.stage, all ? -1 : index);
      if (all) return owned_.fill(own_turn);
      const HeadTiles::Place place = tiles_(index);
      const int kv_head = place.head % kv_heads_, b = place.head / kv_heads_;
      const u32 full = owned_.claim(own_turn), keys = owned_.at(own_turn);
      load_rows<own, width>(keys, maps.k, full, place.tile * own, kv_head, b);
      load_rows<own, width>(keys + Sizes::OwnTile::bytes, maps.v, full, place.tile * own, kv_head, b);
      each_step(place, [&](int, int h, int query) {
        const u32 full = met_.claim(turn, 2 * Sizes::StepTile::bytes), rows = met_.at(turn);
        load_rows<step, width>(rows, maps.q, full, query, h, b);
        load_rows<step, width>(rows + Sizes::StepTile::bytes, maps.dy, full, query, h, b);
        turn.next();
      });
    }
  }

  /// What exponents are lowered by, and row sums, of the queries of each step; a query that is not there, or sees
  /// nothing, has no weights.
  TESSERA_DEVICE void number(const AttentionGradients<T>& g) const {
    StepTurn turn;
    const int lane = thread_in_block() % 32;
    each_tile([&](const HeadTiles::Place& place, const OwnTurn& own_turn) {
      owned_.release(own_turn);
      each_step(place, [&](int b, int h, int query) {
        const i64 row = (b * p_.heads + h) * p_.queries;
        const u32 to = numbers_at(turn);
        met_.wait_empty(turn);
#pragma unroll 1
        for (int at = lane * 2; at < step; at += 64) {
          float shift[2], sum[2];
          unroll<2>([&](auto e) {
            const bool inside = query + at + e < queries_;
            const float lse = inside ? g.lse[row + query + at + e] : minus_infinity();
            shift[e] = lse == minus_infinity() ? -lse : lse * log2_of_e;
            sum[e] = inside ? g.row_sums[row + query + at + e] : 0;
          });
          store_pair(to + at * 4, shift[0], shift[1]);
          store_pair(to + (step + at) * 4, sum[0], sum[1]);
        }
        met_.fill(turn);
        turn.next();
      });
    });
  }
  TESSERA_DEVICE u32 numbers_at(const StepTurn& turn) const { return met_.at(turn) + 2 * Sizes::StepTile::bytes; }

  /// Adds every other share of dq, those of one stage, to the sums, after those of all keys before: from the one before
  /// to the next it is 3 us, longer than a step.
  TESSERA_DEVICE void add_up(const QuerySums& dq, int stage) const {
    SumTurn turn;
    const int steps = ceil_div(queries_, step);
    each_tile([&](const HeadTiles::Place& place, const OwnTurn& own_turn) {
      owned_.release_alone(own_turn);
      each_step(place, [&](int b, int h, int query) {
        if (turn.stage == stage) add(dq, (b * p_.heads + h) * steps + query / step, place.tile, turn);
        turn.next();
      });
    });
  }
  TESSERA_DEVICE void add(const QuerySums& dq, i64 at, int before, const SumTurn& turn) const {
    float* to = dq.sums + at * Sizes::sums;
    if (before > 0) wait_count(dq.turns + at, dq.in_order ? before : 1);
    sums_.wait(turn);
    if (before == 0) store_bulk(to, sums_.at(turn), Sizes::sum_bytes);
    else add_bulk(to, sums_.at(turn), Sizes::sum_bytes);
    commit_stores();
    wait_stores_read<0>();
    sums_.release_alone(turn);
    if (before > 0 && !dq.in_order) return;
    wait_stores<0>();
    count_up(dq.turns + at);
  }

  // ---- warpgroups

  TESSERA_DEVICE void sum_up(const AttentionGradients<T>& g) const {
    StepTurn turn;
    ChangeTurn change_turn;
    SumTurn sum_turn;
    const int group = thread_in_block() / 128;
    const float scale = static_cast<float>(p_.scale), scaled[2] = {scale, scale};
    const float all = Sizes::drops ? dropout_.scale : 1, once[2] = {all, all};
    each_tile([&](const HeadTiles::Place& place, const OwnTurn& own_turn) __attribute__((always_inline)) {
      Sums dk, dv;
      unroll<width / 2>([&](auto i) { dk[i] = dv[i] = 0; });
      sum_up(place, owned_.at(own_turn), group, turn, change_turn, sum_turn, dk, dv);
      sync_warp();
      owned_.release(own_turn);
      const i64 b = place.head / kv_heads_, h = place.head % kv_heads_, key = place.tile * own + group * 64;
      const int left = static_cast<int>(p_.keys - key);
      store_sums<T>(dk, scaled, g.dk.head(b, h) + key * g.dk.row(), g.dk.row(), left, static_cast<int>(p_.width));
      store_sums<T>(dv, once, g.dv.head(b, h) + key * g.dv.row(), g.dv.row(), left, static_cast<int>(p_.value_width));
    });
  }

  /// The next step's scores are under way while this step's share of dq is handed on.
  TESSERA_DEVICE void sum_up(const HeadTiles::Place& place, u32 keys, int group, StepTurn& turn,
                             ChangeTurn& change_turn, SumTurn& sum_turn, Sums& dk, Sums& dv) const {
    const u32 k = keys + group * 64 * line_bytes, v = k + Sizes::OwnTile::bytes;
    const u32 columns = keys + (width == 128 ? group * Square::bytes : 0);
    const float scale = static_cast<float>(p_.scale) * log2_of_e;
    const int key = place.tile * own + group * 64, first = first_of(place), steps = steps_of(place);
    int query = first + (steps - 1) * step, head = place.head * copies_;
    Scores scores;
    if (steps == 0) return;
    met_.wait(turn);
    begin_multiply();
    start_scores(scores, k, met_.at(turn));
    wait_multiply<0>();
    settle(scores);
    const auto meet = [&](auto more) __attribute__((always_inline)) {
      Scores gradients;
      Words weights, kept_weights, changes;
      Kept kept;
      Share share;
      const StepTurn now = turn;
      const u32 q = met_.at(now), dy = q + Sizes::StepTile::bytes;
      begin_multiply();
      start_scores(gradients, v, dy);
      if constexpr (Sizes::drops)
        DropoutStream(dropout_).template columns<step / 2>(kept, i64(head) * queries_ + query, p_.keys, key);
      weigh(scores, scale, numbers_at(now), query - key, key);
      round_sums<T>(weights, scores);
      keep(kept_weights, weights, kept);
      start_sums(dv, kept_weights, dy);
      wait_multiply<1>();
      settle(gradients);
      if constexpr (Sizes::drops) {
        drop(gradients, kept);
        unroll<step / 2>([&](auto i) { gradients[i] *= dropout_.scale; });
      }
      differentiate(gradients, weights, numbers_at(now) + step * 4);
      round_sums<T>(changes, gradients);
      start_sums(dk, changes, q);
      changes_.wait_empty(change_turn);
      hand_on(changes, changes_.at(change_turn), group);
      changes_.fill_by_warp(change_turn);
      wait_multiply<1>();
      settle(kept_weights);
      changes_.wait(change_turn);
      start_share(share, changes_.at(change_turn) + (step == 128 ? group * Square::bytes : 0), columns);
      turn.next();
      if constexpr (more) {
        met_.wait(turn);
        begin_multiply();
        start_scores(scores, k, met_.at(turn));
        wait_multiply<1>();
      } else {
        wait_multiply<0>();
      }
      settle(share);
      settle(changes);
      sync_warp();
      met_.release(now);
      changes_.release(change_turn);
      change_turn.next();
      sums_.wait_empty(sum_turn);
      unroll<8>([&](auto i) {
        store_four(sums_.at(sum_turn) + group * (Sizes::sum_bytes / 2) + (i * 128 + thread_in_block() % 128) * 16,
                   share + 4 * i);
      });
      publish_shared();
      sums_.fill_by_warp(sum_turn);
      sum_turn.next();
      if constexpr (more) {
        wait_multiply<0>();
        settle(scores);
      }
      if (query > first) query -= step;
      else query = first + (steps - 1) * step, ++head;
    };
#pragma unroll 1
    for (int left = steps * copies_; left > 1; --left) meet(Int<true>{});
    meet(Int<false>{});
    settle(dk);
    settle(dv);
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
  /// share = gradients of scores of 64 queries times 64 columns of the block's keys.
  static TESSERA_DEVICE void start_share(Share& share, u32 changes, u32 columns) {
    const u64 left = Square::descriptor(changes), right = Square::descriptor(columns);
    begin_multiply();
    unroll<own / 16>([&](auto i) {
      multiply_add<T, 64, true, true>(share, left + Square::at(i, true), right + Square::at(i, true), i > 0);
    });
    commit_multiply();
  }
  /// Writes a warpgroup's gradients of scores for both to read: a line for each key, blocks of 64 queries.
  static TESSERA_DEVICE void hand_on(const Words& words, u32 to, int group) {
    const int lane = thread_in_block() % 32, line = group * 64 + thread_in_block() % 128 / 32 * 16 + lane % 16;
    unroll<step / 16>([&](auto i) {
      store_matrices(to + i / 4 * Square::bytes + swizzled(line, i % 4 * 2 + lane / 16), words[i][0], words[i][1],
                     words[i][2], words[i][3]);
    });
    publish_shared();
  }

  /// Scores become weights. Queries begin `ahead` of the keys: where they are behind, causality hides keys.
  TESSERA_DEVICE void weigh(Scores& x, float scale, u32 shifts, int ahead, int key) const {
    unroll<step / 8>([&](auto j) {
      float shift[2];
      load_pair(shift[0], shift[1], shifts + (j * 8 + sums_column()) * 4);
      unroll<4>([&](auto i) { x[j * 4 + i] = fast_exp2(fma(x[j * 4 + i], scale, -shift[i % 2])); });
    });
    const int there = static_cast<int>(p_.keys) - key;
    if (there >= 64 && (!p_.causal || ahead >= 63)) return;
    unroll<2>([&](auto half) {
      const int row = sums_row() + half * 8;
      const int hidden = row >= there ? step : p_.causal ? row - ahead - sums_column() : 0;  // queries before that one
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
      load_pair(sum[0], sum[1], sums + (j * 8 + sums_column()) * 4);
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
  typename Sizes::StepRing met_;
  typename Sizes::ChangeRing changes_;
  typename Sizes::SumRing sums_;
  u32 indices_;
};

/// dq from its sums; called by blocks of 256 threads, one for each Sizes::step queries of a head.
template <class T, class Sizes>
TESSERA_DEVICE void store_query_gradients(const AttentionProblem& p, const HeadsView<T>& dq, const float* sums) {
  const u32 steps = static_cast<u32>(ceil_div(p.queries, i64(Sizes::step))), block = static_cast<u32>(block_in_grid());
  const u32 head = block / steps, heads = static_cast<u32>(p.heads), group = thread_in_block() / 128;
  const i64 query = static_cast<i64>(block % steps) * Sizes::step + (Sizes::step == 128 ? group * 64 : 0);
  const int column = Sizes::width == 128 ? group * 64 : 0;
  const float* from = sums + (i64(block) * 2 + group) * (Sizes::sums / 2) + thread_in_block() % 128 * 4;
  float share[32];
  unroll<8>([&](auto i) {
    const float4 four = *reinterpret_cast<const float4*>(from + i * 512);
    share[4 * i] = four.x, share[4 * i + 1] = four.y, share[4 * i + 2] = four.z, share[4 * i + 3] = four.w;
  });
  const float scale = static_cast<float>(p.scale), scaled[2] = {scale, scale};
  store_sums<T>(share, scaled, dq.head(head / heads, head % heads) + query * dq.row() + column, dq.row(),
                static_cast<int>(p.queries - query), static_cast<int>(p.width) - column);
}

}  // namespace sm90
TESSERA_TILE_END
