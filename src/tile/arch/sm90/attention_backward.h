// Gradients of attention on NVIDIA's Hopper cards in one pass over the scores. A block owns keys and values, meets the
// queries that see them, and sums up dk and dv in registers; weights and gradients of scores go from the registers of
// one product to those of the next. Gradients of scores also pass through shared memory, for the block's share of dq,
// which TMA adds up in memory: in the order of the keys, so that bits repeat.
#pragma once
#include "attention_backward_parts.h"

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

/// Where dq is summed up: for each block of `step` queries of a head Sizes::sums floats, and how many blocks of keys
/// have added theirs; zeros before, as is the number of tiles that were taken. In order, bits repeat; else all wait for
/// the first keys alone, which store.
struct QuerySums {
  float* sums;
  int *semaphores, *taken;
  bool in_order;
};

/// Called by all threads of the block with Sizes::shared_bytes from a multiple of atom_bytes on. The maps' boxes are
/// 128 (k, v) or Sizes::step (q, dy) rows of 64 columns; what else is asked is as in AttentionForward. Blocks take
/// tiles as they come, so that the one that others wait for has always begun.
template <class T, class Sizes>
class AttentionBackward : BackwardParts<T, Sizes> {
 public:
  static TESSERA_DEVICE void run(const AttentionProblem& p, const HeadTiles& tiles, const AttentionDropout& dropout,
                                 const BackwardMaps& maps, const AttentionGradients<T>& g, const QuerySums& dq,
                                 const char* shared) {
    const AttentionBackward block(p, tiles, dropout, shared_address(shared));
    const auto beside = [&](int warp) __attribute__((always_inline)) {
      if (warp == 0 && thread_in_block() % 32 == 0) block.fetch(maps, dq);
      if (warp == 1) block.number(g);
      if (warp >= 2 && thread_in_block() % 32 == 0) block.add_up(dq, warp - 2);
    };
    const auto compute = [&](int) __attribute__((always_inline)) { block.sum_up(g); };
    if (shared_address(shared) % atom_bytes != 0) __trap();
    split_block<2, 24, 240>(beside, compute, block.owned_, block.met_, block.changes_, block.sums_);
  }

 private:
  using Parts = BackwardParts<T, Sizes>;
  using Parts::copies_, Parts::dropout_, Parts::kv_heads_, Parts::owned_, Parts::p_, Parts::queries_, Parts::tiles_;
  using Parts::each_step, Parts::each_tile, Parts::first_of, Parts::own, Parts::step, Parts::steps_of, Parts::width;
  using Parts::start_scores, Parts::start_sums;
  using typename Parts::Kept, typename Parts::OwnState, typename Parts::Scores;
  using typename Parts::Square, typename Parts::Sums, typename Parts::Words;
  using Share = float[32];
  using StepState = typename Sizes::StepRing::State;
  using ChangeState = typename Sizes::ChangeRing::State;
  using SumState = typename Sizes::SumRing::State;

  TESSERA_DEVICE AttentionBackward(const AttentionProblem& p, const HeadTiles& tiles, const AttentionDropout& dropout,
                                   u32 base)
      : Parts(p, tiles, dropout, base, base + Sizes::own_barriers, base + Sizes::indices),
        met_(base + Sizes::step_at, base + Sizes::step_barriers),
        changes_(base + Sizes::change_at, base + Sizes::change_barriers),
        sums_(base + Sizes::sum_at, base + Sizes::sum_barriers) {}

  // ---- warps beside the warpgroups

  TESSERA_DEVICE void fetch(const BackwardMaps& maps, const QuerySums& dq) const {
    StepState state;
    this->fetch_tiles(maps, dq.taken, [&](int b, int h, int query) {
      const u32 full = met_.producer_acquire(state, 2 * Sizes::StepTile::bytes), rows = met_.at(state);
      load_rows<step, width>(rows, maps.q, full, query, h, b);
      load_rows<step, width>(rows + Sizes::StepTile::bytes, maps.dy, full, query, h, b);
      state.next();
    });
  }

