// Tile GEMM of one block on AMD's CDNA cards: while the matrix cores work on one of two swizzled buffers in shared
// memory, the next tile travels from global memory to registers; one barrier per tile.
#pragma once
#include "layout.h"
#include "mfma.h"

TESSERA_TILE_BEGIN
namespace cdna {

/// The sum over k of a(m, k) * b(n, k) for one tile of the result, in float, of i8 in 32 bits. A and B are views of
/// f16, bf16, float or i8: (row, k), (column, k).
template <class A, class B, class C>
class Gemm {
 public:
  static constexpr Config config = C::config;
  static constexpr int threads = config.warps * wave_size;
  static constexpr int edge = unit_of(config, Arch::cdna);
  using FetchA = Prefetch<A, config.tile_m, config.tile_k, config.warps, edge>;
  using FetchB = Prefetch<B, config.tile_n, config.tile_k, config.warps, edge>;
  using T = typename FetchA::T;
  using Core = MatrixCore<T, edge>;
  using Sums = SumLayout<C, Arch::cdna, typename Core::Layout::C>;
  static constexpr int stage_size = FetchA::Tile::size + FetchB::Tile::size;
  static constexpr int shared_bytes = config.stages * stage_size * static_cast<int>(sizeof(T));
  static_assert(is_same_v<T, typename FetchB::T>, "tile GEMM: a and b differ in type");
  static_assert(validate(config, {0, 0, 0, sizeof(T)}, Arch::cdna) == Reason::ok, "tile GEMM: see Reason");
  static_assert(reads_conflict_free<typename FetchA::Tile>(), "tile GEMM: bank conflicts");
  static_assert(reads_conflict_free<typename FetchB::Tile>(), "tile GEMM: bank conflicts");
  /// How often a bank is asked at a time by the writes to shared memory, which transpose; the shipped tiles have 1. As
  /// a template's argument it is worked out once: an initial value would be several times.
  static constexpr int write_conflicts = Int<max(FetchA::write_conflicts(), FetchB::write_conflicts())>::value;
  static_assert(write_conflicts <= 2, "tile GEMM: bank conflicts");

  /// Adds the products for k in [begin, end) of the tile at (m, n). Called by all threads of the block, with
  /// `shared_bytes` of shared memory aligned to 16 that nobody uses any more.
  TESSERA_DEVICE void run(const A& a, const B& b, int m, int n, int begin, int end, T* shared) {
    FetchA fetch_a(a, m, begin, end, thread_in_block());
    FetchB fetch_b(b, n, begin, end, thread_in_block());
    const int tiles = ceil_div(end - begin, config.tile_k), wave = uniform(thread_in_block() / wave_size);
    if (tiles <= 0) return;
    const auto load = [&] {
      fetch_a.load();
      fetch_b.load();
    };
    const auto store = [&](int tile) {
      T* stage = shared + tile % 2 * stage_size;
      fetch_a.store(stage);
      fetch_b.store(stage + FetchA::Tile::size);
    };

    load();
    store(0);
    sync_block();
    for (int tile = 0; tile + 1 < tiles; ++tile) {
      load();
      keep_order();  // or the compiler moves the loads down to where their results are needed,
      multiply(shared + tile % 2 * stage_size, wave);
      keep_order();     // and waits for them up here
      store(tile + 1);  // into the buffer that everybody left before the last barrier
      sync_block();
    }
    multiply(shared + (tiles - 1) % 2 * stage_size, wave);
    sync_block();
  }

  /// What this thread holds of the result, register by register of Sums; r is a constant, or the sums end up in memory.
  TESSERA_DEVICE float sum(int r) const {
    constexpr int held = edge * edge / wave_size;
    float value = static_cast<float>(sums_[r / held][r % held]);
    touch(value);  // the emulator stores no accumulators to shared memory
    return value;
  }

 private:
  /// One tile of k from shared memory.
  TESSERA_DEVICE void multiply(const T* stage, int wave) {
    using Read = Operands<T, edge>;
    const auto at = thread_coords<Read>(thread_in_block() % wave_size);
    unroll<config.tile_k / Read::depth>([&](auto step) {
      T a[Sums::atoms_m][Read::held], b[Sums::atoms_n][Read::held];
      const T* const stage_b = stage + FetchA::Tile::size;
      const int k = step * Read::depth + at[1];
      unroll<Sums::atoms_m>(
          [&](auto i) { read(a[i], stage + FetchA::Tile::offset(Sums::row(wave) + i * edge + at[0], k)); });
      unroll<Sums::atoms_n>(
          [&](auto j) { read(b[j], stage_b + FetchB::Tile::offset(Sums::column(wave) + j * edge + at[0], k)); });
      unroll<Read::held / Core::held>([&](auto part) {
        unroll<Sums::atoms_m>([&](auto i) {
          unroll<Sums::atoms_n>([&](auto j) {
            typename Core::Sums& sum = sums_[i * Sums::atoms_n + j];
            sum = Core::multiply_add(a[i] + part * Core::held, b[j] + part * Core::held, sum);
          });
        });
      });
    });
  }
  static TESSERA_DEVICE void read(T (&to)[Operands<T, edge>::held], const T* from) {
    __builtin_memcpy(to, __builtin_assume_aligned(from, 16), 16);
  }

  typename Core::Sums sums_[Sums::atoms_m * Sums::atoms_n] = {};
};

}  // namespace cdna
TESSERA_TILE_END
