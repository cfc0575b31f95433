// Tile GEMM of one block on NVIDIA cards from compute capability 8.0 on: cp.async fills a ring of stages in swizzled
// shared memory, ldmatrix and mma.sync work on them, fragments are loaded one step ahead.
#pragma once
#include "../gpu/operand.h"
#include "layout.h"
#include "ptx.h"

TESSERA_TILE_BEGIN
namespace sm80 {

/// The sum over k of a(m, k) * b(n, k) for one tile of M x N, in float. A and B are views of f16 or bf16: (row, k), (column, k).
template <class A, class B, int M, int N, int K, int Warps, int Stages>
class Gemm {
 public:
  static constexpr int threads = Warps * 32;
  using FetchA = Fetch<A, M, K, threads>;
  using FetchB = Fetch<B, N, K, threads>;
  using T = typename FetchA::T;
  using Grid = WarpGrid<M, N, Warps, 16, 16>;
  static constexpr int steps = K / 16;
  static constexpr int stage_size = FetchA::Tile::size + FetchB::Tile::size;
  static constexpr int shared_bytes = Stages * stage_size * static_cast<int>(sizeof(T));
  static_assert(is_same_v<T, typename FetchB::T>, "tile GEMM: a and b differ in type");
  static_assert(Stages >= 2, "tile GEMM: the ring needs at least two stages");
  static_assert(K % 32 == 0, "tile GEMM: tile_k must be a multiple of 32");

  float sums[Grid::rows / 16][Grid::columns / 8][4] = {};

  /// Adds the products for k in [begin, end) of the tile at (m, n); called by all threads of the block, with
  /// `shared_bytes` of shared memory aligned to 128 that nobody uses any more.
  TESSERA_DEVICE void run(const A& a, const B& b, int m, int n, int begin, int end, T* shared) {
    const int thread = thread_in_block();
    FetchA fetch_a(a, m, begin, end, thread);
    FetchB fetch_b(b, n, begin, end, thread);
    const int tiles = ceil_div(end - begin, K);
    const int row = Grid::row(thread / 32), column = Grid::column(thread / 32), lane = thread % 32;

    int fetched = 0;  // tiles asked for
    const auto fetch = [&] {
      if (fetched < tiles) {
        T* stage = shared + fetched % Stages * stage_size;
        copy(fetch_a, stage);
        copy(fetch_b, stage + FetchA::Tile::size);
      }
      ++fetched;
      commit_copies();  // an empty group too: waits count groups
    };
    Fragments fragments[2];
    const auto load = [&](int tile, int step) {
      const T* stage = shared + tile % Stages * stage_size;
      fragments[step % 2].load(stage, row, column, step * 16, lane);
    };

    for (int i = 0; i < Stages - 1; ++i) fetch();
    wait_copies<Stages - 2>();
    sync_block();
    load(0, 0);
    for (int tile = 0; tile < tiles; ++tile) {
      unroll<steps>([&](auto step) {
        if constexpr (step + 1 < steps) {
          load(tile, step + 1);
        } else {
          wait_copies<Stages - 2>();  // the next tile has arrived, and every warp has read this one
          sync_block();
          load(tile + 1, 0);
        }
        if constexpr (step == 0) fetch();
        multiply(fragments[step % 2]);
      });
    }
    wait_copies<0>();
    sync_block();
  }

  /// f(row, column, sum) for every element that this thread holds.
  template <class F>
  TESSERA_DEVICE void each(F f) const {
    const int warp = thread_in_block() / 32, lane = thread_in_block() % 32;
    unroll<Grid::rows / 16>([&](auto i) {
      unroll<Grid::columns / 8>([&](auto j) {
        unroll<4>([&](auto r) {
          f(Grid::row(warp) + i * 16 + sum_row(lane, r), Grid::column(warp) + j * 8 + sum_column(lane, r), sums[i][j][r]);
        });
      });
    });
  }

 private:
  struct Fragments {
    u32 a[Grid::rows / 16][4];
    u32 b[Grid::columns / 16][4];

    TESSERA_DEVICE void load(const T* stage, int row, int column, int k, int lane) {
      using TileA = typename FetchA::Tile;
      using TileB = typename FetchB::Tile;
      unroll<Grid::rows / 16>([&](auto i) {
        using Source = MatrixSource<TileA, false>;
        load_matrices<Source::transposed>(a[i], stage + Source::offset(row + i * 16, k, lane));
      });
      unroll<Grid::columns / 16>([&](auto j) {
        using Source = MatrixSource<TileB, true>;
        load_matrices<Source::transposed>(b[j], stage + TileA::size + Source::offset(column + j * 16, k, lane));
      });
    }
  };

  template <class F>
  static TESSERA_DEVICE void copy(F& fetch, T* tile) {
    unroll<F::count>([&](auto i) {
      T* chunk = tile + fetch.offset(i);
      unroll<F::pieces>([&](auto p) {
        T* to = chunk + p * F::width;
        const bool valid = fetch.valid(i, p);
        constexpr int bytes = F::width * static_cast<int>(sizeof(T));
        if constexpr (bytes >= 4) copy_async<bytes>(to, fetch.address(i, p), valid);
        else *to = valid ? *fetch.address(i, p) : T(0.0f);
      });
    });
    fetch.next();
  }

  TESSERA_DEVICE void multiply(const Fragments& f) {
    unroll<Grid::rows / 16>([&](auto i) {
      unroll<Grid::columns / 8>([&](auto j) { multiply_add<T>(sums[i][j], f.a[i], &f.b[j / 2][j % 2 * 2]); });
    });
  }
};

}  // namespace sm80
TESSERA_TILE_END
