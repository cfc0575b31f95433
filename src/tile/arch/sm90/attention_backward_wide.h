// Gradients of attention on NVIDIA's Hopper cards for heads of up to 256 columns, by two kernels: the sums of keys and
// values fill the registers, and those of queries would have to be added up in memory, as often as there are blocks of
// 64 keys; that takes longer than to multiply q k and dy v once more.
#pragma once
#include "attention_backward_parts.h"

TESSERA_TILE_BEGIN
namespace sm90 {

// ---- keys and values

/// A block owns 64 keys: one warpgroup makes weights and sums up dv, the other one gradients of scores and dk.
template <bool Drops>
struct WideKeySizes {
  static constexpr bool drops = Drops;
  static constexpr int width = 256, own = 64, step = 64, threads = 384;
  using OwnTile = SharedOperand<own, width>;
  using StepTile = SharedOperand<step, width>;
  using SummedTile = SharedOperand<width, step>;  // the same, transposed
  using SquareTile = SharedOperand<64, own>;      // weights
  using OwnRing = Ring<1, 2 * OwnTile::bytes, 8 + 1>;
  using StepRing = Ring<2, StepTile::bytes, 8, 33>;
  using WeightRing = Ring<2, SquareTile::bytes, 4, 4 * speaking_lanes>;
  static constexpr int query_at = OwnRing::bytes, change_at = query_at + StepRing::bytes,
                       weight_at = change_at + StepRing::bytes, shifts = weight_at + WeightRing::bytes,
                       row_sums = shifts + 2 * 4 * step, own_barriers = row_sums + 2 * 4 * step,
                       query_barriers = own_barriers + OwnRing::barrier_bytes,
                       change_barriers = query_barriers + StepRing::barrier_bytes,
                       weight_barriers = change_barriers + StepRing::barrier_bytes,
                       indices = weight_barriers + WeightRing::barrier_bytes;
  static constexpr int shared_bytes = indices + 4;
  static_assert(shared_bytes <= 227 * 1024, "sm90 attention: what a block has");
};

/// Called as AttentionBackward; the maps' boxes are 64 rows of 64 columns.
template <class T, class Sizes>
class WideKeyGradients : BackwardParts<T, Sizes> {
 public:
  static TESSERA_DEVICE void run(const AttentionProblem& p, const HeadTiles& tiles, const AttentionDropout& dropout,
                                 const BackwardMaps& maps, const AttentionGradients<T>& g, int* taken,
                                 const char* shared) {
    const WideKeyGradients block(p, tiles, dropout, shared_address(shared));
    const auto beside = [&](int warp) __attribute__((always_inline)) {
      if (warp == 0 && thread_in_block() % 32 == 0) block.fetch(maps, taken);
      if (warp == 1) block.number(g);
    };
    const auto compute = [&](int warp) __attribute__((always_inline)) {
      warp < 4 ? block.sum_up_values(g) : block.sum_up_keys(g);
    };
    if (shared_address(shared) % atom_bytes != 0) __trap();
    split_block<2, 24, 240>(beside, compute, block.owned_, block.queried_, block.changed_, block.weights_);
  }

 private:
  using Parts = BackwardParts<T, Sizes>;
  using Parts::copies_, Parts::dropout_, Parts::kv_heads_, Parts::owned_, Parts::p_, Parts::queries_;
  using Parts::each_step, Parts::each_tile, Parts::own, Parts::step, Parts::width;
  using typename Parts::Kept, typename Parts::OwnState, typename Parts::Scores, typename Parts::Sums;
  using typename Parts::Words;
  using StepState = typename Sizes::StepRing::State;
  using WeightState = typename Sizes::WeightRing::State;

  TESSERA_DEVICE WideKeyGradients(const AttentionProblem& p, const HeadTiles& tiles, const AttentionDropout& dropout,
                                  u32 base)
      : Parts(p, tiles, dropout, base, base + Sizes::own_barriers, base + Sizes::indices),
        shifts_(base + Sizes::shifts),
        row_sums_(base + Sizes::row_sums),
        queried_(base + Sizes::query_at, base + Sizes::query_barriers),
        changed_(base + Sizes::change_at, base + Sizes::change_barriers),
        weights_(base + Sizes::weight_at, base + Sizes::weight_barriers) {}

