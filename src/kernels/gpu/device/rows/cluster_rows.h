// Long rows shared by the blocks of a cluster on Hopper. A row of the result is packs of 16 bytes at multiples of 16
// bytes and, one to a thread, the few elements beside them. A cluster takes only rows that lie within 16 bytes as its
// first one does, so that a thread has the same columns of each, and what belongs to columns stays in its registers.
// TMA brings rows to shared memory ahead of time; those of operands that lie otherwise than the result are
// shifted on their way from there. The order of all sums is that of blocks, threads and columns: results repeat.
#pragma once
#include "held_rows.h"
#include "kernels/gpu/device/runtime/tensor_map.h"
#include "tile/arch/sm90/rows.h"

namespace tessera::gpu_kernels {

using tile::sm90::BlockSums, tile::sm90::RowPart;

/// Rows of n elements. In each operand those lie alike between which there are as many rows as there are clusters.
/// `out` may be one of `in`.
template <class T, int inputs>
struct LongRows {
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
  int own;  // the thread's first pack; in the first row, warps have whole lines of memory

  TESSERA_DEVICE PackSlice(int n, size_t row, int cluster, int rank, int threads)
      : n(n),
        rank(rank),
        start(-static_cast<int>(row * width / 16 % width)),
        edge(-1),
        thread(tile::thread_in_block()),
        threads(threads) {
    const int phase = -start;
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
    own = thread - static_cast<int>((row + first * (16 / width)) / 16 % 8);
    if (own < 0) own += threads;
  }
  /// Columns of block b.
  TESSERA_DEVICE int length(int b) const {
    const int from = start + b * share * width;
    return tile::min(n, from + share * width) - tile::max(0, from);
  }
  TESSERA_DEVICE int pack(int k) const { return own + k * threads; }
  TESSERA_DEVICE int column(int k) const { return first + pack(k) * width; }
  TESSERA_DEVICE int column(Edge) const { return edge; }
  /// Of up to `most` packs each thread has so many; two guarded ones would cost long rows 7 % of their speed.
  static constexpr TESSERA_HD int sure(int most) { return most > 4 ? most - 1 : tile::max(0, most - 2); }
  /// fn(Int<k>) for this thread's packs, and fn(Edge) for its element beside them.
  template <int most, class Fn>
  TESSERA_DEVICE void each(const Fn& fn) const {
    tile::unroll<sure(most)>(fn);
    tile::unroll<most - sure(most)>([&](auto i) {
      constexpr tile::Int<sure(most) + decltype(i)::value> k;
      if (pack(k) < packs) fn(k);
    });
    if (edge >= 0) fn(Edge{});
  }
  /// How many elements those are.
  template <int most>
  TESSERA_DEVICE int elements() const {
    int count = 0;
    each<most>([&](auto k) { count += tile::is_same_v<decltype(k), Edge> ? 1 : width; });
    return count;
  }
};

/// What a thread keeps for its columns.
template <class T, int packs>
struct Columns {
  static constexpr int width = 16 / sizeof(T);
  Pack<T, width> pack[packs];
  Pack<T, 1> edge;

  TESSERA_DEVICE auto operator[](int k) const {
    auto words = tile::bit_cast<tile::Array<u32, 4>>(pack[k]);
    // or nvcc would widen all of them ahead of the loop over rows, for which registers do not suffice
    tile::unroll<4>([&](auto i) { asm volatile("" : "+r"(words[i])); });
    return lanes(tile::bit_cast<Pack<T, width>>(words));
  }
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

/// The same in shared memory, where registers do not suffice: a thread looks at its own packs only.
template <class T, int packs>
class SharedColumns {
 public:
  static constexpr int width = 16 / sizeof(T);
  TESSERA_DEVICE auto operator[](int k) const { return lanes(room_[own_ + k * threads_]); }
  TESSERA_DEVICE auto operator[](Edge) const { return lanes(edge_); }

