// The epilogue of products on Hopper's cards: any function of an accumulator and of elements of other matrices, whose
// results TMA stores from boxes of 64 rows of 128 bytes in shared memory. One of the other matrices arrives in the same
// boxes. One producer warp loads what arrives, another one stores what is ready, so that consumers wait for neither.
#pragma once
#include "../gpu/fused_gemm.h"
#include "../sm80/ptx.h"
#include "gemm.h"
#include "quick.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// What the host passes. Rows of the result, and of all that goes through TMA, are 16-byte aligned.
struct ProductArgs {
  using Matrix = FusedGemmArgs::Matrix;
  /// The columns behind the last 16-byte vector of a row, which TMA does not store: strides in bytes.
  struct Place {
    void* data;
    i64 row, batch;
  };
  TensorMap a, b, y;
  TensorMap slope;  // of an epilogue that has one, the second result
  TensorMap input;  // the matrix that arrives in boxes
  TileScheduler order;
  Matrix d[FusedGemmArgs::max_addends];  // what the epilogue reads
  float* column_parts;                   // sums of the columns of 16 rows each, [batch][rows / 16][n], if asked for
  int m, n, whole;                       // of the columns, those in 16-byte vectors
  int edge_bytes;                        // of a row, those of the other columns
  bool input_batch;                      // whether each product has an input of its own
  bool is_f32;                           // asked by kernels whose results may also be halves
  Place edge[2];                         // y and the slope, for the other columns
};

/// A config of Gemm.
template <int Rows, int Width, int Stages, int Boxes, bool PingPong, int Warps = 12>
struct ProductTile {
  static constexpr Config config{Rows, Width, 64, Warps, Stages};
  static constexpr bool ping_pong = PingPong;
  static constexpr int boxes = Boxes;
};

/// What a lane has of 16 columns of wgmma's accumulators: pairs of columns 8 apart, each in 2 rows 8 apart, the rows
/// side by side.
using Unit = float[8];

/// Where the first value of a lane's unit lies in the result, and the unit in a box of 64 columns or, Apart, in one of
/// two boxes of 32 that lie so many bytes apart.
template <int Apart = 0>
struct UnitPlace {
  int row, column;
  u32 box;
  int unit, lane;

  TESSERA_DEVICE u32 matrices(int unit) const {
    if constexpr (Apart == 0) return box + swizzled(lane % 16, unit * 2 + lane / 16);
    else return box + unit / 2 * Apart + swizzled_narrow(lane % 16, unit % 2 * 2 + lane / 16);
  }
  TESSERA_DEVICE u32 matrices() const { return matrices(unit); }
};

template <class T>
TESSERA_DEVICE void unpack_pair(u32 packed, float& first, float& second) {
  if constexpr (is_same_v<T, bf16>) {
    first = bit_cast<float>(packed << 16);
    second = bit_cast<float>(packed & 0xffff0000u);
  } else {
    first = detail::f16_to_f32(static_cast<u16>(packed));
    second = detail::f16_to_f32(static_cast<u16>(packed >> 16));
  }
}

// ---- the matrices that an epilogue reads, by what is known of them; Boxes of 64 columns make a tile

// ask() comes before the first read() of a box, so that shared memory, which is busy with the other group's operands,
// is waited for once; of so many Units.

/// Of 16-bit elements, contiguous along rows: through the boxes. At most one of them.
template <class T, int Boxes>
class Boxed {
 public:
  static constexpr bool in_boxes = true;
  TESSERA_DEVICE void begin(const ProductArgs::Matrix&, const TileWork&, int, int) {}
  template <int Units, class Place>
  TESSERA_DEVICE void ask(const Place& first) {
    unroll<Units>([&](auto unit) { ldmatrix(packed_[unit], first.matrices(unit)); });
  }
  TESSERA_DEVICE void next() {}
  template <class Place>
  TESSERA_DEVICE void read(float* v, const ProductArgs::Matrix&, const Place& at, int, int) const {
    unroll<4>([&](auto i) { unpack_pair<T>(packed_[at.unit][i], v[2 * i], v[2 * i + 1]); });
  }

 private:
  u32 packed_[4][4];
};

