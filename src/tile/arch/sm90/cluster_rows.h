// Long rows shared by the blocks of a cluster on Hopper. A row of the result is packs of 16 bytes at multiples of 16
// bytes and, one to a thread, the few elements beside them. A cluster takes only rows that lie within 16 bytes as its
// first one does, so that a thread has the same columns of each, and what belongs to columns stays in its registers.
// TMA brings rows to shared memory ahead of time; those of operands that lie otherwise than the result are
// shifted on their way from there. The order of all sums is that of blocks, threads and columns: results repeat.
#pragma once
#include "../gpu/row_tile.h"
#include "bulk.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// What a block has of a row's sums.
struct alignas(8) RowPart {
  float first, second;
};

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
        thread(thread_in_block()),
        threads(threads) {
    const int phase = -start;
    const int all = (phase + n + width - 1) / width;
    share = (all + cluster - 1) / cluster;
    begin = start + rank * share * width;
    end = start + min((rank + 1) * share, all) * width;
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
    return min(n, from + share * width) - max(0, from);
  }
  TESSERA_DEVICE int pack(int k) const { return own + k * threads; }
  template <class K>
  TESSERA_DEVICE auto place(K k) const {
    if constexpr (is_same_v<K, Edge>) return Place<1, Edge, int>{k, edge};
    else return Place<width, K, int>{k, first + pack(k) * width};
  }
  /// Of up to `most` packs each thread has so many; two guarded ones would cost long rows 7 % of their speed.
  static constexpr TESSERA_HD int sure(int most) { return most > 4 ? most - 1 : max(0, most - 2); }
  /// fn(place) for this thread's packs, and for its element beside them.
  template <int most, class Fn>
  TESSERA_DEVICE void each(const Fn& fn) const {
    unroll<sure(most)>([&](auto k) { fn(place(k)); });
    unroll<most - sure(most)>([&](auto i) {
      constexpr Int<sure(most) + decltype(i)::value> k;
      if (pack(k) < packs) fn(place(k));
    });
    if (edge >= 0) fn(place(Edge{}));
  }
};

/// What launches of ClusterRows say of rows.
struct ClusterShape {
  int count, n;
  int threads;  // of a block
  int stages;   // rows that shared memory holds
};

/// Rows of type T and of n columns, `height` at a time, of `inputs` operands, with `packs` packs a thread, some arrays
/// over the columns in shared memory. Of each operand those lie alike between which there are as many rows as there are
/// clusters. A store is the last that rows are asked for; it may be to one of the operands.
template <class T, int cluster, int packs, int inputs, int height_, int shared_columns>
class ClusterRows {
 public:
  static constexpr int height = height_, width = 16 / sizeof(T);
  static constexpr bool in_registers = false, fetches_ahead = true;
  using Packed = Pack<T, width>;
  class Staged;
  class Columns;
  class ColumnSums;

  /// Packs that a block has, at most, of rows of n.
  static constexpr TESSERA_HD int slice_packs(int n) { return ((n + 2 * (width - 1)) / width + cluster - 1) / cluster; }
  /// Packs of their room in shared memory, where they begin as far from its beginning as in memory from that of a line;
  /// those of shifted rows are one more. Rooms that begin lines are no faster: of rows of 50257, layer norm takes 126
  /// us with them, 122 so.
  static constexpr TESSERA_HD int pitch(int n) { return slice_packs(n) + 8; }
  static constexpr TESSERA_HD int shared_bytes(int n, int stages) {
    return head_bytes + (stages * inputs + shared_columns) * pitch(n) * 16;
  }
  static constexpr TESSERA_HD int sure_packs() { return PackSlice<width>::sure(packs); }

  TESSERA_DEVICE ClusterRows(const ClusterShape& shape, const Rows<T>& result, char* shared)
      : shape_(shape),
        shared_(shared),
        pitch_(pitch(shape.n)),
        cluster_(static_cast<int>(block_in_grid()) / cluster),
        slice_(shape.n, reinterpret_cast<size_t>(result[cluster_]), cluster,
               static_cast<int>(block_in_grid()) % cluster, shape.threads) {
    if (slice_.thread == 0) {
      for (int s = 0; s < shape.stages; ++s) {
        mbarrier_init(full(s), inputs);
        left()[s] = 0;
      }
      for (int s = 0; s < 2; ++s) mbarrier_init(told(s), 1);
      fence_mbarrier_init();
    }
    cluster_sync();
    wait_on_dependent_grids();
    slice_.template each<packs>([&](auto at) { elements_ += at.width; });
    of_warp_ = join_lanes(elements_, Add{});
    per_row_ = 1.0f / static_cast<float>(shape.n);
  }