  TESSERA_DEVICE void fetch(const BackwardMaps& maps, int* taken) const {
    StepState state;
    this->fetch_tiles(maps, taken, [&](int b, int h, int query) {
      load_rows<step, width>(queried_.at(state), maps.q, queried_.producer_acquire(state), query, h, b);
      load_rows<step, width>(changed_.at(state), maps.dy, changed_.producer_acquire(state), query, h, b);
      state.next();
    });
  }

  TESSERA_DEVICE void number(const AttentionGradients<T>& g) const {
    StepState state;
    const int lane = thread_in_block() % 32;
    each_tile([&](const HeadTiles::Place& place, const OwnState& own_state) {
      owned_.consumer_release(own_state);
      each_step(place, [&](int b, int h, int query) {
        float shift[2], sum[2];
        this->numbers_of(g, (b * p_.heads + h) * p_.queries, query + lane * 2, shift, sum);
        const u32 at = state.stage * 4 * step + lane * 8;
        queried_.producer_wait(state);
        store_pair(shifts_ + at, shift[0], shift[1]);
        queried_.producer_commit(state);
        changed_.producer_wait(state);
        store_pair(row_sums_ + at, sum[0], sum[1]);
        changed_.producer_commit(state);
        state.next();
      });
    });
  }

  // ---- the warpgroup of dv

  TESSERA_DEVICE void sum_up_values(const AttentionGradients<T>& g) const {
    StepState state;
    WeightState weight_state;
    const float all = Sizes::drops ? dropout_.scale : 1, once[2] = {all, all};
    each_tile([&](const HeadTiles::Place& place, const OwnState& own_state) __attribute__((always_inline)) {
      const u32 keys = owned_.at(own_state);
      Sums dv;
      Words words;
      StepState last = state;
      bool is_first = true;
      unroll<width / 2>([&](auto i) { dv[i] = 0; });
      each_step(
          place, [&](int b, int h, int query) __attribute__((always_inline)) {
            Scores scores;
            queried_.consumer_wait(state);
            wgmma_fence();
            this->start_scores(scores, keys, queried_.at(state));
            wgmma_wait<1>();
            wgmma_fence_operand(words);
            if (!is_first) changed_.consumer_release(last);
            wgmma_wait<0>();
            wgmma_fence_operand(scores);
            make_weights(scores, words, state, weight_state, query, b * static_cast<int>(p_.heads) + h,
                         place.tile * own);
            changed_.consumer_wait(state);
            this->start_sums(dv, words, changed_.at(state));
            is_first = false;
            last = state;
            state.next();
          });
      wgmma_wait<0>();
      wgmma_fence_operand(dv);
      if (!is_first) changed_.consumer_release(last);
      owned_.consumer_release(own_state);
      store(place, dv, once, g.dv, p_.value_width);
    });
  }

  /// Scores become weights, the other warpgroup's, signed where dropout zeroes them, and in words those of dv.
  TESSERA_DEVICE void make_weights(Scores& scores, Words& words, const StepState& state, WeightState& weight_state,
                                   int query, int head, int key) const {
    Kept kept;
    const float scale = static_cast<float>(p_.scale) * log2_of_e;
    if constexpr (Sizes::drops)
      DropoutStream(dropout_).template columns<step / 2>(kept, i64(head) * queries_ + query, p_.keys, key);
    this->weigh(scores, scale, shifts_ + state.stage * 4 * step, query - key, key);
    queried_.consumer_release(state);
    Words signed_words;
    round_sums<T>(words, scores);
    if constexpr (Sizes::drops) {
      unroll<step / 4>([&](auto i) {
        const u32 bits = ~kept[0] >> i * 2;
        signed_words[i / 4][i % 4] = words[i / 4][i % 4] | (bits & 1) << 15 | (bits & 2) << 30;
      });
      this->keep(words, words, kept);
    }
    weights_.producer_wait(weight_state);
    this->hand_on(Sizes::drops ? signed_words : words, weights_.at(weight_state), 0);
    weights_.producer_commit_by_warp(weight_state);
    weight_state.next();
  }

  // ---- the warpgroup of dk