/// The same in all rows, pairs aligned, or nothing, which is 0: asked for before the tile is summed up, a pair a lane.
/// Those of a box come first.
template <class T, int Boxes>
class PerColumn {
 public:
  static constexpr bool in_boxes = false;
  TESSERA_DEVICE void begin(const ProductArgs::Matrix& m, const TileWork& work, int n, int lane) {
    unroll<Boxes>([&](auto box) {
      const int column = work.column + box * 64 + lane * 2;
      if (!m.data || column >= n) return;
      const T* const from = static_cast<const T*>(m.data) + column;
      if (column + 1 < n) pairs_[box] = *reinterpret_cast<const Words*>(from);
      else pairs_[box] = {*reinterpret_cast<const OneWord*>(from)};
    });
  }
  template <int Units, class Place>
  TESSERA_DEVICE void ask(const Place& first) {
    unroll<2 * Units>([&](auto i) {
      unroll<words>([&](auto w) { mine_[i].lane[w] = __shfl_sync(~0u, pairs_[0].lane[w], i * 4 + first.lane % 4); });
    });
  }
  TESSERA_DEVICE void next() {
    const Words first = pairs_[0];
    unroll<Boxes - 1>([&](auto box) { pairs_[box] = pairs_[box + 1]; });
    pairs_[Boxes - 1] = first;
  }
  template <class Place>
  TESSERA_DEVICE void read(float* v, const ProductArgs::Matrix&, const Place& at, int, int) const {
    unroll<2>([&](auto i) {
      const Words& two = mine_[at.unit * 2 + i];
      float first, second;
      if constexpr (words == 2) {
        first = bit_cast<float>(two.lane[0]);
        second = bit_cast<float>(two.lane[1]);
      } else {
        unpack_pair<T>(two.lane[0], first, second);
      }
      v[4 * i] = v[4 * i + 2] = first;
      v[4 * i + 1] = v[4 * i + 3] = second;
    });
  }

 private:
  static constexpr int words = sizeof(T) / 2;  // of a pair
  using Words = Pack<u32, words>;
  using OneWord = conditional_t<words == 2, u32, u16>;
  Words pairs_[Boxes] = {}, mine_[8];  // of a tile, and this lane's of a box
};

/// Any strides: element by element.
template <class T, int Boxes>
struct Anywhere {
  static constexpr bool in_boxes = false;
  TESSERA_DEVICE void begin(const ProductArgs::Matrix&, const TileWork&, int, int) {}
  template <int Units, class Place>
  TESSERA_DEVICE void ask(const Place&) {}
  TESSERA_DEVICE void next() {}
  template <class Place>
  TESSERA_DEVICE void read(float* v, const ProductArgs::Matrix& from, const Place& at, int m, int n) const {
    unroll<8>([&](auto i) {
      const int row = at.row + i / 2 % 2 * 8, column = at.column + i / 4 * 8 + i % 2;
      v[i] = 0;
      if (row < m && column < n)
        v[i] = convert_element<float>(static_cast<const T*>(from.data)[row * from.row + column * from.column]);
    });
  }
};

/// An element of one of them, as the epilogue asks for it: load(d0).
struct Given {
  float value;
};
TESSERA_DEVICE quick::Value load(Given given) { return given.value; }
/// Two, side by side.
struct GivenPair {
  float x, y;
};
TESSERA_DEVICE quick::Pair load(GivenPair given) { return {given.x, given.y}; }

// ---- the result

/// What Epilogue(acc, d0, d1, ...) makes of accumulators: a quick::Value, or a quick::Both, whose slope goes to the
/// second result; one that takes a quick::Pair makes two results in f16 at a time.
template <class Element, class Epilogue, class... Inputs>
class Elements {
 public:
  using Made = decltype(Epilogue{}(quick::Value{}, (sizeof(Inputs), Given{})...));
  static constexpr bool has_input = (Inputs::in_boxes || ... || false), has_slope = is_same_v<Made, quick::Both>;
  static constexpr bool in_pairs = is_same_v<Element, f16> && requires {
    Epilogue{}(quick::Pair(0), (sizeof(Inputs), GivenPair{})...);
  };

  TESSERA_DEVICE explicit Elements(const ProductArgs& args) : args_(args) {}

 protected:
  template <int I, class Input>
  static TESSERA_DEVICE Input& in_slot(Slot<I, Input>& slot) {
    return slot.value;
  }
  template <class F>
  TESSERA_DEVICE void each(const F& f) {
    unroll<static_cast<int>(sizeof...(Inputs))>([&](auto i) { f(i, in_slot<decltype(i)::value>(inputs_)); });
  }

  /// Asks for what a tile's elements are made of.
  TESSERA_DEVICE void begin(const TileWork& work, int lane) {
    each([&](auto i, auto& input) { input.begin(args_.d[i], work, args_.n, lane); });
  }

