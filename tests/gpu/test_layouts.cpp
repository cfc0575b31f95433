// The tile GEMMs of the GPUs, thread by thread on the CPU: who fetches what, where it lies in shared memory, who reads
// it, and what the matrix instructions make of it by their manuals' formulas, compared with float64. Runs without any
// GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "tile/arch/cdna/layout.h"
#include "tile/arch/sm80/layout.h"
#include "tile/arch/sm90/head_tiles.h"

using namespace tessera::tile;

namespace {

using Matrix = std::vector<std::vector<double>>;

/// What a lane holds of an operand: [lane][element].
using Registers = std::vector<std::vector<float>>;

float value(f16 x) { return static_cast<float>(x); }

/// mma.sync.m16n8k16: lane l = 4 g + t. Element e of a: row g + 8 (e / 2 % 2), k 2 t + e % 2 + 8 (e / 4); of b: column
/// g, k 2 t + e % 2 + 8 (e / 2); of the result: row g + 8 (e / 2), column 2 t + e % 2 (PTX ISA, "mma.m16n8k16").
void mma_16x8x16(const Registers& a, const Registers& b, Registers& sums) {
  double left[16][16], right[16][8];
  for (int l = 0; l < 32; ++l) {
    for (int e = 0; e < 8; ++e) left[l / 4 + 8 * (e / 2 % 2)][l % 4 * 2 + e % 2 + 8 * (e / 4)] = a[l][e];
    for (int e = 0; e < 4; ++e) right[l % 4 * 2 + e % 2 + 8 * (e / 2)][l / 4] = b[l][e];
  }
  for (int l = 0; l < 32; ++l)
    for (int e = 0; e < 4; ++e)
      for (int k = 0; k < 16; ++k)
        sums[l][e] += static_cast<float>(left[l / 4 + 8 * (e / 2)][k] * right[k][l % 4 * 2 + e % 2]);
}

/// v_mfma_f32_32x32x8: element e of a: row l % 32, k 4 (l / 32) + e; of b: column l % 32, same k; of the result: row
/// 8 (e / 4) + 4 (l / 32) + e % 4, column l % 32 (Instinct MI200 instruction set architecture, 7.1.4).
void mfma_32x32x8(const Registers& a, const Registers& b, Registers& sums) {
  for (int l = 0; l < 64; ++l)
    for (int e = 0; e < 16; ++e)
      for (int k = 0; k < 8; ++k) {
        const int row = 8 * (e / 4) + 4 * (l / 32) + e % 4;
        sums[l][e] += a[row + 32 * (k / 4)][k % 4] * b[l % 32 + 32 * (k / 4)][k % 4];
      }
}

/// ldmatrix.x4: lane l points at row l % 8 of matrix l / 8; lane 4 g + t receives elements (g, 2 t) and (g, 2 t + 1) of
/// each matrix, or of its transpose.
std::vector<float> ldmatrix(const std::vector<const f16*>& rows, bool transposed, int lane) {
  std::vector<float> held;
  for (int matrix = 0; matrix < 4; ++matrix)
    for (int e = 0; e < 2; ++e) {
      const int i = lane / 4, j = lane % 4 * 2 + e;
      held.push_back(value(transposed ? rows[matrix * 8 + j][i] : rows[matrix * 8 + i][j]));
    }
  return held;
}

/// Sums of one block as its threads hold them, put in their places by the layout of the pipeline.
template <class Sums>
Matrix placed(const std::vector<std::vector<float>>& held, int rows, int columns) {
  Matrix result(rows, std::vector<double>(columns, std::nan("")));
  for_each_element<Sums>([&](int thread, auto r, int m, int n) { result[m][n] = held[thread][r]; });
  return result;
}

template <class A, class B, class C>
struct Sm80Block {
  static constexpr int M = C::config.tile_m, N = C::config.tile_n, K = C::config.tile_k, Warps = C::config.warps;
  using FetchA = Fetch<A, M, K, Warps, 32>;
  using FetchB = Fetch<B, N, K, Warps, 32>;
  using Sums = SumLayout<C, Arch::sm80, MmaSync16x8x16::C>;
  static_assert(validate(C::config, {0, 0, 0, 2}, Arch::sm80) == Reason::ok);
  static_assert(sm80::is_conflict_free<FetchA, sm80::MatrixLines<FetchA::along, false>>() &&
                sm80::is_conflict_free<FetchB, sm80::MatrixLines<FetchB::along, true>>());

