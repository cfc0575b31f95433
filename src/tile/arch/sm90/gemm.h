// Tile GEMM of clusters of blocks on NVIDIA's Hopper cards: one warp keeps TMA filling a ring of stages in
// shared memory, two groups of four warps multiply. They share a tile, 64 rows each, or each has tiles of its own in
// turns, so that one stores while the other multiplies. Blocks stay and take one tile after the other; where tiles do
// not fill the card, the blocks of a cluster may share the sums of one, or parts of k have results of their own.
#pragma once
#include "../../config.h"
#include "layout.h"
#include "ptx.h"
#include "ring.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// A tile of work: where it lies in the result, and of which product.
struct TileWork {
  int row, column, batch;
};

/// What the operands are, and all tiles of a batch of products, in the order in which clusters take them: groups of
/// tile rows, walked column by column, so that clusters that run at the same time share operands in the cache.
struct TileOrder {
  bool is_bf16;                      // otherwise f16
  bool transposed_a, transposed_b;   // lines in memory run along rows of a, or columns of b, instead of along k
  bool batch_a, batch_b;             // whether each product has an a, or b, of its own
  int cluster_down, cluster_across;  // blocks that share columns of b, and rows of a: one of them 1, the other 1 or 2
  int cluster_deep;                  // blocks that share the sums of a tile, each a part of k; 1 unless those are
  int parts;                         // of k, each with a result of its own, instead of a batch; or 1
  int down, across;                  // clusters of tiles of a product
  int steps;                         // of 64 along k, at least 1
  int group;                         // tile rows of clusters that are walked together
  int count;                         // in all

  /// Blocks that share operands, and blocks of a cluster.
  TESSERA_HD int sharing() const { return cluster_down * cluster_across; }
  TESSERA_HD int cluster() const { return sharing() * cluster_deep; }
  /// The tile with this number: of what product, and which cluster of tiles of it.
  struct Place {
    int batch, down, across;
  };
  TESSERA_HD Place place(int number) const {
    const int tiles = down * across, batch = number / tiles, tile = number - batch * tiles;
    const int first = tile / (group * across) * group, rows = min(group, down - first), within = tile - first * across;
    return {batch, first + within % rows, within / rows};
  }
};

/// Shared memory of a block for results: boxes of 64 lines of 128 bytes, three barriers for each, and one for each of
/// two groups of warps that fill the boxes of a tile in turns.
struct ResultBoxes {
  static constexpr int box_bytes = 64 * line_bytes, warp_bytes = box_bytes / 4;  // of a warp's 16 lines
  u32 boxes, barriers, order_barriers;
  TESSERA_DEVICE u32 box(int i) const { return boxes + i * box_bytes; }
  TESSERA_DEVICE u32 full(int i) const { return barriers + i * 24; }
  TESSERA_DEVICE u32 ready(int i) const { return full(i) + 8; }
  TESSERA_DEVICE u32 empty(int i) const { return full(i) + 16; }
  TESSERA_DEVICE u32 order_barrier(int group) const { return order_barriers + group * 8; }
};

/// C::alternates: groups of warps have tiles of their own; C::boxes: for results; none: the blocks of a cluster share
/// the sums of a tile.
template <class C>
class Gemm {
 public:
  static constexpr Config config = C::config;
  static constexpr int tile_m = config.tile_m, tile_n = config.tile_n, stages = config.stages;
  static constexpr int threads = config.warps * 32, groups = config.warps / 4 - 1, multiplying_warps = 4 * groups;
  static constexpr bool alternates = C::alternates, shares_sums = C::boxes == 0;
  static constexpr int sharers = alternates ? 1 : groups;  // of a tile
  static constexpr int strips = tile_m / (64 * sharers);   // of 64 rows, that a group of warps has
  using TileA = SharedOperand<tile_m>;
  using TileB = SharedOperand<tile_n>;
  static constexpr int stage_bytes = TileA::bytes + TileB::bytes;
  static constexpr int results_bytes = C::boxes * ResultBoxes::box_bytes;
  static constexpr int barrier_bytes = stages * 16 + 16 + C::boxes * 24 + 16;
  static constexpr int shared_bytes = stages * stage_bytes + results_bytes + barrier_bytes + 1024;
  using Sums = float[strips][tile_n / 2];
  using State = PipelineState<stages>;
  static_assert(tile_m == 64 * sharers * strips && tile_m <= 256 && tile_n % 64 == 0 && tile_n >= 64 && tile_n <= 256 &&
                    config.tile_k == 64,
                "sm90 GEMM: tiles of whole strips of 64 rows, 64, 128, 192 or 256 columns, 64 deep");
  static_assert(strips * tile_n <= (groups == 2 ? 384 : 192), "sm90 GEMM: the sums need more registers than there are");
  static_assert(config.warps % 4 == 0 && (groups == 2 || (groups == 3 && !alternates)),
                "sm90 GEMM: 12 warps, or 16 that share a tile");
  static_assert(stages >= 2 && shared_bytes <= 227 * 1024, "sm90 GEMM: 2 stages or more, and what a block has");