  TESSERA_DEVICE void number(const AttentionGradients<T>& g) const {
    StepState state;
    const int lane = thread_in_block() % 32;
    each_tile([&](const HeadTiles::Place& place, const OwnState& own_state) {
      owned_.consumer_release(own_state);
      each_step(place, [&](int b, int h, int query) {
        const u32 to = numbers_at(state);
        met_.producer_wait(state);
#pragma unroll 1
        for (int at = lane * 2; at < step; at += 64) {
          float shift[2], sum[2];
          this->numbers_of(g, (b * p_.heads + h) * p_.queries, query + at, shift, sum);
          store_pair(to + at * 4, shift[0], shift[1]);
          store_pair(to + (step + at) * 4, sum[0], sum[1]);
        }
        met_.producer_commit(state);
        state.next();
      });
    });
  }
  TESSERA_DEVICE u32 numbers_at(const StepState& state) const { return met_.at(state) + 2 * Sizes::StepTile::bytes; }

  /// Adds every other share of dq, those of one stage, to the sums, after those of all keys before: from the one before
  /// to the next it is 3 us, longer than a step.
  TESSERA_DEVICE void add_up(const QuerySums& dq, int stage) const {
    SumState state;
    const int steps = ceil_div(queries_, step);
    each_tile([&](const HeadTiles::Place& place, const OwnState& own_state) {
      owned_.consumer_release_by_lane(own_state);
      each_step(place, [&](int b, int h, int query) {
        if (state.stage == stage) add(dq, (b * p_.heads + h) * steps + query / step, place.tile, state);
        state.next();
      });
    });
  }
  TESSERA_DEVICE void add(const QuerySums& dq, i64 at, int before, const SumState& state) const {
    float* to = dq.sums + at * Sizes::sums;
    if (before > 0) wait_count(dq.semaphores + at, dq.in_order ? before : 1);
    sums_.consumer_wait(state);
    if (before == 0) bulk_store(to, sums_.at(state), Sizes::sum_bytes);
    else bulk_reduce_add(to, sums_.at(state), Sizes::sum_bytes);
    tma_store_commit();
    tma_store_wait_read<0>();
    sums_.consumer_release_by_lane(state);
    if (before > 0 && !dq.in_order) return;
    tma_store_wait<0>();
    count_up(dq.semaphores + at);
  }

  // ---- warpgroups

  TESSERA_DEVICE void sum_up(const AttentionGradients<T>& g) const {
    StepState state;
    ChangeState change_state;
    SumState sum_state;
    const int group = thread_in_block() / 128;
    const float scale = static_cast<float>(p_.scale), scaled[2] = {scale, scale};
    const float all = Sizes::drops ? dropout_.scale : 1, once[2] = {all, all};
    each_tile([&](const HeadTiles::Place& place, const OwnState& own_state) __attribute__((always_inline)) {
      Sums dk, dv;
      unroll<width / 2>([&](auto i) { dk[i] = dv[i] = 0; });
      sum_up(place, owned_.at(own_state), group, state, change_state, sum_state, dk, dv);
      owned_.consumer_release(own_state);
      const i64 b = place.head / kv_heads_, h = place.head % kv_heads_, key = place.tile * own + group * 64;
      const int left = static_cast<int>(p_.keys - key);
      store_sums<T>(dk, scaled, g.dk.head(b, h) + key * g.dk.row(), g.dk.row(), left, static_cast<int>(p_.width));
      store_sums<T>(dv, once, g.dv.head(b, h) + key * g.dv.row(), g.dv.row(), left, static_cast<int>(p_.value_width));
    });
  }