  TESSERA_DEVICE auto tile(const Rows<const T>& from) {
    const int number = tiles_++;
    in_[number] = &from;
    if (tiles_ == inputs && slice_.thread == 0)  // the first row of all operands comes first
      for (int s = 0; s < shape_.stages; ++s) unroll<inputs>([&](auto k) { fetch(k, s, s); });
    return Staged(*this, number);
  }
  /// Rows that are needed late: none.
  template <class E>
  TESSERA_DEVICE None late_tile(const Rows<E>&) const {
    return {};
  }
  TESSERA_DEVICE auto columns(const T* data, float otherwise) {
    const Beside<T> array(data, reinterpret_cast<const void*>(-slice_.start * sizeof(T)), otherwise);
    return Columns(*this, array, room(shape_.stages) + arrays_++ * pitch_);
  }
  template <class C>
  TESSERA_DEVICE auto column_sums() const {
    return ColumnSums{};
  }
  TESSERA_DEVICE auto values(const float* from, float otherwise) const {
    LoadedValues<float, height> values{{}, from, otherwise, {}};
    values.fetch_rows(*this, 0);
    return values;
  }

  template <class... Tiles>
  TESSERA_DEVICE bool load(Tiles&... tiles) {
    if (turn_ >= 0 && (stage_ += height) == shape_.stages) stage_ = 0, ++round_;
    ++turn_;
    if (row(0) >= shape_.count) return false;
    unroll<height>([&](auto h) {
      if (row(h) < shape_.count) mbarrier_wait(full(stage_ + h), round_ & 1);
      else sync_block();  // others may still look at this thread's packs of the row before
    });
    (tiles.load(*this), ...);
    return true;
  }
  template <class Visit, class... Tiles>
  TESSERA_DEVICE void each(const Visit& visit, Tiles&... tiles) {
    slice_.template each<packs>(
        [&](auto at) { unroll<height>([&](auto h) { visit(h, at, tiles.value(h, at, tiles.fetch(h, at))...); }); });
  }
  /// Of floats, or of two; once a turn.
  template <class S>
  TESSERA_DEVICE RowValues<S, height> join(const RowValues<S, height>& own, Add) {
    constexpr int words = sizeof(S) / 4;
    auto sums = bit_cast<Array<float, height * words>>(own);
    sum_in_first_warp(sums.items);
    RowPart part[height];
    unroll<height>([&](auto h) { part[h] = {sums[h * words], words > 1 ? sums[h * words + words - 1] : 0.0f}; });
    tell(part);
    RowValues<S, height> all{};
    unroll<height>([&](auto h) {
      Array<float, words> sum{};
      unroll<cluster>([&](auto b) {
        sum[0] += parts(h)[b].first;
        if constexpr (words > 1) sum[1] += parts(h)[b].second;
      });
      all.of_row[h] = bit_cast<S>(sum);
    });
    return all;
  }
  template <class X>
  TESSERA_DEVICE RowValues<Moments<float>, 1> moments(const X& x, bool rms);

  template <class X>
  TESSERA_DEVICE void store(const Rows<T>& to, const X& x) {
    unroll<height>([&](auto h) {
      if (row(h) >= shape_.count) return;
      T* const at_row = to[row(h)];
      slice_.template each<packs>([&](auto at) { store_place(at_row, at, x.value(h, at, x.fetch(h, at))); });
      leave(turn_ * height + h, stage_ + h);
    });
  }
  /// What rows have added to columns, as [clusters][sums][n].
  template <class... Sums>
  TESSERA_DEVICE void store_sums(float* partial, int sums, const Sums&... columns) const {
    if (cluster_ >= shape_.count) return;
    int s = 0;
    const auto store = [&](const auto& column) {
      if (s < sums) column.store(*this, partial + (static_cast<i64>(cluster_) * sums + s) * slice_.n);
      ++s;
    };
    (store(columns), ...);
  }

  TESSERA_DEVICE int row(int h) const { return row_of(turn_ * height + h); }
  TESSERA_DEVICE int count() const { return shape_.count; }
  TESSERA_DEVICE int length() const { return slice_.n; }
  TESSERA_DEVICE bool is_first_thread() const { return slice_.rank == 0 && slice_.thread == 0; }
  TESSERA_DEVICE int existing_row(int h, int turns_ahead) const {
    return min(row_of((max(turn_, 0) + turns_ahead) * height + h), shape_.count - 1);
  }