  /// Calls f with the tiles of this block, once the kernel before has ended.
  template <class F>
  static TESSERA_DEVICE void each_tile(const TileOrder& order, const F& f) {
    wait_on_dependent_grids();
    Agenda agenda(order);
#pragma unroll 1
    while (agenda.next()) f(agenda.work);
  }

  /// Called by all threads of a block, in clusters of order.cluster(); `shared` are shared_bytes. result.prepare(work)
  /// is called before a warp begins with a tile, result.store(sums, work) when its group has the sums, and
  /// Result::assist() by the group that does not multiply. The maps' boxes are those of box_lines().
  template <class Result, class Args>
  static TESSERA_DEVICE void run(const TensorMap& a, const TensorMap& b, const TileOrder& order, const char* shared,
                                 const Args& args) {
    const Gemm gemm((shared_address(shared) + atom_bytes - 1) / atom_bytes * atom_bytes, order);
    const int warp = from_first_lane(thread_in_block() / 32);
    if (thread_in_block() == 0) {
      prefetch_tensor_map(a);
      prefetch_tensor_map(b);
      gemm.make_barriers();
    }
    if constexpr (shares_sums) sync_block();  // others write here only once all blocks of the cluster have met
    else gemm.sync();
    launch_dependent_grids();
    if (warp >= multiplying_warps) {
      setmaxnreg_dec<fetching_registers<Result>()>();
      if (warp == multiplying_warps) gemm.fetch<Result>(a, b, order, args);
      Result::assist(order, args, gemm.results());
    } else {
      setmaxnreg_inc<multiplying_registers<Result>()>();
      Result result(args, gemm.results());
      gemm.multiply(order, warp, result);
    }
    if constexpr (!shares_sums) gemm.sync();  // other blocks of the cluster may still write here
  }

 private:
  /// Of a thread of the group that does not multiply; Result may ask for more.
  template <class Result>
  static TESSERA_DEVICE constexpr int fetching_registers() {
    if constexpr (requires { Result::assisting_registers; }) return Result::assisting_registers;
    return groups == 2 ? 24 : 32;
  }
  /// Of 504 or 512 that the threads with the same number in all groups have.
  template <class Result>
  static TESSERA_DEVICE constexpr int multiplying_registers() {
    return ((groups == 2 ? 504 : 512) - fetching_registers<Result>()) / groups / 8 * 8;
  }

  TESSERA_DEVICE Gemm(u32 base, const TileOrder& order)
      : base_(base), sharing_(static_cast<u32>(order.sharing())), in_cluster_(order.cluster() > 1) {}

  TESSERA_DEVICE void sync() const {
    if (in_cluster_) cluster_sync();
    else sync_block();
  }

  TESSERA_DEVICE u32 stage_of(int stage) const { return base_ + stage * stage_bytes; }
  TESSERA_DEVICE u32 barriers() const { return base_ + stages * stage_bytes + results_bytes; }
  TESSERA_DEVICE u32 full_barrier(int stage) const { return barriers() + stage * 16; }
  TESSERA_DEVICE u32 empty_barrier(int stage) const { return full_barrier(stage) + 8; }
  TESSERA_DEVICE u32 order_barrier(int group) const { return barriers() + stages * 16 + group * 8; }
  TESSERA_DEVICE ResultBoxes results() const {
    const u32 of_boxes = barriers() + stages * 16 + 16;
    return {base_ + stages * stage_bytes, of_boxes, of_boxes + C::boxes * 24};
  }

