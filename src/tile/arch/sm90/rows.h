// Rows shared by the blocks of a cluster on Hopper: each block has a slice of the columns, the same of all its rows,
// and each thread some columns of that, so that what belongs to columns stays in its registers. TMA brings
// slices to shared memory ahead of time, whatever their alignment, and takes results from there; blocks send each other
// what they have of a row's sums. The order of all sums is that of blocks, threads and columns: results repeat.
#pragma once
#include "bulk.h"

TESSERA_TILE_BEGIN
namespace sm90 {

inline constexpr int row_cluster = 8;  // blocks that share rows

/// Rows of contiguous elements, `pitch` elements apart.
template <class T>
struct PitchedRows {
  T* data;
  i64 pitch;
};

/// What a block has of a row's sums.
struct alignas(8) RowPart {
  float first, second;
};

/// Rows of n columns; those of `out` may be one of `in`.
template <class T, int inputs>
struct ClusterRows {
  i64 rows;
  int n;
  int threads;  // of a block
  int stages;   // groups of rows that shared memory holds ahead
  PitchedRows<const T> in[inputs];
  PitchedRows<T> out;
};

/// A block's columns, from `first` on, and those of this thread: `thread`, `thread + threads`, ...
struct ColumnSlice {
  int first, length, thread, threads;

  TESSERA_DEVICE int column(int k) const { return thread + k * threads; }
  TESSERA_DEVICE bool has(int k) const { return column(k) < length; }
};
constexpr TESSERA_HD int columns_of_slice(int n) { return (n + row_cluster - 1) / row_cluster; }

/// Sums over the threads of a block, by way of shared memory that nobody uses until all have passed another barrier.
class BlockSums {
 public:
  static constexpr int bytes = 2 * 32 * 4 * sizeof(float);

  TESSERA_DEVICE BlockSums(char* room, int warps) : room_(reinterpret_cast<float*>(room)), warps_(warps) {}
  /// The sum of v over the block, in every thread; `turn`: the first or second of two.
  template <int count>
  TESSERA_DEVICE void operator()(float (&v)[count], int turn) const {
    static_assert(count <= 4);
    float* const room = room_ + turn * 128;
    unroll<count>([&](auto i) {
      unroll<5>([&](auto step) { v[i] += from_lane_xor(v[i], 1 << step); });
      if (thread_in_block() % 32 == 0) room[thread_in_block() / 32 * count + i] = v[i];
    });
    sync_block();
    unroll<count>([&](auto i) { v[i] = room[i]; });
    for (int w = 1; w < warps_; ++w) unroll<count>([&](auto i) { v[i] += room[w * count + i]; });
  }

 private:
  float* room_;
  int warps_;
};

/// Walks over rows of type T, `height` at a time, with up to `columns` columns a thread. Op has
///   inputs                             operands of a row
///   begin(slice)                       before the first row
///   gather(slice, row, here, x, part, sums)
///                                      what this block has of the sums of rows `row` and following, of which `here`
///                                      exist; x[height][inputs][columns] is 0 outside of the slice; uses `sums` at
///                                      least once
///   total(slice, row, parts)           what a row's parts, of each block one, give
///   result(k, h, x, total)             element k of row h
///   end(slice, cluster)                after the last row
template <class T, class Op, int columns, int height>
class RowsByCluster {
 public:
  static constexpr int inputs = Op::inputs;
  using Rows = ClusterRows<T, inputs>;

  /// A row's room: all columns that threads have, so that they ask for none whether it is there, from anywhere within
  /// 16 bytes on.
  static constexpr TESSERA_HD int room_bytes(int threads) {
    return threads * columns * static_cast<int>(sizeof(T)) + 16;
  }
  static constexpr TESSERA_HD int shared_bytes(int threads, int stages) {
    return head_bytes + (stages * inputs + 2) * height * room_bytes(threads);
  }

  TESSERA_DEVICE RowsByCluster(const Rows& rows, Op& op, char* shared)
      : rows_(rows), op_(op), shared_(shared), room_(room_bytes(rows.threads)) {
    const int block = static_cast<int>(block_in_grid());
    rank_ = block % row_cluster;
    cluster_ = block / row_cluster;
    clusters_ = static_cast<int>(gridDim.x) / row_cluster;
    slice_.first = rank_ * columns_of_slice(rows.n);
    slice_.length = min(columns_of_slice(rows.n), rows.n - slice_.first);
    slice_.thread = thread_in_block();
    slice_.threads = rows.threads;
  }