 private:
  // Shared memory: barriers, how many warps have left stages, parts and sums of two turns, stages, columns.
  static constexpr int most_stages = 8, left_at = (most_stages + 2) * 8, parts_at = left_at + most_stages * 4;
  static constexpr int sums_at = (parts_at + 2 * height * cluster * 8 + 15) / 16 * 16, sums_bytes = 32 * 16;
  static constexpr int head_bytes = (sums_at + 2 * sums_bytes + 127) / 128 * 128;

  TESSERA_DEVICE u32 full(int stage) const { return shared_address(shared_) + stage * 8; }
  TESSERA_DEVICE u32 told(int parity) const { return full(most_stages + parity); }
  TESSERA_DEVICE int* left() const { return reinterpret_cast<int*>(shared_ + left_at); }
  TESSERA_DEVICE RowPart* parts(int h) const {
    return reinterpret_cast<RowPart*>(shared_ + parts_at) + ((turn_ & 1) * height + h) * cluster;
  }
  TESSERA_DEVICE Packed* room(int stage) const {
    return reinterpret_cast<Packed*>(shared_ + head_bytes) + stage * inputs * pitch_;
  }
  /// The cluster's i-th row.
  TESSERA_DEVICE int row_of(int i) const { return cluster_ + i * (blocks_in_grid() / cluster); }

  /// Where this block's columns of an operand begin in a row: some bytes behind a multiple of 16.
  TESSERA_DEVICE size_t begin(int number, int row) const {
    return reinterpret_cast<size_t>((*in_[number])[row] + slice_.begin);
  }
  /// Packs between the beginning of a line of memory and an address.
  static TESSERA_DEVICE int within_line(size_t address) { return static_cast<int>(address / 16 % 8); }

  /// Asks for row i: whole packs, of which the first and the last may hold neighbours, too; none is outside of the row.
  TESSERA_DEVICE void fetch(int number, int i, int stage) const {
    const int r = row_of(i);
    if (r >= shape_.count) return;
    const size_t first = reinterpret_cast<size_t>((*in_[number])[r]), last = first + (slice_.n - 1) * sizeof(T);
    const size_t from = begin(number, r), to = from + (slice_.end - slice_.begin) * sizeof(T) - 1;
    const size_t unit = max(from, first) / 16;
    const u32 bytes = static_cast<u32>(min(to, last) / 16 + 1 - unit) * 16;
    mbarrier_arrive_expect_tx(full(stage), bytes);
    const int at = number * pitch_ + within_line(from) + static_cast<int>(unit - from / 16);
    bulk_load(shared_address(room(stage) + at), reinterpret_cast<const T*>(unit * 16), bytes, full(stage));
  }
  /// By all warps once they need row i no more; the last one asks for another in its place.
  TESSERA_DEVICE void leave(int i, int stage) const {
    sync_warp();
    if (slice_.thread % 32 != 0) return;
    if (count_shared(shared_address(left() + stage)) + 1 != slice_.threads / 32) return;
    left()[stage] = 0;
    unroll<inputs>([&](auto number) { fetch(number, i + shape_.stages, stage); });
  }
  TESSERA_DEVICE float* sums_room() const {
    return reinterpret_cast<float*>(shared_ + sums_at + (turn_ & 1) * sums_bytes);
  }
  /// Sums over the block, in its first warp.
  template <int count>
  TESSERA_DEVICE void sum_in_first_warp(float (&v)[count]) const {
    static_assert(count <= 4);
    float* const room = sums_room();
    const int lane = slice_.thread % 32;
    unroll<count>([&](auto i) {
      v[i] = join_lanes(v[i], Add{});
      if (lane == 0) room[slice_.thread / 32 * count + i] = v[i];
    });
    sync_block();
    if (slice_.thread >= 32) return;
    unroll<count>(
        [&](auto i) { v[i] = join_lanes(lane < slice_.threads / 32 ? room[lane * count + i] : 0.0f, Add{}); });
  }
  /// All blocks of the cluster what this one's first warp has of the rows' sums.
  TESSERA_DEVICE void tell(const RowPart (&part)[height]) const {
    if constexpr (cluster == 1) {
      if (slice_.thread == 0) unroll<height>([&](auto h) { *parts(h) = part[h]; });
      sync_block();
    } else {
      const u32 barrier = told(turn_ & 1);
      if (slice_.thread == 0) mbarrier_arrive_expect_tx(barrier, cluster * height * sizeof(RowPart));
      if (slice_.thread < cluster)
        unroll<height>([&](auto h) {
          send(shared_address(parts(h) + slice_.rank), bit_cast<u64>(part[h]), barrier, slice_.thread);
        });
      mbarrier_wait(barrier, turn_ >> 1 & 1);
    }
  }