  TESSERA_DEVICE void sum_up_keys(const AttentionGradients<T>& g) const {
    StepState state;
    WeightState weight_state;
    const float scale = static_cast<float>(p_.scale), scaled[2] = {scale, scale};
    each_tile([&](const HeadTiles::Place& place, const OwnState& own_state) __attribute__((always_inline)) {
      const u32 values = owned_.at(own_state) + Sizes::OwnTile::bytes;
      Sums dk;
      Words words;
      StepState last = state;
      bool is_first = true;
      unroll<width / 2>([&](auto i) { dk[i] = 0; });
      each_step(
          place, [&](int, int, int) __attribute__((always_inline)) {
            Scores gradients;
            changed_.consumer_wait(state);
            wgmma_fence();
            this->start_scores(gradients, values, changed_.at(state));
            wgmma_wait<1>();
            wgmma_fence_operand(words);
            if (!is_first) queried_.consumer_release(last);
            wgmma_wait<0>();
            wgmma_fence_operand(gradients);
            make_changes(gradients, words, state, weight_state);
            queried_.consumer_wait(state);
            this->start_sums(dk, words, queried_.at(state));
            is_first = false;
            last = state;
            state.next();
          });
      wgmma_wait<0>();
      wgmma_fence_operand(dk);
      if (!is_first) queried_.consumer_release(last);
      owned_.consumer_release(own_state);
      store(place, dk, scaled, g.dk, p_.width);
    });
  }

  /// Gradients of weights become those of scores, in words.
  TESSERA_DEVICE void make_changes(Scores& gradients, Words& words, const StepState& state,
                                   WeightState& weight_state) const {
    const int lane = thread_in_block() % 32, line = thread_in_block() % 128 / 32 * 16 + lane % 16;
    weights_.consumer_wait(weight_state);
    unroll<step / 16>(
        [&](auto i) { ldmatrix(words[i], weights_.at(weight_state) + swizzled(line, i * 2 + lane / 16)); });
    weights_.consumer_release(weight_state);
    weight_state.next();
    if constexpr (Sizes::drops) {
      unroll<step / 2>([&](auto i) {
        u32& word = words[i / 8][i / 2 % 4];
        constexpr u32 sign = i % 2 ? 0x80000000u : 0x8000u;
        gradients[i] = word & sign ? 0 : gradients[i] * dropout_.scale;
        word &= ~sign;
      });
    }
    this->differentiate(gradients, words, row_sums_ + state.stage * 4 * step);
    changed_.consumer_release(state);
    round_sums<T>(words, gradients);
  }

  TESSERA_DEVICE void store(const HeadTiles::Place& place, const Sums& sums, const float (&factor)[2],
                            const HeadsView<T>& to, i64 columns) const {
    const i64 b = place.head / kv_heads_, h = place.head % kv_heads_, key = place.tile * own;
    store_sums<T>(sums, factor, to.head(b, h) + key * to.row(), to.row(), static_cast<int>(p_.keys - key),
                  static_cast<int>(columns));
  }

  u32 shifts_, row_sums_;
  typename Sizes::StepRing queried_, changed_;
  typename Sizes::WeightRing weights_;
};

// ---- queries

/// Two warpgroups own 64 queries each and meet 64 keys at a time, which need two stages: they are met first and last.
template <bool Drops>
struct WideQuerySizes {
  static constexpr bool drops = Drops;
  static constexpr int width = 256, own = 128, step = 64, threads = 384;
  using OwnTile = SharedOperand<own, width>;
  using StepTile = SharedOperand<step, width>;
  using SummedTile = SharedOperand<width, step>;  // the same, transposed
  using OwnRing = Ring<1, 2 * OwnTile::bytes, 8>;
  using KeyRing = Ring<2, StepTile::bytes, 8>;
  using ValueRing = Ring<1, StepTile::bytes, 8>;
  static constexpr int key_at = OwnRing::bytes, value_at = key_at + KeyRing::bytes,
                       own_barriers = value_at + ValueRing::bytes, key_barriers = own_barriers + OwnRing::barrier_bytes,
                       value_barriers = key_barriers + KeyRing::barrier_bytes;
  static constexpr int shared_bytes = value_barriers + ValueRing::barrier_bytes;
  static_assert(shared_bytes <= 227 * 1024, "sm90 attention: what a block has");
};

/// The maps' boxes are 128 (q, dy) or 64 (k, v) rows of 64 columns; blocks share tiles of queries as forward.
template <class T, class Sizes>
class WideQueryGradients {
 public:
  static TESSERA_DEVICE void run(const AttentionProblem& p, const HeadTiles& tiles, const AttentionDropout& dropout,
                                 const BackwardMaps& maps, const AttentionGradients<T>& g, const char* shared) {
    const WideQueryGradients block(p, dropout, shared_address(shared));
    const auto beside = [&](int warp) __attribute__((always_inline)) {
      if (warp == 0 && thread_in_block() % 32 == 0) block.fetch(tiles, maps);
    };
    const auto compute = [&](int warp) __attribute__((always_inline)) { block.sum_up(tiles, g, warp / 4); };
    if (shared_address(shared) % atom_bytes != 0) __trap();
    split_block<2, 24, 240>(beside, compute, block.owned_, block.keys_, block.values_);
  }

