// Tile GEMM of clusters of blocks on NVIDIA's Hopper cards: one warp keeps the copy engine filling a ring of stages in
// shared memory, two warpgroups multiply 64 rows each. Blocks stay and take one tile after the other, so that the next
// tile's operands arrive while results are stored.
#pragma once
#include "../../config.h"
#include "layout.h"
#include "ptx.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// A tile of work: where it lies in the result, of which product, and what part of the sums.
struct TileWork {
  int row, column, batch, part;
};

/// What the operands are, and all tiles of a batch of products, each cut into parts of its sums, in the order in which
/// clusters take them: groups of tile rows, walked column by column, so that clusters that run at the same time share
/// operands in the cache.
struct TileOrder {
  bool is_bf16;                     // otherwise f16
  bool transposed_a, transposed_b;  // lines in memory run along rows of a, or columns of b, instead of along k
  bool batch_a, batch_b;            // whether each product has an a, or b, of its own
  int down, across;                 // clusters of tiles of a product
  int parts, steps;                 // parts of the sums; steps of 64 in each of them
  int total_steps;                  // along k, at least 1
  int group;                        // tile rows of clusters that are walked together
  i64 count;                        // in all
};

/// C's cluster blocks lie one below the other and share columns of b.
template <class C>
class Gemm {
 public:
  static constexpr Config config = C::config;
  static constexpr int tile_m = config.tile_m, tile_n = config.tile_n, stages = config.stages, cluster = config.cluster;
  static constexpr int consumers = tile_m / 64, threads = config.warps * 32;
  using TileA = SharedOperand<tile_m>;
  using TileB = SharedOperand<tile_n>;
  static constexpr int stage_bytes = TileA::bytes + TileB::bytes;
  static constexpr int slab_bytes = 4096;  // of each multiplying warp, for results
  static constexpr int shared_bytes = stages * (stage_bytes + 16) + 4 * consumers * slab_bytes + 1024;
  using Sums = float[tile_n / 2];
  static_assert(tile_m == 128 && tile_n % 64 == 0 && tile_n >= 128 && tile_n <= 256 && config.tile_k == 64,
                "sm90 GEMM: tiles of 128 x 128, 192 or 256, 64 deep");
  static_assert(threads == 384 && (cluster == 1 || cluster == 2), "sm90 GEMM: 12 warps, clusters of 1 or 2");
  static_assert(stages >= 2 && shared_bytes <= 227 * 1024, "sm90 GEMM: 2 stages or more, and what a block has");

  /// Called by all threads of the block; `shared` are shared_bytes. use(sums, slab, work) stores what a warpgroup
  /// summed up: slab is the address of slab_bytes of this warp. The maps' boxes are those of box_lines().
  template <class Use>
  static TESSERA_DEVICE void run(const TensorMap& a, const TensorMap& b, const TileOrder& order, const char* shared,
                                 const Use& use) {
    const Gemm gemm((shared_address(shared) + atom_bytes - 1) / atom_bytes * atom_bytes);
    const int warp = thread_in_block() / 32;
    if (thread_in_block() == 0) {
      for (int stage = 0; stage < stages; ++stage) {
        make_barrier(gemm.filled(stage), 1);
        make_barrier(gemm.emptied(stage), 4 * consumers * cluster);
      }
      publish_barriers();
    }
    sync();
    if (warp >= 4 * consumers) {
      shrink_registers<40>();
      if (warp == 4 * consumers && thread_in_block() % 32 == 0) gemm.fetch(a, b, order);
    } else {
      grow_registers<232>();
      gemm.multiply(order, warp, use);
    }
    sync();  // other blocks of the cluster may still write here
  }

 private:
  explicit TESSERA_DEVICE Gemm(u32 base) : base_(base), rank_(cluster > 1 ? rank_in_cluster() : 0) {}

  static TESSERA_DEVICE void sync() {
    if constexpr (cluster > 1) sync_cluster();
    else sync_block();
  }

