// Tile GEMM of clusters of blocks on NVIDIA's Hopper cards: one producer warp keeps TMA filling stages in shared
// memory, two consumer warpgroups run wgmma. Either both have one tile, 64 rows each (cooperative), or each has tiles
// of its own (ping-pong), so that one stores while the other multiplies. Blocks are persistent; where tiles do not fill
// the card, k is split over the blocks of a cluster, or over results of their own (split-K).
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

/// What the operands are, and all tiles of a batch of products, in the order in which clusters take them: `group` tile
/// rows at a time, column by column, so that clusters that run at the same time share operands in L2.
struct TileScheduler {
  bool is_bf16;                     // otherwise f16
  bool transposed_a, transposed_b;  // contiguous along m, or n, instead of k
  bool batch_a, batch_b;            // whether each product has an a, or b, of its own
  int cluster_m, cluster_n;         // blocks that multicast b, and a: one of them 1, the other 1 or 2
  int cluster_k;                    // blocks that split the k of a tile; 1 unless Gemm::splits_k
  int split_k;                      // parts of k, each with a result of its own, instead of a batch; or 1
  int clusters_m, clusters_n;       // clusters of tiles of a product
  int k_tiles;                      // of 64 along k, at least 1
  int group;                        // rows of clusters that are walked together
  int count;                        // in all

  /// Blocks that share operands, and blocks of a cluster.
  TESSERA_HD int sharing() const { return cluster_m * cluster_n; }
  TESSERA_HD int cluster() const { return sharing() * cluster_k; }
  /// The tile with this number: of what product, and which cluster of tiles of it.
  struct Place {
    int batch, down, across;
  };
  TESSERA_HD Place place(int number) const {
    const int tiles = clusters_m * clusters_n, batch = number / tiles, tile = number - batch * tiles;
    const int first = tile / (group * clusters_n) * group, rows = min(group, clusters_m - first),
              within = tile - first * clusters_n;
    return {batch, first + within % rows, within / rows};
  }
};

/// Shared memory of the epilogue: boxes of 64 rows of 128 bytes, three barriers for each, and one for each of two
/// consumer warpgroups, which fill the boxes of a tile one after the other.
struct ResultBoxes {
  static constexpr int box_bytes = 64 * line_bytes, warp_bytes = box_bytes / 4;  // of a warp's 16 rows
  u32 boxes, barriers, order_barriers;
  TESSERA_DEVICE u32 box(int i) const { return boxes + i * box_bytes; }
  TESSERA_DEVICE u32 full(int i) const { return barriers + i * 24; }
  TESSERA_DEVICE u32 ready(int i) const { return full(i) + 8; }
  TESSERA_DEVICE u32 empty(int i) const { return full(i) + 16; }
  TESSERA_DEVICE u32 order_barrier(int group) const { return order_barriers + group * 8; }
};

/// C::ping_pong: consumer warpgroups have tiles of their own; C::boxes: of the epilogue; none: the blocks of a cluster
/// split the k of a tile.
template <class C>
class Gemm {
 public:
  static constexpr Config config = C::config;
  static constexpr int tile_m = config.tile_m, tile_n = config.tile_n, stages = config.stages;
  static constexpr int threads = config.warps * 32, groups = config.warps / 4 - 1, consumer_warps = 4 * groups;
  static constexpr bool ping_pong = C::ping_pong, splits_k = C::boxes == 0;
  static constexpr int tile_warpgroups = ping_pong ? 1 : groups;  // of a tile
  static constexpr int strips = tile_m / (64 * tile_warpgroups);  // of 64 rows, that a warpgroup has
  using TileA = SharedOperand<tile_m>;
  using TileB = SharedOperand<tile_n>;
  static constexpr int stage_bytes = TileA::bytes + TileB::bytes;
  static constexpr int results_bytes = C::boxes * ResultBoxes::box_bytes;
  static constexpr int barrier_bytes = stages * 16 + 16 + C::boxes * 24 + 16;
  static constexpr int shared_bytes = stages * stage_bytes + results_bytes + barrier_bytes + 1024;
  using Accumulators = float[strips][tile_n / 2];
  using State = PipelineState<stages>;
  static_assert(tile_m == 64 * tile_warpgroups * strips && tile_m <= 256 && tile_n % 64 == 0 && tile_n >= 64 &&
                    tile_n <= 256 && config.tile_k == 64,
                "sm90 GEMM: tiles of whole strips of 64 rows, 64, 128, 192 or 256 columns, 64 deep");
  static_assert(strips * tile_n <= (groups == 2 ? 384 : 192),
                "sm90 GEMM: the accumulators need more registers than there are");
  static_assert(config.warps % 4 == 0 && (groups == 2 || (groups == 3 && !ping_pong)),
                "sm90 GEMM: 12 warps, or 16 that share a tile");
  static_assert(stages >= 2 && shared_bytes <= 227 * 1024, "sm90 GEMM: 2 stages or more, and what a block has");