  TESSERA_DEVICE void load(const T* values, const PackSlice<width>& slice, float otherwise, Pack<T, width>* room) {
    room_ = room;
    own_ = slice.own;
    threads_ = slice.threads;
    Columns<T, packs> columns;
    columns.load(values, slice, otherwise);
    tile::unroll<packs>([&](auto k) {
      if (slice.pack(k) < slice.packs) room[slice.pack(k)] = columns.pack[k];
    });
    edge_ = columns.edge;
  }

 private:
  Pack<T, width>* room_;
  int own_, threads_;
  Pack<T, 1> edge_;
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

/// Rows of a block's slice in shared memory.
template <class T, int rows>
class SharedRows {
 public:
  static constexpr int width = 16 / sizeof(T);
  using Packed = Pack<T, width>;
  TESSERA_DEVICE SharedRows(const PackSlice<width>& slice, void* room)
      : slice_(slice), room_(static_cast<char*>(room)) {}
  /// From which byte of the room on a row lies.
  TESSERA_DEVICE void place(int row, int at) { at_[row] = at; }

  TESSERA_DEVICE auto operator()(int row, int k) const {
    const Packed* const from = &pack(row, k);
    const int shift = at_[row] & 15;
    const Packed first = *from, second = shift != 0 ? from[1] : Packed{};
    return lanes(shifted(first, second, shift));
  }
  TESSERA_DEVICE auto operator()(int row, Edge) const { return lanes(Pack<T, 1>{edge(row)}); }
  /// Only of rows that are not shifted, whose packs nobody else looks at.
  TESSERA_DEVICE void clear(int row, int k) const { pack(row, k) = Packed{}; }
  TESSERA_DEVICE void clear(int row, Edge) const { edge(row) = T{}; }

 private:
  TESSERA_DEVICE Packed& pack(int row, int k) const {
    const int whole = (slice_.first > slice_.begin) + slice_.pack(k);
    return *reinterpret_cast<Packed*>(room_ + (at_[row] & ~15) + whole * 16);
  }
  TESSERA_DEVICE T& edge(int row) const {
    return *reinterpret_cast<T*>(room_ + at_[row] + (slice_.edge - slice_.begin) * static_cast<int>(sizeof(T)));
  }

  const PackSlice<width>& slice_;
  char* room_;
  int at_[rows];
};

/// Walks over rows of type T, `height` at a time, with `packs` packs a thread. Op has
///   inputs, height                   operands of a row; rows at a time
///   shared_columns                   arrays over the columns that it keeps in shared memory
///   Known, know(row)                 what is known of a row, asked for ahead of time
///   begin(slice, room)               before the first row; room for its columns
///   gather(slice, known, x, part, room)
///                                    the block's parts of the rows' sums, in its first warp; input i of row h is
///                                    x(h * inputs + i); room for 4 floats of each warp, all of which pass a barrier
///   total(slice, row, known, parts)  what a row's parts, of each block one, give
///   result(k, first, x, total)       Lanes of pack k, or of an Edge, of a row whose inputs begin at x(first)
///   end(slice, cluster, room)        after the last; room for 8 floats of each pack
template <class T, class Op, int cluster, int packs>
class PackedRows {
 public:
  static constexpr int inputs = Op::inputs, height = Op::height, width = 16 / sizeof(T);
  using Slice = PackSlice<width>;

  /// Packs that a block has, at most, of rows of n.
  static constexpr TESSERA_HD int slice_packs(int n) { return ((n + 2 * (width - 1)) / width + cluster - 1) / cluster; }
  /// Packs of their room in shared memory, where they begin as far from its beginning as in memory from that of a line;
  /// those of shifted rows are one more. Rooms that begin lines are no faster: of rows of 50257, layer norm takes 126
  /// us with them, 122 so.
  static constexpr TESSERA_HD int pitch(int n) { return slice_packs(n) + 8; }
  static constexpr TESSERA_HD int shared_bytes(int n, int stages) {
    return head_bytes + (stages * inputs + Op::shared_columns) * pitch(n) * 16;
  }