  /// The elements of a unit are put where they leave from.
  template <class Place>
  TESSERA_DEVICE void make_unit(float* v, const Place& at) {
    evaluate(v, at, make_seq<static_cast<int>(sizeof...(Inputs))>{});
  }

  const ProductArgs& args_;

 private:
  template <class Place, int... I>
  TESSERA_DEVICE void evaluate(float* v, const Place& at, Seq<I...>) {
    float given[sizeof...(I) + 1][8], slopes[8];
    each([&](auto i, auto& input) { input.read(given[i], args_.d[i], at, args_.m, args_.n); });
    if constexpr (in_pairs) {
      u32 both[4];
      unroll<4>([&](auto p) {
        both[p] = quick::rounded(Epilogue{}(quick::Pair(v[2 * p], v[2 * p + 1]),
                                            GivenPair{given[I][2 * p], given[I][2 * p + 1]}...))
                      .both;
      });
      return stmatrix(at.matrices(), both[0], both[1], both[2], both[3]);
    }
    unroll<8>([&](auto j) {
      const Made made = Epilogue{}(quick::Value(v[j]), Given{given[I][j]}...);
      if constexpr (has_slope) {
        v[j] = made.value;
        slopes[j] = made.slope;
      } else {
        v[j] = made.x;
      }
    });
    put(v, at.matrices());
    if constexpr (has_slope) put(slopes, at.matrices() + ResultBoxes::box_bytes);
  }
  static TESSERA_DEVICE void put(const float* v, u32 matrices) {
    stmatrix(matrices, sm80::pack<Element>(v[0], v[1]), sm80::pack<Element>(v[2], v[3]),
             sm80::pack<Element>(v[4], v[5]), sm80::pack<Element>(v[6], v[7]));
  }

  Tuple<Inputs...> inputs_;
};

/// Of Element; results in f32 are the accumulators. Columns: sums of results' columns are wanted, too. C as for
/// Gemm.
template <class C, class Element, bool Columns, class Epilogue, class... Inputs>
class ProductResult : public Elements<Element, Epilogue, Inputs...> {
  using Base = Elements<Element, Epilogue, Inputs...>;
  using Base::args_, Base::each;

 public:
  using Gemm = sm90::Gemm<C>;
  using Accumulators = typename Gemm::Accumulators;
  using Base::has_input, Base::has_slope;
  static constexpr int columns = line_bytes / sizeof(Element);  // of a box
  static constexpr int strips = Gemm::strips, wide = C::config.tile_n / columns, count = strips * wide;
  static constexpr int groups = Gemm::groups, tile_warpgroups = Gemm::tile_warpgroups;
  static constexpr int apart = has_slope ? 2 : 1, slots = C::boxes / apart;  // for boxes of the ring
  static constexpr int unit = 16 / sizeof(Element);                          // the least that TMA stores

  TESSERA_DEVICE ProductResult(const ProductArgs& args, const ResultBoxes& boxes)
      : Base(args), boxes_(boxes), next_(thread_in_block() / 128 * (Gemm::ping_pong ? count : 1)) {}

  /// Asks for what the epilogue reads.
  TESSERA_DEVICE void prepare(const TileWork& work) {
    find_lane();
    Base::begin(work, lane_);
  }

  /// One strip of 64 rows after the other, so that there is half the code; the next one's accumulators move up.
  TESSERA_DEVICE void store(Accumulators& acc, const TileWork& work) {
    find_lane();
    int number = next_;
    next_ += groups * count;
    // A box's barriers tell its last use from the one before by a bit: no group may be a tile ahead of the other.
    [[maybe_unused]] const int self = thread_in_block() / 128;
    if constexpr (Gemm::ping_pong)
      mbarrier_wait(boxes_.order_barrier(self), static_cast<u32>(number / (groups * count) ^ self ^ 1) & 1);
#pragma unroll 1
    for (int strip = 0; strip < strips; ++strip) {
      const int row = work.row + (group() * strips + strip) * 64 + warp() * 16;
      unroll<wide>([&](auto place) {
        const int slot = number % slots, column = work.column + place * columns;
        const u32 parity = number / slots & 1, box = box_of(boxes_, slot) + warp() * ResultBoxes::warp_bytes;
        if constexpr (has_input) mbarrier_wait(boxes_.full(slot), parity);
        each([&](auto, auto& input) { input.template ask<4>(UnitPlace<>{row, column, box, 0, lane_}); });
        if constexpr (!has_input) mbarrier_wait(boxes_.empty(slot), parity ^ 1);
        make(acc[0] + place * (columns / 2), box, row, column, work.batch);
        fence_proxy_async();
        sync_warp();
        if (lane_ == 0) mbarrier_arrive(boxes_.ready(slot));
        each([](auto, auto& input) { input.next(); });
        number += tile_warpgroups;
      });
      if constexpr (strips > 1) unroll<C::config.tile_n / 2>([&](auto i) { acc[0][i] = acc[1][i]; });
    }
    if constexpr (Gemm::ping_pong)
      if (lane_ == 0) mbarrier_arrive(boxes_.order_barrier(self ^ 1));
  }

