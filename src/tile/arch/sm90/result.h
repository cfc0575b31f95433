// How a product's sums get to memory on Hopper's cards: an epilogue, any function of a sum and of elements of other
// matrices, makes elements of them, which leave through boxes of 16 rows of 128 bytes that the copy engine moves. One
// of the other matrices arrives in the same boxes, the next ones while this one is worked on.
#pragma once
#include "../gpu/fused_gemm.h"
#include "../sm80/ptx.h"
#include "gemm.h"
#include "quick.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// What the host passes. Rows of the result, and of all that goes through the copy engine, are whole units of 16 bytes.
struct ProductArgs {
  using Matrix = FusedGemmArgs::Matrix;
  TensorMap a, b, y;
  TensorMap slope;   // of an epilogue that has one, the second result
  TensorMap input;   // the matrix that arrives in boxes
  TensorMap pieces;  // sums in f32 of tiles that several blocks share, one tile below the other
  TileOrder order;
  Matrix d[FusedGemmArgs::max_addends];  // what the epilogue reads
  float* column_parts;                   // sums of the columns of 16 rows each, [batch][rows / 16][n], if asked for
  int m, n;
  bool input_batch;  // whether each product has an input of its own
};

/// How a product is cut, see Gemm.
template <int Rows, int Width, int Stages, int Boxes, bool Alternates>
struct ProductTile {
  static constexpr Config config{Rows, Width, 64, 12, Stages};
  static constexpr bool alternates = Alternates;
  static constexpr int boxes = Boxes;
};

/// What a lane of wgmma's sums has of 16 columns: pairs of columns 8 apart, each in 2 rows 8 apart, the rows side by
/// side.
using Unit = float[8];

/// Where the first value of a lane's unit lies in the result, and the unit in a box.
struct UnitPlace {
  int row, column;
  u32 box;
  int unit, lane;

  TESSERA_DEVICE u32 matrices() const { return box + swizzled(lane % 16, unit * 2 + lane / 16); }
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
// is waited for once.

/// Of 16-bit elements, contiguous along rows: through the boxes. At most one of them.
template <class T, int Boxes>
class Boxed {
 public:
  static constexpr bool in_boxes = true;
  TESSERA_DEVICE void begin(const ProductArgs::Matrix&, const TileWork&, int, int) {}
  TESSERA_DEVICE void ask(const UnitPlace& first) {
    unroll<4>([&](auto unit) {
      load_matrices(packed_[unit], UnitPlace{0, 0, first.box, unit, first.lane}.matrices());
    });
  }
  TESSERA_DEVICE void next() {}
  TESSERA_DEVICE void read(float* v, const ProductArgs::Matrix&, const UnitPlace& at, int, int) const {
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
      if (m.data && column < n) pairs_[box] = *reinterpret_cast<const Words*>(static_cast<const T*>(m.data) + column);
    });
  }
  TESSERA_DEVICE void ask(const UnitPlace& first) {
    unroll<8>([&](auto i) {
      unroll<words>([&](auto w) { mine_[i].lane[w] = __shfl_sync(~0u, pairs_[0].lane[w], i * 4 + first.lane % 4); });
    });
  }
  TESSERA_DEVICE void next() {
    const Words first = pairs_[0];
    unroll<Boxes - 1>([&](auto box) { pairs_[box] = pairs_[box + 1]; });
    pairs_[Boxes - 1] = first;
  }
  TESSERA_DEVICE void read(float* v, const ProductArgs::Matrix&, const UnitPlace& at, int, int) const {
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
  Words pairs_[Boxes] = {}, mine_[8];  // of a tile, and this lane's of a box
};

