// Tile GEMM of clusters of blocks on NVIDIA's Hopper cards: one warp keeps the copy engine filling a ring of stages in
// shared memory, two groups of four warps multiply. They share a tile, 64 rows each, or each has tiles of its own in
// turns, so that one stores while the other multiplies. Blocks stay and take one tile after the other; sums of tiles
// that do not fill the card are cut where it pleases, so that every block has as much to do.
#pragma once
#include "../../config.h"
#include "layout.h"
#include "ptx.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// A tile of work: where it lies in the result, and of which product.
struct TileWork {
  int row, column, batch;
  int piece;  // less than all of its sums: which of the pieces of 1 tile of this block; otherwise negative
};

/// What the operands are, and all tiles of a batch of products, in the order in which clusters take them: groups of
/// tile rows, walked column by column, so that clusters that run at the same time share operands in the cache.
struct TileOrder {
  bool is_bf16;                     // otherwise f16
  bool transposed_a, transposed_b;  // lines in memory run along rows of a, or columns of b, instead of along k
  bool batch_a, batch_b;            // whether each product has an a, or b, of its own
  int down, across;                 // clusters of tiles of a product
  int steps;                        // of 64 along k, at least 1
  int group;                        // tile rows of clusters that are walked together
  int count;                        // in all
  int whole;                        // of them taken as they are; the others, fewer than clusters, in equal shares:
  int share;                        // steps of a cluster, less than all
  int parts, tail;                  // shares that each of these tiles has to itself, in turn, and what is left of it

  /// The tile with this number: of what product, and which cluster of tiles of it.
  struct Place {
    int batch, down, across;
  };
  TESSERA_HD Place place(int number) const {
    const int tiles = down * across, batch = number / tiles, tile = number - batch * tiles;
    const int first = tile / (group * across) * group, rows = min(group, down - first), within = tile - first * across;
    return {batch, first + within % rows, within / rows};
  }
  TESSERA_HD int shared() const { return count - whole; }
  /// Clusters that have a part run ahead of each other by a share, so that their operands meet in the cache. The others
  /// have what is left, tile after tile.
  TESSERA_HD int first_of_tails() const { return parts * shared(); }
  /// A piece of the tail of a shared tile, by the cluster that makes it.
  TESSERA_HD int tail_piece(int cluster, int tile) const { return cluster + tile; }
  /// Which clusters those are.
  TESSERA_HD int first_cluster(int tile) const { return first_of_tails() + tile * tail / share; }
  TESSERA_HD int last_cluster(int tile) const { return first_of_tails() + ((tile + 1) * tail - 1) / share; }
};

/// C's cluster blocks lie one below the other and share columns of b. C::alternates: groups of warps have tiles of
/// their own; C::boxes: of 2 KiB for results, of each multiplying warp.
template <class C>
class Gemm {
 public:
  static constexpr Config config = C::config;
  static constexpr int tile_m = config.tile_m, tile_n = config.tile_n, stages = config.stages, cluster = config.cluster;
  static constexpr int threads = config.warps * 32, groups = config.warps / 4 - 1, multiplying_warps = 4 * groups;
  static constexpr bool alternates = C::alternates;
  static constexpr int sharers = alternates ? 1 : groups;  // of a tile
  static constexpr int strips = tile_m / (64 * sharers);   // of 64 rows, that a group of warps has
  using TileA = SharedOperand<tile_m>;
  using TileB = SharedOperand<tile_n>;
  static constexpr int stage_bytes = TileA::bytes + TileB::bytes;
  static constexpr int box_bytes = 2048, slab_bytes = C::boxes * box_bytes;
  static constexpr int barrier_bytes = stages * 16 + multiplying_warps * C::boxes * 8 + 16;
  static constexpr int shared_bytes = stages * stage_bytes + multiplying_warps * slab_bytes + barrier_bytes + 1024;
  using Sums = float[strips][tile_n / 2];
  static_assert(tile_m == 64 * sharers * strips && tile_m <= 256 && tile_n % 64 == 0 && tile_n >= 128 &&
                    tile_n <= 256 && config.tile_k == 64,
                "sm90 GEMM: tiles of whole strips of 64 rows, 128, 192 or 256 columns, 64 deep");
  static_assert(strips * tile_n <= (groups == 2 ? 384 : 192), "sm90 GEMM: the sums need more registers than there are");
  static_assert(config.warps % 4 == 0 && (groups == 2 || (groups == 3 && !alternates)) &&
                    (cluster == 1 || cluster == 2),
                "sm90 GEMM: 12 warps, or 16 that share a tile, clusters of 1 or 2");
  static_assert(stages >= 2 && C::boxes >= 2 && shared_bytes <= 227 * 1024,
                "sm90 GEMM: 2 stages or more, 2 boxes, and what a block has");