  template <class F>
  static void copy(F& fetch, std::vector<f16>& tile) {
    for (int i = 0; i < F::count; ++i)
      for (int p = 0; p < F::pieces; ++p)
        for (int e = 0; e < F::width; ++e)
          tile[fetch.offset(i) + p * F::width + e] = fetch.valid(i, p) ? fetch.address(i, p)[e] : f16(0.0f);
    fetch.next();
  }

  template <class Tile, bool Right>
  static Registers read(const std::vector<f16>& tile, int row, int k) {
    std::vector<const f16*> lines;
    for (int lane = 0; lane < 32; ++lane) {
      const auto at = thread_coords<sm80::MatrixLines<Tile::along, Right>>(lane);
      lines.push_back(tile.data() + Tile::offset(row + at[0], k + at[1]));
    }
    Registers held;
    for (int lane = 0; lane < 32; ++lane) held.push_back(ldmatrix(lines, Tile::along == 0, lane));
    return held;
  }

  static Matrix run(const A& a, const B& b, int m, int n, int depth) {
    std::vector<FetchA> left;
    std::vector<FetchB> right;
    for (int thread = 0; thread < Warps * 32; ++thread) {
      left.emplace_back(a, m, 0, depth, thread);
      right.emplace_back(b, n, 0, depth, thread);
    }
    std::vector<f16> tile_a(FetchA::Tile::size), tile_b(FetchB::Tile::size);
    std::vector<std::vector<float>> held(Warps * 32, std::vector<float>(Sums::layout().registers()));
    for (int begin = 0; begin < depth; begin += K) {
      for (auto& fetch : left) copy(fetch, tile_a);
      for (auto& fetch : right) copy(fetch, tile_b);
      for (int warp = 0; warp < Warps; ++warp)
        for (int k = 0; k < K; k += 16)
          for (int i = 0; i < Sums::atoms_m; ++i)
            for (int j = 0; j < Sums::atoms_n; ++j) {
              const auto x = read<typename FetchA::Tile, false>(tile_a, Sums::row(warp) + i * 16, k);
              const auto y = read<typename FetchB::Tile, true>(tile_b, Sums::column(warp) + j / 2 * 16, k);
              Registers z, sums;
              for (int l = 0; l < 32; ++l) {
                z.push_back({y[l].begin() + j % 2 * 4, y[l].begin() + j % 2 * 4 + 4});
                const float* at = held[warp * 32 + l].data() + (i * Sums::atoms_n + j) * 4;
                sums.emplace_back(at, at + 4);
              }
              mma_16x8x16(x, z, sums);
              for (int l = 0; l < 32; ++l)
                std::copy(sums[l].begin(), sums[l].end(), held[warp * 32 + l].begin() + (i * Sums::atoms_n + j) * 4);
            }
    }
    return placed<Sums>(held, M, N);
  }
};

template <class A, class B, class C>
struct CdnaBlock {
  static constexpr int M = C::config.tile_m, N = C::config.tile_n, K = C::config.tile_k, Waves = C::config.warps;
  static_assert(validate(C::config, {0, 0, 0, 2}, Arch::cdna) == Reason::ok);
  using FetchA = cdna::Prefetch<A, M, K, Waves, 32>;
  using FetchB = cdna::Prefetch<B, N, K, Waves, 32>;
  using Sums = SumLayout<C, Arch::cdna, Mfma32x32x8::C>;
  static_assert(cdna::reads_conflict_free<typename FetchA::Tile>());
  static_assert(cdna::reads_conflict_free<typename FetchB::Tile>());

  template <class Tile>
  static Registers read(const std::vector<f16>& tile, int row, int k, int half) {
    Registers held;
    for (int lane = 0; lane < 64; ++lane) {
      const auto at = thread_coords<cdna::Operands<f16>>(lane);
      const f16* from = tile.data() + Tile::offset(row + at[0], k + at[1]) + half * 4;
      held.push_back({value(from[0]), value(from[1]), value(from[2]), value(from[3])});
    }
    return held;
  }