  /// The next step's scores are under way while this step's share of dq is handed on.
  TESSERA_DEVICE void sum_up(const HeadTiles::Place& place, u32 keys, int group, StepState& state,
                             ChangeState& change_state, SumState& sum_state, Sums& dk, Sums& dv) const {
    const u32 k = keys + group * 64 * line_bytes, v = k + Sizes::OwnTile::bytes;
    const u32 columns = keys + (width == 128 ? group * Square::bytes : 0);
    const float scale = static_cast<float>(p_.scale) * log2_of_e;
    const int key = place.tile * own + group * 64, first = first_of(place), steps = steps_of(place);
    int query = first + (steps - 1) * step, head = place.head * copies_;
    Scores scores;
    if (steps == 0) return;
    met_.consumer_wait(state);
    wgmma_fence();
    start_scores(scores, k, met_.at(state));
    wgmma_wait<0>();
    wgmma_fence_operand(scores);
    const auto meet = [&](auto more) __attribute__((always_inline)) {
      Scores gradients;
      Words weights, kept_weights, changes;
      Kept kept;
      Share share;
      const StepState now = state;
      const u32 q = met_.at(now), dy = q + Sizes::StepTile::bytes;
      wgmma_fence();
      start_scores(gradients, v, dy);
      if constexpr (Sizes::drops)
        DropoutStream(dropout_).template columns<step / 2>(kept, i64(head) * queries_ + query, p_.keys, key);
      this->weigh(scores, scale, numbers_at(now), query - key, key);
      round_sums<T>(weights, scores);
      this->keep(kept_weights, weights, kept);
      start_sums(dv, kept_weights, dy);
      wgmma_wait<1>();
      wgmma_fence_operand(gradients);
      if constexpr (Sizes::drops) {
        drop(gradients, kept);
        unroll<step / 2>([&](auto i) { gradients[i] *= dropout_.scale; });
      }
      this->differentiate(gradients, weights, numbers_at(now) + step * 4);
      round_sums<T>(changes, gradients);
      start_sums(dk, changes, q);
      changes_.producer_wait(change_state);
      this->hand_on(changes, changes_.at(change_state), group);
      changes_.producer_commit_by_warp(change_state);
      wgmma_wait<1>();
      wgmma_fence_operand(kept_weights);
      changes_.consumer_wait(change_state);
      start_share(share, changes_.at(change_state) + (step == 128 ? group * Square::bytes : 0), columns);
      state.next();
      if constexpr (more) {
        met_.consumer_wait(state);
        wgmma_fence();
        start_scores(scores, k, met_.at(state));
        wgmma_wait<1>();
      } else {
        wgmma_wait<0>();
      }
      wgmma_fence_operand(share);
      wgmma_fence_operand(changes);
      met_.consumer_release(now);
      changes_.consumer_release(change_state);
      change_state.next();
      sums_.producer_wait(sum_state);
      unroll<8>([&](auto i) {
        store_four(sums_.at(sum_state) + group * (Sizes::sum_bytes / 2) + (i * 128 + thread_in_block() % 128) * 16,
                   share + 4 * i);
      });
      fence_proxy_async();
      sums_.producer_commit_by_warp(sum_state);
      sum_state.next();
      if constexpr (more) {
        wgmma_wait<0>();
        wgmma_fence_operand(scores);
      }
      if (query > first) query -= step;
      else query = first + (steps - 1) * step, ++head;
    };
#pragma unroll 1
    for (int left = steps * copies_; left > 1; --left) meet(Int<true>{});
    meet(Int<false>{});
    wgmma_fence_operand(dk);
    wgmma_fence_operand(dv);
  }

  /// share = gradients of scores of 64 queries times 64 columns of the block's keys.
  static TESSERA_DEVICE void start_share(Share& share, u32 changes, u32 columns) {
    const u64 left = Square::descriptor(changes), right = Square::descriptor(columns);
    wgmma_fence();
    unroll<own / 16>([&](auto i) {
      wgmma<T, 64, true, true>(share, left + Square::at(i, true), right + Square::at(i, true), i > 0);
    });
    wgmma_commit();
  }

  typename Sizes::StepRing met_;
  typename Sizes::ChangeRing changes_;
  typename Sizes::SumRing sums_;
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