  /// A warp's own shared memory: boxes, and a barrier for each.
  struct Slab {
    u32 boxes, barriers;
    TESSERA_DEVICE u32 box(int i) const { return boxes + i * box_bytes; }
    TESSERA_DEVICE u32 barrier(int i) const { return barriers + i * 8; }
  };

  /// Called by all threads of the block; `shared` are shared_bytes. result.prepare(work) is called before a warp begins
  /// with a tile, result.store(sums, work) when its group has the sums, and result.finish() at the end. The maps'
  /// boxes are those of box_lines().
  template <class Result, class Args>
  static TESSERA_DEVICE void run(const TensorMap& a, const TensorMap& b, const TileOrder& order, const char* shared,
                                 const Args& args) {
    const Gemm gemm((shared_address(shared) + atom_bytes - 1) / atom_bytes * atom_bytes);
    const int warp = thread_in_block() / 32;
    if (thread_in_block() == 0) gemm.make_barriers();
    sync();
    if (warp >= multiplying_warps) {
      shrink_registers<fetching_registers>();
      if (warp == multiplying_warps && thread_in_block() % 32 == 0) gemm.fetch(a, b, order);
    } else {
      grow_registers<multiplying_registers>();
      Result result(args, gemm.slab_of(warp));
      gemm.multiply(order, warp, result);
      result.finish();
    }
    sync();  // other blocks of the cluster may still write here
  }