  static Matrix run(const A& a, const B& b, int m, int n, int depth) {
    std::vector<FetchA> left;
    std::vector<FetchB> right;
    for (int thread = 0; thread < Waves * 64; ++thread) {
      left.emplace_back(a, m, 0, depth, thread);
      right.emplace_back(b, n, 0, depth, thread);
    }
    alignas(16) static f16 tile_memory_a[FetchA::Tile::size], tile_memory_b[FetchB::Tile::size];
    std::vector<std::vector<float>> held(Waves * 64, std::vector<float>(Sums::layout().registers()));
    for (int begin = 0; begin < depth; begin += K) {
      for (auto& fetch : left) fetch.load(), fetch.store(tile_memory_a);
      for (auto& fetch : right) fetch.load(), fetch.store(tile_memory_b);
      const std::vector<f16> tile_a(tile_memory_a, tile_memory_a + FetchA::Tile::size);
      const std::vector<f16> tile_b(tile_memory_b, tile_memory_b + FetchB::Tile::size);
      for (int wave = 0; wave < Waves; ++wave)
        for (int k = 0; k < K; k += 16)
          for (int half = 0; half < 2; ++half)
            for (int i = 0; i < Sums::atoms_m; ++i)
              for (int j = 0; j < Sums::atoms_n; ++j) {
                Registers sums;
                const int first = (i * Sums::atoms_n + j) * 16;
                for (int l = 0; l < 64; ++l)
                  sums.emplace_back(&held[wave * 64 + l][first], &held[wave * 64 + l][first] + 16);
                mfma_32x32x8(read<typename FetchA::Tile>(tile_a, Sums::row(wave) + i * 32, k, half),
                             read<typename FetchB::Tile>(tile_b, Sums::column(wave) + j * 32, k, half), sums);
                for (int l = 0; l < 64; ++l)
                  std::copy(sums[l].begin(), sums[l].end(), held[wave * 64 + l].begin() + first);
              }
    }
    return placed<Sums>(held, M, N);
  }
};

/// Random f16 elements in memory aligned for the widest access.
struct Elements {
  explicit Elements(int count) : memory(count + 8) {
    static std::mt19937 random(4242);
    std::normal_distribution<float> normal;
    for (f16& x : memory) x = f16(normal(random));
  }
  const f16* data() const {
    return memory.data() + (16 - reinterpret_cast<std::uintptr_t>(memory.data()) % 16) % 16 / sizeof(f16);
  }
  std::vector<f16> memory;
};

/// Compares the tile at (m, n) of a(m, k) b(n, k) with float64; what lies outside the views must have summed up to
/// zero.
template <class Block, class A, class B>
void expect_product(const A& a, const B& b, int m, int n, int rows, int columns) {
  const int depth = static_cast<int>(a.length(1));
  const Matrix got = Block::run(a, b, m, n, depth);
  double error = 0, norm = 0;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) {
      double want = 0;
      if (m + i < a.length(0) && n + j < b.length(0))
        for (int k = 0; k < depth; ++k)
          if (a.valid(m + i, k) && b.valid(n + j, k)) want += double(value(a.at(m + i, k))) * value(b.at(n + j, k));
      ASSERT_FALSE(std::isnan(got[i][j])) << "nobody holds " << i << ", " << j;
      error += (got[i][j] - want) * (got[i][j] - want);
      norm += want * want;
    }
  EXPECT_LT(std::sqrt(error), 1e-6 * std::sqrt(norm));
  EXPECT_GT(norm, 0);
}

template <int Width>
auto along_depth(const Elements& x, int rows, int depth, int pitch) {
  return strided(x.data(), tuple(rows, multiple_of<Width>(depth)), tuple(multiple_of<Width>(pitch), Int<1>{}));
}
template <int Width>
auto along_rows(const Elements& x, int rows, int depth, int pitch) {
  return strided(x.data(), tuple(multiple_of<Width>(rows), depth), tuple(Int<1>{}, multiple_of<Width>(pitch)));
}

/// Both pipelines on the same operands.
template <class A, class B>
void expect_products(const A& a, const B& b, int m, int n) {
  expect_product<Sm80Block<A, B, Choice<64, 64, 32, 4, 4>>>(a, b, m, n, 64, 64);
  expect_product<CdnaBlock<A, B, Choice<128, 128, 32, 4, 2>>>(a, b, m, n, 128, 128);
}

TEST(TileGemmLayouts, ContiguousAlongDepth) {
  const Elements x(80 * 48), y(80 * 56);
  expect_products(along_depth<8>(x, 77, 40, 48), along_depth<8>(y, 65, 40, 56), 0, 0);
  expect_products(along_depth<8>(x, 77, 40, 48), along_depth<8>(y, 65, 40, 56), 64, 64);
}

TEST(TileGemmLayouts, ContiguousAlongRows) {
  const Elements x(37 * 80), y(37 * 72);
  expect_products(along_rows<8>(x, 72, 37, 80), along_rows<8>(y, 64, 37, 72), 0, 0);
}

