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
  bool is_bf16;                      // otherwise f16
  bool transposed_a, transposed_b;   // lines in memory run along rows of a, or columns of b, instead of along k
  bool batch_a, batch_b;             // whether each product has an a, or b, of its own
  int cluster_down, cluster_across;  // blocks that share columns of b, and rows of a: one of them 1, the other 1 or 2
  int down, across;                  // clusters of tiles of a product
  int steps;                         // of 64 along k, at least 1
  int group;                         // tile rows of clusters that are walked together
  int count;                         // in all
  int share;                         // 0, or of fewer tiles than clusters, steps that a cluster has, less than all:
  int parts, tail;                   // shares that each of these tiles has to itself, in turn, and what is left of it
  int tails;                         // tiles whose tail one cluster takes, several in turn; those of the others are
  int rest;                          // one after the other cut into pieces of so many steps, for each of these clusters

  TESSERA_HD int cluster() const { return cluster_down * cluster_across; }
  /// The tile with this number: of what product, and which cluster of tiles of it.
  struct Place {
    int batch, down, across;
  };
  TESSERA_HD Place place(int number) const {
    const int tiles = down * across, batch = number / tiles, tile = number - batch * tiles;
    const int first = tile / (group * across) * group, rows = min(group, down - first), within = tile - first * across;
    return {batch, first + within % rows, within / rows};
  }
  /// Clusters that have a part run ahead of each other by a share, and those that take tails begin with whole ones, so
  /// that operands meet in the cache.
  TESSERA_HD int first_of_tails() const { return parts * count; }
  /// A piece of the tail of a shared tile, by the cluster that makes it; by the first of them if that takes it whole.
  TESSERA_HD int tail_piece(int cluster, int tile) const { return cluster + tile; }
  /// Which clusters those are, of a tail in pieces.
  TESSERA_HD int first_cluster(int tile) const { return first_of_tails() + (tile - tails) * tail / rest; }
  TESSERA_HD int last_cluster(int tile) const { return first_of_tails() + ((tile - tails + 1) * tail - 1) / rest; }
};

/// C::alternates: groups of warps have tiles of their own; C::boxes: of 2 KiB for results, of each multiplying warp.
template <class C>
class Gemm {
 public:
  static constexpr Config config = C::config;
  static constexpr int tile_m = config.tile_m, tile_n = config.tile_n, stages = config.stages;
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
  static_assert(config.warps % 4 == 0 && (groups == 2 || (groups == 3 && !alternates)),
                "sm90 GEMM: 12 warps, or 16 that share a tile");
  static_assert(stages >= 2 && C::boxes >= 2 && shared_bytes <= 227 * 1024,
                "sm90 GEMM: 2 stages or more, 2 boxes, and what a block has");

  /// A warp's own shared memory: boxes, and a barrier for each.
  struct Slab {
    u32 boxes, barriers;
    TESSERA_DEVICE u32 box(int i) const { return boxes + i * box_bytes; }
    TESSERA_DEVICE u32 barrier(int i) const { return barriers + i * 8; }
  };

  /// Called by all threads of a block, in clusters of order.cluster(); `shared` are shared_bytes. result.prepare(work)
  /// is called before a warp begins with a tile, result.store(sums, work) when its group has the sums, and
  /// result.finish() at the end. The maps' boxes are those of box_lines().
  template <class Result, class Args>
  static TESSERA_DEVICE void run(const TensorMap& a, const TensorMap& b, const TileOrder& order, const char* shared,
                                 const Args& args) {
    const Gemm gemm((shared_address(shared) + atom_bytes - 1) / atom_bytes * atom_bytes,
                    static_cast<u32>(order.cluster()));
    const int warp = thread_in_block() / 32;
    if (thread_in_block() == 0) {
      prefetch_map(a);
      prefetch_map(b);
      gemm.make_barriers();
    }
    gemm.sync();
    let_next_kernel_begin();
    wait_for_kernel_before();
    if (warp >= multiplying_warps) {
      shrink_registers<fetching_registers>();
      if (warp == multiplying_warps && thread_in_block() % 32 == 0) gemm.fetch(a, b, order);
    } else {
      grow_registers<multiplying_registers>();
      Result result(args, gemm.slab_of(warp));
      gemm.multiply(order, warp, result);
      result.finish();
    }
    gemm.sync();  // other blocks of the cluster may still write here
  }

 private:
  static constexpr int fetching_registers = groups == 2 ? 24 : 32, multiplying_registers = groups == 2 ? 240 : 160;

  TESSERA_DEVICE Gemm(u32 base, u32 cluster) : base_(base), cluster_(cluster) {}