  const ClusterShape& shape_;
  char* shared_;
  int pitch_, cluster_;
  PackSlice<width> slice_;
  const Rows<const T>* in_[inputs];
  float elements_ = 0, of_warp_, per_row_;  // that this thread has of a row, and its warp; the share of one
  int tiles_ = 0, arrays_ = 0, turn_ = -1, stage_ = 0, round_ = 0;
};

/// Rows of a block's slice in shared memory.
template <class T, int cluster, int packs, int inputs, int height, int shared_columns>
class ClusterRows<T, cluster, packs, inputs, height, shared_columns>::Staged : public InHand {
 public:
  static constexpr bool holds = true;
  using Element = float;
  TESSERA_DEVICE Staged(const ClusterRows& rows, int number) : rows_(rows), number_(number) {}

  TESSERA_DEVICE void load(const ClusterRows&) {
    room_ = reinterpret_cast<char*>(rows_.room(rows_.stage_));
    unroll<height>([&](auto h) {
      const bool here = rows_.row(h) < rows_.shape_.count;
      const size_t from = rows_.begin(number_, rows_.existing_row(h, 0));
      at_[h] = ((h * inputs + number_) * rows_.pitch_ + within_line(from)) * 16 + (here ? from % 16 : 0);
      if (here) return;
      rows_.slice_.template each<packs>([&](auto at) { at_place(h, at) = {}; });  // what this thread will read
    });
  }
  template <class H, class At>
  TESSERA_DEVICE auto value(H h, const At& at, None) const {
    if constexpr (At::width == 1) {
      return Lanes<T, 1>(at_place(h, at));
    } else {
      const Packed* const from = &at_place(h, at);
      const int shift = at_[h] & 15;
      const Packed first = *from, second = shift != 0 ? from[1] : Packed{};
      return Lanes<T, width>(shifted(first, second, shift));
    }
  }

 private:
  template <class At>
  TESSERA_DEVICE Pack<T, At::width>& at_place(int h, const At& at) const {
    const auto& slice = rows_.slice_;
    if constexpr (At::width == 1) {
      return *reinterpret_cast<Pack<T, 1>*>(room_ + at_[h] + (slice.edge - slice.begin) * static_cast<int>(sizeof(T)));
    } else {
      const int whole = (slice.first > slice.begin) + slice.pack(at.k);
      return *reinterpret_cast<Packed*>(room_ + (at_[h] & ~15) + whole * 16);
    }
  }

  const ClusterRows& rows_;
  int number_;
  char* room_;
  int at_[height];  // from which byte of the room on a row lies
};

/// What a thread keeps for its columns, in shared memory where registers do not suffice.
template <class T, int cluster, int packs, int inputs, int height, int shared_columns>
class ClusterRows<T, cluster, packs, inputs, height, shared_columns>::Columns : public InHand {
 public:
  static constexpr bool holds = true;
  using Element = float;
  TESSERA_DEVICE Columns(const ClusterRows& rows, const Beside<T>& array, Packed* room)
      : slice_(rows.slice_), room_(room) {
    slice_.template each<packs>([&](auto at) {
      const auto pack = array.is_missing() ? filled<T, at.width>(array.otherwise())
                                           : array.pack(Int<0>{}, at, array.fetch(Int<0>{}, at));
      if constexpr (at.width == 1) edge_ = pack;
      else if constexpr (shared_columns > 0) room_[slice_.pack(at.k)] = pack;
      else words_[at.k] = bit_cast<Array<u32, 4>>(pack);
    });
  }
  template <class H, class At>
  TESSERA_DEVICE auto value(H, const At& at, None) const {
    if constexpr (At::width == 1) {
      return Lanes<T, 1>(edge_);
    } else if constexpr (shared_columns > 0) {
      return Lanes<T, width>(room_[slice_.pack(at.k)]);
    } else {
      auto words = words_[at.k];
      // or nvcc would widen all of them ahead of the loop over rows, for which registers do not suffice
      unroll<4>([&](auto i) { asm volatile("" : "+r"(words[i])); });
      return Lanes<T, width>(bit_cast<Packed>(words));
    }
  }

