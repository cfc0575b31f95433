// What multiplies the tiles of operands that the sm80 pipeline keeps in shared memory: matrix instructions for 16-bit
// elements and for floats rounded to tf32, multiply-adds for floats as they are. A core says how the sums are shared
// out, and takes `step` elements along k at a time.
#pragma once
#include "../../vec.h"
#include "layout.h"
#include "ptx.h"

TESSERA_TILE_BEGIN
namespace sm80 {

/// mma.sync m16n8k16 on f16 or bf16.
template <class C, class TileA, class TileB>
struct HalfCore {
  using T = typename TileA::Element;
  using Sums = SumLayout<C, Arch::sm80, MmaSync16x8x16::C>;
  using ReadA = MatrixLines<TileA::along, false>;
  using ReadB = MatrixLines<TileB::along, true>;
  static constexpr int step = 16;

  struct Fragments {
    u32 a[Sums::atoms_m][4];
    u32 b[Sums::atoms_n / 2][4];

    /// Reads what this thread needs of the tiles from k on; row and column are its warp's.
    TESSERA_DEVICE void load(const T* tile_a, const T* tile_b, int row, int column, int k) {
      unroll<Sums::atoms_m>([&](auto i) { read<TileA, ReadA>(a[i], tile_a, row + i * 16, k); });
      unroll<Sums::atoms_n / 2>([&](auto j) { read<TileB, ReadB>(b[j], tile_b, column + j * 16, k); });
    }
    template <class Tile, class Lines>
    static TESSERA_DEVICE void read(u32 (&r)[4], const T* tile, int row, int k) {
      const auto at = thread_coords<Lines>(thread_in_block() % warp_size);
      load_matrices<Tile::along == 0>(r, tile + Tile::offset(row + at[0], k + at[1]));
    }
  };
  static TESSERA_DEVICE void multiply(const Fragments& f, float* sums) {
    unroll<Sums::atoms_m>([&](auto i) {
      unroll<Sums::atoms_n>(
          [&](auto j) { multiply_add<T>(sums + (i * Sums::atoms_n + j) * 4, f.a[i], f.b[j / 2] + j % 2 * 2); });
    });
  }
};

/// mma.sync m16n8k8 on floats, rounded to tf32. ldmatrix takes lines along k for 16-bit elements, two to a word; what
/// lies along the rows is read word by word.
template <class C, class TileA, class TileB>
struct Tf32Core {
  using T = float;
  using Sums = SumLayout<C, Arch::sm80, MmaSync16x8x8Tf32::C>;
  template <class Tile, bool Right>
  using Read = conditional_t<Tile::along == 1, MatrixLines<1, Right, 4>, Words>;
  using ReadA = Read<TileA, false>;
  using ReadB = Read<TileB, true>;
  static constexpr int step = 8;

  struct Fragments {
    u32 a[Sums::atoms_m][4];
    u32 b[Sums::atoms_n / 2][4];