  TESSERA_DEVICE void sync() const {
    if (cluster_ > 1) sync_cluster();
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
      make_barrier(emptied(stage), 4 * sharers * static_cast<int>(cluster_));
    }
    for (int group = 0; group < 2; ++group) make_barrier(turn_of(group), 4);
    for (int warp = 0; warp < multiplying_warps; ++warp)
      for (int box = 0; box < C::boxes; ++box) make_barrier(slab_of(warp).barrier(box), 1);
    publish_barriers();
  }

  /// What a block has to do: whole tiles, or its share of them. Nothing but a count is kept from one to the next.
  class Agenda {
   public:
    explicit TESSERA_DEVICE Agenda(const TileOrder& order) : order_(order) {}

    TileWork work;
    int begin, steps;  // along k

    TESSERA_DEVICE bool next() {
      const int size = order_.cluster(), clusters = static_cast<int>(gridDim.x) / size;
      const int block = static_cast<int>(blockIdx.x), cluster = block / size, item = taken_++;
      int number = cluster + item * clusters, piece = -1;
      begin = 0;
      steps = order_.steps;
      if (order_.share > 0) {
        const int own = cluster - order_.first_of_tails();
        if (own < 0 ? !take_part(item, cluster, number, piece) : !take_tail(item, own, clusters, number, piece))
          return false;
      } else if (number >= order_.count) {
        return false;
      }
      const int rank = block - cluster * size;
      const TileOrder::Place at = order_.place(number);
      work = {(at.down * order_.cluster_down + rank % order_.cluster_down) * tile_m,
              (at.across * order_.cluster_across + rank % order_.cluster_across) * tile_n, at.batch,
              piece < 0 ? -1 : piece * size + rank};
      return true;
    }

   private:
    TESSERA_DEVICE bool take_part(int item, int cluster, int& number, int& piece) {
      const int part = cluster / order_.count;
      number = cluster - part * order_.count;
      piece = cluster;
      begin = part * order_.share;
      steps = min(order_.share, order_.steps - begin);
      return item == 0;
    }
    /// By one of the clusters that have tails: first whole ones, then its share of the others.
    TESSERA_DEVICE bool take_tail(int item, int own, int clusters, int& number, int& piece) {
      const int takers = clusters - order_.first_of_tails(), wholes = order_.tails / takers;
      if (item < wholes) {
        number = own + item * takers;
        piece = order_.tail_piece(order_.first_of_tails(), number);
        steps = order_.tail;
        begin = order_.steps - steps;
        return true;
      }
      if (order_.rest == 0) return false;
      const int first = own * order_.rest, end = min(first + order_.rest, (order_.count - order_.tails) * order_.tail);
      const int tile = first / order_.tail + item - wholes, from = max(first, tile * order_.tail);
      number = order_.tails + tile;
      piece = order_.tail_piece(own + order_.first_of_tails(), number);
      begin = order_.steps - (tile + 1) * order_.tail + from;
      steps = min(end, (tile + 1) * order_.tail) - from;
      return steps > 0;
    }

    const TileOrder& order_;
    int taken_ = 0;
  };

  TESSERA_DEVICE void fetch(const TensorMap& a, const TensorMap& b, const TileOrder& order) const {
    Turn turn;
    Agenda agenda(order);
#pragma unroll 1
    while (agenda.next()) {
      const int of_a = order.batch_a ? agenda.work.batch : 0, of_b = order.batch_b ? agenda.work.batch : 0;
#pragma unroll 1
      for (int step = agenda.begin; step < agenda.begin + agenda.steps; ++step) {
        wait_for(emptied(turn.stage), turn.parity ^ 1);
        const u32 full = filled(turn.stage), to = stage_of(turn.stage);
        arrive_expecting(full, stage_bytes);
        load<TileA, tile_m>(a, to, full, order.transposed_a, order.cluster_across > 1, agenda.work.row, step * 64,
                            of_a);
        load<TileB, tile_n>(b, to + TileA::bytes, full, order.transposed_b, order.cluster_down > 1, agenda.work.column,
                            step * 64, of_b);
        turn.next();
      }
    }
  }

  /// Loads what a stage has of an operand, or this block's half of it, which two share: of its lines.
  template <class Tile, int Extent>
  static TESSERA_DEVICE void load(const TensorMap& map, u32 to, u32 full, bool transposed, bool halved, int row,
                                  int depth, int matrix) {
    const int half = halved ? static_cast<int>(blockIdx.x % 2) : 0;
    const auto box = [&](u32 at, int x, int y) {
      if (halved) load_box_to(at, map, full, x, y, matrix, 3);
      else load_box(at, map, full, x, y, matrix);
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
    Turn turn;
    Agenda agenda(order);
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
      if (lane >= static_cast<int>(cluster_)) return;
      if (cluster_ > 1) arrive_at(emptied(stage), static_cast<u32>(lane));
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

  u32 base_, cluster_;
};

}  // namespace sm90
TESSERA_TILE_END
