// Shared memory and matrix instructions of the cdna pipeline: who fetches and reads what. Compiles for the host too.
#pragma once
#include "../../matrix_layout.h"
#include "../gpu/operand.h"

TESSERA_TILE_BEGIN
namespace cdna {

inline constexpr int wave_size = 64;

/// What a lane reads at once from shared memory, 16 bytes of Edge rows for a wave: operands of two matrix instructions
/// for halves, which take elements 0 to 3 and 4 to 7, and of four for floats and i8. That permutes k, for both operands
/// alike, so the sum is the same.
template <class T, int Edge = 32>
struct Operands {
  static constexpr int held = 16 / static_cast<int>(sizeof(T));
  static constexpr int depth = wave_size / Edge * held;
  static constexpr TESSERA_HD auto layout() {
    return named("rk", lanes(1, wave_size / Edge) * lanes(Edge, 1) * vec(1, held));
  }
};

/// Rows x Depth elements in shared memory, contiguous along the depth, in lines of 64 or n * 128 bytes. Chunks of 16
/// bytes are permuted within 128, by bits of the row that tell apart both the rows that are read together and those
/// that a wave writes at a time where it transposes. Of 16 rows, four are read together with the next chunk of others.
template <class E, int Rows, int Depth, int Edge = 32>
struct OperandTile {
  using Element = E;
  static constexpr int edge = Edge;
  static constexpr int size = Rows * Depth, chunk = 16 / static_cast<int>(sizeof(E));
  static_assert(Depth == 4 * chunk || Depth % (8 * chunk) == 0, "operands: lines of 64 or n * 128 bytes");

  /// Where element (row, k) lies, in elements.
  static constexpr TESSERA_HD int offset(int row, int k) {
    const u32 r = static_cast<u32>(row), c = static_cast<u32>(k) / chunk;  // unsigned: divisions are shifts
    const u32 spread = ((Edge == 32 ? r / 4 : 0) ^ r / 32) % 2 | (r / 2 ^ r / 16) % 2 * 2 | (r ^ r / 8) % 2 * 4;
    return static_cast<int>((r * Depth & ~(8 * chunk - 1)) + (c ^ spread) * chunk) + k % chunk;
  }
};

/// Whether reading the operands from this tile meets no bank twice.
template <class Tile>
constexpr TESSERA_HD bool reads_conflict_free() {
  const auto offset = [](const auto& c) { return Tile::offset(c[0], c[1]); };
  using T = typename Tile::Element;
  return bank_use(Operands<T, Tile::edge>::layout(), SharedMemory::amd_read, sizeof(T), offset).is_conflict_free();
}

/// Elements that one instruction loads.
template <int Bytes>
struct alignas(Bytes) Piece {
  static_assert(Bytes >= 2, "tile GEMM: bytes are loaded two at a time or more");
  using Word = conditional_t<(Bytes >= 4), u32, u16>;
  static constexpr int count = Bytes / static_cast<int>(sizeof(Word));
  Word words[count];

  /// Moves what begins `by` elements further on to the front, or for by < 0 the front back; zeros take its place.
  template <int ElementBytes>
  TESSERA_HD void slide(int by) {
    using Bits = conditional_t<Bytes == 8, u64, unsigned __int128>;
    static_assert(sizeof(Bits) == Bytes, "tile GEMM: packs of 8 or 16 bytes slide");
    Bits bits;
    __builtin_memcpy(&bits, words, Bytes);
    bits = bits >> max(by, 0) * ElementBytes * 8 << max(-by, 0) * ElementBytes * 8;
    __builtin_memcpy(words, &bits, Bytes);
  }
};

/// Fetches the tiles of an operand by way of registers. In shared memory they are contiguous along k, as the matrix
/// instructions want them: what is contiguous along its rows in global memory is transposed in registers.
template <class V, int Rows, int Depth, int Waves, int Edge>
class Prefetch {
 public:
  static constexpr bool transposes = contiguous_dim<V>() == 0;
  using Source = Fetch<V, Rows, Depth, Waves, wave_size, transposes>;
  using T = typename Source::T;
  using Tile = OperandTile<T, Rows, Depth, Edge>;