  TESSERA_DEVICE void make_barriers() const {
    for (int stage = 0; stage < stages; ++stage) {
      mbarrier_init(full_barrier(stage), 1);
      mbarrier_init(empty_barrier(stage), 4 * sharers * static_cast<int>(sharing_));
    }
    for (int group = 0; group < 2; ++group) {
      mbarrier_init(order_barrier(group), 4);
      mbarrier_init(results().order_barrier(group), 4);
    }
    for (int box = 0; box < C::boxes; ++box) {
      mbarrier_init(results().full(box), 1);
      mbarrier_init(results().ready(box), 4);
      mbarrier_init(results().empty(box), 1);
    }
    fence_mbarrier_init();
  }

  /// What a block has to do. Nothing but a count is kept from one tile to the next.
  class Agenda {
   public:
    explicit TESSERA_DEVICE Agenda(const TileOrder& order) : order_(order) {}

    TileWork work;
    int begin, steps;  // along k

    TESSERA_DEVICE bool next() {
      const int size = order_.cluster(), clusters = static_cast<int>(gridDim.x) / size;
      const int block = static_cast<int>(blockIdx.x), cluster = block / size, rank = block - cluster * size;
      const int number = cluster + taken_++ * clusters;
      if (number >= order_.count) return false;
      const TileOrder::Place at = order_.place(number);
      begin = 0;
      steps = order_.steps;
      if constexpr (shares_sums) take(rank, size);
      else if (order_.parts > 1) take(at.batch, order_.parts);
      work = {(at.down * order_.cluster_down + rank % order_.cluster_down) * tile_m,
              (at.across * order_.cluster_across + rank % order_.cluster_across) * tile_n, at.batch};
      return true;
    }

   private:
    TESSERA_DEVICE void take(int part, int parts) {
      begin = order_.steps * part / parts;
      steps = order_.steps * (part + 1) / parts - begin;
    }

    const TileOrder& order_;
    int taken_ = 0;
  };

  /// Operands are matrices, unless Result has a Source<Gemm> that loads one stage after the other otherwise.
  template <class Result>
  static constexpr bool has_source = requires {
    typename Result::template Source<Gemm>;
  };
  template <class Result, class Args>
  static TESSERA_DEVICE auto source_of(const Args& args, const TileWork& work, int begin) {
    if constexpr (has_source<Result>) return typename Result::template Source<Gemm>(args, work, begin);
    else return 0;
  }

  template <class Result, class Args>
  TESSERA_DEVICE void fetch(const TensorMap& a, const TensorMap& b, const TileOrder& order, const Args& args) const {
    State state;
    Agenda agenda(order);
#pragma unroll 1
    while (agenda.next()) {
      wait_on_dependent_grids();  // whoever touches memory does
      [[maybe_unused]] const int of_a = order.batch_a ? agenda.work.batch : 0,
                                 of_b = order.batch_b ? agenda.work.batch : 0;
      [[maybe_unused]] auto source = source_of<Result>(args, agenda.work, agenda.begin);
#pragma unroll 1
      for (int step = agenda.begin; step < agenda.begin + agenda.steps; ++step) {
        mbarrier_wait(empty_barrier(state.stage), state.parity ^ 1);
        const u32 full = full_barrier(state.stage), to = stage_of(state.stage);
        const bool elected = elect_one();
        if (elected) mbarrier_arrive_expect_tx(full, stage_bytes);
        if (!elected) {
        } else if constexpr (has_source<Result>) {
          source.load(a, b, to, full);
        } else {
          load<TileA, tile_m>(a, to, full, order.transposed_a, order.cluster_across > 1, agenda.work.row, step * 64,
                              of_a);
          load<TileB, tile_n>(b, to + TileA::bytes, full, order.transposed_b, order.cluster_down > 1,
                              agenda.work.column, step * 64, of_b);
        }
        state.next();
      }
    }
  }