  TESSERA_DEVICE void run() {
    const int thread = slice_.thread;
    if (thread == 0) {
      for (int s = 0; s < rows_.stages; ++s) mbarrier_init(full(s), 1);
      for (int s = 0; s < 2; ++s) mbarrier_init(told(s), 1);
      fence_mbarrier_init();
    }
    cluster_sync();
    wait_on_dependent_grids();
    if (thread == 0)
      for (int s = 0; s < rows_.stages; ++s) fetch(s, s);
    op_.begin(slice_);
    const BlockSums sums(shared_ + sums_at, slice_.threads / 32);
    int stage = 0, round = 0;
    for (int turn = 0; first_row(turn) < rows_.rows; ++turn) {
      const i64 row = first_row(turn);
      const int here = static_cast<int>(min<i64>(height, rows_.rows - row));
      float x[height][inputs][columns];
      mbarrier_wait(full(stage), round & 1);
      unroll<height * inputs>([&](auto i) { read(stage, i, row, x[i / inputs][i % inputs]); });
      if (thread == 0) tma_store_wait_read<1>();  // the last turn but one
      RowPart part[height];
      op_.gather(slice_, row, here, x, part, sums);
      if (thread == 0) {
        fetch(turn + rows_.stages, stage);
        mbarrier_arrive_expect_tx(told(turn & 1), row_cluster * height * sizeof(RowPart));
      }
      unroll<height>([&](auto h) {
        if (thread < row_cluster)
          send(shared_address(parts(turn, h) + rank_), bit_cast<u64>(part[h]), told(turn & 1), thread);
      });
      mbarrier_wait(told(turn & 1), turn >> 1 & 1);
      unroll<height>([&](auto h) {
        const auto total = op_.total(slice_, min<i64>(row + h, rows_.rows - 1), parts(turn, h));
        T* const to = reinterpret_cast<T*>(results(turn, h)) + phase(target(row + h));
        unroll<columns>([&](auto k) { to[slice_.column(k)] = convert_element<T>(op_.result(k, h, x[h], total)); });
      });
      fence_proxy_async();
      sync_block();
      for (int h = 0; h < here; ++h) store(turn, h, target(row + h));
      if (thread == 0) tma_store_commit();
      if (++stage == rows_.stages) stage = 0, ++round;
    }
    op_.end(slice_, cluster_);
    if (thread == 0) tma_store_wait_read<0>();
  }

 private:
  // Shared memory: barriers, parts of two turns, sums of a block, stages, results of two turns.
  static constexpr int most_stages = 8, parts_at = (most_stages + 2) * 8;
  static constexpr int sums_at = (parts_at + 2 * height * row_cluster * 8 + 15) / 16 * 16;
  static constexpr int head_bytes = (sums_at + BlockSums::bytes + 127) / 128 * 128;

  TESSERA_DEVICE u32 full(int stage) const { return shared_address(shared_) + stage * 8; }
  TESSERA_DEVICE u32 told(int parity) const { return full(most_stages + parity); }
  TESSERA_DEVICE RowPart* parts(int turn, int h) const {
    return reinterpret_cast<RowPart*>(shared_ + parts_at) + ((turn & 1) * height + h) * row_cluster;
  }
  TESSERA_DEVICE char* room(int stage, int i) const {
    return shared_ + head_bytes + (stage * height * inputs + i) * room_;
  }
  TESSERA_DEVICE char* results(int turn, int h) const { return room(rows_.stages, (turn & 1) * height + h); }

  TESSERA_DEVICE i64 first_row(int turn) const { return (cluster_ + static_cast<i64>(turn) * clusters_) * height; }
  TESSERA_DEVICE const T* source(int i, i64 row) const {
    return rows_.in[i % inputs].data + min<i64>(row + i / inputs, rows_.rows - 1) * rows_.in[i % inputs].pitch +
           slice_.first;
  }
  TESSERA_DEVICE T* target(i64 row) const { return rows_.out.data + row * rows_.out.pitch + slice_.first; }
  /// Elements between a multiple of 16 bytes and p.
  static TESSERA_DEVICE int phase(const T* p) { return static_cast<int>(reinterpret_cast<u64>(p) % 16 / sizeof(T)); }

  /// Asks for a turn's rows: 16-byte vectors, of which the first and the last may hold neighbours, too.
  TESSERA_DEVICE void fetch(int turn, int stage) const {
    const i64 row = first_row(turn);
    if (row >= rows_.rows) return;
    constexpr int unit = 16 / sizeof(T);
    const auto bytes = [&](int i) {
      return static_cast<u32>((phase(source(i, row)) + slice_.length + unit - 1) / unit * 16);
    };
    u32 all = 0;
    unroll<height * inputs>([&](auto i) { all += bytes(i); });
    mbarrier_arrive_expect_tx(full(stage), all);
    unroll<height * inputs>([&](auto i) {
      const T* const from = source(i, row);
      bulk_load(shared_address(room(stage, i)), from - phase(from), bytes(i), full(stage));
    });
  }
  TESSERA_DEVICE void read(int stage, int i, i64 row, float (&x)[columns]) const {
    const T* const from = reinterpret_cast<const T*>(room(stage, i)) + phase(source(i, row));
    unroll<columns>([&](auto k) {
      const float value = convert_element<float>(from[slice_.column(k)]);
      x[k] = slice_.has(k) ? value : 0.0f;
    });
  }
  /// Whole units by TMA, the few elements beside them by a thread each.
  TESSERA_DEVICE void store(int turn, int h, T* to) const {
    constexpr int unit = 16 / sizeof(T);
    const int head = min(slice_.length, -phase(to) & (unit - 1)), whole = (slice_.length - head) / unit * unit;
    const T* const from = reinterpret_cast<const T*>(results(turn, h)) + phase(to);
    const int thread = slice_.thread;
    if (thread == 0 && whole > 0)
      bulk_store(to + head, shared_address(from + head), static_cast<u32>(whole * sizeof(T)));
    if (thread < 2 * unit) {
      const int edge = thread < unit ? thread : head + whole + thread - unit;
      if (thread < unit ? edge < head : edge < slice_.length) to[edge] = from[edge];
    }
  }

  const Rows& rows_;
  Op& op_;
  char* shared_;
  int room_, rank_, cluster_, clusters_;
  ColumnSlice slice_;
};

}  // namespace sm90
TESSERA_TILE_END