 private:
  static constexpr int width = Sizes::width, own = Sizes::own, step = Sizes::step;
  using OwnState = typename Sizes::OwnRing::State;
  using KeyState = typename Sizes::KeyRing::State;
  using ValueState = typename Sizes::ValueRing::State;
  using Scores = float[step / 2];
  using Words = u32[step / 16][4];
  using Sums = float[width / 2];
  struct PingPong {
    OwnState own;
    KeyState key;
    ValueState value;
  };
  /// Of two rows of each thread: what exponents are lowered by, and row sums.
  struct Numbers {
    float shift[2], sum[2];
  };

  TESSERA_DEVICE WideQueryGradients(const AttentionProblem& p, const AttentionDropout& dropout, u32 base)
      : p_(p),
        dropout_(dropout),
        heads_(static_cast<int>(p.heads)),
        owned_(base, base + Sizes::own_barriers),
        keys_(base + Sizes::key_at, base + Sizes::key_barriers),
        values_(base + Sizes::value_at, base + Sizes::value_barriers) {}

  /// What queries before `end` take.
  TESSERA_DEVICE int steps_of(int end) const {
    const int all = static_cast<int>(p_.keys);
    return ceil_div(p_.causal ? min(all, end) : all, step);
  }

  TESSERA_DEVICE void fetch(const HeadTiles& tiles, const BackwardMaps& maps) const {
    PingPong at;
    tiles.each(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), [&](const HeadTiles::Place& place) {
      const int b = place.head / heads_, h = place.head % heads_,
                kv_head = h / (heads_ / static_cast<int>(p_.kv_heads));
      const int steps = steps_of((place.tile + 1) * own);
      const u32 full = owned_.producer_acquire(at.own), rows = owned_.at(at.own);
      load_rows<own, width>(rows, maps.q, full, place.tile * own, h, b);
      load_rows<own, width>(rows + Sizes::OwnTile::bytes, maps.dy, full, place.tile * own, h, b);
      at.own.next();
#pragma unroll 1
      for (int i = 0; i < steps; ++i) {
        load_rows<step, width>(keys_.at(at.key), maps.k, keys_.producer_acquire(at.key), i * step, kv_head, b);
        load_rows<step, width>(values_.at(at.value), maps.v, values_.producer_acquire(at.value), i * step, kv_head, b);
        at.key.next();
        at.value.next();
      }
    });
  }

  // ---- warpgroups

  TESSERA_DEVICE void sum_up(const HeadTiles& tiles, const AttentionGradients<T>& g, int group) const {
    PingPong at;
    const float scale = static_cast<float>(p_.scale), scaled[2] = {scale, scale};
    tiles.each(
        static_cast<int>(blockIdx.x),
        static_cast<int>(gridDim.x), [&](const HeadTiles::Place& place) __attribute__((always_inline)) {
          const int first = place.tile * own + group * 64, left = static_cast<int>(p_.queries) - first;
          const int all = steps_of((place.tile + 1) * own), steps = left > 0 ? steps_of(first + 64) : 0;
          owned_.consumer_wait(at.own);
          Sums dq;
          if (steps > 0) sum_up(place, g, first, steps, at, dq);
          owned_.consumer_release(at.own);
          at.own.next();
          skip(all - steps, at);
          if (steps == 0) return;
          const i64 b = place.head / heads_, h = place.head % heads_;
          store_sums<T>(dq, scaled, g.dq.head(b, h) + first * g.dq.row(), g.dq.row(), left, static_cast<int>(p_.width));
        });
  }
  /// Keys that the other warpgroup's queries see, and this one's do not.
  TESSERA_DEVICE void skip(int steps, PingPong& at) const {
#pragma unroll 1
    for (; steps > 0; --steps) {
      keys_.consumer_wait(at.key);
      leave_keys(at);
      values_.consumer_wait(at.value);
      leave_values(at);
    }
  }
  TESSERA_DEVICE void leave_keys(PingPong& at) const {
    keys_.consumer_release(at.key);
    at.key.next();
  }
  TESSERA_DEVICE void leave_values(PingPong& at) const {
    values_.consumer_release(at.value);
    at.value.next();
  }