  /// Loads what a stage has of an operand, or this block's half of it, which two share: of its lines.
  template <class Tile, int Extent>
  static TESSERA_DEVICE void load(const TensorMap& map, u32 to, u32 full, bool transposed, bool halved, int row,
                                  int depth, int matrix) {
    const int half = halved ? static_cast<int>(blockIdx.x % 2) : 0;
    const auto box = [&](u32 at, int x, int y) {
      if (halved) tma_load_multicast(at, map, full, x, y, matrix, 3);
      else tma_load(at, map, full, x, y, matrix);
    };
    if (transposed) {
      const int first = half * (Tile::depth / 2);
      unroll<Extent / 64>(
          [&](auto i) { box(to + i * Tile::block_bytes + first * line_bytes, row + i * 64, depth + first); });
    } else {
      const int first = half * (Extent / 2);
      box(to + first * line_bytes, depth, row + first);
    }
  }

  template <class Result>
  TESSERA_DEVICE void multiply(const TileOrder& order, int warp, Result& result) const {
    State state;
    Agenda agenda(order);
    [[maybe_unused]] const int group = warp / 4;
    [[maybe_unused]] int others = 0;
    [[maybe_unused]] u32 parity = group ^ 1;  // the first group need not wait for its first turn
#pragma unroll 1
    while (agenda.next()) {
      if constexpr (alternates) {
        if ((others++ + group) % 2 != 0) {
          state.skip(agenda.steps);
          continue;
        }
      }
      wait_on_dependent_grids();
      result.prepare(agenda.work);
      if constexpr (alternates) {
        mbarrier_wait(order_barrier(group), parity);
        parity ^= 1;
      }
      Sums sums;
      // Values of their own from here to there: results move among these registers afterwards, and multiplications
      // would wait for each other if that reached into them.
      unroll<strips>([&](auto strip) { unroll<tile_n / 2>([&](auto i) { sums[strip][i] = 0; }); });
      sum_up(order, state, agenda.steps, warp, result, sums);
      unroll<strips>([&](auto strip) { wgmma_fence_operand(sums[strip]); });
      result.store(sums, agenda.work);
    }
  }

  /// Eight loops in one kernel, unless Result says what the operands are: Operand, transposed_a, transposed_b; or that
  /// both are transposed, of either type: two; or has a `left` that loads fragments of a for registers.
  template <class Result>
  TESSERA_DEVICE void sum_up(const TileOrder& order, State& state, int steps, int warp, Result& result,
                             Sums& sums) const {
    if constexpr (requires { result.left; }) {
      sum_up_registers<typename Result::Operand, Result::transposed_b>(state, steps, warp, result.left, sums);
    } else if constexpr (requires { typename Result::Operand; }) {
      sum_up<typename Result::Operand, Result::transposed_a, Result::transposed_b>(state, steps, warp, sums);
    } else if constexpr (requires { typename Result::BothTransposed; }) {
      if (order.is_bf16) sum_up<bf16, true, true>(state, steps, warp, sums);
      else sum_up<f16, true, true>(state, steps, warp, sums);
    } else {
      sum_up_any(order, state, steps, warp, sums);
    }
  }
  TESSERA_DEVICE void sum_up_any(const TileOrder& order, State& state, int steps, int warp, Sums& sums) const {
    switch (order.is_bf16 * 4 + order.transposed_a * 2 + order.transposed_b) {
      case 0:
        return sum_up<f16, false, false>(state, steps, warp, sums);
      case 1:
        return sum_up<f16, false, true>(state, steps, warp, sums);
      case 2:
        return sum_up<f16, true, false>(state, steps, warp, sums);
      case 3:
        return sum_up<f16, true, true>(state, steps, warp, sums);
      case 4:
        return sum_up<bf16, false, false>(state, steps, warp, sums);
      case 5:
        return sum_up<bf16, false, true>(state, steps, warp, sums);
      case 6:
        return sum_up<bf16, true, false>(state, steps, warp, sums);
      default:
        return sum_up<bf16, true, true>(state, steps, warp, sums);
    }
  }

