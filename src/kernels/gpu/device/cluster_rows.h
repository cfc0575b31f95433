// Long rows shared by the blocks of a cluster on Hopper. A row is packs of 16 bytes at multiples of 16 bytes and, one
// to a thread, the few elements beside them. A cluster takes only rows that lie alike within 16 bytes, so that a thread
// has the same columns of each, and what belongs to columns stays in its registers. The copy engine brings rows to
// shared memory ahead of time. The order of all sums is that of blocks, threads and columns: results repeat.
#pragma once
#include "held_rows.h"
#include "tensor_map.h"
#include "tile/arch/sm90/rows.h"

namespace tessera::gpu_kernels {

using tile::sm90::BlockSums, tile::sm90::RowPart;

/// Rows of n elements that lie alike in all operands; so do those that as many rows as there are clusters are between.
/// `out` may be one of `in`.
template <class T, int inputs>
struct AlikeRows {
  int rows, n;
  int threads;  // of a block
  int stages;   // rows that shared memory holds
  Rows<const T> in[inputs];
  Rows<T> out;
};

/// In the place of a pack's number: the element beside the packs that a thread has.
struct Edge {};

/// A block's columns: whole packs, of which each thread has `thread`, `thread + threads`, ..., and elements beside
/// them.
template <int width>
struct PackSlice {
  int n, rank;
  int start, share, begin, end;  // first columns: of the row's packs, 0 or less, and of this block's; share: its packs
  int first, packs;              // the first whole pack's column, and how many there are
  int edge;                      // this thread's column beside whole packs, or -1
  int thread, threads;

  TESSERA_DEVICE PackSlice(int n, int phase, int cluster, int rank, int threads)
      : n(n), rank(rank), start(-phase), edge(-1), thread(tile::thread_in_block()), threads(threads) {
    const int all = (phase + n + width - 1) / width;
    share = (all + cluster - 1) / cluster;
    begin = start + rank * share * width;
    end = start + tile::min((rank + 1) * share, all) * width;
    const bool head = begin<0, tail = end> n;
    first = head ? begin + width : begin;
    packs = (end - first) / width - tail;
    if (head && thread < width && begin + thread >= 0) edge = begin + thread;
    const int last = end - 2 * width + thread;
    if (tail && thread >= width && thread < 2 * width && last < n) edge = last;
  }
  /// Columns of block b.
  TESSERA_DEVICE int length(int b) const {
    const int from = start + b * share * width;
    return tile::min(n, from + share * width) - tile::max(0, from);
  }
  TESSERA_DEVICE int pack(int k) const { return thread + k * threads; }
  TESSERA_DEVICE int column(int k) const { return first + pack(k) * width; }
  TESSERA_DEVICE int column(Edge) const { return edge; }
  /// fn(Int<k>) for this thread's packs, `most` or one less, and fn(Edge) for its element beside them.
  template <int most, class Fn>
  TESSERA_DEVICE void each(const Fn& fn) const {
    tile::unroll<most - 1>(fn);
    if (pack(most - 1) < packs) fn(tile::Int<most - 1>{});
    if (edge >= 0) fn(Edge{});
  }
  /// How many elements those are.
  template <int most>
  TESSERA_DEVICE int elements() const {
    return (most - (pack(most - 1) < packs ? 0 : 1)) * width + (edge >= 0);
  }
};

/// What a thread keeps for its columns.
template <class T, int packs>
struct Columns {
  static constexpr int width = 16 / sizeof(T);
  Pack<T, width> pack[packs];
  Pack<T, 1> edge;

  TESSERA_DEVICE auto operator[](int k) const { return lanes(pack[k]); }
  TESSERA_DEVICE auto operator[](Edge) const { return lanes(edge); }