  /// Calls f with the tiles of this block, once the kernel before has ended.
  template <class F>
  static TESSERA_DEVICE void each_tile(const TileScheduler& order, const F& f) {
    wait_on_dependent_grids();
    TileIterator tiles(order);
#pragma unroll 1
    while (tiles.next()) f(tiles.work);
  }

  /// Called by all threads of a block, in clusters of scheduler.cluster(); `shared` are shared_bytes.
  /// result.prepare(work) is called before a warp begins with a tile, result.store(acc, work) when its warpgroup has
  /// the accumulators, and Result::assist() by the producer warpgroup.
  template <class Result, class Args>
  static TESSERA_DEVICE void run(const TensorMap& a, const TensorMap& b, const TileScheduler& order, const char* shared,
                                 const Args& args) {
    const Gemm gemm((shared_address(shared) + atom_bytes - 1) / atom_bytes * atom_bytes, order);
    const int warp = from_first_lane(thread_in_block() / 32);
    if (thread_in_block() == 0) {
      prefetch_tensor_map(a);
      prefetch_tensor_map(b);
      gemm.make_barriers();
    }
    if constexpr (splits_k) sync_block();  // others write here only once all blocks of the cluster have met
    else gemm.sync();
    launch_dependent_grids();
    if (warp >= consumer_warps) {
      setmaxnreg_dec<producer_registers<Result>()>();
      if (warp == consumer_warps) gemm.produce<Result>(a, b, order, args);
      Result::assist(order, args, gemm.results());
    } else {
      setmaxnreg_inc<consumer_registers<Result>()>();
      Result result(args, gemm.results());
      gemm.consume(order, warp, result);
    }
    if constexpr (!splits_k) gemm.sync();  // other blocks of the cluster may still write here
  }

 private:
  /// Of a thread of the producer warpgroup; Result may ask for more.
  template <class Result>
  static TESSERA_DEVICE constexpr int producer_registers() {
    if constexpr (requires { Result::producer_registers; }) return Result::producer_registers;
    return groups == 2 ? 24 : 32;
  }
  /// Of 504 or 512 that the threads with the same number in all groups have.
  template <class Result>
  static TESSERA_DEVICE constexpr int consumer_registers() {
    return ((groups == 2 ? 504 : 512) - producer_registers<Result>()) / groups / 8 * 8;
  }

  TESSERA_DEVICE Gemm(u32 base, const TileScheduler& order)
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
      mbarrier_init(empty_barrier(stage), 4 * tile_warpgroups * static_cast<int>(sharing_));
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
  class TileIterator {
   public:
    explicit TESSERA_DEVICE TileIterator(const TileScheduler& order) : order_(order) {}

    TileWork work;
    int begin, steps;  // along k

    TESSERA_DEVICE bool next() {
      const int size = order_.cluster(), clusters = static_cast<int>(gridDim.x) / size;
      const int block = static_cast<int>(blockIdx.x), cluster = block / size, rank = block - cluster * size;
      const int number = cluster + taken_++ * clusters;
      if (number >= order_.count) return false;
      const TileScheduler::Place at = order_.place(number);
      begin = 0;
      steps = order_.k_tiles;
      if constexpr (splits_k) take(rank, size);
      else if (order_.split_k > 1) take(at.batch, order_.split_k);
      work = {(at.down * order_.cluster_m + rank % order_.cluster_m) * tile_m,
              (at.across * order_.cluster_n + rank % order_.cluster_n) * tile_n, at.batch};
      return true;
    }

   private:
    TESSERA_DEVICE void take(int part, int parts) {
      begin = order_.k_tiles * part / parts;
      steps = order_.k_tiles * (part + 1) / parts - begin;
    }

    const TileScheduler& order_;
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
  TESSERA_DEVICE void produce(const TensorMap& a, const TensorMap& b, const TileScheduler& order,
                              const Args& args) const {
    State state;
    TileIterator tiles(order);
#pragma unroll 1
    while (tiles.next()) {
      wait_on_dependent_grids();  // whoever touches memory does
      [[maybe_unused]] const int of_a = order.batch_a ? tiles.work.batch : 0,
                                 of_b = order.batch_b ? tiles.work.batch : 0;
      [[maybe_unused]] auto source = source_of<Result>(args, tiles.work, tiles.begin);
#pragma unroll 1
      for (int step = tiles.begin; step < tiles.begin + tiles.steps; ++step) {
        mbarrier_wait(empty_barrier(state.stage), state.parity ^ 1);
        const u32 full = full_barrier(state.stage), to = stage_of(state.stage);
        const bool elected = elect_one();
        if (elected) mbarrier_arrive_expect_tx(full, stage_bytes);
        if (!elected) {
        } else if constexpr (has_source<Result>) {
          source.load(a, b, to, full);
        } else {
          load<TileA, tile_m>(a, to, full, order.transposed_a, order.cluster_n > 1, tiles.work.row, step * 64, of_a);
          load<TileB, tile_n>(b, to + TileA::bytes, full, order.transposed_b, order.cluster_m > 1, tiles.work.column,
                              step * 64, of_b);
        }
        state.next();
      }
    }
  }