  /// Starts at element (row, k) of the view; nothing at or beyond `end` along the depth is read.
  TESSERA_HD Prefetch(const V& view, int row, int k, int end, int thread)
      : source_(view, row, k, end, thread), anywhere_(view.data) {}

  /// Starts loading a tile. Loads never branch, so that they are all under way at once: what is not valid reads the
  /// first element instead, and is cleared later.
  TESSERA_HD void load() {
    valid_ = 0;
    unroll<count * pieces>([&](auto n) {
      const T* from = source_.address(n / pieces, n % pieces);
      const T* anywhere = anywhere_;  // two values to choose from; two members would keep this object in memory
      const bool valid = source_.valid(n / pieces, n % pieces);
      if constexpr (keeps_valid) valid_ |= static_cast<u32>(valid) << n;
      from = valid ? from : anywhere;
      __builtin_memcpy(&held_[n], __builtin_assume_aligned(from, Source::alignment), sizeof(Held));
    });
  }

  /// Puts the loaded tile into shared memory, and moves on to the next one.
  TESSERA_HD void store(T* tile) {
    unroll<count * pieces>([&](auto n) {
      const auto valid = [&] {
        if constexpr (keeps_valid) return (valid_ >> n & 1) != 0;
        else return source_.valid(n / pieces, n % pieces);
      }();
      unroll<Held::count>([&](auto w) {
        touch(held_[n].words[w]);
        held_[n].words[w] = valid ? held_[n].words[w] : 0;
      });
      if constexpr (Source::slides) held_[n].template slide<sizeof(T)>(source_.slide(n / pieces, n % pieces));
    });
    T chunks[count][Tile::chunk];
    __builtin_memcpy(chunks, held_, sizeof chunks);
    if constexpr (transposes) {
      static_assert(count <= Tile::chunk && Tile::chunk % count == 0, "tile GEMM: a thread cannot transpose that much");
      unroll<Tile::chunk>([&](auto e) {
        T line[count];
        unroll<count>([&](auto i) { line[i] = chunks[i][e]; });
        put<sizeof line>(tile + Tile::offset(source_.column() + e, source_.line()), line);
      });
    } else {
      unroll<count>([&](auto i) {
        put<16>(tile + Tile::offset(source_.line() + i * Source::Layout::step, source_.column()), chunks[i]);
      });
    }
    source_.next();
  }

  /// How many times the cycles that its bytes need a wave's first write to shared memory takes, which the others are
  /// like.
  static constexpr int write_conflicts() {
    struct Write {
      static constexpr TESSERA_HD auto layout() {
        return named("te", lanes(wave_size, 1) * vec(1, transposes ? count : Tile::chunk));
      }
    };
    const BankUse use = bank_use(Write::layout(), SharedMemory::amd_write, sizeof(T), [](const auto& c) {
      const auto at = thread_coords<typename Source::Layout>(c[0]);
      return transposes ? Tile::offset(at[1], at[0] + c[1]) : Tile::offset(at[0], at[1] + c[1]);
    });
    return ceil_div(use.cycles, use.ideal);
  }

 private:
  static constexpr int count = Source::count, pieces = Source::pieces;
  /// Many pieces are marked in a register's bits; a pair of scalar registers for each would leave too few.
  static constexpr bool keeps_valid = !Source::is_strided && count * pieces > 8 && count* pieces <= 32;
  using Held = Piece<Source::width* static_cast<int>(sizeof(T))>;

  template <int Bytes>
  static TESSERA_HD void put(T* to, const T* from) {
    __builtin_memcpy(__builtin_assume_aligned(to, Bytes), from, Bytes);
  }

  Source source_;
  const T* anywhere_;
  Held held_[count * pieces];
  u32 valid_;
};

}  // namespace cdna
TESSERA_TILE_END