  /// Each warp tells all blocks that fill this stage.
  TESSERA_DEVICE void consumer_release(int stage) const {
    const int lane = thread_in_block() % 32;
    if (lane >= static_cast<int>(sharing_)) return;
    if (sharing_ > 1) mbarrier_arrive_cluster(empty_barrier(stage), static_cast<u32>(lane));
    else mbarrier_arrive(empty_barrier(stage));
  }

  /// A stage is given back when the next one's multiplications are under way.
  template <class Element, bool TransposedA, bool TransposedB>
  TESSERA_DEVICE void sum_up(State& state, int steps, int warp, Sums& sums) const {
    const u32 rows = alternates ? 0 : warp / 4 * strips * TileA::block_bytes;
    int last = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const u32 stage = stage_of(state.stage);
      const u64 a = TileA::descriptor(stage + rows), b = TileB::descriptor(stage + TileA::bytes);
      mbarrier_wait(full_barrier(state.stage), state.parity);
      wgmma_fence();
      unroll<4>([&](auto i) {
        unroll<strips>([&](auto strip) {
          wgmma<Element, tile_n, TransposedA, TransposedB>(
              sums[strip], a + i * TileA::step(TransposedA) + strip * (TileA::block_bytes / 16),
              b + i * TileB::step(TransposedB), i > 0 || step > 0);
        });
      });
      wgmma_commit();
      if (step > 0) {
        wgmma_wait<1>();
        consumer_release(last);
      }
      last = state.stage;
      state.next();
    }
    if constexpr (alternates)
      if (thread_in_block() % 32 == 0) mbarrier_arrive(order_barrier(warp / 4 ^ 1));
    wgmma_wait<0>();
    consumer_release(last);
  }

  /// With a from registers. A warp has one multiplication under way and one that waits: between them it makes what the
  /// next stage has into what `left` wants, 16 deep at a time.
  template <class Element, bool TransposedB, class Left>
  TESSERA_DEVICE void sum_up_registers(State& state, int steps, int warp, Left& left, Sums& sums) const {
    const u32 rows = alternates ? 0 : warp / 4 * strips * TileA::block_bytes;
    typename Left::Fragment fragments[2] = {};
    const auto ask = [&](auto& to) {
      mbarrier_wait(full_barrier(state.stage), state.parity);
      left.ask(to, stage_of(state.stage) + rows);
    };
    const auto step = [&](auto& now, auto& next, int number, auto is_last) {
      const int stage = state.stage;
      const u64 b = TileB::descriptor(stage_of(stage) + TileA::bytes);
      state.next();
      unroll<4>([&](auto i) {
        wgmma_fence();
        unroll<strips>([&](auto strip) {
          wgmma<Element, tile_n, TransposedB>(sums[strip], now[strip][i], b + i * TileB::step(TransposedB),
                                              i > 0 || number > 0);
        });
        wgmma_commit();
        if constexpr (i == 0) {
          wgmma_wait<1>();
          unroll<strips>([&](auto strip) { wgmma_fence_operand(next[strip]); });
          if (number > 0) consumer_release(stage == 0 ? stages - 1 : stage - 1);
          if constexpr (!is_last) ask(next);
        }
        if constexpr (!is_last) left.make(next, i);
      });
    };
    ask(fragments[0]);
    unroll<4>([&](auto i) { left.make(fragments[0], i); });
    constexpr Int<0> no;
    constexpr Int<1> yes;
    for (int number = 0;; ++number) {
      if (number + 1 == steps) {
        step(fragments[0], fragments[1], number, yes);
        break;
      }
      step(fragments[0], fragments[1], number, no);
      if (++number + 1 == steps) {
        step(fragments[1], fragments[0], number, yes);
        break;
      }
      step(fragments[1], fragments[0], number, no);
    }
    wgmma_wait<0>();
    unroll<2 * strips>([&](auto i) { wgmma_fence_operand(fragments[i / strips][i % strips]); });
    consumer_release(state.stage == 0 ? stages - 1 : state.stage - 1);
  }

  u32 base_, sharing_;
  bool in_cluster_;
};

}  // namespace sm90
TESSERA_TILE_END