  /// Called by all threads of the producer warpgroup: its second warp loads, its third one stores.
  static TESSERA_DEVICE void assist(const TileScheduler& order, const ProductArgs& args, const ResultBoxes& boxes) {
    const int assistant = thread_in_block() / 32 - Gemm::consumer_warps;
    if (has_input && assistant == 1 && thread_in_block() % 32 == 0) load_inputs(order, args, boxes);
    if (assistant == 2)
      store_boxes(order, args, boxes,
                  [&](u32 box, int column, int row, int batch) { sm90::tma_store(box, args.y, column, row, batch); });
  }

 protected:
  /// store(box, column, row, batch) starts copying a box to the result; called by the third warp.
  template <class Store>
  static TESSERA_DEVICE void store_boxes(const TileScheduler& order, const ProductArgs& args, const ResultBoxes& boxes,
                                         const Store& store) {
    each_box(order, [&](int number, const TileWork& work, int row, int column) {
      const int slot = number % slots;
      const u32 box = box_of(boxes, slot);
      mbarrier_wait(boxes.ready(slot), number / slots & 1);
      if (column < args.whole && elect_one()) {
        store(box, column, row, work.batch);
        if constexpr (has_slope) sm90::tma_store(box + ResultBoxes::box_bytes, args.slope, column, row, work.batch);
      }
      tma_store_commit();
      if (args.edge_bytes != 0 && column <= args.whole && args.whole < column + columns)
        unroll<apart>(
            [&](auto i) { store_edge(args.edge[i], args, box + i * ResultBoxes::box_bytes, row, work.batch); });
      constexpr int pending = slots > 1;  // the one before has been read, or this one
      tma_store_wait_read<pending>();
      if (number >= pending && elect_one()) mbarrier_arrive(boxes.empty((number - pending) % slots));
    });
    tma_store_wait_read<0>();
  }

  /// Boxes are numbered, over all tiles of a block, in the order in which they are filled; of a tile that groups share,
  /// one after the other. Calls f with the number of each, the tile and where the box lies in it.
  template <class F>
  static TESSERA_DEVICE void each_box(const TileScheduler& order, const F& f) {
    int number = 0;
    Gemm::each_tile(order, [&](const TileWork& work) {
#pragma unroll 1
      for (int i = 0; i < count * tile_warpgroups; ++i, ++number) {
        const int group = i % tile_warpgroups, strip = i / tile_warpgroups / wide,
                  place = i / tile_warpgroups - strip * wide;
        f(number, work, work.row + (group * strips + strip) * 64, work.column + place * columns);
      }
    });
  }
  static TESSERA_DEVICE u32 box_of(const ResultBoxes& boxes, int slot) { return boxes.box(slot * apart); }

 private:
  static_assert(strips <= 2 && !(has_input && has_slope) && slots > 0, "sm90 results: two strips; an input or a slope");
  static_assert(Gemm::ping_pong || slots % tile_warpgroups == 0,
                "sm90 results: groups that share a tile have boxes of their own");

  /// Box by box, in a fifth of the time that sums of 2048 and more take (85 ns a box for each step of 64, whatever the
  /// tile): asked for at once, by all blocks, they would hold up the operands that these want then.
  static TESSERA_DEVICE void load_inputs(const TileScheduler& order, const ProductArgs& args,
                                         const ResultBoxes& boxes) {
    each_box(order, [&](int number, const TileWork& work, int row, int column) {
      const int slot = number % slots;
      mbarrier_wait(boxes.empty(slot), (number / slots & 1) ^ 1);
      if (order.k_tiles >= 32) nanosleep(order.k_tiles * 16);
      mbarrier_arrive_expect_tx(boxes.full(slot), ResultBoxes::box_bytes);
      tma_load(box_of(boxes, slot), args.input, boxes.full(slot), column, row, args.input_batch ? work.batch : 0);
    });
  }