  /// Those of an array; `otherwise` where that is missing.
  TESSERA_DEVICE void load(const T* values, const PackSlice<width>& slice, float otherwise) {
    const Beside<T> beside(values, reinterpret_cast<const void*>(-slice.start * sizeof(T)));
    slice.template each<packs>([&](auto k) {
      const Piece<tile::is_same_v<decltype(k), Edge> ? 1 : width, int> piece{slice.column(k)};
      auto& to = at(k);
      if (values) to = beside.pack(beside.fetch(piece));
      else tile::unroll<piece.width>([&](auto j) { to.lane[j] = tile::convert_element<T>(otherwise); });
    });
  }

 private:
  TESSERA_DEVICE Pack<T, width>& at(int k) { return pack[k]; }
  TESSERA_DEVICE Pack<T, 1>& at(Edge) { return edge; }
};

/// Sums of a thread's columns.
template <int width, int packs>
struct ColumnSums {
  float pack[packs][width] = {}, edge[1] = {};

  TESSERA_DEVICE float* operator[](int k) { return pack[k]; }
  TESSERA_DEVICE float* operator[](Edge) { return edge; }
  TESSERA_DEVICE const float* operator[](int k) const { return pack[k]; }
  TESSERA_DEVICE const float* operator[](Edge) const { return edge; }
};

/// A row of each operand, in shared memory.
template <class T, int inputs>
class SharedRow {
 public:
  static constexpr int width = 16 / sizeof(T);
  using Packed = Pack<T, width>;
  TESSERA_DEVICE SharedRow(const PackSlice<width>& slice, const Packed* room, int pitch)
      : slice_(slice), room_(room), pitch_(pitch) {}

  TESSERA_DEVICE const Packed& pack(int input, int k) const {
    return room_[input * pitch_ + (slice_.first > slice_.begin) + slice_.pack(k)];
  }
  TESSERA_DEVICE auto operator()(int input, int k) const { return lanes(pack(input, k)); }
  TESSERA_DEVICE auto operator()(int input, Edge) const {
    const int i = slice_.edge - slice_.begin;
    return lanes(Pack<T, 1>{room_[input * pitch_ + i / width].lane[i % width]});
  }

 private:
  const PackSlice<width>& slice_;
  const Packed* room_;
  int pitch_;
};

/// Walks over rows of type T with `packs` packs a thread. Op has
///   inputs                            operands of a row
///   begin(slice, row)                 before the first row
///   gather(slice, row, next, x, sums) what this block has of the sums of a SharedRow, whose next row is `next`; uses
///                                     `sums` at least once
///   total(slice, row, parts)          what a row's parts, of each block one, give
///   result(k, x, total)               Lanes of pack k, or of an Edge
///   end(slice, cluster)               after the last
template <class T, class Op, int cluster, int packs>
class PackedRows {
 public:
  static constexpr int inputs = Op::inputs, width = 16 / sizeof(T);
  using Slice = PackSlice<width>;
  using Row = SharedRow<T, inputs>;

  /// Packs that a block has, at most, of rows of n.
  static constexpr TESSERA_HD int slice_packs(int n) { return ((n + 2 * (width - 1)) / width + cluster - 1) / cluster; }
  static constexpr TESSERA_HD int shared_bytes(int n, int stages) {
    return head_bytes + stages * inputs * slice_packs(n) * 16;
  }

  TESSERA_DEVICE PackedRows(const AlikeRows<T, inputs>& rows, Op& op, char* shared)
      : rows_(rows),
        op_(op),
        shared_(shared),
        pitch_(slice_packs(rows.n)),
        cluster_(static_cast<int>(tile::block_in_grid()) / cluster),
        slice_(rows.n, static_cast<int>(reinterpret_cast<size_t>(rows.in[0][cluster_]) % 16 / sizeof(T)), cluster,
               static_cast<int>(tile::block_in_grid()) % cluster, rows.threads) {}