 private:
  const PackSlice<width>& slice_;
  Packed* room_;
  Array<u32, 4> words_[packs];
  Pack<T, 1> edge_;
};

/// Sums of a thread's columns, to which a fold adds.
template <class T, int cluster, int packs, int inputs, int height, int shared_columns>
class ClusterRows<T, cluster, packs, inputs, height, shared_columns>::ColumnSums : public InHand {
 public:
  template <class H, class At>
  TESSERA_DEVICE float* value(H, const At& at, None) {
    return sum(at.k);
  }
  /// By way of shared memory, so that warps write whole lines.
  TESSERA_DEVICE void store(const ClusterRows& rows, float* to) const {
    const auto& slice = rows.slice_;
    float* const columns = reinterpret_cast<float*>(rows.room(0));  // from slice.begin on
    const int from = max(0, slice.begin), length = min(slice.n, slice.end) - from;
    sync_block();
    slice.template each<packs>([&](auto at) {
      constexpr int width = at.width, count = width == 1 ? 1 : 4;
      const float* const own = const_cast<ColumnSums*>(this)->sum(at.k);
      unroll<width / count>([&](auto i) {
        Pack<float, count> four;
        unroll<count>([&](auto j) { four.lane[j] = own[i * 4 + j]; });
        *reinterpret_cast<Pack<float, count>*>(columns + at.column - slice.begin + i * 4) = four;
      });
    });
    sync_block();
    for (int i = slice.thread; i < length; i += slice.threads) to[from + i] = columns[from - slice.begin + i];
  }

 private:
  TESSERA_DEVICE float* sum(int k) { return pack_[k]; }
  TESSERA_DEVICE float* sum(Edge) { return edge_; }

  float pack_[packs][width] = {}, edge_[1] = {};
};

/// Blocks' means and squares of what elements differ from them. A thread's are of its elements less the mean of its
/// first ones, from which the mean of all is at most so far that 1 + packs times the rounding cancel.
template <class T, int cluster, int packs, int inputs, int height, int shared_columns>
template <class X>
TESSERA_DEVICE RowValues<Moments<float>, 1> ClusterRows<T, cluster, packs, inputs, height, shared_columns>::moments(
    const X& x, bool rms) {
  if (rms)
    return map_tile(
        [n = static_cast<float>(slice_.n)](float s) {
          return Moments<float>{0.0f, s, n};
        },
        reduce_tile<float>(
            *this, [](float& s, float v) { s = fma(v, v, s); }, x));
  constexpr Int<0> h;
  float shift = 0, sum = 0, squares = 0;
  const auto first = slice_.place(h);
  const auto some = x.value(h, first, None{});
  unroll<width>([&](auto j) { shift += some[j]; });
  shift /= width;
  for_each_place(
      *this,
      [&](auto, float v) {
        const float d = v - shift;
        sum += d;
        squares = fma(d, d, squares);
      },
      x);
  float middle = sum * (1.0f / elements_);
  squares = fma(-sum, middle, squares);
  middle += shift;
  // Of a warp, of the block, of the cluster: the mean first, then squares by what means differ from that.
  const float warp = join_lanes(middle * elements_, Add{}) * (1.0f / of_warp_), off = middle - warp;
  squares = join_lanes(fma(off * off, elements_, squares), Add{});
  auto* const warps = reinterpret_cast<Array<float, 4>*>(sums_room());
  const int thread = slice_.thread;
  if (thread % 32 == 0) warps[thread / 32] = {{warp, squares, of_warp_, 0.0f}};
  sync_block();
  RowPart part[1]{};
  if (thread < 32) {
    const auto own = thread < slice_.threads / 32 ? warps[thread] : Array<float, 4>{};
    const float mean = join_lanes(own[0] * own[2], Add{}) / static_cast<float>(slice_.length(slice_.rank));
    const float d = own[0] - mean;
    part[0] = {mean, join_lanes(fma(d * d, own[2], own[1]), Add{})};
  }
  tell(part);
  float mean = 0, all = 0;
  const auto length = [&](int b) { return static_cast<float>(slice_.length(b)); };
  unroll<cluster>([&](auto b) { mean = fma(parts(0)[b].first, length(b), mean); });
  mean *= per_row_;
  unroll<cluster>([&](auto b) {
    const float d = parts(0)[b].first - mean;
    all += fma(d * d, length(b), parts(0)[b].second);
  });
  return {{{mean, all, static_cast<float>(slice_.n)}}};
}

}  // namespace sm90
TESSERA_TILE_END
