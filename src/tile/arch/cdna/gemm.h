// Tile GEMM of one block on AMD's CDNA cards: while the matrix cores work on one of two swizzled buffers in shared memory,
// the next tile travels from global memory to registers; one barrier per tile.
#pragma once
#include "../gpu/operand.h"
#include "layout.h"
#include "mfma.h"

TESSERA_TILE_BEGIN
namespace cdna {

/// Holds in registers what a thread fetches of an operand, and puts it into shared memory contiguous along k.
template <class V, int Rows, int Depth, int Threads>
class Prefetch {
 public:
  static constexpr bool transposes = contiguous_dim<V>() == 0;
  using Source = Fetch<V, Rows, Depth, Threads, transposes>;
  using T = typename Source::T;
  using Tile = SharedTile<T, Rows, Depth, 1>;
  static constexpr int chunk = Tile::chunk, count = Source::count;

  TESSERA_DEVICE Prefetch(const V& view, int row, int k, int end, int thread)
      : source_(view, row, k, end, thread), anywhere_(view.data) {}

  /// Starts loading the next tile.
  TESSERA_DEVICE void load() {
    unroll<count>([&](auto i) {
      unroll<Source::pieces>([&](auto p) {
        // Loads never branch, so that they are all under way at once: what is not valid reads the first element.
        const bool valid = source_.valid(i, p);
        const T* from = valid ? source_.address(i, p) : anywhere_;
        valid_[i][p] = valid;
        __builtin_memcpy(&held_[i][p * Source::width], __builtin_assume_aligned(from, bytes), bytes);
      });
    });
    source_.next();
  }

  /// Puts the loaded tile into shared memory.
  TESSERA_DEVICE void store(T* tile) const {
    T clean[count][chunk];
    unroll<count * chunk>([&](auto n) {
      constexpr int i = n / chunk, e = n % chunk;
      clean[i][e] = valid_[i][e / Source::width] ? held_[i][e] : T{};
    });
    if constexpr (!transposes) {
      unroll<count>([&](auto i) {
        __builtin_memcpy(__builtin_assume_aligned(tile + source_.offset(i), 16), clean[i], 16);
      });
    } else {
      static_assert(count <= chunk && (count & (count - 1)) == 0, "tile GEMM: a thread would transpose too much");
      unroll<chunk>([&](auto e) {
        T line[count];
        unroll<count>([&](auto i) { line[i] = clean[i][e]; });
        T* to = tile + Tile::offset(source_.column() + e, source_.line());
        __builtin_memcpy(__builtin_assume_aligned(to, sizeof line), line, sizeof line);
      });
    }
  }

 private:
  static constexpr int bytes = Source::width * static_cast<int>(sizeof(T));
  Source source_;
  const T* anywhere_;
  T held_[count][chunk];
  bool valid_[count][Source::pieces];
};

/// The sum over k of a(m, k) * b(n, k) for one tile of M x N, in float. A and B are views of f16 or bf16: (row, k), (column, k).
template <class A, class B, int M, int N, int K, int Warps>
class Gemm {
 public:
  static constexpr int threads = Warps * wave_size;
  using FetchA = Prefetch<A, M, K, threads>;
  using FetchB = Prefetch<B, N, K, threads>;
  using T = typename FetchA::T;
  using Grid = WarpGrid<M, N, Warps, 32, 32>;
  static constexpr int stage_size = FetchA::Tile::size + FetchB::Tile::size;
  static constexpr int shared_bytes = 2 * stage_size * static_cast<int>(sizeof(T));
  static_assert(is_same_v<T, typename FetchB::T>, "tile GEMM: a and b differ in type");
  static_assert(K % 16 == 0, "tile GEMM: tile_k must be a multiple of 16");
  static_assert(shared_bytes <= 64 * 1024, "tile GEMM: more than 64 KiB of shared memory");

  Accumulator sums[Grid::rows / 32][Grid::columns / 32] = {};

  /// Adds the products for k in [begin, end) of the tile at (m, n); called by all threads of the block, with
  /// `shared_bytes` of shared memory aligned to 16 that nobody uses any more.
  TESSERA_DEVICE void run(const A& a, const B& b, int m, int n, int begin, int end, T* shared) {
    const int thread = thread_in_block();
    FetchA fetch_a(a, m, begin, end, thread);
    FetchB fetch_b(b, n, begin, end, thread);
    const int tiles = ceil_div(end - begin, K);
    if (tiles <= 0) return;
    const auto store = [&](int tile) {
      T* stage = shared + tile % 2 * stage_size;
      fetch_a.store(stage);
      fetch_b.store(stage + FetchA::Tile::size);
    };
    const auto load = [&] {
      fetch_a.load();
      fetch_b.load();
    };

    load();
    store(0);
    sync_block();
    for (int tile = 0; tile + 1 < tiles; ++tile) {
      load();
      multiply(shared + tile % 2 * stage_size);
      store(tile + 1);  // everybody has left this buffer: it was read before the last barrier
      sync_block();
    }
    multiply(shared + (tiles - 1) % 2 * stage_size);
    sync_block();
  }

  /// f(row, column, sum) for every element that this thread holds.
  template <class F>
  TESSERA_DEVICE void each(F f) const {
    const int wave = wave_in_block(), lane = thread_in_block() % wave_size;
    unroll<Grid::rows / 32>([&](auto i) {
      unroll<Grid::columns / 32>([&](auto j) {
        unroll<16>([&](auto r) {
          f(Grid::row(wave) + i * 32 + sum_row(lane, r), Grid::column(wave) + j * 32 + sum_column(lane, r),
            sums[i][j][r.value]);
        });
      });
    });
  }

 private:
  static TESSERA_DEVICE int wave_in_block() { return __builtin_amdgcn_readfirstlane(thread_in_block() / wave_size); }

  /// One tile of k from shared memory.
  TESSERA_DEVICE void multiply(const T* stage) {
    const int row = Grid::row(wave_in_block()), column = Grid::column(wave_in_block());
    const int lane = thread_in_block() % wave_size;
    unroll<K / 16>([&](auto step) {
      T a[Grid::rows / 32][8], b[Grid::columns / 32][8];
      const int k = step * 16 + operand_k(lane);
      unroll<Grid::rows / 32>([&](auto i) { read(a[i], stage + FetchA::Tile::offset(row + i * 32 + operand_row(lane), k)); });
      unroll<Grid::columns / 32>([&](auto j) {
        read(b[j], stage + FetchA::Tile::size + FetchB::Tile::offset(column + j * 32 + operand_row(lane), k));
      });
      unroll<2>([&](auto half) {
        unroll<Grid::rows / 32>([&](auto i) {
          unroll<Grid::columns / 32>([&](auto j) {
            sums[i][j] = multiply_add(a[i] + half * 4, b[j] + half * 4, sums[i][j]);
          });
        });
      });
    });
  }
  static TESSERA_DEVICE void read(T (&to)[8], const T* from) {
    __builtin_memcpy(to, __builtin_assume_aligned(from, 16), 16);
  }
};

}  // namespace cdna
TESSERA_TILE_END