  TESSERA_DEVICE void sum_up(const HeadTiles::Place& place, const AttentionGradients<T>& g, int first, int steps,
                             PingPong& at, Sums& dq) const {
    const u32 q = owned_.at(at.own) + (first - place.tile * own) * line_bytes, dy = q + Sizes::OwnTile::bytes;
    const Numbers numbers = numbers_of(g, place, first);
    Words words;
    KeyState state = at.key;
    unroll<width / 2>([&](auto i) { dq[i] = 0; });
#pragma unroll 1
    for (int i = 0; i < steps; ++i, state.next()) {
      Scores scores, gradients;
      keys_.consumer_wait(state);
      start_scores(scores, q, keys_.at(state));
      wgmma_wait<1>();
      wgmma_fence_operand(words);
      if (i > 0) leave_keys(at);
      values_.consumer_wait(at.value);
      start_scores(gradients, dy, values_.at(at.value));
      wgmma_wait<1>();
      wgmma_fence_operand(scores);
      weigh(scores, numbers, first, i * step);
      wgmma_wait<0>();
      wgmma_fence_operand(gradients);
      leave_values(at);
      differentiate(gradients, scores, numbers, place.head * p_.queries + first, i * step);
      round_sums<T>(words, gradients);
      wgmma_fence();
      start_product<T, width, typename Sizes::SummedTile, true>(dq, words, keys_.at(state), true);
      wgmma_commit();
    }
    wgmma_wait<0>();
    wgmma_fence_operand(dq);
    leave_keys(at);
  }

  TESSERA_DEVICE Numbers numbers_of(const AttentionGradients<T>& g, const HeadTiles::Place& place, int first) const {
    Numbers n;
    unroll<2>([&](auto half) {
      const i64 query = first + accumulator_row() + half * 8, at = place.head * p_.queries + query;
      const bool inside = query < p_.queries;
      const float lse = inside ? g.lse[at] : minus_infinity();
      n.shift[half] = lse == minus_infinity() ? -lse : lse * log2_of_e;
      n.sum[half] = inside ? g.row_sums[at] : 0;
    });
    return n;
  }

  static TESSERA_DEVICE void start_scores(Scores& scores, u32 own_rows, u32 rows) {
    wgmma_fence();
    start_product<T, step, typename Sizes::OwnTile, typename Sizes::StepTile, false>(scores, own_rows, rows, false);
    wgmma_commit();
  }
  TESSERA_DEVICE void weigh(Scores& x, const Numbers& n, int first, int key) const {
    const float scale = static_cast<float>(p_.scale) * log2_of_e;
    hide(x, p_, first, key);
    unroll<step / 2>([&](auto i) { x[i] = fast_exp2(fma(x[i], scale, -n.shift[i / 2 % 2])); });
  }
  /// Gradients of weights become those of scores; `row` counts queries through all heads.
  TESSERA_DEVICE void differentiate(Scores& x, const Scores& weights, const Numbers& n, i64 row, int key) const {
    if constexpr (Sizes::drops) {
      KeptWeights<step / 2> kept;
      DropoutStream(dropout_).template rows<step / 2>(kept, row, p_.keys, key);
      drop(x, kept);
      unroll<step / 2>([&](auto i) { x[i] *= dropout_.scale; });
    }
    unroll<step / 2>([&](auto i) { x[i] = weights[i] * (x[i] - n.sum[i / 2 % 2]); });
  }

  const AttentionProblem& p_;
  const AttentionDropout& dropout_;
  int heads_;
  typename Sizes::OwnRing owned_;
  typename Sizes::KeyRing keys_;
  typename Sizes::ValueRing values_;
};

}  // namespace sm90
TESSERA_TILE_END