  /// A place in the ring, and how often it has gone round.
  struct Turn {
    int stage = 0;
    u32 parity = 0;
    TESSERA_DEVICE void next() {
      if (++stage == stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  };

  TESSERA_DEVICE u32 stage_of(int stage) const { return base_ + stage * stage_bytes; }
  TESSERA_DEVICE u32 slab_of(int warp) const { return base_ + stages * stage_bytes + warp * slab_bytes; }
  TESSERA_DEVICE u32 filled(int stage) const { return slab_of(4 * consumers) + stage * 16; }
  TESSERA_DEVICE u32 emptied(int stage) const { return filled(stage) + 8; }

  /// fn(work, first step, steps) for each tile of this block.
  template <class Fn>
  TESSERA_DEVICE void each_tile(const TileOrder& order, const Fn& fn) const {
    const i64 tiles = static_cast<i64>(order.down) * order.across;
#pragma unroll 1
    for (i64 next = block_in_grid() / cluster; next < order.count; next += gridDim.x / cluster) {
      const int outer = static_cast<int>(next / tiles), tile = static_cast<int>(next - outer * tiles);
      const int first = tile / (order.group * order.across) * order.group;
      const int rows = min(order.group, order.down - first), within = tile - first * order.across;
      const int part = outer % order.parts, begin = part * order.steps;
      const TileWork work{((first + within % rows) * cluster + static_cast<int>(rank_)) * tile_m,
                          within / rows * tile_n, outer / order.parts, part};
      fn(work, begin, min(order.steps, order.total_steps - begin));
    }
  }

  TESSERA_DEVICE void fetch(const TensorMap& a, const TensorMap& b, const TileOrder& order) const {
    prefetch_map(a);
    prefetch_map(b);
    Turn turn;
    each_tile(order, [&](const TileWork& work, int begin, int steps) {
      const int of_a = order.batch_a ? work.batch : 0, of_b = order.batch_b ? work.batch : 0;
#pragma unroll 1
      for (int step = begin; step < begin + steps; ++step) {
        wait_for(emptied(turn.stage), turn.parity ^ 1);
        const u32 full = filled(turn.stage), to = stage_of(turn.stage);
        arrive_expecting(full, stage_bytes);
        load<TileA, tile_m, 1>(a, to, full, order.transposed_a, work.row, step * 64, of_a);
        load<TileB, tile_n, cluster>(b, to + TileA::bytes, full, order.transposed_b, work.column, step * 64, of_b);
        turn.next();
      }
    });
  }

  /// Loads a tile, or this block's share of one that the cluster shares: lines of it.
  template <class Tile, int Extent, int Sharers>
  TESSERA_DEVICE void load(const TensorMap& map, u32 to, u32 full, bool transposed, int row, int depth,
                           int matrix) const {
    const auto box = [&](u32 at, int x, int y) {
      if constexpr (Sharers > 1) load_box_to(at, map, full, x, y, matrix, (1u << Sharers) - 1);
      else load_box(at, map, full, x, y, matrix);
    };
    const int share = Sharers > 1 ? static_cast<int>(rank_) : 0;
    if (transposed) {
      constexpr int lines = Tile::depth / Sharers;
      unroll<Extent / 64>([&](auto i) {
        box(to + i * Tile::block_bytes + share * lines * line_bytes, row + i * 64, depth + share * lines);
      });
    } else {
      constexpr int lines = Extent / Sharers;
      box(to + share * lines * line_bytes, depth, row + share * lines);
    }
  }

  template <class Use>
  TESSERA_DEVICE void multiply(const TileOrder& order, int warp, const Use& use) const {
    Turn turn;
    // Inlined whatever its size: multiplications may not be under way at a call.
    each_tile(
        order, [&](const TileWork& work, int, int steps) __attribute__((always_inline)) {
          Sums sums;
          sum_up(order, turn, steps, warp, sums);
          use(sums, slab_of(warp), work);
        });
  }

  /// Eight loops in one kernel, since the epilogue is most of its code.
  TESSERA_DEVICE void sum_up(const TileOrder& order, Turn& turn, int steps, int warp, Sums& sums) const {
    switch (order.is_bf16 * 4 + order.transposed_a * 2 + order.transposed_b) {
      case 0:
        return sum_up<f16, false, false>(turn, steps, warp, sums);
      case 1:
        return sum_up<f16, false, true>(turn, steps, warp, sums);
      case 2:
        return sum_up<f16, true, false>(turn, steps, warp, sums);
      case 3:
        return sum_up<f16, true, true>(turn, steps, warp, sums);
      case 4:
        return sum_up<bf16, false, false>(turn, steps, warp, sums);
      case 5:
        return sum_up<bf16, false, true>(turn, steps, warp, sums);
      case 6:
        return sum_up<bf16, true, false>(turn, steps, warp, sums);
      default:
        return sum_up<bf16, true, true>(turn, steps, warp, sums);
    }
  }

  /// A stage is given back when the next one's multiplications are under way.
  template <class Element, bool TransposedA, bool TransposedB>
  TESSERA_DEVICE void sum_up(Turn& turn, int steps, int warp, Sums& sums) const {
    const int lane = thread_in_block() % 32;
    const u32 rows = warp / 4 * TileA::block_bytes;
    const auto release = [&](int stage) {  // each warp tells all blocks that fill this stage
      if (lane >= cluster) return;
      if constexpr (cluster > 1) arrive_at(emptied(stage), static_cast<u32>(lane));
      else arrive(emptied(stage));
    };
    int last = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const u32 stage = stage_of(turn.stage);
      const u64 a = TileA::descriptor(stage + rows), b = TileB::descriptor(stage + TileA::bytes);
      wait_for(filled(turn.stage), turn.parity);
      begin_multiply();
      unroll<4>([&](auto i) {
        multiply_add<Element, tile_n, TransposedA, TransposedB>(sums, a + i * TileA::step(TransposedA),
                                                                b + i * TileB::step(TransposedB), i > 0 || step > 0);
      });
      commit_multiply();
      if (step > 0) {
        wait_multiply<1>();
        release(last);
      }
      last = turn.stage;
      turn.next();
    }
    wait_multiply<0>();
    release(last);
  }

  u32 base_, rank_;
};

}  // namespace sm90
TESSERA_TILE_END