  /// Loads what a stage has of an operand, or multicasts this block's half of it.
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
  TESSERA_DEVICE void consume(const TileScheduler& order, int warp, Result& result) const {
    State state;
    TileIterator tiles(order);
    [[maybe_unused]] const int group = warp / 4;
    [[maybe_unused]] int others = 0;
    [[maybe_unused]] u32 parity = group ^ 1;  // the first need not wait for its first tile
#pragma unroll 1
    while (tiles.next()) {
      if constexpr (ping_pong) {
        if ((others++ + group) % 2 != 0) {
          state.skip(tiles.steps);
          continue;
        }
      }
      wait_on_dependent_grids();
      result.prepare(tiles.work);
      if constexpr (ping_pong) {
        mbarrier_wait(order_barrier(group), parity);
        parity ^= 1;
      }
      Accumulators acc;
      // Values of their own from here to there: results move among these registers afterwards, and multiplications
      // would wait for each other if that reached into them.
      unroll<strips>([&](auto strip) { unroll<tile_n / 2>([&](auto i) { acc[strip][i] = 0; }); });
      mainloop(order, state, tiles.steps, warp, result, acc);
      unroll<strips>([&](auto strip) { wgmma_fence_operand(acc[strip]); });
      result.store(acc, tiles.work);
    }
  }

  /// Eight loops in one kernel, unless Result says what the operands are: Operand, transposed_a, transposed_b; or that
  /// both are transposed, of either type: two; or has a `left` that loads fragments of a for registers.
  template <class Result>
  TESSERA_DEVICE void mainloop(const TileScheduler& order, State& state, int steps, int warp, Result& result,
                               Accumulators& acc) const {
    if constexpr (requires { result.left; }) {
      mainloop_rs<typename Result::Operand, Result::transposed_b>(state, steps, warp, result.left, acc);
    } else if constexpr (requires { typename Result::Operand; }) {
      mainloop<typename Result::Operand, Result::transposed_a, Result::transposed_b>(state, steps, warp, acc);
    } else if constexpr (requires { typename Result::BothTransposed; }) {
      if (order.is_bf16) mainloop<bf16, true, true>(state, steps, warp, acc);
      else mainloop<f16, true, true>(state, steps, warp, acc);
    } else {
      any_mainloop(order, state, steps, warp, acc);
    }
  }
  TESSERA_DEVICE void any_mainloop(const TileScheduler& order, State& state, int steps, int warp,
                                   Accumulators& acc) const {
    switch (order.is_bf16 * 4 + order.transposed_a * 2 + order.transposed_b) {
      case 0:
        return mainloop<f16, false, false>(state, steps, warp, acc);
      case 1:
        return mainloop<f16, false, true>(state, steps, warp, acc);
      case 2:
        return mainloop<f16, true, false>(state, steps, warp, acc);
      case 3:
        return mainloop<f16, true, true>(state, steps, warp, acc);
      case 4:
        return mainloop<bf16, false, false>(state, steps, warp, acc);
      case 5:
        return mainloop<bf16, false, true>(state, steps, warp, acc);
      case 6:
        return mainloop<bf16, true, false>(state, steps, warp, acc);
      default:
        return mainloop<bf16, true, true>(state, steps, warp, acc);
    }
  }

  /// Each warp tells all blocks that fill this stage.
  TESSERA_DEVICE void consumer_release(int stage) const {
    const int lane = thread_in_block() % 32;
    if (lane >= static_cast<int>(sharing_)) return;
    if (sharing_ > 1) mbarrier_arrive_cluster(empty_barrier(stage), static_cast<u32>(lane));
    else mbarrier_arrive(empty_barrier(stage));
  }

  /// A stage is released when the next one's wgmma is under way.
  template <class Element, bool TransposedA, bool TransposedB>
  TESSERA_DEVICE void mainloop(State& state, int steps, int warp, Accumulators& acc) const {
    const u32 rows = ping_pong ? 0 : warp / 4 * strips * TileA::block_bytes;
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
              acc[strip], a + i * TileA::step(TransposedA) + strip * (TileA::block_bytes / 16),
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
    if constexpr (ping_pong)
      if (thread_in_block() % 32 == 0) mbarrier_arrive(order_barrier(warp / 4 ^ 1));
    wgmma_wait<0>();
    consumer_release(last);
  }

  /// With a from registers. A warp has one wgmma under way and one that waits: between them it makes what the next
  /// stage has into what `left` wants, 16 deep at a time.
  template <class Element, bool TransposedB, class Left>
  TESSERA_DEVICE void mainloop_rs(State& state, int steps, int warp, Left& left, Accumulators& acc) const {
    const u32 rows = ping_pong ? 0 : warp / 4 * strips * TileA::block_bytes;
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
          wgmma<Element, tile_n, TransposedB>(acc[strip], now[strip][i], b + i * TileB::step(TransposedB),
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