  /// The columns of a box behind the last 16-byte vector, of which TMA would store all: two rows a lane.
  static TESSERA_DEVICE void store_edge(const ProductArgs::Place& to, const ProductArgs& args, u32 box, int row,
                                        int batch) {
    int line;  // anew, as for find_lane()
    asm volatile("mov.u32 %0, %laneid;" : "=r"(line));
#pragma unroll 1
    for (; line < 64; line += 32) {
      if (row + line >= args.m) break;
      u32 from = box + swizzled(line, args.whole % columns / unit);
      char* at = static_cast<char*>(to.data) + batch * to.batch + (row + line) * to.row;
      if (args.edge_bytes & 8) *reinterpret_cast<u64*>(at) = load_shared<u64>(from), at += 8, from += 8;
      if (args.edge_bytes & 4) *reinterpret_cast<u32*>(at) = load_shared<u32>(from), at += 4, from += 4;
      if (args.edge_bytes & 2) *reinterpret_cast<u16*>(at) = load_shared<u16>(from);
    }
    sync_warp();  // before the box is given back
  }

  /// Anew for each tile: what is computed from it would otherwise keep registers from one tile to the next.
  TESSERA_DEVICE void find_lane() { asm volatile("mov.u32 %0, %laneid;" : "=r"(lane_)); }
  static TESSERA_DEVICE int group() { return Gemm::ping_pong ? 0 : thread_in_block() / 128; }
  static TESSERA_DEVICE int warp() { return thread_in_block() / 32 % 4; }

  /// The elements of a warp's part of a box are made, and put where they leave from.
  TESSERA_DEVICE void make(float* acc, u32 box, int row, int column, int batch) {
    if constexpr (is_same_v<Element, float>) {
      unroll<8>([&](auto pair) {  // pairs of columns 8 apart, each in 2 rows
        const int line = lane_ / 4 + pair % 2 * 8, chunk = pair / 2 * 2 + lane_ % 4 / 2;
        store_pair(box + swizzled(line, chunk) + lane_ % 2 * 8, acc[2 * pair], acc[2 * pair + 1]);
      });
    } else {
      unroll<4>([&](auto unit) {
        Base::make_unit(acc + unit * 8,
                        UnitPlace<>{row + lane_ / 4, column + unit * 16 + lane_ % 4 * 2, box, unit, lane_});
      });
      if constexpr (Columns) sum_columns(acc, row, column, batch);
    }
  }

  /// The sums of a box's columns over the warp's 16 rows, to the parts of the sums over all rows: products with a
  /// factor, so that rows behind the last are zeros. Lanes that have the same columns halve what each of them goes on
  /// with, until each has two columns that are neighbours.
  TESSERA_DEVICE void sum_columns(const float* values, int row, int column, int batch) const {
    float sums[16];
    unroll<16>([&](auto i) {  // columns i / 2 * 8 + i % 2 from the lane's first one on
      constexpr int first = i / 2 * 4 + i % 2;
      sums[i] = values[first] + values[first + 2];
    });
    unroll<3>([&](auto round) {
      constexpr int half = 8 >> round;
      const bool upper = lane_ & (16 >> round);
      unroll<half>([&](auto i) {
        const float send = upper ? sums[i] : sums[i + half], keep = upper ? sums[i + half] : sums[i];
        sums[i] = keep + from_lane_xor(send, 16 >> round);
      });
    });
    column += lane_ * 2;
    if (row >= args_.m || column >= args_.n) return;
    float* const to = args_.column_parts + (i64{batch} * ceil_div(args_.m, 16) + row / 16) * args_.n + column;
    if (args_.n % 2 == 0) {
      *reinterpret_cast<Pack<float, 2>*>(to) = {sums[0], sums[1]};
    } else {
      to[0] = sums[0];
      if (column + 1 < args_.n) to[1] = sums[1];
    }
  }

  ResultBoxes boxes_;
  int lane_ = 0, next_;  // the number of the next box
};

/// With operands of a type and orientation that are known, see Gemm.
template <class Result, class T, bool TransposedA, bool TransposedB>
struct KnownOperands : Result {
  using Operand = T;
  static constexpr bool transposed_a = TransposedA, transposed_b = TransposedB;
  using Result::Result;
};

/// Called by all threads of a block of C::config.warps, with shared_bytes of shared memory.
template <class C, class Operand, bool TransposedA, bool TransposedB, class Result>
TESSERA_DEVICE void product_block(const ProductArgs& args, const char* shared) {
  TileScheduler order = args.order;
  order.transposed_a = TransposedA;
  order.transposed_b = TransposedB;
  Gemm<C>::template run<KnownOperands<Result, Operand, TransposedA, TransposedB>>(args.a, args.b, order, shared, args);
}

}  // namespace sm90
TESSERA_TILE_END