    TESSERA_DEVICE void load(const float* tile_a, const float* tile_b, int row, int column, int k) {
      unroll<Sums::atoms_m>([&](auto i) { read<TileA, false>(a[i], tile_a, row + i * 16, k); });
      unroll<Sums::atoms_n / 2>([&](auto j) { read<TileB, true>(b[j], tile_b, column + j * 16, k); });
    }
    template <class Tile, bool Right>
    static TESSERA_DEVICE void read(u32 (&r)[4], const float* tile, int row, int k) {
      const auto at = thread_coords<Read<Tile, Right>>(thread_in_block() % warp_size);
      if constexpr (Tile::along == 1) {
        load_matrices<false>(r, tile + Tile::offset(row + at[0], k + at[1]));
      } else {
        unroll<4>([&](auto e) {
          constexpr int down = Right ? e / 2 : e % 2, deep = Right ? e % 2 : e / 2;
          r[e] = bit_cast<u32>(tile[Tile::offset(row + down * 8 + at[0], k + deep * 4 + at[1])]);
        });
      }
    }
  };
  static TESSERA_DEVICE void multiply(const Fragments& f, float* sums) {
    u32 b[Sums::atoms_n / 2][4];
    unroll<Sums::atoms_n / 2>([&](auto j) { unroll<4>([&](auto e) { b[j][e] = round_tf32(f.b[j][e]); }); });
    unroll<Sums::atoms_m>([&](auto i) {
      u32 a[4];
      unroll<4>([&](auto e) { a[e] = round_tf32(f.a[i][e]); });
      unroll<Sums::atoms_n>(
          [&](auto j) { multiply_add_tf32(sums + (i * Sums::atoms_n + j) * 4, a, b[j / 2] + j % 2 * 2); });
    });
  }
};

/// Multiply-adds on floats. A thread holds groups of four rows and four columns, and reads four elements at once,
/// whichever way the tile lies: neighbouring rows, or neighbours along k.
template <class C, class TileA, class TileB>
struct FloatCore {
  using T = float;
  /// Neighbouring lanes share columns and the next ones rows, so that shared memory serves both at once.
  struct Lanes {
    static constexpr TESSERA_HD auto layout() { return named("mn", lanes(4, 1) * lanes(1, 4) * lanes(2, 1)); }
  };
  static constexpr int near_m = TileA::along == 0 ? 4 : 1, near_n = TileB::along == 0 ? 4 : 1;
  struct Atom {
    static constexpr TESSERA_HD auto layout() {
      return named("mn", lanes(4, 1) * lanes(1, 4) * lanes(2, 1) * vec(near_m, near_n));
    }
  };
  using Sums = SumLayout<C, Arch::sm80, Atom>;
  using ReadA = Quads<TileA::along>;
  using ReadB = Quads<TileB::along>;
  static constexpr int step = 4, groups_m = Sums::rows / 32, groups_n = Sums::columns / 16;
  static_assert(groups_m * 32 == Sums::rows && groups_n * 16 == Sums::columns, "tile GEMM: rows in 32, columns in 16");

  /// Four rows (columns) x 4 k.
  struct Group {
    float at[4][4];

    /// Group `group` of lane `lane` of `lanes`, which start at `edge`.
    template <class Tile>
    TESSERA_DEVICE void load(const float* tile, int edge, int lane, int lanes, int group, int k) {
      using Quad = Pack<float, 4>;
      unroll<4>([&](auto i) {
        if constexpr (Tile::along == 1) {
          const int offset = Tile::offset(edge + (group * 4 + i) * lanes + lane, k);
          const Quad quad = *reinterpret_cast<const Quad*>(tile + offset);
          unroll<4>([&](auto e) { at[i][e] = quad.lane[e]; });
        } else {
          const int offset = Tile::offset(edge + (group * lanes + lane) * 4, k + i);
          const Quad quad = *reinterpret_cast<const Quad*>(tile + offset);
          unroll<4>([&](auto e) { at[e][i] = quad.lane[e]; });
        }
      });
    }
  };

  static TESSERA_DEVICE void multiply(const float* tile_a, const float* tile_b, int row, int column, int k,
                                      float* sums) {
    const auto lane = thread_coords<Lanes>(thread_in_block() % warp_size);
    Group a[groups_m];
    unroll<groups_m>([&](auto i) { a[i].template load<TileA>(tile_a, row, lane[0], 8, i, k); });
    unroll<groups_n>([&](auto j) {
      Group b;
      b.template load<TileB>(tile_b, column, lane[1], 4, j, k);
      unroll<step>([&](auto e) {
        unroll<groups_m * 4>([&](auto y) {
          unroll<4>([&](auto x) {
            float& sum = sums[place(y, j * 4 + x)];
            sum = fma(a[y / 4].at[y % 4][e], b.at[x][e], sum);
          });
        });
      });
    });
  }

 private:
  /// Which of a thread's sums belongs to its row y and column x.
  static constexpr TESSERA_HD int place(int y, int x) {
    return ((y / near_m * Sums::atoms_n + x / near_n) * near_m + y % near_m) * near_n + x % near_n;
  }
};

/// How floats are multiplied.
enum class Floats : u8 { exact, tf32 };

template <class C, class TileA, class TileB, Floats Precision>
struct CoreOf {
  using type = HalfCore<C, TileA, TileB>;
};
template <class C, class TileA, class TileB, Floats Precision>
requires is_same_v<typename TileA::Element, float>
struct CoreOf<C, TileA, TileB, Precision> {
  using type = conditional_t<Precision == Floats::tf32, Tf32Core<C, TileA, TileB>, FloatCore<C, TileA, TileB>>;
};

}  // namespace sm80
TESSERA_TILE_END