 private:
  static constexpr int fetching_registers = groups == 2 ? 24 : 32, multiplying_registers = groups == 2 ? 240 : 160;

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
    TESSERA_DEVICE void skip(int steps) {
      const u32 to = static_cast<u32>(stage + steps);
      parity ^= to / stages % 2;
      stage = static_cast<int>(to % stages);
    }
  };

  TESSERA_DEVICE u32 stage_of(int stage) const { return base_ + stage * stage_bytes; }
  TESSERA_DEVICE u32 slabs() const { return base_ + stages * stage_bytes; }
  TESSERA_DEVICE u32 barriers() const { return slabs() + multiplying_warps * slab_bytes; }
  TESSERA_DEVICE u32 filled(int stage) const { return barriers() + stage * 16; }
  TESSERA_DEVICE u32 emptied(int stage) const { return filled(stage) + 8; }
  TESSERA_DEVICE u32 turn_of(int group) const { return barriers() + stages * 16 + group * 8; }
  TESSERA_DEVICE Slab slab_of(int warp) const {
    return {slabs() + warp * slab_bytes, barriers() + stages * 16 + 16 + warp * C::boxes * 8};
  }

  TESSERA_DEVICE void make_barriers() const {
    for (int stage = 0; stage < stages; ++stage) {
      make_barrier(filled(stage), 1);
      make_barrier(emptied(stage), 4 * sharers * cluster);
    }
    for (int group = 0; group < 2; ++group) make_barrier(turn_of(group), 4);
    for (int warp = 0; warp < multiplying_warps; ++warp)
      for (int box = 0; box < C::boxes; ++box) make_barrier(slab_of(warp).barrier(box), 1);
    publish_barriers();
  }

  /// What a block has to do: whole tiles, then its share of the others.
  class Agenda {
   public:
    TESSERA_DEVICE Agenda(const TileOrder& order, u32 rank)
        : order_(order),
          cluster_(static_cast<int>(blockIdx.x) / cluster),
          rank_(static_cast<int>(rank)),
          next_(cluster_),
          begin_((cluster_ - order.first_of_tails()) * order.share),
          end_(min(begin_ + order.share, order.shared() * order.tail)) {}

    TileWork work;
    int begin, steps;  // along k

    TESSERA_DEVICE bool next() {
      int number = next_, piece = -1;
      begin = 0;
      steps = order_.steps;
      if (number < order_.whole) {
        next_ += static_cast<int>(gridDim.x) / cluster;
      } else if (begin_ >= end_) {
        return false;
      } else if (begin_ < 0) {  // a part of a shared tile
        const int part = cluster_ / order_.shared();
        number = order_.whole + cluster_ - part * order_.shared();
        begin = part * order_.share;
        steps = min(order_.share, order_.steps - begin);
        begin_ = end_;
        piece = cluster_;
      } else {
        const int tile = begin_ / order_.tail, done = begin_ - tile * order_.tail;
        number = order_.whole + tile;
        steps = min(order_.tail - done, end_ - begin_);
        begin = order_.steps - order_.tail + done;
        begin_ += steps;
        piece = order_.tail_piece(cluster_, tile);
      }
      const TileOrder::Place at = order_.place(number);
      work = {(at.down * cluster + rank_) * tile_m, at.across * tile_n, at.batch,
              piece < 0 ? -1 : piece * cluster + rank_};
      return true;
    }

   private:
    const TileOrder& order_;
    int cluster_, rank_, next_, begin_, end_;
  };

  TESSERA_DEVICE void fetch(const TensorMap& a, const TensorMap& b, const TileOrder& order) const {
    prefetch_map(a);
    prefetch_map(b);
    Turn turn;
    Agenda agenda(order, rank_);
#pragma unroll 1
    while (agenda.next()) {
      const int of_a = order.batch_a ? agenda.work.batch : 0, of_b = order.batch_b ? agenda.work.batch : 0;
#pragma unroll 1
      for (int step = agenda.begin; step < agenda.begin + agenda.steps; ++step) {
        wait_for(emptied(turn.stage), turn.parity ^ 1);
        const u32 full = filled(turn.stage), to = stage_of(turn.stage);
        arrive_expecting(full, stage_bytes);
        load<TileA, tile_m, 1>(a, to, full, order.transposed_a, agenda.work.row, step * 64, of_a);
        load<TileB, tile_n, cluster>(b, to + TileA::bytes, full, order.transposed_b, agenda.work.column, step * 64,
                                     of_b);
        turn.next();
      }
    }
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

  template <class Result>
  TESSERA_DEVICE void multiply(const TileOrder& order, int warp, Result& result) const {
    Turn turn;
    Agenda agenda(order, rank_);
    [[maybe_unused]] const int group = warp / 4;
    [[maybe_unused]] int others = 0;
    [[maybe_unused]] u32 parity = group ^ 1;  // the first group need not wait for its first turn
#pragma unroll 1
    while (agenda.next()) {
      if constexpr (alternates) {
        if ((others++ + group) % 2 != 0) {
          turn.skip(agenda.steps);
          continue;
        }
      }
      result.prepare(agenda.work);
      if constexpr (alternates) {
        wait_for(turn_of(group), parity);
        parity ^= 1;
      }
      Sums sums;
      // Values of their own from here to there: results move among these registers afterwards, and multiplications
      // would wait for each other if that reached into them.
      unroll<strips>([&](auto strip) { unroll<tile_n / 2>([&](auto i) { sums[strip][i] = 0; }); });
      sum_up<Result>(order, turn, agenda.steps, warp, sums);
      unroll<strips>([&](auto strip) { settle(sums[strip]); });
      result.store(sums, agenda.work);
    }
  }

  /// Eight loops in one kernel, unless Result says what the operands are: Operand, transposed_a, transposed_b.
  template <class Result>
  TESSERA_DEVICE void sum_up(const TileOrder& order, Turn& turn, int steps, int warp, Sums& sums) const {
    if constexpr (requires { typename Result::Operand; }) {
      sum_up<typename Result::Operand, Result::transposed_a, Result::transposed_b>(turn, steps, warp, sums);
    } else {
      sum_up_any(order, turn, steps, warp, sums);
    }
  }
  TESSERA_DEVICE void sum_up_any(const TileOrder& order, Turn& turn, int steps, int warp, Sums& sums) const {
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
    const u32 rows = alternates ? 0 : warp / 4 * strips * TileA::block_bytes;
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
        unroll<strips>([&](auto strip) {
          multiply_add<Element, tile_n, TransposedA, TransposedB>(
              sums[strip], a + i * TileA::step(TransposedA) + strip * (TileA::block_bytes / 16),
              b + i * TileB::step(TransposedB), i > 0 || step > 0);
        });
      });
      commit_multiply();
      if (step > 0) {
        wait_multiply<1>();
        release(last);
      }
      last = turn.stage;
      turn.next();
    }
    if constexpr (alternates)
      if (lane == 0) arrive(turn_of(warp / 4 ^ 1));
    wait_multiply<0>();
    release(last);
  }

  u32 base_, rank_;
};

}  // namespace sm90
TESSERA_TILE_END