  TESSERA_DEVICE PackedRows(const LongRows<T, inputs>& rows, Op& op, char* shared)
      : rows_(rows),
        op_(op),
        shared_(shared),
        pitch_(pitch(rows.n)),
        cluster_(static_cast<int>(tile::block_in_grid()) / cluster),
        slice_(rows.n, reinterpret_cast<size_t>(rows.out[cluster_]), cluster,
               static_cast<int>(tile::block_in_grid()) % cluster, rows.threads) {}

  TESSERA_DEVICE void run() {
    if (slice_.thread == 0) {
      for (int s = 0; s < rows_.stages; ++s) {
        tile::sm90::mbarrier_init(full(s), 1);
        left()[s] = 0;
      }
      for (int s = 0; s < 2; ++s) tile::sm90::mbarrier_init(told(s), 1);
      tile::sm90::fence_mbarrier_init();
    }
    tile::sm90::cluster_sync();
    tile::sm90::wait_on_dependent_grids();
    if (cluster_ >= rows_.rows) return;
    if (slice_.thread == 0)
      for (int s = 0; s < rows_.stages; ++s) fetch(s, s);
    op_.begin(slice_, room(rows_.stages));
    Known known[height];
    tile::unroll<height>([&](auto h) { known[h] = op_.know(existing(h)); });
    int stage = 0, round = 0;
    for (int turn = 0; row(turn * height) < rows_.rows; ++turn) {
      Known next[height];
      tile::unroll<height>([&](auto h) { next[h] = op_.know(existing((turn + 1) * height + h)); });
      take(turn, stage, round & 1, known);
      tile::unroll<height>([&](auto h) { known[h] = next[h]; });
      stage += height;
      if (stage == rows_.stages) stage = 0, ++round;
    }
    op_.end(slice_, cluster_, room(0));
  }

 private:
  using Known = typename Op::Known;
  // Shared memory: barriers, how many warps have left stages, parts of two turns, sums of two turns, stages, columns.
  static constexpr int most_stages = 8, left_at = (most_stages + 2) * 8, parts_at = left_at + most_stages * 4;
  static constexpr int sums_at = (parts_at + 2 * height * cluster * 8 + 15) / 16 * 16, sums_bytes = 32 * 16;
  static constexpr int head_bytes = (sums_at + 2 * sums_bytes + 127) / 128 * 128;

  TESSERA_DEVICE u32 full(int stage) const { return tile::sm90::shared_address(shared_) + stage * 8; }
  TESSERA_DEVICE u32 told(int parity) const { return full(most_stages + parity); }
  TESSERA_DEVICE int* left() const { return reinterpret_cast<int*>(shared_ + left_at); }
  TESSERA_DEVICE RowPart* parts(int turn, int h) const {
    return reinterpret_cast<RowPart*>(shared_ + parts_at) + ((turn & 1) * height + h) * cluster;
  }
  TESSERA_DEVICE Pack<T, width>* room(int stage) const {
    return reinterpret_cast<Pack<T, width>*>(shared_ + head_bytes) + stage * inputs * pitch_;
  }
  /// The cluster's i-th row, and that or the last one.
  TESSERA_DEVICE int row(int i) const { return cluster_ + i * static_cast<int>(gridDim.x / cluster); }
  TESSERA_DEVICE int existing(int i) const { return tile::min(row(i), rows_.rows - 1); }

  /// Where this block's columns of input k begin in a row: some bytes behind a multiple of 16.
  TESSERA_DEVICE size_t begin(int k, int row) const {
    return reinterpret_cast<size_t>(rows_.in[k][row] + slice_.begin);
  }
  /// Packs between the beginning of a line of memory and an address.
  static TESSERA_DEVICE int within_line(size_t address) { return static_cast<int>(address / 16 % 8); }