/// Any strides: element by element.
template <class T, int Boxes>
struct Anywhere {
  static constexpr bool in_boxes = false;
  TESSERA_DEVICE void begin(const ProductArgs::Matrix&, const TileWork&, int, int) {}
  TESSERA_DEVICE void ask(const UnitPlace&) {}
  TESSERA_DEVICE void next() {}
  TESSERA_DEVICE void read(float* v, const ProductArgs::Matrix& from, const UnitPlace& at, int m, int n) const {
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

// ---- the result

/// Of Element. Epilogue(acc, d0, d1, ...) is a quick::Value, or a quick::Both, whose slope goes to the second result;
/// results in f32 are the sums themselves. Epilogue::InPieces: tiles may be shared, and has no input. Columns: sums of
/// results' columns are wanted, too. C as for Gemm.
template <class C, class Element, bool Columns, class Epilogue, class... Inputs>
class ProductResult {
 public:
  using Gemm = sm90::Gemm<C>;
  using Sums = typename Gemm::Sums;
  using Made = decltype(Epilogue{}(quick::Value{}, (sizeof(Inputs), Given{})...));
  static constexpr int strips = Gemm::strips, wide = C::config.tile_n / 64, count = strips * wide;
  static constexpr bool has_input = (Inputs::in_boxes || ... || false), has_slope = is_same_v<Made, quick::Both>;
  static constexpr bool in_pieces = requires { typename Epilogue::InPieces; };
  static constexpr int apart = has_slope ? 2 : 1, slots = C::boxes / apart;  // boxes of 64 columns under way
  /// Whether a box is asked for before the one before it leaves; of two, it comes into the other one's place.
  static constexpr bool early = !has_input || slots > 2;
  /// Whether the boxes of a strip leave together, which waits for shared memory once.
  static constexpr bool together = !has_input && slots > wide;

  TESSERA_DEVICE ProductResult(const ProductArgs& args, const typename Gemm::Slab& slab) : args_(args), slab_(slab) {}

  /// Asks for what the epilogue reads, as far as there are boxes.
  TESSERA_DEVICE void prepare(const TileWork& work) {
    if (in_pieces && work.piece >= 0) return;
    find_lane();
    each([&](auto i, auto& input) { input.begin(args_.d[i], work, args_.n, lane_); });
    if constexpr (has_input) {
      if (lane_ == 0) {
        wait_stores_read<0>();
        for (int box = 0; box < min(slots, count); ++box) load_input(box, work);
      }
      sync_warp();
    }
  }

  /// One strip of 64 rows after the other, so that there is half the code; the next one's sums move up.
  TESSERA_DEVICE void store(Sums& sums, const TileWork& work) {
    find_lane();
    if constexpr (!has_input) wait_for_boxes<0>();
#pragma unroll 1
    for (int strip = 0; strip < strips; ++strip) {
      const int row = row_of(strip);
      if (in_pieces && work.piece >= 0) {
        if constexpr (in_pieces)
          store_sums(sums[0], args_.pieces, row + work.piece * C::config.tile_m, 0, 0, C::config.tile_n);
      } else if constexpr (is_same_v<Element, float>) {
        store_sums(sums[0], args_.y, row + work.row, work.column, work.batch, args_.n);
      } else {
        ask(strip * wide, row + work.row, work.column);
        unroll<wide>([&](auto place) {
          const int number = strip * wide + place, column = work.column + place * 64;
          const auto ask_next = [&] {
            each([](auto, auto& input) { input.next(); });
            if constexpr (decltype(place)::value + 1 < wide) ask(number + 1, row + work.row, column + 64);
          };
          make<together ? slots - 1 - place : slots - 1>(sums[0] + place * 32, number, row + work.row, column, work);
          if constexpr (early) ask_next();
          if constexpr (together) {
            if constexpr (decltype(place)::value + 1 == wide)
              close<wide>(strip * wide, row + work.row, work.column, work);
          } else {
            close<1>(number, row + work.row, column, work);
          }
          if constexpr (!early) ask_next();
        });
      }
      if constexpr (strips > 1) unroll<wide * 32>([&](auto i) { sums[0][i] = sums[1][i]; });
    }
  }
  /// Before the block ends: the copy engine has read the slabs.
  TESSERA_DEVICE void finish() const { wait_stores_read<0>(); }

 private:
  static_assert(strips <= 2 && !(has_input && (has_slope || in_pieces)),
                "sm90 results: two strips; an input, a slope or pieces");

  /// Anew for each tile: what is computed from it would otherwise keep registers from one tile to the next.
  TESSERA_DEVICE void find_lane() { asm volatile("mov.u32 %0, %laneid;" : "=r"(lane_)); }
  /// Of the tile, where the warp's part of a strip begins.
  static TESSERA_DEVICE int row_of(int strip) {
    const int warp = thread_in_block() / 32, group = Gemm::alternates ? 0 : warp / 4;
    return (group * strips + strip) * 64 + warp % 4 * 16;
  }

  template <int I, class Input>
  static TESSERA_DEVICE Input& in_slot(Slot<I, Input>& slot) {
    return slot.value;
  }
  template <class F>
  TESSERA_DEVICE void each(const F& f) {
    unroll<static_cast<int>(sizeof...(Inputs))>([&](auto i) { f(i, in_slot<decltype(i)::value>(inputs_)); });
  }

  /// Waits until at most Pending stores still read their boxes.
  template <int Pending>
  TESSERA_DEVICE void wait_for_boxes() const {
    if (lane_ == 0) wait_stores_read<Pending>();
    sync_warp();
  }

  /// By one lane.
  TESSERA_DEVICE void load_input(int number, const TileWork& work) const {
    const int strip = number / wide, slot = number % slots;
    arrive_expecting(slab_.barrier(slot), Gemm::box_bytes);
    load_box(slab_.box(slot), args_.input, slab_.barrier(slot), work.column + (number - strip * wide) * 64,
             work.row + row_of(strip), args_.input_batch ? work.batch : 0);
  }

  TESSERA_DEVICE u32 box_of(int number) const { return slab_.box(number % slots * apart); }

  /// Of a box: what the epilogue reads starts to come from shared memory.
  TESSERA_DEVICE void ask(int number, int row, int column) {
    if constexpr (has_input) {
      const int slot = number % slots;
      wait_for(slab_.barrier(slot), parities_ >> slot & 1);
      parities_ ^= 1u << slot;
    }
    each([&](auto, auto& input) { input.ask({row, column, box_of(number), 0, lane_}); });
  }

  /// Its elements are made, and put where they leave from, once at most Pending boxes are still leaving.
  template <int Pending>
  TESSERA_DEVICE void make(float* sums, int number, int row, int column, const TileWork& work) {
    if constexpr (!has_input) wait_for_boxes<Pending>();
    unroll<4>([&](auto unit) {
      const UnitPlace at{row + lane_ / 4, column + unit * 16 + lane_ % 4 * 2, box_of(number), unit, lane_};
      evaluate(sums + unit * 8, at, make_seq<static_cast<int>(sizeof...(Inputs))>{});
    });
    if constexpr (Columns) sum_columns(sums, row, column, work.batch);
  }

  /// It leaves, and those behind it.
  template <int Count>
  TESSERA_DEVICE void close(int number, int row, int column, const TileWork& work) const {
    publish_shared();
    sync_warp();
    if (lane_ == 0) unroll<Count>([&](auto i) { send(number + i, row, column + i * 64, work); });
  }
  /// By one lane.
  TESSERA_DEVICE void send(int number, int row, int column, const TileWork& work) const {
    const u32 box = box_of(number);
    if (column < args_.n) {
      sm90::store_box(box, args_.y, column, row, work.batch);
      if constexpr (has_slope) sm90::store_box(box + Gemm::box_bytes, args_.slope, column, row, work.batch);
    }
    commit_stores();
    if constexpr (has_input) {
      const int next = number - 1 + slots;  // takes the place of the box before this one
      if (number == 0 || next >= count) return;
      wait_stores_read<1>();
      load_input(next, work);
    }
  }

  template <int... I>
  TESSERA_DEVICE void evaluate(float* v, const UnitPlace& at, Seq<I...>) {
    float given[sizeof...(I) + 1][8], slopes[8];
    each([&](auto i, auto& input) { input.read(given[i], args_.d[i], at, args_.m, args_.n); });
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
    if constexpr (has_slope) put(slopes, at.matrices() + Gemm::box_bytes);
  }
  static TESSERA_DEVICE void put(const float* v, u32 matrices) {
    if constexpr (!is_same_v<Element, float>)
      store_matrices(matrices, sm80::pack<Element>(v[0], v[1]), sm80::pack<Element>(v[2], v[3]),
                     sm80::pack<Element>(v[4], v[5]), sm80::pack<Element>(v[6], v[7]));
  }

  /// A strip in f32, boxes of 32 columns.
  TESSERA_DEVICE void store_sums(const float* sums, const TensorMap& map, int row, int column, int batch, int n) const {
    unroll<wide * 2>([&](auto place) {
      const u32 box = slab_.box(place % C::boxes);
      wait_for_boxes<C::boxes - 1>();
      unroll<8>([&](auto pair) {  // pairs of columns 8 apart, each in 2 rows
        const int line = lane_ / 4 + pair % 2 * 8, chunk = pair / 2 * 2 + lane_ % 4 / 2;
        const float* const two = sums + place * 16 + pair * 2;
        store_pair(box + swizzled(line, chunk) + lane_ % 2 * 8, two[0], two[1]);
      });
      publish_shared();
      sync_warp();
      if (lane_ == 0) {
        if (column + place * 32 < n) sm90::store_box(box, map, column + place * 32, row, batch);
        commit_stores();
      }
    });
    if constexpr (wide * 2 % C::boxes != 0) wait_for_boxes<0>();  // the next strip begins with the first box
  }

  /// The sums of a box's columns over the warp's 16 rows, to the parts of the sums over all rows. Lanes that have the
  /// same columns halve what each of them goes on with, until each has two columns that are neighbours.
  TESSERA_DEVICE void sum_columns(const float* values, int row, int column, int batch) const {
    const int mine = row + lane_ / 4;
    float sums[16];
    unroll<16>([&](auto i) {  // columns i / 2 * 8 + i % 2 from the lane's first one on
      constexpr int first = i / 2 * 4 + i % 2;
      sums[i] = (mine < args_.m ? values[first] : 0.0f) + (mine + 8 < args_.m ? values[first + 2] : 0.0f);
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
    *reinterpret_cast<Pack<float, 2>*>(to) = {sums[0], sums[1]};
  }

  const ProductArgs& args_;
  typename Gemm::Slab slab_;
  Tuple<Inputs...> inputs_;
  int lane_ = 0;
  u32 parities_ = 0;  // of the boxes' barriers
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
  TileOrder order = args.order;
  order.transposed_a = TransposedA;
  order.transposed_b = TransposedB;
  Gemm<C>::template run<KnownOperands<Result, Operand, TransposedA, TransposedB>>(args.a, args.b, order, shared, args);
}

}  // namespace sm90
TESSERA_TILE_END
