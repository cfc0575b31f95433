// Tile GEMM of one block on NVIDIA cards from compute capability 8.0 on: cp.async fills a ring of stages in swizzled
// shared memory, cores work on them; what a core holds in fragments is loaded one step ahead.
#pragma once
#include "cores.h"

TESSERA_TILE_BEGIN
namespace sm80 {

/// The sum over k of a(m, k) * b(n, k) for one tile of the result, in float. A and B are views of f16, bf16 or float:
/// (row, k), (column, k).
template <class A, class B, class C, Floats Precision = Floats::exact>
class Gemm {
 public:
  static constexpr Config config = C::config;
  static constexpr int threads = config.warps * warp_size;
  using FetchA = Fetch<A, config.tile_m, config.tile_k, config.warps, warp_size>;
  using FetchB = Fetch<B, config.tile_n, config.tile_k, config.warps, warp_size>;
  using T = typename FetchA::T;
  using Core = typename CoreOf<C, typename FetchA::Tile, typename FetchB::Tile, Precision>::type;
  using Sums = typename Core::Sums;
  static constexpr int stage_size = FetchA::Tile::size + FetchB::Tile::size;
  static constexpr int shared_bytes = config.stages * stage_size * static_cast<int>(sizeof(T));
  static_assert(is_same_v<T, typename FetchB::T>, "tile GEMM: a and b differ in type");
  static_assert(validate(config, {0, 0, 0, sizeof(T)}, Arch::sm80) == Reason::ok, "tile GEMM: see Reason");
  static_assert(is_conflict_free<FetchA, typename Core::ReadA>() && is_conflict_free<FetchB, typename Core::ReadB>(),
                "tile GEMM: bank conflicts");

  /// Adds the products for k in [begin, end) of the tile at (m, n). Called by all threads of the block, with
  /// `shared_bytes` of shared memory aligned to 128 that nobody uses any more.
  TESSERA_DEVICE void run(const A& a, const B& b, int m, int n, int begin, int end, T* shared) {
    FetchA fetch_a(a, m, begin, end, thread_in_block());
    FetchB fetch_b(b, n, begin, end, thread_in_block());
    const int tiles = ceil_div(end - begin, config.tile_k);
    int fetched = 0;
    const auto fetch = [&] {
      if (fetched < tiles) {
        T* stage = shared + fetched % config.stages * stage_size;
        copy(fetch_a, stage);
        copy(fetch_b, stage + FetchA::Tile::size);
      }
      ++fetched;
      commit_copies();  // an empty group too: waits count groups
    };
    const auto wait = [&] {  // until the oldest tile under way has arrived, and every warp is done with the one before
      wait_copies<config.stages - 2>();
      sync_block();
    };
    for (int i = 0; i < config.stages - 1; ++i) fetch();
    multiply(tiles, shared, fetch, wait);
    wait_copies<0>();
    sync_block();
  }

  /// What this thread holds of the result, register by register of Sums; r is a constant, or the sums end up in memory.
  TESSERA_DEVICE float sum(int r) const { return sums_[r]; }

 private:
  static constexpr int steps = config.tile_k / Core::step;

  /// All tiles, as they come.
  template <class FetchNext, class Wait>
  TESSERA_DEVICE void multiply(int tiles, const T* shared, const FetchNext& fetch, const Wait& wait) {
    const int warp = thread_in_block() / warp_size, row = Sums::row(warp), column = Sums::column(warp);
    const auto stage = [&](int tile) { return shared + tile % config.stages * stage_size; };
    if constexpr (requires { typename Core::Fragments; }) {
      typename Core::Fragments fragments[2];
      const auto load = [&](int tile, auto step) {
        fragments[step % 2].load(stage(tile), stage(tile) + FetchA::Tile::size, row, column, step * Core::step);
      };
      wait();
      load(0, Int<0>{});
      for (int tile = 0; tile < tiles; ++tile) {
        unroll<steps>([&](auto step) {
          if constexpr (step + 1 < steps) {
            load(tile, Int<step + 1>{});
          } else {
            wait();
            load(tile + 1, Int<0>{});
          }
          if constexpr (step == 0) fetch();
          Core::multiply(fragments[step % 2], sums_);
        });
      }
    } else {
      for (int tile = 0; tile < tiles; ++tile) {
        wait();
        fetch();
        unroll<steps>([&](auto step) {
          Core::multiply(stage(tile), stage(tile) + FetchA::Tile::size, row, column, step * Core::step, sums_);
        });
      }
    }
  }

  template <class F>
  static TESSERA_DEVICE void copy(F& fetch, T* tile) {
    constexpr int bytes = F::width * static_cast<int>(sizeof(T));
    const auto copy_chunk = [&](auto i) {
      T* to = tile + fetch.offset(i);
      if constexpr (bytes >= 4) {
        unroll<F::pieces>([&](auto p) {
          const int count = fetch.valid_count(i, p);
          T* const piece = to + p * F::width;
          if (count == 0 || count == F::width) {
            copy_async<bytes>(piece, fetch.address(i, p), count != 0);
          } else {  // the end of a line: checkers take a part of cp.async's chunk for all of it
#pragma unroll 1
            for (int e = 0; e < F::width; ++e) piece[e] = e < count ? fetch.address(i, p)[e] : T{};
          }
        });
      } else {  // too small for cp.async
        alignas(16) T chunk[F::pieces];
        unroll<F::pieces>([&](auto p) { chunk[p] = fetch.valid(i, p) ? *fetch.address(i, p) : T{}; });
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(chunk);
      }
    };
    if constexpr (bytes >= 4 || !F::is_strided) {
      unroll<F::count>(copy_chunk);
    } else {
#pragma unroll 1  // all chunks at once would take too many registers
      for (int i = 0; i < F::count; ++i) copy_chunk(i);
    }
    fetch.next();
  }

  float sums_[Sums::layout().registers()] = {};
};

}  // namespace sm80
TESSERA_TILE_END