  /// Asks for row i: whole packs, of which the first and the last may hold neighbours, too; none is outside of the row.
  TESSERA_DEVICE void fetch(int i, int stage) const {
    const int r = row(i);
    if (r >= rows_.rows) return;
    const auto units = [&](int k) {
      const size_t first = reinterpret_cast<size_t>(rows_.in[k][r]), last = first + (slice_.n - 1) * sizeof(T);
      const size_t from = begin(k, r), to = from + (slice_.end - slice_.begin) * sizeof(T) - 1;
      return tile::Array<size_t, 2>{{tile::max(from, first) / 16, tile::min(to, last) / 16 + 1}};
    };
    u32 bytes = 0;
    tile::unroll<inputs>([&](auto k) { bytes += static_cast<u32>(units(k)[1] - units(k)[0]) * 16; });
    tile::sm90::mbarrier_arrive_expect_tx(full(stage), bytes);
    tile::unroll<inputs>([&](auto k) {
      const auto at = units(k);
      const size_t from = begin(k, r);
      const int to = k * pitch_ + within_line(from) + static_cast<int>(at[0] - from / 16);
      tile::sm90::bulk_load(tile::sm90::shared_address(room(stage) + to), reinterpret_cast<const T*>(at[0] * 16),
                            static_cast<u32>(at[1] - at[0]) * 16, full(stage));
    });
  }
  /// By all warps once they need row i no more; the last one asks for another in its place.
  TESSERA_DEVICE void leave(int i, int stage) const {
    tile::sync_warp();
    if (slice_.thread % 32 != 0) return;
    if (tile::sm90::count_shared(tile::sm90::shared_address(left() + stage)) + 1 != slice_.threads / 32) return;
    left()[stage] = 0;
    fetch(i + rows_.stages, stage);
  }
  /// All blocks of the cluster what this one's first warp has of the rows' sums.
  TESSERA_DEVICE void tell(int turn, const RowPart (&part)[height]) const {
    if constexpr (cluster == 1) {
      if (slice_.thread == 0) tile::unroll<height>([&](auto h) { *parts(turn, h) = part[h]; });
      tile::sync_block();
      return;
    }
    if (slice_.thread == 0) tile::sm90::mbarrier_arrive_expect_tx(told(turn & 1), cluster * height * sizeof(RowPart));
    if (slice_.thread < cluster)
      tile::unroll<height>([&](auto h) {
        tile::sm90::send(tile::sm90::shared_address(parts(turn, h) + slice_.rank), tile::bit_cast<u64>(part[h]),
                         told(turn & 1), slice_.thread);
      });
    tile::sm90::mbarrier_wait(told(turn & 1), turn >> 1 & 1);
  }
  TESSERA_DEVICE void take(int turn, int stage, int parity, const Known (&known)[height]) {
    SharedRows<T, height * inputs> x(slice_, room(stage));
    tile::unroll<height>([&](auto h) {
      const bool here = row(turn * height + h) < rows_.rows;
      tile::unroll<inputs>([&](auto i) {
        const size_t from = begin(i, existing(turn * height + h));
        const int at = h * inputs + i, shift = here ? static_cast<int>(from % 16) : 0;
        x.place(at, (at * pitch_ + within_line(from)) * 16 + shift);
      });
      if (here) return tile::sm90::mbarrier_wait(full(stage + h), parity);
      tile::sync_block();                        // others may still look at this thread's packs of the row before
      slice_.template each<packs>([&](auto k) {  // what this thread will read
        tile::unroll<inputs>([&](auto i) { x.clear(h * inputs + i, k); });
      });
    });
    RowPart part[height];
    op_.gather(slice_, known, x, part, reinterpret_cast<float*>(shared_ + sums_at + (turn & 1) * sums_bytes));
    tell(turn, part);
    tile::unroll<height>([&](auto h) {
      const int r = row(turn * height + h);
      if (r >= rows_.rows) return;
      const auto total = op_.total(slice_, r, known[h], parts(turn, h));
      T* const to = rows_.out[r];
      slice_.template each<packs>([&](auto k) {
        constexpr int count = tile::is_same_v<decltype(k), Edge> ? 1 : width;
        store_piece(to, Piece<count, int>{slice_.column(k)}, op_.result(k, h * inputs, x, total));
      });
      leave(turn * height + h, stage + h);
    });
  }

  const LongRows<T, inputs>& rows_;
  Op& op_;
  char* shared_;
  int pitch_, cluster_;
  Slice slice_;
};

}  // namespace tessera::gpu_kernels