TEST(TileGemmLayouts, MixedTranspositions) {
  const Elements x(80 * 48), y(48 * 72);
  expect_products(along_depth<8>(x, 33, 40, 48), along_rows<8>(y, 64, 40, 72), 0, 0);
  expect_products(along_rows<8>(y, 64, 40, 72), along_depth<8>(x, 33, 40, 48), 0, 0);
}

TEST(TileGemmLayouts, NarrowAccesses) {
  const Elements x(70 * 64), y(70 * 64);
  expect_products(along_depth<1>(x, 33, 41, 43), along_depth<1>(y, 65, 41, 41), 0, 0);
  expect_products(along_depth<2>(x, 33, 42, 46), along_rows<2>(y, 66, 42, 70), 0, 0);
  expect_products(along_depth<4>(x, 1, 4, 4), along_rows<4>(y, 4, 4, 4), 0, 0);
}

template <class Nvidia, class Amd, class A, class B>
void expect_products_with(const A& a, const B& b) {
  expect_product<Sm80Block<A, B, Nvidia>>(a, b, 0, 0, Nvidia::config.tile_m, Nvidia::config.tile_n);
  expect_product<CdnaBlock<A, B, Amd>>(a, b, 0, 0, Amd::config.tile_m, Amd::config.tile_n);
}

TEST(TileGemmLayouts, OtherTilesAndWarps) {
  const Elements x(80 * 136), y(136 * 72);
  const auto a = along_depth<8>(x, 77, 136, 136), b = along_depth<8>(y, 65, 136, 136);
  const auto c = along_rows<8>(x, 80, 131, 80), d = along_rows<8>(y, 72, 131, 72);
  expect_products_with<Choice<32, 32, 32, 1, 2>, Choice<32, 32, 32, 1, 2>>(a, d);
  expect_products_with<Choice<32, 128, 128, 4, 2>, Choice<64, 64, 64, 4, 2>>(c, b);
  expect_products_with<Choice<256, 64, 64, 8, 2>, Choice<128, 128, 64, 4, 2>>(c, d);
}

TEST(TileGemmLayouts, StridesOnlyKnownAtRunTime) {
  const Elements x(64 * 64), y(64 * 64);
  const i64 rows = 33, columns = 35, depth = 37;
  expect_products(strided(x.data(), {rows, depth}, {1, 40}), strided(y.data(), {columns, depth}, {50, 1}), 0, 0);
}

/// A convolution's operand: windows of a padded row, merged with the channels; nothing is copied.
TEST(TileGemmLayouts, ViewsWithPaddingAndMerges) {
  const int width = 21, channels = 8;
  const Elements x(width * channels), y(64 * 24);
  const auto image = strided(x.data(), tuple(width, Int<8>{}), tuple(Int<8>{}, Int<1>{}));
  const auto padded = transform(image, pad(Int<1>{}, Int<1>{}), pass());
  const auto windows = transform(padded, affine(tuple(Int<3>{}, width), tuple(Int<1>{}, Int<1>{})), pass());
  const auto a = transform(windows, pass<1>(), merge<0, 2>());  // (position, filter x channel)
  static_assert(!decltype(a)::is_strided && decltype(a)::width<1>() == channels);
  expect_products(a, along_depth<8>(y, 33, 24, 24), 0, 0);
}

TEST(HeadTiles, BlocksTakeEachTileOnceAndEqualSharesOfCausalHeads) {
  constexpr int blocks = 132, rows = 128;  // of an H100; of a tile
  for (const auto [length, heads, together] :
       {std::array{1024, 256, 64}, {1024, 144, 144}, {4096, 64, 16}, {16384, 16, 4}, {16384, 15, 4}}) {
    const sm90::HeadTiles order{length / rows, heads, together, true};
    std::vector<int> taken(order.tiles * heads);
    std::vector<double> work(blocks);
    for (int block = 0; block < blocks; ++block)
      order.each(block, blocks, [&](const sm90::HeadTiles::Place& place) {
        ++taken[place.head * order.tiles + place.tile];
        work[block] += place.tile + 1;
      });
    EXPECT_EQ(std::ranges::count(taken, 1), order.tiles * heads);
    const double mean = heads * order.tiles * (order.tiles + 1) / 2.0 / blocks;
    EXPECT_LT(*std::ranges::max_element(work), 1.05 * mean) << length << " x " << heads << ", together " << together;
  }
}

}  // namespace