  TESSERA_DEVICE void run() {
    const int thread = slice_.thread;
    if (thread == 0) {
      for (int s = 0; s < rows_.stages; ++s) tile::sm90::make_barrier(full(s), 1);
      for (int s = 0; s < 2; ++s) tile::sm90::make_barrier(told(s), 1);
      tile::sm90::publish_barriers();
    }
    tile::sm90::sync_cluster();
    if (cluster_ >= rows_.rows) return;
    if (thread == 0)
      for (int s = 0; s < rows_.stages - 1; ++s) fetch(s, s);
    op_.begin(slice_, cluster_);
    int stage = 0, round = 0;
    for (int turn = 0; row(turn) < rows_.rows; ++turn) {
      take(turn, stage, round & 1);
      if (++stage == rows_.stages) stage = 0, ++round;
    }
    op_.end(slice_, cluster_);
  }

 private:
  // Shared memory: barriers, parts of two turns, sums of two turns, stages.
  static constexpr int most_stages = 8, parts_at = (most_stages + 2) * 8;
  static constexpr int sums_at = (parts_at + 2 * cluster * 8 + 15) / 16 * 16;
  static constexpr int head_bytes = (sums_at + 2 * BlockSums::bytes + 127) / 128 * 128;

  TESSERA_DEVICE u32 full(int stage) const { return tile::sm90::shared_address(shared_) + stage * 8; }
  TESSERA_DEVICE u32 told(int parity) const { return full(most_stages + parity); }
  TESSERA_DEVICE RowPart* parts(int turn) const {
    return reinterpret_cast<RowPart*>(shared_ + parts_at) + (turn & 1) * cluster;
  }
  TESSERA_DEVICE Pack<T, width>* room(int stage) const {
    return reinterpret_cast<Pack<T, width>*>(shared_ + head_bytes) + stage * inputs * pitch_;
  }
  TESSERA_DEVICE int row(int turn) const { return cluster_ + turn * static_cast<int>(gridDim.x / cluster); }

  /// Asks for a turn's row: whole packs, of which the first and the last may hold neighbours, too.
  TESSERA_DEVICE void fetch(int turn, int stage) const {
    if (row(turn) >= rows_.rows) return;
    const u32 bytes = static_cast<u32>(slice_.end - slice_.begin) * sizeof(T);
    tile::sm90::arrive_expecting(full(stage), inputs * bytes);
    tile::unroll<inputs>([&](auto i) {
      tile::sm90::load_bulk(tile::sm90::shared_address(room(stage) + i * pitch_), rows_.in[i][row(turn)] + slice_.begin,
                            bytes, full(stage));
    });
  }
  TESSERA_DEVICE void take(int turn, int stage, int parity) {
    const int r = row(turn), next = tile::min(row(turn + 1), rows_.rows - 1);
    const Row x(slice_, room(stage), pitch_);
    const BlockSums sums(shared_ + sums_at + (turn & 1) * BlockSums::bytes, slice_.threads / 32);
    tile::sm90::wait_for(full(stage), parity);
    const RowPart part = op_.gather(slice_, r, next, x, sums);
    if (slice_.thread == 0) {  // nobody looks at the last turn's row any more
      fetch(turn + rows_.stages - 1, stage == 0 ? rows_.stages - 1 : stage - 1);
      tile::sm90::arrive_expecting(told(turn & 1), cluster * sizeof(RowPart));
    }
    if (slice_.thread < cluster)
      tile::sm90::send(tile::sm90::shared_address(parts(turn) + slice_.rank), tile::bit_cast<u64>(part), told(turn & 1),
                       slice_.thread);
    tile::sm90::wait_for(told(turn & 1), turn >> 1 & 1);
    const auto total = op_.total(slice_, r, parts(turn));
    T* const to = rows_.out[r];
    slice_.template each<packs>([&](auto k) {
      constexpr int count = tile::is_same_v<decltype(k), Edge> ? 1 : width;
      store_piece(to, Piece<count, int>{slice_.column(k)}, op_.result(k, x, total));
    });
  }

  const AlikeRows<T, inputs>& rows_;
  Op& op_;
  char* shared_;
  int pitch_, cluster_;
  Slice slice_;
};

}  // namespace tessera::gpu_kernels
